"""One client of FedSGT: it declares slices, and trains the modules of a round on its records."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.client import NumPyClient

from fedforget import protocol
from fedforget.codecs import Bucket
from fedforget.data.holdings import ClientRecords, client_records
from fedforget.errors import RunError
from fedforget.files import home
from fedforget.protocol import Description
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import ModuleCache, PrefixModule
from fedforget.sequential.protocol import Done, Work
from fedforget.summaries import is_client_id

# PEFT and transformers take seconds to import, which a deployed client does anew for each message. They are
# imported where they are used.
if TYPE_CHECKING:
    from fedforget.sequential.stack import ModuleStack
    from fedforget.sequential.training import LocalResult


class SequentialClient(NumPyClient):
    """Trains one module per prefix and round, on top of frozen ones, on its own records.

    The result depends on the work alone: neither on the process it runs in, nor on what ran there
    before, nor on how many threads the machine has. Modules are kept on disk by hash between rounds,
    in ``$FEDFORGET_HOME/modules/<run>/<client>``.

    Parameters
    ----------
    config : SequentialRunConfig
    client_id : str
    run_id : str
        Token of the run.
    without : mapping of int to sequence of str or None
        The client's deleted records, by slice; None for a whole slice. They are not loaded.
    data : str
        A file or folder of the client's own; empty for its part of the configured data set.
    """

    def __init__(
        self,
        config: SequentialRunConfig,
        client_id: str,
        run_id: str,
        without: words.Without,
        data: str = "",
    ) -> None:
        for name, what in ((client_id, "client id"), (run_id, "run id")):
            if not is_client_id(name):  # both become names of folders
                raise RunError(f"{what} {name!r} is not 1 to 128 letters, digits, '.', '_' or '-'")
        self.config = config
        self.client_id = client_id
        self.without = dict(without)
        self.data = data
        self.cache = ModuleCache(home() / "modules" / run_id / client_id)

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Declare the slices that have records left: numbers and sizes.

        Parameters
        ----------
        config : dict
            With ``embeddings`` true, each slice's mean embedding under the frozen backbone as well.
        """
        data = self._records(None)
        found: dict[str, Any] = {
            words.DECLARED: words.slices_to_json(data.declared()),
            words.OWN: bool(self.data),
        }
        if config.get(words.EMBEDDINGS):
            from fedforget.sequential.borrowing import borrowed_stack
            from fedforget.sequential.embeddings import slice_embeddings

            threads = self.config.training.threads
            with borrowed_stack(self.config) as stack:
                points = slice_embeddings(stack.classifier, data, threads=threads)
            found[words.EMBEDDINGS] = json.dumps(
                {str(key[1]): list(map(float, v)) for key, v in points.items()}
            )
        return found

    def fit(
        self, parameters: Sequence[Bucket], config: Mapping[str, Any]
    ) -> tuple[list[Bucket], int, dict[str, Any]]:
        """Train every module of the message's work.

        Parameters
        ----------
        parameters : list of 1-D uint8 arrays
            Modules that come with the message.
        config : dict
            ``work``, ``modules`` (hashes of the parameters, in order) and ``keep`` (hashes that may
            stay in the cache; others of this run are dropped).

        Returns
        -------
        buckets : list of 1-D uint8 arrays
            One module each, in the order of the work.
        num_examples : int
            Records of all the work together.
        metrics : dict
            ``results``; or ``missing``, where a module is not in the cache: nothing was trained then.

        Raises
        ------
        FedForgetError
            The message cannot be read, a module was damaged on the way, or training collapsed.
        """
        from fedforget.sequential.borrowing import borrowed_stack

        started = time.monotonic()
        if bool(config.get(words.OWN, self.data)) != bool(self.data):
            raise RunError(
                f"client {self.client_id!r}: the run was planned "
                + (
                    "with the configured data set, and this node declares data; leave data out"
                    if self.data
                    else "with data of the client's own, and this node declares none; start the SuperNode "
                    'with data="/path" in --node-config'
                )
            )
        work = words.work_from_json(str(config.get(words.WORK)))
        self._take(parameters, _hashes(config, words.MODULES), work)
        self._prune(_hashes(config, words.KEEP))
        # Reading them finds damaged files, which count as missing.
        needed = dict.fromkeys(sha for one in work for sha in one.needs)
        missing = [sha for sha in needed if self.cache.get(sha) is None]
        if missing:
            return [], 0, {words.MISSING: " ".join(missing)}
        data = self._records({i for one in work for i in one.slices})
        buckets: list[Bucket] = []
        done: list[Done] = []
        with borrowed_stack(self.config) as stack:
            for one in work:
                tensors, report = self._train(stack, one, data)
                buckets.append(np.frombuffer(tensors, np.uint8))
                done.append(report)
        metrics = {words.RESULTS: words.done_to_json(done), "train-seconds": time.monotonic() - started}
        return buckets, sum(one.num_examples for one in done), metrics

    def release(self) -> None:
        """Drop every module cached for the run."""
        shutil.rmtree(self.cache.directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # other clients of the run on this machine have theirs
            self.cache.directory.parent.rmdir()

    def _records(self, slices: set[int] | None) -> ClientRecords:
        if self.data:
            from fedforget.data.own_records import own_client

            return own_client(self.config, self.client_id, self.data, slices=slices, without=self.without)
        return client_records(self.config, self.client_id, slices=slices, without=self.without)

    def _train(self, stack: ModuleStack, one: Work, data: ClientRecords) -> tuple[bytes, Done]:
        from fedforget.sequential.training import train_locally

        frozen = [self._cached(sha, one.prefix[:depth]) for depth, sha in enumerate(one.frozen, start=1)]
        current = self._cached(one.current, one.prefix).tensors if one.current else None
        result = train_locally(
            stack,
            frozen,
            current,
            data.records(one.slices),
            self.config.training,
            init_seed=one.init_seed,
            seed=one.seed,
        )
        return packed(one, result)

    def _cached(self, sha256: str, prefix: tuple[int, ...]) -> PrefixModule:
        module = self.cache.get(sha256)
        if module is None:  # damaged since it was looked for
            raise RunError(f"client {self.client_id!r}: module {sha256[:12]}... vanished from its cache")
        return PrefixModule(prefix, module.tensors)

    def _take(self, parameters: Sequence[Bucket], hashes: Sequence[str], work: Sequence[Work]) -> None:
        if len(parameters) != len(hashes):
            raise RunError(
                f"client {self.client_id!r}: {len(parameters)} modules came, {len(hashes)} are named"
            )
        prefixes = {sha: one.prefix[: i + 1] for one in work for i, sha in enumerate(one.needs)}
        for raw, sha in zip(parameters, hashes, strict=True):
            self.cache.put(words.module_from_bytes(raw.tobytes(), prefixes.get(sha, ()), sha))

    def _prune(self, keep: Sequence[str]) -> None:
        held = {path.stem for path in self.cache.directory.glob("*.safetensors")}
        self.cache.remove(held - set(keep))


def describe_sequential(config: SequentialRunConfig, partition: int, client_id: str) -> Description:
    """Describe a node of a FedSGT run; ``client_id`` is empty for a simulated one."""
    from fedforget.sequential.borrowing import borrowed_stack

    with borrowed_stack(config) as stack:
        fingerprint = stack.classifier.fingerprint
    return Description(
        fingerprint=fingerprint, versions=protocol.installed(), partition=partition, client_id=client_id
    )


def packed(one: Work, result: LocalResult) -> tuple[bytes, Done]:
    """Return a trained module for the wire, and what is reported of it."""
    module = PrefixModule(one.prefix, result.tensors)
    figures = {"first-loss": result.first_loss, "last-loss": result.last_loss, "steps": result.steps}
    return words.module_to_bytes(module.tensors), Done(
        one.prefix, result.num_examples, module.sha256, figures
    )


def _hashes(config: Mapping[str, Any], key: str) -> list[str]:
    try:
        found = json.loads(str(config.get(key)))
    except ValueError as error:
        raise RunError(f"the message's {key} cannot be read ({error})") from error
    if not isinstance(found, list):
        raise RunError(f"the message's {key} are not a list")
    return [str(one) for one in found]
