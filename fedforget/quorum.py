"""How many of the clients a round needs: all, a number, or a share of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from fedforget.client_specs import ClientSpec
from fedforget.config import ClientGroup, QuorumConfig

ALL = "all"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def needed(text: str, clients: int) -> int:
    """Return how many of so many clients a quorum asks for; at least one of any.

    Parameters
    ----------
    text : str
        ``"all"``, a number such as ``"2"``, or a share such as ``"60%"``.
    clients : int

    Raises
    ------
    ValueError
        The text is none of these, or the share is not above 0 and at most 100 %.
    """
    if text == ALL:
        return clients
    share = _SHARE.fullmatch(text.strip())
    if share and 0.0 < float(share[1]) <= 100.0:
        return min(max(math.ceil(float(share[1]) / 100.0 * clients - 1e-9), 1), clients)
    if text.strip().isdecimal() and int(text) >= 1:
        return int(text)
    raise ValueError(f"{text!r} is not all, a number of clients such as 2, or a share such as 60%")


def problems(quorum: QuorumConfig, groups: Iterable[ClientGroup]) -> list[str]:
    """Return one sentence per quorum that cannot be read or reached."""
    found = []
    expected = _sizes((g.role, g.domain, g.count) for g in groups)
    for role in ("forget", "retain"):
        text = str(getattr(quorum, role))
        for (of, domain), count in sorted(expected.items()):
            if of != role:
                continue
            try:
                least = needed(text, count)
            except ValueError as error:
                found.append(f"quorum.{role}: {error}")
                break
            if least > count:
                found.append(
                    f"quorum.{role}: asks for {least} clients, and {_name(role, domain)} has {count}"
                )
    return found


def is_partial(quorum: QuorumConfig) -> bool:
    """Tell whether a round may go on without some client."""
    return quorum.forget != ALL or quorum.retain != ALL


def shortfalls(quorum: QuorumConfig, groups: Iterable[ClientGroup], there: Iterable[ClientSpec]) -> list[str]:
    """Return one phrase per domain, and for the retain clients, whose quorum is not reached.

    Parameters
    ----------
    quorum : QuorumConfig
    groups : iterable of ClientGroup
        Who is expected.
    there : iterable of ClientSpec
        The clients that are there, or that replied.
    """
    present = _sizes((spec.role, spec.domain, 1) for spec in there)
    found = []
    for (role, domain), count in sorted(_sizes((g.role, g.domain, g.count) for g in groups).items()):
        least, here = needed(str(getattr(quorum, role)), count), present[role, domain]
        if here < least:
            found.append(
                f"{_name(role, domain)} has {here} of {count} clients, and quorum.{role} asks for {least}"
            )
    return found


def absent(groups: Iterable[ClientGroup], there: Iterable[ClientSpec]) -> dict[str, str]:
    """Return by role and domain how many of the expected clients are not there; none where all are."""
    present = Counter((spec.role, spec.domain) for spec in there)
    wanted = Counter({(g.role, g.domain): g.count for g in groups})
    return {
        f"{role} {domain}": f"{count - present[role, domain]} of {count} clients are not connected"
        for (role, domain), count in sorted(wanted.items())
        if present[role, domain] < count
    }


def _sizes(parts: Iterable[tuple[str, str, int]]) -> Counter[tuple[str, str]]:
    """Count forget clients by domain, and retain clients together."""
    sizes: Counter[tuple[str, str]] = Counter()
    for role, domain, count in parts:
        sizes[role, domain if role == "forget" else ""] += count
    return sizes


def _name(role: str, domain: str) -> str:
    return f"forget domain {domain!r}" if role == "forget" else "retain"
