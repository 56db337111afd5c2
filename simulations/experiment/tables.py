"""The experiment's tables, of stored results alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget.evaluation.membership import Auc
from fedforget.reporting.tables import Table
from simulations.experiment import summaries as say
from simulations.experiment.cells import BASE
from simulations.experiment.matching import FEDSGT
from simulations.experiment.predicted import FEDCIO
from simulations.experiment.summaries import Mean, Result

FEDAVG = "FedAvg"


def outcome_table(results: Sequence[Result], setting: str) -> Table:
    """Accuracy, service life and recovery of every method in one setting."""
    public = say.mean(one["public"] for one in say.of(results, setting, FEDSGT))
    rows = [["public model", "-", _text(public), *["-"] * 5]] if public else []
    for method in say.methods(say.of(results, setting)):
        own = say.of(results, setting, method)
        first = own[0]
        point = "-"
        if first["recovers"]:
            last = max(row["after"] for one in own for row in one["course"] if row["accuracy"] is not None)
            point = _text(say.mean(say.accuracy_at(one, last) for one in own)) + f" (after {last})"
        rows.append(
            [
                method,
                "yes" if first["exact"] else "no",
                _text(say.mean(say.accuracy_at(one, 0) for one in own)),
                _life(own),
                _expected(own),
                point if first["recovers"] else _text(_last_accuracy(own)) + " (last)",
                _seconds(say.times(own)),
                _text(say.mean(_recovered(one) for one in own)),
            ]
        )
    columns = [
        "method",
        "exact",
        "accuracy before",
        "service life",
        "expected",
        "accuracy after requests",
        "recovery, s",
        "accuracy recovered",
    ]
    notes = [
        "Service life: the number of the request after which nothing served without retraining. Approximate "
        "methods have none: what they serve may depend on the deleted data. Expected: by theory, for FedCIO "
        "with clusters of equal size, and in brackets for the clusters that formed. Public model: the frozen "
        "classifier, without anything that clients trained. (last): of what served before service ended. "
        "Mean over seeds ± half width of the 95 % t-interval."
    ]
    return Table(f"{setting}: accuracy and service", columns, rows, notes)


def cost_table(results: Sequence[Result], setting: str) -> Table:
    """What training every method cost, measured."""
    reference = [say.cost_units(one) for one in say.of(results, setting, FEDAVG)]
    rows = []
    for method in say.methods(say.of(results, setting)):
        own = say.of(results, setting, method)
        units = say.mean(say.cost_units(one) for one in own)
        share = "-"
        if units and reference:
            share = f"{units.value / (sum(reference) / len(reference)):.2f}"
        spent = [one["training"] for one in own]
        rows.append(
            [
                method,
                _text(units, 1),
                share,
                _text(say.mean(say.passes(one) for one in own), 1),
                _text(say.mean(one["seconds"] for one in spent), 1),
                _text(say.mean(one["participations"] for one in spent), 0),
                _text(say.mean(one["visits"] for one in spent), 0),
                _text(say.mean((one["bytes_sent"] + one["bytes_received"]) / 1e6 for one in spent), 1),
                _text(say.mean(one["storage_bytes"] / 1e6 for one in spent), 2),
            ]
        )
    columns = [
        "method", "cost", "of FedAvg's", "passes of the data", "seconds", "participations",
        "modules trained", "MB sent and received", "MB stored",
    ]  # fmt: skip
    one = say.of(results, setting)[0]["match"]
    notes = [
        "Measured, up to the end of training. Cost: passes of all data times the modules' worth of "
        "parameters that each pass trains, the unit that costs are matched in. Participations: pairs of a "
        "client and a round; modules trained: a FedSGT client trains several in a round.",
        f"Matched by {one['rule']}: B = {one['budget']} (from {one['wanted']:.2f}) for FedSGT, T = "
        f"{one['rounds']} rounds and an adapter of {one['modules']} modules' size for the others; planned "
        f"difference {one['residual']:+.1%}.",
    ]
    ours, theirs = say.of(results, setting, FEDSGT), say.of(results, setting, FEDAVG)
    data = say.paired(ours, theirs, lambda a, b: say.passes(a) / say.passes(b))
    took = say.paired(ours, theirs, lambda a, b: a["training"]["seconds"] / b["training"]["seconds"])
    if data and took:
        notes.append(
            f"In records passed FedSGT's training is {data.value:.1f} times FedAvg's, and in time "
            f"{took.value:.1f} times, clients one after another."
        )
    return Table(f"{setting}: cost of training", columns, rows, notes)


def membership_table(results: Sequence[Result], setting: str) -> Table:
    """Membership inference on the deleted records."""
    rows = []
    for method in say.methods(say.of(results, setting)):
        found = say.membership(results, setting, method)
        bits = say.verified(say.of(results, setting, method))
        if found is None:
            rows.append([method, "-", "-", "-", "-", "-", "-", "-"])
            continue
        rows.append(
            [
                method,
                "/".join(str(after) for after in found.after),
                str(found.now.members),
                _auc(found.before),
                _auc(found.now),
                _auc(found.retrained),
                _auc(found.difference, sign=True),
                f"{bits[0]} of {bits[1]}" if bits else "-",
            ]
        )
    columns = [
        "method", "after requests", "deleted records", "AUC before", "AUC after", "AUC retrained",
        "after - retrained", "same bits",
    ]  # fmt: skip
    notes = [
        "AUC of the loss-threshold attack between deleted and held-out records, with DeLong 95 % intervals; "
        "0.5 is a coin's. Retrained: FedRetrain after the same requests, which never saw the records. "
        "The difference is on the same records; an interval that holds 0 means that this attack, with so few "
        "records, does not tell the method from retraining. Where even the AUC before is a coin's, it had "
        "nothing to find, and shows nothing. Same bits: modules of the longest served prefix "
        "that retraining without the deleted records gave bit for bit, which is the proof for exact methods.",
    ]
    return Table(f"{setting}: membership inference", columns, rows, notes)


def claim_table(results: Sequence[Result]) -> Table:
    """What the paper claims, beside what was seen, by differences paired by seed."""
    rows = []
    for setting in say.settings(results):
        ours, cio = say.of(results, setting, FEDSGT), say.of(results, setting, FEDCIO)
        avg = say.of(results, setting, FEDAVG)
        for claim, found, digits in (
            ("service life, FedSGT - FedCIO", say.paired(ours, cio, say.life_difference), 1),
            ("accuracy before, FedSGT - FedAvg", say.paired(ours, avg, say.start_difference), 3),
            ("accuracy before, FedSGT - FedCIO", say.paired(ours, cio, say.start_difference), 3),
            ("accuracy while both serve, FedSGT - FedCIO", say.paired(ours, cio, say.course_difference), 3),
        ):
            if found is not None:
                single = ", ".join(f"{value:+.{digits}f}" for value in found.values)
                rows.append([setting, claim, found.text(digits), single, _verdict(found)])
    notes = [
        "Differences paired by seed, with 95 % t-intervals. The paper claims longer service than FedCIO, "
        "accuracy comparable to both under IID data, and higher accuracy than both under Dirichlet(0.3)."
    ]
    return Table("The paper's claims", ["setting", "difference", "mean", "by seed", "seen"], rows, notes)


def ablation_table(results: Sequence[Result], setting: str) -> Table | None:
    """FedSGT's variants in one setting; None where there are none."""
    variants = sorted(
        {one["variant"] for one in results if one["setting"] == setting and one["method"] == FEDSGT},
        key=variant_order,
    )
    if len(variants) < 2:
        return None
    rows = []
    for variant in variants:
        own = say.of(results, setting, FEDSGT, variant)
        rows.append(
            [
                variant,
                str(len(own)),
                _text(say.mean(say.accuracy_at(one, 0) for one in own)),
                _text(say.mean(say.accuracy_at(one, own[0]["asked"]["pace"]["every"]) for one in own)),
                _life(own),
                _expected(own),
                _text(say.mean(say.passes(one) for one in own), 1),
                _text(say.mean(one["training"]["seconds"] for one in own), 1),
            ]
        )
    every = say.of(results, setting, FEDSGT, variants[0])[0]["asked"]["pace"]["every"]
    columns = [
        "variant", "seeds", "accuracy before", f"after {every}", "service life", "expected",
        "passes of the data", "seconds",
    ]  # fmt: skip
    return Table(f"{setting}: FedSGT's parameters, one changed at a time", columns, rows)


