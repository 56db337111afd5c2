"""Training examples and questions: real-world facts, fictional facts, and files that users bring."""

from fedforget.data.examples import ROLES, SPLITS, Data, Example, Question
from fedforget.data.facts import FactData
from fedforget.data.fictional import pretraining, vocabulary
from fedforget.data.jsonl import JsonlData
from fedforget.data.partition import by_domain, dirichlet, iid
from fedforget.data.registry import Family, client_examples, client_retain_examples, families, load_data

__all__ = [
    "ROLES",
    "SPLITS",
    "Data",
    "Example",
    "FactData",
    "Family",
    "JsonlData",
    "Question",
    "by_domain",
    "client_examples",
    "client_retain_examples",
    "dirichlet",
    "families",
    "iid",
    "load_data",
    "pretraining",
    "vocabulary",
]
