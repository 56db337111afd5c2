"""Errors a user can act on: one sentence that names the file, key or client, and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class FedForgetError(Exception):
    """Base of every error that is the input's fault; the command line prints it without a trace."""


class ConfigError(FedForgetError):
    """A configuration with one or more problems, all of them reported at once.

    Parameters
    ----------
    problems : sequence of str
        One sentence per problem.
    source : str
        The preset or file that the configuration came from.
    """

    def __init__(self, problems: Sequence[str], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        where = f"{source}: " if source else ""
        if len(self.problems) == 1:
            super().__init__(f"{where}{self.problems[0]}")
        else:
            lines = "\n".join(f"  - {problem}" for problem in self.problems)
            super().__init__(f"{where}{len(self.problems)} problems in the configuration\n{lines}")


class DataError(FedForgetError):
    """A data file that is missing, malformed or empty; names the file and, where it can, the line."""


class SummaryError(FedForgetError):
    """A client summary that the server must not merge; names the client and the tensor."""


class ModelError(FedForgetError):
    """A backbone that cannot be loaded, or that does not have the tensors asked for."""


class TrainingError(FedForgetError):
    """Local training that cannot start or that collapsed; says at which step and what to lower."""


class RunError(FedForgetError):
    """A federated run that could not be completed; names the clients at fault."""


class StorageError(FedForgetError):
    """The server's own disk is full or fails; no client's fault, no reply can be kept before it is mended."""


class PlanError(FedForgetError):
    """A grouping, sequence plan or selection that cannot be made; names the client or group, and why."""


class LedgerError(FedForgetError):
    """A ledger that cannot be opened, written or trusted; names the file and what is wrong."""


class ExportError(FedForgetError):
    """An update that cannot be exported as asked; names the file or tensor, and what to give instead."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
