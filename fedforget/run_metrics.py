"""A run in numbers for Prometheus: ``metrics.prom`` in its directory, as the node exporter reads it."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from fedforget.client_specs import expand_clients
from fedforget.config import RunConfig
from fedforget.presets import from_yaml_any
from fedforget.runs import RunDirectory

FILE = "metrics.prom"
STATUSES = ("running", "completed", "failed")
_TRAFFIC = {
    "rounds": "Rounds with any training",
    "messages": "Messages sent to clients",
    "bytes_sent": "Bytes sent to clients",
    "bytes_received": "Bytes received from clients",
    "client_seconds": "Seconds that clients trained",
}


def export(run: RunDirectory, traffic: Mapping[str, float] | None = None) -> Path:
    """Write what ``run.json`` says at this moment, and this process's memory; atomically.

    A disk that is full leaves the file as it was: figures must not end a run.

    Parameters
    ----------
    run : RunDirectory
    traffic : mapping of str to float, optional
        Of a FedSGT training that goes on, what its exchange with the clients took so far.

    Returns
    -------
    Path
    """
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    record, name, path = run.record, run.path.name, run.path / FILE

    def tell(what: str, text: str, values: Mapping[str, float] | float, by: str = "") -> None:
        gauge = Gauge(f"fedforget_{what}", text, ["run", by] if by else ["run"], registry=registry)
        if isinstance(values, Mapping):
            for key, value in values.items():
                gauge.labels(name, key).set(value)
        else:
            gauge.labels(name).set(values)

    one_round, expected = _clients(str(record["config"]))
    received = record.get("received", {})
    status = {one: float(one == record.get("status")) for one in STATUSES}
    tell("run_status", "1 for the status that the run has", status, "status")
    for moment in ("started", "finished"):
        with contextlib.suppress(KeyError, ValueError):
            seconds = datetime.strptime(record[moment], "%Y-%m-%dT%H:%M:%S%z").timestamp()
            tell(f"run_{moment}_timestamp_seconds", f"When the run {moment}", seconds)
    tell("stage_seconds", "Seconds that a stage of the run took", record.get("timings", {}), "stage")
    tell("server_peak_memory_bytes", "Most memory of the ServerApp so far", _peak())
    if one_round:
        counts = {
            "expected": expected,
            "received": len(received),
            "left_out": len(record.get("left_out", {})),
        }
        tell("clients", "Clients by what became of them", counts, "state")
        sizes = {client: int(facts["bytes"]) for client, facts in received.items()}
        tell("client_received_bytes", "Bytes of a client's summary", sizes, "client")
    else:
        tell("clients", "Clients by what became of them", {"expected": expected}, "state")
        done = record.get("trainings", [])
        tell("modules", "Modules trained", sum(one["modules"] for one in done))
        for key, text in _TRAFFIC.items():
            tell(key, text, sum(one.get(key, 0.0) for one in [*done, traffic or {}]))
    with contextlib.suppress(OSError):
        write_to_textfile(str(path), registry)
    return path


@functools.lru_cache(maxsize=4)
def _clients(config: str) -> tuple[bool, int]:
    """Tell whether it is a FIRM run, and how many clients it expects."""
    read = from_yaml_any(config)
    if isinstance(read, RunConfig):
        return True, len(expand_clients(read.clients))
    return False, read.data.clients


def _peak() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1.0 if sys.platform == "darwin" else 1024.0)
