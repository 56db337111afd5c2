"""A stored sweep against a reference method at matched forgetting (FIRM, appendices D.1, D.2 and D.5).

``fedforget compare`` searches a gamma for a target; here nothing is searched or merged: every stored setting
is put beside the stored setting of the reference that forgets most alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedforget.errors import RunError, nearest
from fedforget.measured import measures
from fedforget.sweeps.files import Result, setting_of, varied
from fedforget.sweeps.frontier import Trade, envelope_areas
from fedforget.sweeps.matching import Point, choose

JOINT, SEPARATE = "joint", "separate"
RULES = (JOINT, SEPARATE)
_SPLITS = ("select", "report")
_KEPT = ("retain", "held_out")
_UNBOUNDED = "epsilon=inf"

# The results of one setting by split.
_Measured = Mapping[str, Result]


def curves(found: Sequence[Result]) -> dict[str, list[dict[str, Result]]]:
    """Group a sweep by everything but gamma.

    Returns
    -------
    dict
        By name, the curve's settings in the order of gamma; each maps a split to its result. A name is
        the method's, followed by ``:parameter=value`` for the parameters in which its settings differ and by
        what a study calls a subset of the clients, such as ``:n=2``.
    """
    named: dict[str, dict[str, dict[str, Result]]] = {}
    for one in found:
        words = [f"{name}={_word(one['parameters'][name])}" for name in varied(one, found)]
        words += [one["of"]] if one.get("of") else []
        setting = setting_of(one).key("")
        named.setdefault(":".join([one["method"], *words]), {}).setdefault(setting, {})[one["split"]] = one
    return {name: sorted(settings.values(), key=_gamma) for name, settings in named.items()}


def match_sweep(
    found: Sequence[Result],
    reference: str = "",
    others: Sequence[str] = (),
    *,
    rule: str = JOINT,
    utility: str = "retain",
    tolerance: float = 0.005,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Match the settings of a sweep to those of a reference curve by forgetting alone.

    By the rule ``joint``, a setting's match is the reference setting with the smallest largest accuracy gap
    over the forget domains, ties by the sum of gaps, then by the lower gamma (appendix D.2). By
    ``separate`` every domain chooses its nearest reference setting by itself, ties by the nearer gamma,
    then by the lower, and only settings whose domains all choose the same are matched (appendix D.5).
    Utility never enters.

    Parameters
    ----------
    found : sequence of dict
        What ``sweep.json`` holds.
    reference : str
        A name of :func:`curves`; by default FIRM without a budget, where that is one curve. Of a name
        may be left out what is ``own``.
    others : sequence of str
        Names to match, as above; by default every other curve.
    rule : {"joint", "separate"}
    utility : str
        Role (``retain``, ``held_out``) or domain whose accuracy the envelopes are of.
    tolerance : float
        A pair is close if no gap is larger; the paper's is 0.5 points.
    own : mapping, optional
        The run's own parameters: of several curves that a name may stand for, the one with these.

    Returns
    -------
    dict
        ``reference``; ``chosen_on`` and ``reported_on``: matches are chosen on the selection questions, and
        gaps and utilities are of the reported ones, where every setting was measured on both; else both
        are of the same; ``pairs``: curve, gamma, reference gamma, gaps per domain, largest and summed gap,
        ``close``, and per measure the setting's value less its match's; ``envelopes``: per curve and
        domain the range-normalised areas of :func:`fedforget.sweeps.frontier.envelope_areas` on the reported
        questions, the curve's first.

    Raises
    ------
    RunError
        Nothing is stored, a name is not there, or a setting lacks what is compared.
    """
    known = curves(found)
    words = {f"{name}={_word(value)}" for name, value in (own or {}).items()}
    reference = _reference(known, reference, words)
    names = [_named(known, name, words) for name in others] or [name for name in known if name != reference]
    if not names:
        raise RunError(
            f"the sweep holds no curve but {reference!r}; sweep another method or parameter as well"
        )
    taken = [one for name in (reference, *names) for one in known[name]]
    chosen_on, reported_on = _splits(taken)
    goals = [_forgot(one[chosen_on]) for one in known[reference] if chosen_on in one]
    pairs = []
    for name in names:
        for one in known[name]:
            place = _match(_forgot(one[chosen_on]), goals, rule)
            if place is not None:
                match = [other for other in known[reference] if chosen_on in other][place]
                pairs.append({"curve": name, **_pair(one[reported_on], match[reported_on], tolerance)})
    areas = {name: _envelopes(known[name], known[reference], reported_on, utility) for name in names}
    return {
        "reference": reference,
        "rule": rule,
        "utility": utility,
        "tolerance": tolerance,
        "chosen_on": chosen_on,
        "reported_on": reported_on,
        "pairs": pairs,
        "envelopes": areas,
    }


