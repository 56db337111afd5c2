"""Streams of deletion requests: how they are drawn, and that a file replays them."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedforget import cli
from fedforget.errors import ConfigError, DataError
from fedforget.presets import load_sequential
from fedforget.sequences import Slice
from fedforget.sequences.ledger import Deletion
from fedforget.sequences.theory import service_life
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import read_requests, write_requests
from fedforget.sequential.plan import SequentialPlan, make_plan
from simulations.requests import STREAMS, request_stream

CLIENTS, SLICES, RECORDS = 6, 4, 400
HELD = {
    f"client-{c}": {s: tuple(f"r{c}-{s}-{i:03d}" for i in range(RECORDS)) for s in range(SLICES)}
    for c in range(CLIENTS)
}


def configured(*overrides: str) -> SequentialRunConfig:
    words = [f"data.clients={CLIENTS}", f"data.slices={SLICES}", "data.max_records=0"]
    return load_sequential("fedsgt-ci", [*words, "grouping.groups=6", "sequences.budget=6", *overrides])


def stream(*overrides: str, held=HELD) -> list[Deletion]:  # type: ignore[no-untyped-def]
    config = configured(*overrides)
    return list(request_stream(config, planned(config), held))


def planned(config: SequentialRunConfig) -> SequentialPlan:
    return make_plan(config, [Slice(name, s, RECORDS) for name, own in HELD.items() for s in own])


def slices(requests: list[Deletion]) -> Counter[tuple[str, int | None]]:
    return Counter((one.client, one.slice_id) for one in requests)


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_are_determined_by_their_seed_and_ask_for_nothing_twice(kind: str) -> None:
    words = (f"requests.kind={kind}", "requests.records=50")
    first, again = stream(*words), stream(*words)
    assert first == again
    assert stream(*words, "seeds.requests=1") != first
    asked = [record for one in first for record in one.records or ()]
    assert len(set(asked)) == len(asked)
    if kind == "withdrawal":
        assert sorted(one.client for one in first) == sorted(HELD)
        assert {(one.slice_id, one.records) for one in first} == {(None, None)}
    else:
        assert len(asked) == CLIENTS * SLICES * RECORDS  # it ends when nothing is left
        assert all(len(one.records or ()) == 50 for one in first)
    assert stream(*words, "requests.limit=3") == first[:3]


def test_uniform_requests_hit_every_slice_alike_and_repeat() -> None:
    found = stream("requests.records=1", "requests.limit=2400")
    counts = slices(found)
    assert len(counts) == CLIENTS * SLICES
    assert stats.chisquare(list(counts.values())).pvalue > 0.01
    # With repetition: among 24 slices, 24 independent requests miss about a third of them.
    assert len(slices(found[:24])) < 24


def test_uniform_requests_follow_the_prior_of_the_groups() -> None:
    words = ["sequences.prior=[5,1,1,1,1,1]", "requests.records=1", "requests.limit=1000"]
    config = configured(*words)
    group = {item[:2]: number for number, own in enumerate(planned(config).groups) for item in own}
    hits = Counter(group[key] for key in (one[:2] for one in slices(stream(*words)).elements()))
    assert stats.binomtest(hits[0], 1000, 0.5).pvalue > 0.01


def test_service_life_under_uniform_requests_is_what_the_theory_expects() -> None:
    lives = []
    config = configured("requests.records=1", "requests.limit=200")
    plan = planned(config)
    group = {item[:2]: number for number, own in enumerate(plan.groups) for item in own}
    for seed in range(60):
        config.seeds.requests = seed
        hit: set[int] = set()
        for number, one in enumerate(request_stream(config, plan, HELD), start=1):
            hit.add(group[one.client, one.slice_id or 0])
            if len(hit) == 6:
                lives.append(number)
                break
    expected = service_life(plan.sequences)
    assert abs(np.mean(lives) - expected.mean) < 3 * expected.std / np.sqrt(len(lives))


def test_bursts_come_from_one_client_at_a_time() -> None:
    found = stream("requests.kind=bursts", "requests.burst=7", "requests.records=1", "requests.limit=700")
    runs = [{one.client for one in found[i : i + 7]} for i in range(0, 700, 7)]
    assert all(len(run) == 1 for run in runs)
    assert len(set.union(*runs)) == CLIENTS
    assert max(len(slices(found[i : i + 7])) for i in range(0, 700, 7)) > 1  # over the client's slices


def test_skewed_requests_follow_the_clients_ranks() -> None:
    found = stream("requests.kind=skewed", "requests.skew=1", "requests.records=1", "requests.limit=1200")
    counts = sorted(Counter(one.client for one in found).values(), reverse=True)
    odds = 1.0 / np.arange(1, CLIENTS + 1)
    assert stats.chisquare(counts, 1200 * odds / odds.sum()).pvalue > 0.01
    even = stream("requests.kind=skewed", "requests.skew=0", "requests.records=1", "requests.limit=1200")
    assert stats.chisquare(list(Counter(one.client for one in even).values())).pvalue > 0.01


def test_an_adversary_ends_service_with_the_fewest_requests() -> None:
    config = configured("requests.kind=adversarial", "requests.records=1")
    plan = planned(config)
    group = {item[:2]: number for number, own in enumerate(plan.groups) for item in own}
    found = list(itertools.islice(request_stream(config, plan, HELD), 12))
    hits = [group[one.client, one.slice_id or 0] for one in found]
    firsts = {sequence[0] for sequence in plan.sequences}
    assert set(hits[: len(firsts)]) == firsts  # one request per first group, none wasted


def test_the_adversary_aims_where_most_sequences_begin() -> None:
    config = configured("requests.kind=adversarial", "requests.limit=1")
    plan = SequentialPlan.of(planned(config).groups, [(3, 0), (2, 1), (3, 1), (4, 0)])
    (only,) = request_stream(config, plan, HELD)
    assert (only.client, only.slice_id) in {item[:2] for item in plan.groups[3]}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_file_replays_a_stream(kind: str, tmp_path: Path) -> None:
    drawn = stream(f"requests.kind={kind}", "requests.records=100")
    write_requests(tmp_path / "stream.jsonl", drawn)
    assert read_requests(tmp_path / "stream.jsonl") == drawn
    assert stream(f"requests.file={tmp_path / 'stream.jsonl'}", "requests.records=1") == drawn


def test_what_cannot_be_a_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"requests.kind: 'burst' .*did you mean 'bursts'"):
        configured("requests.kind=burst")
    with pytest.raises(ConfigError, match=r"requests\.burst"):
        configured("requests.burst=0")


def test_the_command_writes_what_forget_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "requests.jsonl"
    words = ["requests", "fedsgt-ci", "requests.kind=bursts", "requests.limit=4", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert not ended.value.code, capsys.readouterr().err
    found = read_requests(out)
    assert len(found) == 4
    assert len({one.client for one in found}) == 1


def test_a_file_with_a_byte_order_mark_and_other_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    text = '{"client": "client-0", "slice": 1, "records": ["a\u2028b", "c\x85d"]}\r\n'
    text += '\r\n{"client": "client-1"}\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    first, second = read_requests(path)
    assert first.records == ("a\u2028b", "c\x85d")
    assert second.client == "client-1"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"client": "client-0", "client": "client-1"}', "client"),
        ('{"client": "client-0", "slice": 0, "slice": 1}', "slice"),
    ],
)
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, line: str, key: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"client": "client-2"}\n' + line)
    with pytest.raises(DataError, match=rf"line 2: holds the key '{key}' twice"):
        read_requests(path)
