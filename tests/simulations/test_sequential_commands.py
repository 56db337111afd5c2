"""FedSGT's commands: what they print, what they change, and how they refuse."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from fedforget import cli
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.deletions import held
from fedforget.sequential.modules import PrefixModule

pytestmark = pytest.mark.integration


class Outcome:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def fedforget(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(one) for one in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Outcome(int(str(ended.value.code or 0)), captured.out, captured.err)

    return run


def some_slice(run: RunDirectory) -> tuple[str, int, list[str]]:
    client = "client-00"
    return client, 0, list(held(run)[client][0])


def test_plan_counts_nodes_and_tells_the_expected_life(fedforget) -> None:  # type: ignore[no-untyped-def]
    words = ["plan", "fedsgt-ci", "grouping.groups=6", "sequences.budget=6", "data.max_records=60"]
    found = json.loads(fedforget(*words, "--json").out)
    assert found["cost"]["nodes"] == 36
    assert found["cost"]["rounds"] == 6
    # Six equal groups, all of them first somewhere: 6 (1 + 1/2 + ... + 1/6) = 14.7 requests.
    assert found["life"]["mean"] == pytest.approx(14.7)
    assert found["remaining"][0] == 6.0
    # After one request the longest active prefix is what follows the deleted group in its rotation.
    assert found["remaining"][1] == pytest.approx(5.0)
    shown = fedforget(*words)
    assert shown.status == 0
    assert "36 (36 without sharing)" in shown.out
    assert "14.7" in shown.out


def test_plan_compares_groupings(fedforget) -> None:  # type: ignore[no-untyped-def]
    words = ["plan", "fedsgt-ci", "grouping.method=barycentre", "data.max_records=60", "--json"]
    found = json.loads(fedforget(*words).out)["grouping"]
    assert 0 < found["barycentre"] <= found["random"]


def test_forget_by_options(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    client, slice_id, records = some_slice(trained)
    words = ["forget", trained.path, "--client", client, "--slice", slice_id]
    found = fedforget(*words, "--records", ",".join(records[:2]))
    assert found.status == 0
    assert "2 of its records deleted" in found.out
    with Ledger(trained.ledger) as ledger:
        assert ledger.deleted_records(client, slice_id) == tuple(sorted(records[:2]))
        assert len(ledger.deleted_groups()) == 1
        live = {module.sha256 for module in ledger.live_modules().values()}
        # What the deleted data made is gone from the disk.
        assert {path.stem for path in trained.modules.iterdir()} == live
        head = ledger.head()
    assert trained.record["ledger_head"] == {"number": head.number, "sha256": head.sha256}
    again = fedforget(*words, "--records", ",".join(records[:2]))
    assert (again.status, again.out) == (0, found.out)
    gone = fedforget(*words, "--records", records[0], "--request", "another")
    assert gone.status == 0
    assert "already deleted" in gone.out
    with Ledger(trained.ledger) as ledger:
        assert ledger.head() == head


def test_forget_a_whole_client(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    found = json.loads(fedforget("forget", trained.path, "--client", "client-01", "--json").out)
    assert found[0]["status"] == "deleted"
    assert len(found[0]["groups"]) == 2
    with Ledger(trained.ledger) as ledger:
        assert {client for client, _, _ in ledger.remaining_slices()} == {"client-00", "client-02"}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--client", "client-0"], 3, "has no data in this run (did you mean 'client-0"),
        (["--client", "client-00", "--slice", "7"], 3, "has no slice 7, only 0, 1"),
        (["--client", "client-00", "--slice", "0", "--records", "x"], 3, "has no record 'x'"),
        ([], 1, "--client: name whose data to delete"),
        (["--client", "client-00", "--records", "x"], 1, "name the slice that they are in"),
        (["--client", "client-00", "--slice", "0", "--records", " , "], 1, "names no record"),
        (["--client", "client-00", "--slice", "-1"], 1, "give an integer of at least 0"),
        (["--client", "client-00", "--slice", "one"], 2, "is not a valid int"),
    ],
)
def test_forget_refuses(  # type: ignore[no-untyped-def]
    fedforget, trained: RunDirectory, words: list[str], status: int, message: str
) -> None:
    with Ledger(trained.ledger) as ledger:
        before = ledger.head()
    found = fedforget("forget", trained.path, *words)
    assert found.status == status
    assert message in " ".join((found.out + found.err).replace("│", " ").split())
    with Ledger(trained.ledger) as ledger:
        assert ledger.head() == before


def test_forget_from_a_file(fedforget, trained: RunDirectory, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    client, slice_id, records = some_slice(trained)
    lines = [
        {"request": "r1", "client": client, "slice": slice_id, "records": records[:1]},
        {"request": "r2", "client": "client-02", "slice": 1},
        {"request": "r3", "client": "nobody"},
        {"request": "r4", "client": client, "slice": slice_id, "records": ["unheard-of"]},
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    found = fedforget("forget", trained.path, "--requests", file)
    assert found.status == 3
    told = re.findall(r"^(r\d): ([a-z ]+):", found.out, re.MULTILINE)
    assert told == [("r1", "deleted"), ("r2", "deleted"), ("r3", "unknown"), ("r4", "unknown")]
    with Ledger(trained.ledger) as ledger:
        assert [one.outcome.request_id for one in ledger.requests()] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is not a JSON object"),
        ('{"slice": 1}', "line 2: 'client' is missing"),
        ('{"client": "client-00", "slices": 1}', "line 2: unknown key 'slices' (did you mean 'slice'?)"),
        ('{"client": "client-00", "slice": "a"}', "line 2: 'slice' is 'a', not a number of a slice"),
        ('{"client": "client-00", "slice": true}', "line 2: 'slice' is True"),
        ('{"client": "client-00", "records": ["a"]}', "line 2: names records but no slice"),
        ('{"client": "client-00", "slice": 0, "records": []}', "line 2: 'records' is not a list"),
        ('{"client": "client-00", "request": 7}', "line 2: 'request' is 7, not a text"),
        ('{"client": "client-01", "request": "first"}', "line 2: request 'first' was given in line 1"),
    ],
)
def test_a_malformed_file_changes_nothing(  # type: ignore[no-untyped-def]
    fedforget, trained: RunDirectory, tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"client": "client-00", "request": "first"}\n' + line + "\n")
    found = fedforget("forget", trained.path, "--requests", file)
    assert found.status == 1
    assert message in found.err
    with Ledger(trained.ledger) as ledger:
        assert ledger.requests() == []


def test_requests_files_that_are_not_there(fedforget, trained: RunDirectory, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    missing = fedforget("forget", trained.path, "--requests", tmp_path / "none.jsonl")
    assert (missing.status, "cannot be read" in missing.err) == (1, True)
    (tmp_path / "empty.jsonl").write_text("\n")
    empty = fedforget("forget", trained.path, "--requests", tmp_path / "empty.jsonl")
    assert (empty.status, "holds no request" in empty.err) == (1, True)
    both = fedforget("forget", trained.path, "--requests", "f", "--client", "client-00")
    assert (both.status, "not both" in both.err) == (1, True)


def test_an_id_used_for_other_data_is_refused(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    words = ["forget", trained.path, "--request", "r1", "--client"]
    assert fedforget(*words, "client-00", "--slice", "0").status == 0
    found = fedforget(*words, "client-01", "--slice", "0")
    assert found.status == 1
    assert "request 'r1' was carried out before for other data" in found.err


def test_verify(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    fedforget("forget", trained.path, "--client", "client-00", "--slice", "0")
    with Ledger(trained.ledger) as ledger:
        shortest = next(iter(ledger.live_modules()))
    found = fedforget("verify", trained.path, "--prefix", ",".join(map(str, shortest)))
    assert found.status == 0
    assert "1 of 1 modules came out as the same bits." in found.out
    with Ledger(trained.ledger) as ledger:
        (gone,) = ledger.deleted_groups()
    refused = fedforget("verify", trained.path, "--prefix", gone)
    assert refused.status == 1
    assert "is not in service" in refused.err
    assert "not a list of groups" in fedforget("verify", trained.path, "--prefix", "a").err
    assert "leave --prefix out" in fedforget("verify", trained.path, "--prefix", "1", "--all").err


def test_verify_finds_a_module_that_saw_more(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    """A module whose head carries more than its prefix's data gave it, and is on record as such."""
    with Ledger(trained.ledger) as ledger:
        entry = ledger.live_modules()[1,]
        other = PrefixModule.load(trained.path / ledger.live_modules()[2, 3, 4, 5, 0, 1].path)
    module = PrefixModule.load(trained.path / entry.path)
    leaky = {k: other.tensors[k] if "lora" not in k else v for k, v in module.tensors.items()}
    changed = PrefixModule((1,), leaky)
    changed.save(trained.path / entry.path)
    with sqlite3.connect(trained.ledger) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE modules SET sha256 = ? WHERE prefix = '[1]'", (changed.sha256,))
    # The ledger's own audit finds that it was altered, so nothing is served or verified from it.
    found = fedforget("verify", trained.path, "--prefix", "1")
    assert found.status == 1
    assert "the ledger cannot be trusted" in found.err
    from fedforget.sequential.plan import SequentialPlan
    from fedforget.sequential.verify import VerificationError, require, verify_prefixes

    with Ledger(trained.ledger, verify=False) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
    results = verify_prefixes(trained.sequential, plan, {(1,): changed}, [(1,)])
    with pytest.raises(VerificationError, match=r"module \(1,\).*classifier"):
        require(results)


