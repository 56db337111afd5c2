"""Measuring what a model still knows: multiple choice, perplexity, generated answers."""

from fedforget.evaluation.multiple_choice import Accuracy, ItemScore, score, summarise
from fedforget.evaluation.perplexity import Perplexity, perplexity, prepare_texts
from fedforget.evaluation.prepared import PreparedQuestion, PreparedQuestions, prepare
from fedforget.evaluation.suite import Suite, collapsed, domains, evaluate

__all__ = [
    "Accuracy",
    "ItemScore",
    "Perplexity",
    "PreparedQuestion",
    "PreparedQuestions",
    "Suite",
    "collapsed",
    "domains",
    "evaluate",
    "perplexity",
    "prepare",
    "prepare_texts",
    "score",
    "summarise",
]
