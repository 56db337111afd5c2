"""Which codec a client's Fisher travels in: the exact ones by default, chosen by what the server does.

FIRM pools the Fishers of one forget domain, then normalises, then keeps the top alpha. Retain
clients, and a forget client that is alone in its domain, are not pooled with anybody. Of such a
Fisher the server reads the maximum, the threshold (the k-th largest entry) and the entries at or
above it; the client's own top alpha, ties kept, holds all three, so the server's output is the
same to the bit. A mean of several Fishers can be large where none of its members is: there the
client's own top alpha is not enough, and the whole Fisher travels, without loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from fedforget.client_specs import ClientSpec
from fedforget.codecs.manifest import CODECS, LOG8, PLANES, RAW_CODEC, TOP
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.merging.coverage import needed_fisher
from fedforget.merging.registry import find, methods
from fedforget.sparse_fisher import Coverage
from fedforget.sweeps.matching import QP


@dataclass(frozen=True)
class Instruction:
    """How a client sends its Fisher.

    Attributes
    ----------
    codec : {"raw", "planes", "top", "log8"}
    share : float
        With ``top``: the share of each tensor's entries that is kept, largest first.
    approximate : bool
        What the server then does differs from what it would do with the whole Fisher.
    alpha : float
        The share that merge and comparison read; what the client measures its own error by.
    first : bool
        The client's largest entries are the first phase of two: it keeps its Fisher, since it will
        be asked for more (see :mod:`fedforget.two_phase`).
    members : tuple of str
        With ``first``, the clients of its domain. Not sent: a client need not know the others.
    """

    codec: str = PLANES
    share: float = 1.0
    approximate: bool = False
    alpha: float = 0.1
    first: bool = False
    members: tuple[str, ...] = ()

    @property
    def completed(self) -> Coverage:
        """What the server's copy of the summary is good for in the end."""
        return Coverage("pooled-top", self.alpha, self.members) if self.first else self.coverage

    @property
    def coverage(self) -> Coverage:
        """What a summary that follows the instruction is good for when it arrives."""
        if self.approximate:
            return Coverage("approximate", self.share)
        return Coverage("top", self.share) if self.codec == TOP else Coverage()

    @property
    def name(self) -> str:
        """The codec as reports call it; what is approximate says so."""
        text = {
            RAW_CODEC: "dense",
            PLANES: "planes + zstd",
            TOP: f"top {self.share:g}",
            LOG8: "log 8 bit",
        }[self.codec]
        if self.first:
            text = f"two-phase, first {text}"
        return f"approximate: {text}" if self.approximate else text

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({key: value for key, value in asdict(self).items() if key != "members"})

    @classmethod
    def from_json(cls, text: str) -> Instruction:
        """Read back what :meth:`to_json` wrote.

        Raises
        ------
        RunError
            It is something else.
        """
        try:
            one = cls(**json.loads(text))
            known = one.codec in CODECS and isinstance(one.approximate, bool) and isinstance(one.first, bool)
            if not (known and 0.0 < float(one.share) <= 1.0 and 0.0 < float(one.alpha) <= 1.0):
                raise ValueError("unknown codec, or a share outside (0, 1]")
        except (ValueError, TypeError) as error:
            raise RunError(f"the message's instruction for the Fisher cannot be read ({error})") from error
        return one


def needed_share(config: RunConfig) -> float:
    """Return the share of the largest entries that the run's merge and comparison read.

    ``communication.alpha`` can only raise it. A method that reads the whole Fisher makes it 1.
    """
    merge, compare = config.merge, config.evaluation.compare
    shares = [merge.alpha, config.communication.alpha]
    asked: list[tuple[str, Mapping[str, object]]] = [(merge.method, merge.parameters)]
    asked += [("firm" if name == QP else name, compare.parameters.get(name, {})) for name in compare.methods]
    for name, given in asked:
        if name in methods() and find(name).needs_fisher:
            defaults = {parameter.name: parameter.default for parameter in find(name).parameters}
            if "alpha" in defaults:
                defaults["alpha"] = merge.alpha
            shares.append(needed_fisher({**defaults, **given}))
    return max(shares)


def instructions(config: RunConfig, specs: Iterable[ClientSpec]) -> dict[str, Instruction]:
    """Return one instruction per client id, by ``communication.fisher``.

    Parameters
    ----------
    config : RunConfig
    specs : iterable of ClientSpec
        The clients that take part, all of them: who is pooled with whom depends on them.
    """
    specs = list(specs)
    share, mode = needed_share(config), config.communication.fisher
    alone = Instruction(TOP, share, alpha=share) if share < 1.0 else Instruction(PLANES, alpha=share)
    local = max(config.communication.local_share, share)
    found = {}
    for spec in specs:
        members = sorted(one.id for one in specs if one.role == "forget" and one.domain == spec.domain)
        pooled = spec.role == "forget" and len(members) > 1
        if mode == "raw":
            one = Instruction(RAW_CODEC, alpha=share)
        elif mode == "approximate-log8":
            one = Instruction(LOG8, approximate=True, alpha=share)
        elif not pooled and mode != "lossless":
            one = alone
        elif mode == "approximate-top":
            one = Instruction(TOP, local, approximate=True, alpha=share)
        elif mode == "two-phase" and share < 1.0:
            one = Instruction(TOP, local, alpha=share, first=True, members=tuple(members))
        else:
            one = Instruction(PLANES, alpha=share)
        found[spec.id] = one
    return found