def test_evaluate(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    found = json.loads(fedforget("evaluate", trained.path, "--json").out)
    assert found["accuracy"] == trained.metrics["served"]["accuracy"]
    assert (found["modules"], len(found["prefixes"])) == (36, 6)
    one = json.loads(fedforget("evaluate", trained.path, "--rule", "LongSeq", "--json").out)
    assert one["rule"] == "LongSeq"
    wrong = fedforget("evaluate", trained.path, "--rule", "AllSq")
    assert (wrong.status, "did you mean 'AllSeq'" in wrong.err) == (1, True)
    for client in ("client-00", "client-01", "client-02"):
        fedforget("forget", trained.path, "--client", client)
    ended = fedforget("evaluate", trained.path)
    assert ended.status == 0
    assert "Service has ended" in ended.out


def test_the_ledger_is_checked_and_shown(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    copy = trained.ledger.read_bytes()
    fedforget("forget", trained.path, "--client", "client-00", "--slice", "0", "--request", "mine")
    found = fedforget("ledger", "check", trained.path)
    assert found.status == 0
    assert "sound: 38 events" in found.out
    shown = fedforget("ledger", "show", trained.path)
    assert "mine" in shown.out
    assert "deleted" in shown.out
    events = json.loads(fedforget("ledger", "show", trained.path, "--json").out)
    assert [event["kind"] for event in events[-2:]] == ["module", "deletion"]
    for path in trained.path.glob("ledger.sqlite*"):
        path.unlink()
    trained.ledger.write_bytes(copy)
    back = fedforget("ledger", "check", trained.path)
    assert back.status == 1
    assert "event 38, noted earlier, is gone" in back.err


def test_repair_and_retrain(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    assert "Nothing is to be trained" in fedforget("repair", trained.path, "--backend", "inline").out
    wrong = fedforget("repair", trained.path, "--groups", "x", "--backend", "inline")
    assert (wrong.status, "give numbers of groups" in wrong.err) == (1, True)
    intact = fedforget("repair", trained.path, "--groups", "1", "--backend", "inline")
    assert (intact.status, "group 1 is not deleted" in intact.err) == (1, True)
    fedforget("forget", trained.path, "--client", "client-00")
    none = fedforget("repair", trained.path, "--backend", "inline")
    assert "Nothing is to be trained" in none.out  # all of both groups is gone
    many = fedforget("retrain", trained.path, "--groups", "9", "--backend", "inline")
    assert (many.status, "9 groups cannot be formed from 4 slices" in many.err) == (1, True)
    found = fedforget("retrain", trained.path, "--groups", "2", "--sequences", "1", "--backend", "inline")
    assert found.status == 0
    assert "generation 1: 4 slices" in found.out
    assert "2 modules active" in found.out


@pytest.mark.parametrize("command", ["forget", "verify", "evaluate", "repair", "retrain"])
def test_a_folder_that_is_no_run(fedforget, tmp_path: Path, command: str) -> None:  # type: ignore[no-untyped-def]
    words = ["--client", "a"] if command == "forget" else []
    found = fedforget(command, tmp_path, *words)
    assert (found.status, "not a run directory" in found.err) == (1, True)


def test_presets_of_the_other_kind_are_refused(fedforget, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = fedforget("plan", "firm-ci")
    assert (found.status, "preset of kind firm" in found.err) == (1, True)
    exact = fedforget("demo-exact", "firm-ci", "--backend", "inline", "--out", tmp_path / "x")
    assert (exact.status, "preset of kind firm" in exact.err) == (1, True)
    assert fedforget("config", "validate", "fedsgt-ci").out == "fedsgt-ci: valid, 3 clients\n"


def test_more_groups_than_the_exact_theory_takes(fedforget, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["fedsgt-ci", "data.clients=10", "data.max_records=0", "grouping.groups=21", "data.slices=5"]
    planned = json.loads(fedforget("plan", *words, "--json").out)  # groups of 2 and of 3 slices
    assert planned["life"]["mean"] > 21
    assert "remaining" not in planned
    out = tmp_path / "demo"
    refused = fedforget("demo-exact", *words, "--backend", "inline", "--out", out)
    assert (refused.status, "expectations for at most 20 groups, not 21" in refused.err) == (1, True)
    assert not out.exists()  # before anything was trained


def test_the_demonstration(fedforget, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["demo-exact", "ci", "data.max_records=36", "requests.repairs=0", "--backend", "inline"]
    found = fedforget(*words, "--out", tmp_path / "demo")
    assert found.status == 0, found.err
    run = RunDirectory(tmp_path / "demo")
    course = run.metrics["demo"]
    retrained = sum(one["modules"] for one in course["verified"])
    assert f"{retrained} modules that served were retrained to compare, all with the same bits" in found.out
    assert "[  0] after training: accuracy" in found.out
    assert course["life"]["ended"]
    assert course["life"]["observed"] == len(course["requests"]) - 1 >= 3
    assert course["life"]["mean"] == pytest.approx(5.5)  # 3 (1 + 1/2 + 1/3)
    assert course["requests"][-1]["modules"] == 0
    assert {one["after"] for one in course["verified"]} >= {0, 1}
    assert all(one["same"] == one["modules"] > 0 for one in course["verified"])
    page = (run.path / "report.html").read_text()
    assert "Service life in requests" in page
    assert page.count("data:image/png;base64,") == 3


def test_the_repaired_demonstration(fedforget, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["demo-exact", "ci", "data.max_records=36", "requests.repairs=1", "requests.repair_at=0.3"]
    found = fedforget(*words, "requests.limit=3", "--backend", "inline", "--out", tmp_path / "demo")
    assert found.status == 0, found.err
    run = RunDirectory(tmp_path / "demo")
    plain, repaired = run.metrics["demo"], run.metrics["demo"]["repaired"]
    # One of three sequences is off after the first request; the repair puts its group back.
    (repair,) = repaired["repairs"]
    assert (repair["after"], repair["before"], repair["modules"]) == (1, 3, 6)
    assert repair["visits"] > 0
    assert [row["modules"] for row in repaired["requests"][:3]] == [9, 3, 9]
    assert [row["request"] for row in repaired["requests"] if row["request"] != "repair"] == [
        row["request"] for row in plain["requests"]
    ]
    assert [one["prefix"] for one in repaired["verified"] if one["after"] == 1] == [[0, 1, 2]]
    assert all(one["same"] == one["modules"] for one in repaired["verified"])
    life = repaired["life"]
    # E: the first new group after one request on average, then 3 (1 + 1/2 + 1/3) requests.
    assert life["interval"][0] - 0.1 < 6.5 < life["interval"][1] + 0.1
    assert life["estimate"]
    assert not life["ended"]
    assert "(estimate)" in fedforget("report", run.path).out + (run.path / "report.html").read_text()


def test_the_demonstration_fails_where_training_does(fedforget, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["demo-exact", "ci", "data.max_records=36", "training.learning_rate=1e30", "--backend", "inline"]
    found = fedforget(*words, "--out", tmp_path / "demo")
    assert found.status == 1
    assert "client-00" in found.err
    assert RunDirectory(tmp_path / "demo").record["status"] == "failed"


def test_a_ledger_that_was_set_back_is_not_gone_on_with(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    copy = trained.ledger.read_bytes()
    fedforget("forget", trained.path, "--client", "client-00", "--slice", "0")
    noted = trained.record["ledger_head"]
    trained.ledger.write_bytes(copy)
    for words in (
        ["forget", trained.path, "--client", "client-01", "--slice", "1"],
        ["retrain", trained.path, "--backend", "inline"],
        ["repair", trained.path, "--backend", "inline"],
        ["evaluate", trained.path],
        ["verify", trained.path],
    ):
        found = fedforget(*words)
        assert found.status == 1
        assert "event 38, noted earlier, is gone: the ledger was set back to event 37" in found.err
    assert trained.record["ledger_head"] == noted  # the evidence stays


@pytest.mark.parametrize("head", [5, "x", [1], {"number": "x"}, {"number": 1}, {"number": -1, "sha256": ""}])
def test_a_noted_head_that_is_none(fedforget, trained: RunDirectory, head: object) -> None:  # type: ignore[no-untyped-def]
    trained.update(ledger_head=head)
    found = fedforget("ledger", "check", trained.path)
    assert found.status == 1
    assert "run.json: its ledger_head is" in found.err


def test_an_old_answer_comes_with_the_present_number_of_modules(fedforget, trained: RunDirectory) -> None:  # type: ignore[no-untyped-def]
    words = ["forget", trained.path, "--client", "client-00", "--slice", "0"]
    before = fedforget(*words).out.splitlines()
    for client in ("client-00", "client-01"):
        fedforget("forget", trained.path, "--client", client)
    answer, active = fedforget(*words).out.splitlines()
    assert answer == before[0]
    with Ledger(trained.ledger) as ledger:
        left = len(ledger.live_modules())
    assert before[1] != active == f"{left} modules are active."
    ended = fedforget("forget", trained.path, "--client", "client-02").out
    assert ended.endswith("no module is left, and no data to train one on.\n")
