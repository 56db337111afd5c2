"""FedSGT through ``flwr run`` with Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.sequences.ledger import Ledger
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.reference import train_sequences_locally
from simulations.flwr_run import run_flower

pytestmark = pytest.mark.integration


def test_ray_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    run = run_flower("fedsgt-ci", "", tmp_path / "ray", say=lambda _: None)
    assert run.record["status"] == "completed"
    assert run.metrics["served"]["modules"] == 9
    with Ledger(run.ledger) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
        found = {prefix: module.sha256 for prefix, module in ledger.live_modules().items()}
    reference = train_sequences_locally(run.sequential, plan)
    assert found == {prefix: module.sha256 for prefix, module in reference.items()}
