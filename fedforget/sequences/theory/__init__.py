"""What the theory predicts: service life, remaining data, costs (FedSGT, Section 5 and Appendix A).

Requests are independent and with repetition: a request may hit a group that an earlier one has
already taken. The distribution over groups is uniform unless a prior is given.
"""

from fedforget.sequences.theory.costs import (
    communication_rounds,
    fedavg_communication_rounds,
    fedcio_communication_rounds,
    matched_budget,
    participation_rounds,
)
from fedforget.sequences.theory.inputs import EXACT_GROUPS
from fedforget.sequences.theory.remaining import (
    expected_cyclic_span,
    expected_remaining_curve,
    expected_remaining_data,
    expected_remaining_groups,
    fedcio_remaining_data,
    remaining_band,
)
from fedforget.sequences.theory.repairs import RepairedLife, due_for_repair, monte_carlo_repaired_life
from fedforget.sequences.theory.service_life import (
    ServiceLife,
    deletion_rate,
    fedcio_deletion_rate,
    service_life,
)
from fedforget.sequences.theory.simulation import (
    Estimate,
    monte_carlo_remaining_groups,
    monte_carlo_service_life,
)

__all__ = [
    "EXACT_GROUPS",
    "Estimate",
    "RepairedLife",
    "ServiceLife",
    "communication_rounds",
    "deletion_rate",
    "due_for_repair",
    "expected_cyclic_span",
    "expected_remaining_curve",
    "expected_remaining_data",
    "expected_remaining_groups",
    "fedavg_communication_rounds",
    "fedcio_communication_rounds",
    "fedcio_deletion_rate",
    "fedcio_remaining_data",
    "matched_budget",
    "monte_carlo_remaining_groups",
    "monte_carlo_repaired_life",
    "monte_carlo_service_life",
    "participation_rounds",
    "remaining_band",
    "service_life",
]
