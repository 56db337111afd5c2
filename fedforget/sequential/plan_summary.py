"""What a FedSGT plan costs and what it promises, told before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import client_names, client_records
from fedforget.reporting.sequential_tables import grouping_table
from fedforget.reporting.tables import Table
from fedforget.sequences import Slice, plan_report
from fedforget.sequences.theory import (
    EXACT_GROUPS,
    communication_rounds,
    expected_remaining_curve,
    fedavg_communication_rounds,
    fedcio_communication_rounds,
    fedcio_deletion_rate,
    matched_budget,
    service_life,
)
from fedforget.sequential.borrowing import borrowed_stack
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.embeddings import slice_embeddings
from fedforget.sequential.plan import SequentialPlan, grouping_objectives, make_plan, reads_embeddings

CLUSTERS, ROUNDS = 5, 10  # FedCIO's, and the rounds of FedAvg that the paper compares with


def local_plan(config: SequentialRunConfig) -> tuple[SequentialPlan, dict[str, float]]:
    """Make the plan that a run of this configuration makes, with every client in this process.

    Returns
    -------
    plan : SequentialPlan
    objectives : dict
        For the barycentre grouping, its objective and the random grouping's; else empty.
    """
    federated = load_corpus(config.data, config.seeds.data).federated
    data = [client_records(config, name, federated=federated) for name in client_names(config.data)]
    slices = [item for one in data for item in one.declared()]
    if not reads_embeddings(config):
        return make_plan(config, slices), {}
    points: dict[tuple[str, int], Any] = {}
    with borrowed_stack(config) as stack:
        for one in data:
            points |= slice_embeddings(stack.classifier, one, threads=config.training.threads)
    plan = make_plan(config, slices, points)
    return plan, grouping_objectives(config, plan, points)


def summarise(config: SequentialRunConfig) -> dict[str, Any]:
    """Return what the plan of a configuration costs, and how long and on how much data it will serve.

    Returns
    -------
    dict
        ``cost`` (a :class:`~fedforget.sequences.PlanReport`), ``module_bytes``, ``life``
        (requests until service ends), ``remaining`` (expected groups of the longest active prefix after
        0, 1, ... requests), ``communication`` (rounds per client), ``grouping`` objectives.
    """
    plan, objectives = local_plan(config)
    with borrowed_stack(config) as stack:
        module_bytes = stack.module_bytes
    cost = plan_report(plan.tree, plan.groups, module_bytes, config.rounds_per_phase)
    visits = cost.client_visits.values()
    L, B, S = len(plan.groups), len(plan.sequences), config.data.slices
    found: dict[str, Any] = {
        "plan": plan.as_dict(),
        "module_bytes": module_bytes,
        "cost": asdict(cost),
        "communication": {
            "visits": {"mean": sum(visits) / len(visits), "least": min(visits), "most": max(visits)},
            "formula": communication_rounds(L, S, B),
            "fedavg": fedavg_communication_rounds(ROUNDS),
            "fedcio": fedcio_communication_rounds(ROUNDS),
        },
        "matched_budget": matched_budget(ROUNDS, L),
        "life": life(plan, config),
        "fedcio_life": fedcio_deletion_rate(CLUSTERS),
        "grouping": objectives,
    }
    if L <= EXACT_GROUPS:
        longest = int(found["life"]["band"][1]) if found["life"]["band"] else L
        found["remaining"] = expected_remaining_curve(
            plan.sequences, min(longest, 40), prior=hit_weights(plan, config), num_groups=L
        )
    return found


def life(plan: SequentialPlan, config: SequentialRunConfig, confidence: float = 0.9) -> dict[str, Any]:
    """Return the expected number of requests until service ends, and a band that one run falls in."""
    found = service_life(plan.sequences, prior=hit_weights(plan, config), num_groups=len(plan.groups))
    finite = found.mean < float("inf")
    return {
        "mean": found.mean,
        "std": found.std,
        "band": list(found.band(confidence)) if finite else None,
        "confidence": confidence,
    }


def hit_weights(plan: SequentialPlan, config: SequentialRunConfig) -> list[float]:
    """Return how likely a request hits each group: the prior, else its share of the slices."""
    return list(config.sequences.prior) or [float(len(group)) for group in plan.groups]


def tables(found: dict[str, Any]) -> list[Table]:
    """Return what :func:`summarise` found as tables."""
    cost, talk, lasts = found["cost"], found["communication"], found["life"]
    groups = [[Slice(*item) for item in group] for group in found["plan"]["groups"]]
    band = lasts["band"]
    rows = [
        ["groups", f"{len(groups)} of {_range([len(group) for group in groups])} slices"],
        ["sequences", str(len(found["plan"]["sequences"]))],
        ["modules (nodes of the prefix tree)", f"{cost['nodes']} ({cost['unshared_nodes']} without sharing)"],
        ["rounds", f"{cost['rounds']} in {cost['phases']} phases"],
        ["one module", _size(found["module_bytes"])],
        ["stored modules", _size(cost["stored_bytes"])],
        ["from the clients", _size(cost["bytes_up"])],
        ["to clients without a cache", _size(cost["bytes_down"])],
        ["records passed per local epoch", str(cost["examples"])],
    ]
    v = talk["visits"]
    compared = [
        ["modules trained per client", f"{v['mean']:.1f} ({_range([v['least'], v['most']])})"],
        ["the same, by the paper's formula", f"{talk['formula']:.1f}"],
        [f"FedAvg, {ROUNDS} rounds", str(talk["fedavg"])],
        [f"FedCIO, {ROUNDS} rounds", str(talk["fedcio"])],
        [f"sequences for the cost of {ROUNDS} rounds of FedAvg", f"{found['matched_budget']:.1f}"],
    ]
    served = [
        ["requests until service ends", f"{lasts['mean']:.1f} +- {lasts['std']:.1f}"],
        [f"band of {lasts['confidence']:.0%}", f"{band[0]:.0f} to {band[1]:.0f}" if band else "never ends"],
        [f"FedCIO, {CLUSTERS} clusters", f"{found['fedcio_life']:.1f}"],
    ]
    shown = [
        Table("Cost", ["", "plan"], rows),
        Table("Communication per client", ["", "visits"], compared),
        Table("Service life", ["", "requests"], served),
    ]
    if "remaining" in found:
        curve = [[str(r), f"{value:.2f}"] for r, value in enumerate(found["remaining"])]
        title = "Longest active prefix, expected (groups)"
        shown.append(Table(title, ["after requests", "groups"], curve))
    if found["grouping"]:
        shown.append(grouping_table(found["grouping"]))
    return shown


def _range(values: list[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least} to {most}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
