"""Tables of a FedSGT run: what serves, the course of a demonstration, what training cost, the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedforget.reporting.tables import Table, number

if TYPE_CHECKING:
    from fedforget.sequences.ledger import Ledger


def prefix_name(prefix: Sequence[int]) -> str:
    """Return a prefix as its groups in order."""
    return ",".join(map(str, prefix)) or "-"


def served_table(served: Mapping[str, Any]) -> Table:
    """Return what was served when it was last measured."""
    rows = [
        ["accuracy", number(served["accuracy"])],
        ["test records", str(served["records"])],
        ["rule", str(served["rule"])],
        ["active modules", str(served["modules"])],
        ["prefixes that serve", "  ".join(map(prefix_name, served["prefixes"])) or "none"],
        ["generation", str(served["generation"])],
    ]
    return Table("Served after the last training", ["", "value"], rows)


def verification_table(at: str, modules: Sequence[Mapping[str, Any]]) -> Table:
    """Return what the clients trained again, when they were last asked to."""
    rows = [
        [prefix_name(one["prefix"]), one["stored"][:16], "yes" if one["ok"] else f"NO: {one['difference']}"]
        for one in modules
    ]
    note = f"Trained again by the clients, without the deleted data, at {at}."
    return Table("Verified through the clients", ["prefix", "hash", "same bits"], rows, [note])


def training_table(trainings: Sequence[Mapping[str, Any]]) -> Table:
    """Return what each training cost: the first, those after repairs, those of new generations."""
    rows = [
        [
            str(i),
            str(one["generation"]),
            str(one["modules"]),
            f"{one['seconds']:.1f}",
            f"{one['client_seconds']:.1f}",
            str(one["messages"]),
            f"{one['bytes_sent'] / 1e6:.2f}",
            f"{one['bytes_received'] / 1e6:.2f}",
        ]
        for i, one in enumerate(trainings, start=1)
    ]
    columns = [
        "",
        "generation",
        "modules",
        "seconds",
        "client seconds",
        "client visits",
        "sent, MB",
        "received, MB",
    ]
    return Table("Trainings", columns, rows, ["A client visit is one message, with all of a round's work."])


def grouping_table(objectives: Mapping[str, float]) -> Table:
    """Return the barycentre grouping's objective beside the random grouping's."""
    rows = [[name, f"{value:.4g}"] for name, value in objectives.items()]
    return Table(
        "Grouping: squared distances of group means to the global mean", ["grouping", "objective"], rows
    )


def course_tables(demo: Mapping[str, Any]) -> list[Table]:
    """Return the course of a demonstration, and of the repaired one where there was one."""
    shown = [_requests(demo), _life(demo)]
    verified = [[*_verification(one), "no"] for one in demo["verified"]]
    if repaired := demo.get("repaired"):
        shown += [_repaired_requests(repaired), _repairs(repaired)]
        verified += [[*_verification(one), str(one["repairs"])] for one in repaired["verified"]]
    columns = ["after requests", "prefix", "same bits", "repairs before"]
    shown.append(Table("Retrained without the deleted data", columns, verified))
    return shown


def ledger_tables(ledger: Ledger) -> list[Table]:
    """Return the ledger as tables: groups, sequences with what serves, requests, and events."""
    gone = ledger.deleted_groups()
    groups = [
        [
            str(i),
            str(len(group)),
            str(sum(size for _, _, size in group)),
            "deleted" if i in gone else "active",
        ]
        for i, group in enumerate(ledger.groups())
    ]
    served = [
        [str(i), prefix_name(order), prefix_name(prefix)]
        for i, (order, prefix) in enumerate(zip(ledger.sequences(), ledger.served_prefixes(), strict=True))
    ]
    requests = [
        [one.at, one.outcome.request_id, one.client, "all" if one.slice_id is None else str(one.slice_id),
         "all" if one.records is None else str(len(one.records)), str(len(one.outcome.modules_off))]
        for one in ledger.requests()
    ]  # fmt: skip
    events = [[str(e.number), e.at, e.kind, e.sha256[:16]] for e in ledger.history() if e.kind != "module"]
    return [
        Table(f"Groups of generation {ledger.generation()}", ["group", "slices", "records", "state"], groups),
        Table("Sequences", ["", "order", "serves"], served),
        Table("Requests", ["at", "id", "client", "slice", "records", "modules off"], requests),
        Table("Events, modules left out", ["number", "at", "kind", "hash"], events),
    ]


def _requests(demo: Mapping[str, Any]) -> Table:
    rows = [
        [*_row(row), f"{row['longest_expected']:.2f} ({_band(row.get('longest_band'))})"]
        for row in demo["requests"]
    ]
    confidence = f"{demo['life']['confidence']:.0%}"
    notes = [
        f"Accuracy is on {demo['requests'][0]['records']} test records. longest: groups in the longest "
        f"prefix that serves, its expectation before any request, and the band of {confidence} for one run."
    ]
    stream = demo.get("stream", "uniform")
    if stream != "uniform":
        notes.append(f"What is expected holds for independent uniform requests; these are {stream}.")
    if asked := demo.get("asked"):
        notes.append(
            f"Requests, {asked}. hit before: the group was out of service, and nothing more was switched off."
        )
    columns = ["", "slice", "group", "accuracy", "modules", "longest", "expected (band)"]
    return Table("Requests", columns, rows, notes)


def _life(demo: Mapping[str, Any]) -> Table:
    plain = demo["life"]
    rows = [["none", _observed(plain), f"{plain['mean']:.1f} ± {plain['std']:.1f}", _band(plain["band"])]]
    notes = ["Expected: mean ± standard deviation over streams, exact."]
    if repaired := demo.get("repaired"):
        found = repaired["life"]
        rows.append(
            [
                f"at most {repaired['most']}",
                _observed(found),
                f"{found['mean']:.1f} ± {found['std']:.1f} (estimate)",
                _band(found["band"]),
            ]
        )
        low, high = found["interval"]
        notes.append(
            f"With repairs it is an estimate by simulation of {found['trials']} streams (mean between "
            f"{low:.2f} and {high:.2f}), every group taken to have data left when it is repaired."
        )
    columns = ["repairs", "observed", "expected", f"band of {plain['confidence']:.0%}"]
    return Table("Service life in requests", columns, rows, notes)


def _repaired_requests(repaired: Mapping[str, Any]) -> Table:
    note = (
        f"The same requests on a copy of the trained run, repaired when {repaired['repair_at']:.0%} of the "
        f"sequences serve nothing, at most {repaired['most']} times."
    )
    columns = ["", "slice", "group", "accuracy", "modules", "longest"]
    return Table("Requests, with repairs", columns, [_row(row) for row in repaired["requests"]], [note])


def _repairs(repaired: Mapping[str, Any]) -> Table:
    rows = [
        [
            str(one["after"]),
            prefix_name(one["groups"]),
            str(one["modules"]),
            str(one["before"]),
            f"{one['seconds']:.1f}",
            str(one["visits"]),
            f"{one['bytes'] / 1e6:.2f}",
        ]
        for one in repaired["repairs"]
    ]
    columns = ["after requests", "groups", "modules retrained", "kept", "seconds", "client visits", "MB"]
    note = "Clients ran one after another in this process, while the modules that were kept served."
    return Table("What the repairs cost", columns, rows, [note])


def _row(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["number"]),
        row["request"],
        row["group"],
        number(row["accuracy"]),
        str(row["modules"]),
        str(row["longest"]),
    ]


def _verification(one: Mapping[str, Any]) -> list[str]:
    return [str(one["after"]), prefix_name(one["prefix"]), f"{one['same']} of {one['modules']}"]


def _observed(life: Mapping[str, Any]) -> str:
    return str(life["observed"]) if life["ended"] else "not ended"


def _band(band: Sequence[float] | None) -> str:
    return f"{float(band[0]):.0f} to {float(band[1]):.0f}" if band else "-"