def _match(wanted: Point, goals: Sequence[Point], rule: str) -> int | None:
    """Return the place of a setting's match in the reference; None where ``separate`` finds none."""
    if rule == JOINT:
        return goals.index(choose(goals, wanted.forget))
    picked = {_nearest(wanted, goals, domain) for domain in wanted.forget}
    return picked.pop() if len(picked) == 1 else None


def _nearest(wanted: Point, goals: Sequence[Point], domain: str) -> int:
    goal = {domain: wanted.forget[domain]}
    return min(
        range(len(goals)),
        key=lambda i: (goals[i].gaps(goal)[0], round(abs(goals[i].gamma - wanted.gamma), 9), goals[i].gamma),
    )


def _pair(one: Result, match: Result, tolerance: float) -> dict[str, Any]:
    goal = _forgot(match).forget
    largest, total = _forgot(one).gaps(goal)
    first, second = measures(one["metrics"], _KEPT), measures(match["metrics"], _KEPT)
    return {
        "gamma": _forgot(one).gamma,
        "reference_gamma": _forgot(match).gamma,
        "gaps": {name: round(abs(value - goal[name]), 9) for name, value in _forgot(one).forget.items()},
        "largest_gap": largest,
        "sum_of_gaps": total,
        "close": largest <= tolerance,
        # A budget that binds nowhere leaves the base merge: such a pair says nothing about the projection.
        "inactive": one.get("merge", {}).get("projected") == 0.0,
        "measures": {
            name: {"value": value, "reference": second[name], "difference": value - second[name]}
            for name, value in first.items()
            if name in second
        },
    }


def _envelopes(
    one: Sequence[_Measured], reference: Sequence[_Measured], split: str, utility: str
) -> dict[str, Any]:
    own, other = (_trades(settings, split, utility) for settings in (one, reference))
    return {
        domain: asdict(areas) | {"difference": areas.difference}
        if (areas := envelope_areas(points, other[domain]))
        else None
        for domain, points in own.items()
        if domain in other
    }


def _trades(settings: Sequence[_Measured], split: str, utility: str) -> dict[str, list[Trade]]:
    points: dict[str, list[Trade]] = {}
    for one in (measured[split] for measured in settings if split in measured):
        found = measures(one["metrics"], _KEPT)
        if utility not in found:
            raise RunError(
                f"the sweep holds no {utility!r} to take the utility from{nearest(utility, found)}; "
                f"it measured {', '.join(found) or 'nothing'}"
            )
        for domain, accuracy in _forgot(one).forget.items():
            points.setdefault(domain, []).append((accuracy, found[utility]))
    return points


def _forgot(one: Result) -> Point:
    domains = one["metrics"].get("domains", {})
    forget = {name: found["accuracy"] for name, found in domains.items() if found["role"] == "forget"}
    if not forget:
        raise RunError("the sweep measured no forget domain, so there is no forgetting to match")
    return Point(float(one["parameters"].get("gamma", math.nan)), forget)


def _splits(taken: Sequence[_Measured]) -> tuple[str, str]:
    if all(set(_SPLITS) <= set(one) for one in taken):
        return _SPLITS
    for split in reversed(_SPLITS):
        if all(split in one for one in taken):
            return split, split
    raise RunError(
        "some settings were measured on the selection questions alone and others on the reported ones; "
        "sweep them with --split report as well"
    )


def _reference(known: Mapping[str, Any], name: str, own: set[str]) -> str:
    if not known:
        raise RunError("no sweep is stored; run `fedforget sweep` or `fedforget study` first")
    if name:
        return _named(known, name, own)
    bases = [
        one
        for one, settings in known.items()
        if one.partition(":")[0] == "firm" and _unbounded(next(iter(settings[0].values())))
    ]
    if len(bases) > 1:
        bases = [one for one in bases if set(one.split(":")[1:]) <= {*own, _UNBOUNDED}]
    if len(bases) != 1:
        raise RunError(f"name the reference; the sweep holds {', '.join(known)}")
    return bases[0]


def _unbounded(one: Result) -> bool:
    return f"epsilon={one['parameters'].get('epsilon')}" == _UNBOUNDED


def _named(known: Mapping[str, Any], name: str, own: set[str]) -> str:
    if name in known:
        return name
    method, *given = name.split(":")
    meant = [
        one
        for one in known
        if one.split(":")[0] == method and set(given) <= set(one.split(":")[1:]) <= {*own, *given}
    ]
    if len(meant) != 1:
        raise RunError(
            f"the sweep holds no curve {name!r}{nearest(name, known)}; it holds {', '.join(known)}"
        )
    return meant[0]


def _gamma(measured: _Measured) -> float:
    return float(next(iter(measured.values()))["parameters"].get("gamma", 0.0))


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
