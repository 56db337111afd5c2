"""FedSGT without models or data: grouping, sequence plans, the prefix tree, selection.

``fedforget.sequences.theory`` holds the paper's formulas and ``fedforget.sequences.ledger`` the record
of deletions; both are imported by their own names.
"""

from fedforget.sequences.barycentre import barycentre_groups, barycentre_objective
from fedforget.sequences.groups import balanced_groups
from fedforget.sequences.plans import plan_sequences, rotations
from fedforget.sequences.prior import expected_longest_prefix
from fedforget.sequences.selection import Selected, active_prefix, select, weight_by_prefix
from fedforget.sequences.slices import Slice
from fedforget.sequences.tree import PlanReport, PrefixTree, plan_report

__all__ = [
    "PlanReport",
    "PrefixTree",
    "Selected",
    "Slice",
    "active_prefix",
    "balanced_groups",
    "barycentre_groups",
    "barycentre_objective",
    "expected_longest_prefix",
    "plan_report",
    "plan_sequences",
    "rotations",
    "select",
    "weight_by_prefix",
]
