"""What one round of a phase asks of whom, and which modules travel with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Array, ArrayRecord, Message

from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.sequences.ledger import Ledger, Module
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.protocol import Work
from fedforget.sequential.training import client_seed, initial_seed
from strategies.sequential_spool import Request


@dataclass(frozen=True)
class Snapshot:
    """What the ledger says at the beginning of a phase.

    Attributes
    ----------
    live : mapping of prefix to Module
    left : mapping of (client, slice) to int
        Records left.
    without : mapping of client id to (slice to records)
        Deleted records, ``None`` for a whole slice, of the slices in the plan.
    """

    live: Mapping[Prefix, Module]
    left: Mapping[tuple[str, int], int]
    without: Mapping[str, words.Without]

    @classmethod
    def of(cls, ledger: Ledger, plan: SequentialPlan) -> Snapshot:
        """Read it from the ledger, as of one moment."""
        while True:
            head = ledger.head()
            found = cls._read(ledger, plan)
            if ledger.head() == head:  # else a deletion came while it was read
                return found

    @classmethod
    def _read(cls, ledger: Ledger, plan: SequentialPlan) -> Snapshot:
        without: dict[str, dict[int, tuple[str, ...] | None]] = {}
        for group in plan.groups:
            for item in group:
                gone = ledger.deleted_records(item.client_id, item.slice_id)
                if gone is None or gone:
                    without.setdefault(item.client_id, {})[item.slice_id] = gone
        left = {(client, number): size for client, number, size in ledger.remaining_slices()}
        return cls(ledger.live_modules(), left, without)


def requests_of(
    plan: SequentialPlan,
    prefixes: Iterable[Prefix],
    snapshot: Snapshot,
    current: Mapping[Prefix, PrefixModule],
    step: int,
    config: SequentialRunConfig,
) -> list[Request]:
    """Return every request of one round: for each module, each client that has data left for it.

    Parameters
    ----------
    plan : SequentialPlan
    prefixes : iterable of prefixes
        Of one depth.
    snapshot : Snapshot
    current : mapping of prefix to PrefixModule
        As the round before left them; not read in the first round.
    step : int
        Round of the phase, from 1.
    config : SequentialRunConfig
        The run's, for its seeds.
    """
    found, seed = [], config.seeds.training
    for prefix in prefixes:
        frozen = tuple(snapshot.live[prefix[:i]].sha256 for i in range(1, len(prefix)))
        init = initial_seed(config, plan, prefix)
        for name in plan.clients(prefix):
            numbers = [i for i in plan.client_slices(prefix, name) if snapshot.left.get((name, i))]
            if not numbers:
                continue
            work = Work(
                prefix=prefix,
                slices=tuple(numbers),
                frozen=frozen,
                current=current[prefix].sha256 if step > 1 else "",
                init_seed=init,
                seed=client_seed(seed, plan, prefix, step - 1, name),
            )
            gone = snapshot.without.get(name, {})
            found.append(
                Request(
                    client_id=name,
                    work=work,
                    examples=sum(snapshot.left[name, i] for i in numbers),
                    without=words.without_to_json({i: gone[i] for i in numbers if i in gone}),
                )
            )
    return found


class Outbox:
    """The modules that clients need, each sent to a client once.

    Parameters
    ----------
    folder : Path
        The run's directory: modules are found in ``modules/``, and between the rounds of a phase
        in ``spool/current/``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, Path] = {}
        self._sent: dict[str, set[str]] = {}
        self._arrays: dict[str, Array] = {}

    def hold(self, module: PrefixModule) -> None:
        """Keep a module that is still in training, for the next round."""
        path = self._folder / "spool" / "current" / f"{module.sha256}.safetensors"
        module.save(path)
        self._held[module.sha256] = path

    def drop_held(self) -> None:
        """Drop the modules of the phase, which has ended."""
        for path in self._held.values():
            path.unlink(missing_ok=True)
        self._held.clear()

    def unsent(self, client_id: str, hashes: Iterable[str]) -> list[str]:
        """Return which of the modules the client was not sent yet."""
        return [sha for sha in hashes if sha not in self._sent.get(client_id, set())]

    def attach(self, message: Message, client_id: str, hashes: Iterable[str]) -> int:
        """Put modules into a message, and return their size in bytes.

        Raises
        ------
        ModelError
            A module's file is missing or was changed.
        """
        arrays = {f"{i:05d}": self._array(sha) for i, sha in enumerate(hashes)}
        message.content[protocol.ARRAYS] = ArrayRecord(arrays)
        self._sent.setdefault(client_id, set()).update(hashes)
        return sum(len(array.data) for array in arrays.values())

    def forget_bytes(self) -> None:
        """Let go of the modules that were read for the messages of a round."""
        self._arrays.clear()

    def _array(self, sha256: str) -> Array:
        # One array for all the clients that need it: Flower sends equal arrays to its SuperLink once.
        if sha256 not in self._arrays:
            path = self._held.get(sha256, self._folder / "modules" / f"{sha256}.safetensors")
            raw = words.module_to_bytes(PrefixModule.load(path, sha256).tensors)
            self._arrays[sha256] = Array("uint8", (len(raw),), RAW, raw)
        return self._arrays[sha256]
