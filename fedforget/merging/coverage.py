"""Whether the Fishers that clients sent are enough for a merge: exact where the method reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedforget.errors import SummaryError
from fedforget.summaries import ClientSummary


def needed_fisher(parameters: Mapping[str, Any]) -> float:
    """Return the share of the largest entries that a method with these parameters reads.

    A method that keeps a share of each Fisher names it ``alpha`` or ``keep``; another one reads all.
    """
    return float(parameters.get("alpha", parameters.get("keep", 1.0)))


def require_fishers(summaries: Iterable[ClientSummary], method: str, parameters: object) -> None:
    """Refuse a merge for which the clients sent too little of their Fishers.

    Parameters
    ----------
    summaries : iterable of ClientSummary
    method : str
        For the message.
    parameters : dataclass
        The method's own.

    Raises
    ------
    SummaryError
        A client sent the largest entries alone, of a share below what the method reads; or its own
        largest entries, and the method pools it with others. Names the client and the mend.
    """
    share = needed_fisher(vars(parameters) if dataclasses.is_dataclass(parameters) else {})
    domains: dict[str, list[str]] = {}
    everyone = list(summaries)
    for one in everyone:
        if one.role == "forget":
            domains.setdefault(one.domain, []).append(one.client_id)
    for one in everyone:
        pooled = sorted(domains[one.domain]) if one.role == "forget" else [one.client_id]
        _check(one, pooled, method, share)


def _check(one: ClientSummary, pooled: Sequence[str], method: str, share: float) -> None:
    held = one.coverage
    if not one.fisher or held.kind == "whole":
        return
    who = f"client {one.client_id!r}"
    if share > held.share:
        what = "the whole Fisher" if share == 1.0 else f"the largest {share:g} of each Fisher tensor"
        mend = (
            f"take at most {held.share:g}, or run again with communication.alpha={share:g}"
            if share < 1.0
            else "run again with communication.fisher=lossless"
        )
        raise SummaryError(
            f"{who}: sent the largest {held.share:g} of its Fisher alone, and method {method!r} reads "
            f"{what}; {mend}"
        )
    if held.kind == "top" and len(pooled) > 1:
        raise SummaryError(
            f"{who}: sent its own largest entries alone, and method {method!r} pools it with "
            f"{pooled[0] if pooled[0] != one.client_id else pooled[1]!r}; the mean needs whole Fishers: "
            "run again with all of the domain's clients"
        )
    if held.kind == "pooled-top" and list(held.members) != list(pooled):
        raise SummaryError(
            f"{who}: its Fisher holds what the mean over {', '.join(held.members)} needs; "
            "merge exactly these clients of its domain, or run again"
        )
