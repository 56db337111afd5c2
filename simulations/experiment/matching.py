"""Settings at which the methods' training costs are alike: FedSGT, section 5.3.1."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from fedforget.errors import ConfigError, nearest
from fedforget.sequences import PrefixTree, plan_sequences
from fedforget.sequences.theory import matched_budget
from fedforget.sequential.config import SequentialRunConfig

RULES = ("formula", "examples", "none")
FEDSGT = "FedSGT"


@dataclass(frozen=True)
class Match:
    """What makes the costs alike, and what cannot be made alike.

    Costs count a pass of all data through the training of one module as 1, local epochs apart.

    Attributes
    ----------
    rule : str
        ``formula``: the paper's, in which a baseline's adapter is as large as L modules and costs L times a
        module; B follows from T. ``examples``: adapters are alike and records passed are; T follows from
        B. ``none``: as configured.
    rounds : int
        T, of every method but FedSGT.
    budget : int
        B.
    modules : int
        Modules' worth of parameters in the adapter of every method but FedSGT.
    wanted : float
        What ``budget`` or ``rounds`` was rounded from.
    fedsgt, fedavg : float
        Costs of the two, planned: modules that sequences share are trained once.
    """

    rule: str
    rounds: int
    budget: int
    modules: int
    wanted: float
    fedsgt: float
    fedavg: float

    @property
    def residual(self) -> float:
        """How much more FedSGT costs than FedAvg, as a share."""
        return self.fedsgt / self.fedavg - 1.0


def match(config: SequentialRunConfig, rule: str = "formula") -> Match:
    """Choose B or T so that FedSGT costs what T rounds of FedAvg cost.

    Parameters
    ----------
    config : SequentialRunConfig
        L, T (``training.rounds``), and for ``examples`` and ``none`` B (``sequences.budget``).
    rule : {"formula", "examples", "none"}
        See :class:`Match`.

    Raises
    ------
    ConfigError
        There is no such rule.
    """
    if rule not in RULES:
        raise ConfigError([f"--match: {rule!r} is not one of {', '.join(RULES)}{nearest(rule, RULES)}"])
    L, T, B = config.grouping.groups, config.training.rounds, config.sequences.budget
    phase = config.training.rounds_per_phase
    wanted = float(B)
    if rule == "formula":
        wanted = matched_budget(T, L) / phase
        B = max(1, round(wanted))
    passes = _passes(L, B, list(config.sequences.prior)) * phase
    if rule == "examples":
        wanted = passes
        T = max(1, round(wanted))
    # IA3 has no rank to enlarge: its adapter is as it is.
    modules = L if rule == "formula" and config.module.kind != "ia3" else 1
    return Match(rule, T, B, modules, wanted, passes, float(T * modules))


def configured(config: SequentialRunConfig, method: str, found: Match) -> SequentialRunConfig:
    """Return the configuration of one method at matched cost."""
    changed = copy.deepcopy(config)
    if method == FEDSGT:
        changed.sequences.budget = found.budget
        changed.sequences.shards = 0  # SISA's: what is planned and asked for must be what is trained
        return changed
    changed.training.rounds = found.rounds
    changed.module.r *= found.modules
    changed.module.alpha *= found.modules  # the scale alpha / r stays
    return changed


def _passes(groups: int, budget: int, prior: list[float]) -> float:
    tree = PrefixTree(plan_sequences(groups, budget, prior or None))
    return sum(len(node) for node in tree.nodes) / groups
