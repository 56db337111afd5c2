"""What an operator checks before a run: the installation, the machine, ports, disk and data."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil

from fedforget.errors import FedForgetError
from fedforget.files import home
from fedforget.reporting.tables import Table

OK, WARN, FAIL = "ok", "warning", "failed"
_GIB = 2**30
_LEAST_DISK = 2 * _GIB  # what a run of the small presets leaves behind, with room
_LEAST_SHARED = 1 * _GIB  # Ray's object store keeps a client's reply there
_PROGRAMS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    status : str
        ``"ok"``, ``"warning"`` (a run may work, or a part is not available) or ``"failed"``.
    found : str
        What is there.
    mend : str
        What to do about it; empty where nothing is to be done.
    """

    name: str
    status: str
    found: str
    mend: str = ""


def examine(preset: str = "", overrides: Sequence[str] = (), ports: Sequence[int] = ()) -> list[Check]:
    """Look at everything, a preset's own needs included where one is given.

    Parameters
    ----------
    preset : str
        A preset's name or file, whose configuration, model source and data are checked too.
    overrides : sequence of str
        ``key=value`` pairs over it.
    ports : sequence of int
        TCP ports that a SuperLink or SuperNode on this machine will listen on.
    """
    parts: list[Callable[[], Iterable[Check]]] = [_python, _packages, _programs, _torch, _memory, _disk]
    found = [check for part in parts for check in part()]
    found += [_port(port) for port in ports]
    if preset:
        found += _preset(preset, overrides)
    return found


def table(checks: Sequence[Check]) -> Table:
    """Return the checks as a table, with the number of failures below."""
    failed = sum(check.status == FAIL for check in checks)
    warned = sum(check.status == WARN for check in checks)
    return Table(
        "fedforget doctor",
        ["check", "status", "found", "what to do"],
        [[check.name, check.status, check.found, check.mend] for check in checks],
        [f"{failed} failed, {warned} with a warning, of {len(checks)}"],
    )


def _python() -> Iterator[Check]:
    here = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Check("Python", OK if good else FAIL, here, "" if good else "use Python 3.11 or newer")


def _packages() -> Iterator[Check]:
    """Compare what is installed with the ranges that the installed fedforget asks for."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in requires("fedforget") or []]
    except PackageNotFoundError:
        yield Check("fedforget", FAIL, "not installed", "pip install -c constraints.txt -e .")
        return
    yield Check("fedforget", OK, version("fedforget"))
    for one in sorted(wanted, key=lambda one: one.name):
        optional = one.marker is not None and not one.marker.evaluate({"extra": ""})
        if one.marker is not None and one.marker.evaluate({"extra": "dev"}) and optional:
            continue  # of those who work on fedforget itself
        try:
            here = version(one.name)
        except PackageNotFoundError:
            yield _absent(one.name, str(one.marker or ""), optional)
            continue
        if not one.specifier.contains(here, prereleases=True):
            yield Check(
                one.name, FAIL, f"{here}, outside {one.specifier}", f"pip install '{one.name}{one.specifier}'"
            )
        else:
            yield Check(one.name, OK, here)


def _absent(name: str, marker: str, optional: bool) -> Check:
    if not optional:
        return Check(name, FAIL, "not installed", "pip install -c constraints.txt -e .")
    extra = marker.partition("extra ==")[2].strip().strip("'\"")
    return Check(name, WARN, "not installed", f"only needed for the extra [{extra}]")


def _programs() -> Iterator[Check]:
    for name in _PROGRAMS:
        beside = Path(sys.executable).parent / name
        path = str(beside) if beside.is_file() else shutil.which(name)
        yield Check(
            name,
            OK if path else FAIL,
            path or "not found",
            "" if path else "install flwr[simulation] into this environment, or put its bin folder on PATH",
        )


def _torch() -> Iterator[Check]:
    if importlib.util.find_spec("torch") is None:
        return  # said with the packages
    import torch

    if not torch.cuda.is_available():
        yield Check("CUDA", WARN, f"no device (torch {torch.__version__})", "nothing, if CPUs will do")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        name = torch.cuda.get_device_name(index)
        yield Check(
            f"CUDA device {index}", OK, f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {bf16}"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        return
    try:
        import bitsandbytes  # noqa: F401
    except Exception as error:  # a library that does not fit the machine fails in many ways
        yield Check("bitsandbytes loads", FAIL, str(error).splitlines()[0], "reinstall it for this machine")
    else:
        yield Check("bitsandbytes loads", OK, "yes")


def _memory() -> Iterator[Check]:
    memory = psutil.virtual_memory()
    yield Check("memory", OK, f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        small = size < _LEAST_SHARED
        yield Check(
            "shared memory",
            WARN if small else OK,
            f"{size / _GIB:.2f} GiB in {shared}",
            "give the container --shm-size=2g or more: Ray keeps replies there" if small else "",
        )


def _disk() -> Iterator[Check]:
    path = home()
    place = next(one for one in (path, *path.parents) if one.is_dir())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        yield Check(
            "disk", FAIL, f"{place} cannot be written", "set FEDFORGET_HOME to a folder that can be written"
        )
        return
    low = free < _LEAST_DISK
    yield Check(
        "disk",
        WARN if low else OK,
        f"{free / _GIB:.1f} GiB free for {path}",
        "free some, or set FEDFORGET_HOME to another disk" if low else "",
    )


def _port(port: int) -> Check:
    name = f"port {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        # As servers do: a port whose last connection is still closing counts as free.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(name, FAIL, error.strerror or str(error), "choose another port, or end what uses it")
    return Check(name, OK, "free")


def _preset(preset: str, overrides: Sequence[str]) -> list[Check]:
    from fedforget.config import RunConfig
    from fedforget.presets import load_any

    try:
        config = load_any(preset, list(overrides))
    except FedForgetError as error:
        return [Check("configuration", FAIL, str(error), "mend the preset or the override")]
    found = [Check("configuration", OK, f"{config.name} ({config.kind})")]
    try:
        if isinstance(config, RunConfig):
            from fedforget.client_specs import expand_clients
            from fedforget.data.shares import client_examples

            total = sum(len(client_examples(config, spec)) for spec in expand_clients(config.clients))
            what = f"{total} training examples of {len(expand_clients(config.clients))} clients"
        else:
            from fedforget.data.corpora import load_corpus

            corpus = load_corpus(config.data, config.seeds.data)
            what = f"{len(corpus.federated)} federated records"
    except FedForgetError as error:
        return [*found, Check("data", FAIL, str(error), "see the sentence on the left")]
    return [*found, Check("data", OK, what)]
