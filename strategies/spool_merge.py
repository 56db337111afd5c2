"""The server's part of FIRM's round: merge what is in the spool, and put it on record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING

from flwr.app import MetricRecord
from flwr.supercore import log

from fedforget.config import RunConfig
from fedforget.privacy.accounting import account, enabled
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary
from fedforget.updates import UPDATE, merge_to, uncertified
from strategies.records import sent


def merge_spool(
    run: RunDirectory, config: RunConfig, summaries: Sequence[ClientSummary], left_out: Mapping[str, str]
) -> MetricRecord:
    """Merge and project the clients' summaries, write the update, and say in ``run.json`` what it is of.

    Parameters
    ----------
    run : RunDirectory
    config : RunConfig
    summaries : sequence of ClientSummary
        Read from disk tensor by tensor.
    left_out : mapping of str to str
        Why a client does not take part.

    Returns
    -------
    MetricRecord
        Numbers of clients and tensors, of tensors that are not certified optimal, seconds and bytes.
    """
    tensors = len(summaries[0].deltas)
    log(INFO, "Merging %d tensors of %d clients", tensors, len(summaries))
    started = time.monotonic()
    record = merge_to(run.merged, config.merge, summaries, robust=config.robust)
    for one in record["robust"].get("scale", {}).get("findings", []):
        log(WARNING, "Out of scale: %s", one["sentence"])
    private = {"privacy": account(config.privacy)} if enabled(config.privacy) else {}
    run.update(robust=record["robust"], **private)
    loose = uncertified(record)
    if loose:
        log(WARNING, "%d tensors are not certified optimal, the first is %s", len(loose), loose[0])
    size = (run.merged / UPDATE).stat().st_size
    run.update(left_out=dict(sorted(left_out.items())))
    run.update(**sent(run.record, summaries, update=size))
    return MetricRecord(
        {
            "clients": len(summaries),
            "tensors": tensors,
            "uncertified-tensors": len(loose),
            "merge-seconds": time.monotonic() - started,
            "update-bytes": size,
        }
    )
