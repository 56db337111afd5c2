"""Training examples and questions: facts, benchmarks, and files that users bring."""

from fedforget.data.benchmark import Benchmark, CombinedData
from fedforget.data.examples import ROLES, SPLITS, Data, Example, Question
from fedforget.data.facts import FactData
from fedforget.data.fictional import pretraining, vocabulary
from fedforget.data.items import MultipleChoice, Pair
from fedforget.data.jsonl import JsonlData
from fedforget.data.own_tables import TableData
from fedforget.data.partition import by_domain, contiguous, dirichlet, iid
from fedforget.data.registry import Family, families, load_data
from fedforget.data.shares import client_examples, client_retain_examples

__all__ = [
    "ROLES",
    "SPLITS",
    "Benchmark",
    "CombinedData",
    "Data",
    "Example",
    "FactData",
    "Family",
    "JsonlData",
    "MultipleChoice",
    "Pair",
    "Question",
    "TableData",
    "by_domain",
    "client_examples",
    "client_retain_examples",
    "contiguous",
    "dirichlet",
    "families",
    "iid",
    "load_data",
    "pretraining",
    "vocabulary",
]
