"""The commands over runs of the baselines: simulate, forget, repair, verify."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import cli
from fedforget.runs import RunDirectory
from simulations.inline import run_inline

pytestmark = pytest.mark.integration

Command = Callable[..., tuple[int, str]]
TINY = "data.max_records=60 training.rounds=2 clustering.clusters=2 clustering.rounds=1"


@pytest.fixture
def fedforget(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(one) for one in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return int(str(ended.value.code or 0)), " ".join((captured.out + captured.err).split())

    return run


def test_fedcio_from_the_command_line(fedforget: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    inline = ("--backend", "inline")
    run_inline("fedsgt-ci", f"method=fedcio {TINY}", out)
    assert RunDirectory(out).metrics["served"]["modules"] == 2
    status, said = fedforget("forget", out, "--client", "client-00")
    assert status == 0
    assert "1 modules switched off, 1 still active" in said
    status, said = fedforget("repair", out, *inline)
    assert status == 0
    assert "2 modules active" in said
    status, said = fedforget("verify", out)
    assert (status, "2 of 2 modules came out as the same bits" in said) == (0, True)


def test_federaser_from_the_command_line_is_called_approximate(fedforget: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    inline = ("--backend", "inline")
    run_inline("fedsgt-ci", f"method=federaser {TINY}", out)
    assert "1 of 1 modules came out as the same bits" in fedforget("verify", out)[1]
    assert "Service has ended" in fedforget("forget", out, "--client", "client-00", "--slice", 1)[1]
    status, said = fedforget("repair", out, *inline)
    assert status == 0
    assert "made by federaser, approximate: it may depend on deleted data" in said
    assert "Nothing is to be trained" in fedforget("repair", out, *inline)[1]
    status, said = fedforget("verify", out)
    assert status == 1
    assert "federaser, which is approximate and cannot be verified" in said
    assert fedforget("retrain", out, *inline)[0] == 0
    assert "1 of 1 modules came out as the same bits" in fedforget("verify", out)[1]


def test_a_plan_that_clients_make_is_not_made_up(fedforget: Command) -> None:
    status, said = fedforget("plan", "fedsgt-ci", "method=fedcio", *TINY.split())
    assert status == 1
    assert "the groups of fedcio follow from the clients' updates" in said
