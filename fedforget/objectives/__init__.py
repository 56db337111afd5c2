"""What clients minimise: one objective per file, and a registry that describes them.

To add one, write a frozen dataclass of parameters with a ``prepare`` method and decorate it with
``register``; import its module here.
"""

# Importing an objective's module registers it.
from fedforget.objectives import causal_lm, grad_diff, gradient_ascent, npo, rmu
from fedforget.objectives.registry import (
    Batch,
    Description,
    Loss,
    Objective,
    needs_retain,
    objective,
    objectives,
    register,
)

__all__ = [
    "Batch",
    "Description",
    "Loss",
    "Objective",
    "causal_lm",
    "grad_diff",
    "gradient_ascent",
    "needs_retain",
    "npo",
    "objective",
    "objectives",
    "register",
    "rmu",
]
