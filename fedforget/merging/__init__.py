"""Merging client summaries: one file per method, a registry that describes them, and ``merge``."""

# Importing a method's module registers it.
from fedforget.merging import ablations, averaging, dare, fisher_average, fulm, ties
from fedforget.merging.engine import MergeResult, merge, merge_tensors
from fedforget.merging.firm import calibrate_epsilon
from fedforget.merging.registry import Method, Plan, method, methods
from fedforget.merging.selection import kept_count
from fedforget.parameters import Parameter

__all__ = [
    "MergeResult",
    "Method",
    "Parameter",
    "Plan",
    "ablations",
    "averaging",
    "calibrate_epsilon",
    "dare",
    "fisher_average",
    "fulm",
    "kept_count",
    "merge",
    "merge_tensors",
    "method",
    "methods",
    "ties",
]