def variant_order(variant: str) -> tuple[bool, str, float, str]:
    """Order variants: the base, then by parameter, then by value."""
    name, _, value = variant.partition("=")
    number = float(value) if value.replace(".", "", 1).isdigit() else 0.0
    return (variant != BASE, name, number, value)


def _life(own: Sequence[Result]) -> str:
    if not own[0]["exact"]:
        return "-"
    lives = [say.life(one) for one in own]
    if None in lives:
        return f"not ended in {lives.count(None)} of {len(lives)}"
    return _text(say.mean(lives), 1)


def _expected(own: Sequence[Result]) -> str:
    told = say.mean(one["predicted"]["life"] for one in own if one["predicted"])
    if told is None:
        return "-"
    formed = say.mean(one.get("expected_as_formed") for one in own)
    if formed is None or abs(formed.value - told.value) < 0.05:
        return f"{told.value:.1f}"
    return f"{told.value:.1f} ({formed.value:.1f} as formed)"


def _last_accuracy(own: Sequence[Result]) -> Mean | None:
    return say.mean(
        [row["accuracy"] for row in one["course"] if row["accuracy"] is not None][-1] for one in own
    )


def _recovered(one: Result) -> float | None:
    return one["recovery"]["accuracy"] if one["recovery"] else None


def _verdict(found: Mean) -> str:
    if found.count < 2:
        return "one seed"
    if found.value - found.half_width > 0:
        return "higher"
    if found.value + found.half_width < 0:
        return "lower"
    return "not told apart"


def _text(found: Mean | None, digits: int = 3) -> str:
    return "-" if found is None else found.text(digits)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _auc(found: Auc, sign: bool = False) -> str:
    return f"{found.value:{'+' if sign else ''}.3f} [{found.low:{'+' if sign else ''}.3f}, {found.high:.3f}]"
