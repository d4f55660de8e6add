"""Task statistics: golden values, order independence, and snapshots that carry everything."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platoon.stats.columns import TaskColumns
from platoon.stats.decayed import Decayed
from platoon.stats.passk import PASS_BANDS, bands, informative_at, pass_at
from platoon.stats.pool import PoolMetrics
from platoon.stats.schema import EntryInfo, GroupRecord
from platoon.stats.snapshot import SnapshotError, read_recorded, read_snapshot, write_snapshot
from platoon.stats.store import TaskStatsStore
from tests.stats.groups import failed, group, scored

FIXTURE = Path(__file__).parent / "fixtures" / "run-written-by-platoon-0.4.0"
TASKS = [(f"hard::{i}", "hard", "h") for i in range(6)]


def make_store() -> TaskStatsStore:
    return TaskStatsStore(TASKS, {"hard": EntryInfo(group_size=4)}, column="c")


def passing(seq: int, task: str, passes: int, version: int, **more: Any) -> GroupRecord:
    return group(seq, task, [scored(float(i < passes), version=version) for i in range(4)], version=version, **more)


groups = st.builds(
    lambda task, rewards, version: (task, rewards, version),
    st.integers(0, 7),
    st.lists(st.none() | st.sampled_from([0.0, 0.3, 1.0]), max_size=4),
    st.integers(0, 60),
)


def build(made: list[tuple[int, list[float | None], int]]) -> list[GroupRecord]:
    return [
        group(
            seq,
            f"hard::{task}",
            [failed() if r is None else scored(r, version=version, seconds=0.1 * seq) for r in rewards],
            version=version,
        )
        for seq, (task, rewards, version) in enumerate(made)
    ]


def test_golden_beliefs() -> None:
    assert pass_at(1, 1, 1) == 0.5
    assert pass_at(1, 1, 4) == 0.8
    assert pass_at(0.5, 1.5, 8) == 0.629058837890625
    assert informative_at(1, 1, 8) == 0.7777777777777777
    assert informative_at(1.3, 4.1, 4) == 0.5586917833011582
    assert informative_at(1, 1, 1) == 0.0


def test_golden_decay() -> None:
    counts = Decayed()
    for passes, fails, version in ((2, 6, 0), (4, 4, 32), (8, 0, 16)):
        counts.add(passes, fails, version, 32.0)
    assert counts.as_list() == [10.65685424949238, 7.0, 32]
    assert counts.read(48, 32.0) == (7.535533905932738, 4.949747468305833)
    assert counts.read(8, 32.0) == (10.65685424949238, 7.0)


def test_golden_posteriors() -> None:
    store = make_store()
    for seq, (task, passes, version) in enumerate([(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 4, 1), (1, 2, 2)]):
        store.hold(passing(seq, f"hard::{task}", passes, version))
    store.flush()
    assert store.posterior("hard::0", now=3) == (0.9149531101920019, 4.8333821580285985)
    assert store.posterior("hard::1", now=3) == (3.8091810514225517, 5.853442465148849)
    assert store.posterior("hard::4", now=3) == (0.9149531101920019, 1.0850468898079981)
    alpha, beta = TaskColumns(store, store.task_ids()).posterior(np.arange(6), now=3)
    for index, task_id in enumerate(store.task_ids()):
        assert (alpha[index], beta[index]) == pytest.approx(store.posterior(task_id, now=3), rel=1e-14)


def test_the_sums_of_a_run_of_platoon_0_4_0_come_out_bit_for_bit() -> None:
    events = [json.loads(line) for line in (FIXTURE / "tasks/events.jsonl").read_bytes().split(b"\n") if line]
    evidence = Decayed()
    for event in sorted((e for e in events if e["event"] == "settle"), key=lambda e: (e["start"], e["seq"])):
        evidence.add(event["passes"], event["valid"] - event["passes"], event["version"], 32.0)
    data = read_snapshot(FIXTURE / "tasks/state-s1-000016_interrupted.json")
    assert evidence.as_list() == data["run"]["evidence"]


@settings(max_examples=40, deadline=None)
@given(st.lists(groups, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_completion_changes_nothing(
    made: list[tuple[int, list[float | None], int]], rng: random.Random
) -> None:
    records = build(made)
    one, other = make_store(), make_store()
    for record in records:
        one.settle(record)
    shuffled = list(records)
    rng.shuffle(shuffled)
    for record in shuffled:
        other.hold(record)
    assert other.flush() == list(enumerate(records))
    assert one.snapshot(start=1, next_seq=9) == other.snapshot(start=1, next_seq=9)
    assert one.intake == len(records)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(groups, max_size=10), st.integers(0, 10))
def test_a_resume_equals_an_uninterrupted_run(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, list[float | None], int]], cut: int
) -> None:
    records = build(made)
    whole, before, after = make_store(), make_store(), make_store()
    for seq, record in enumerate(records):
        if seq % 2:
            before.snapshot(start=1, next_seq=seq)
        for store in (whole, before) if seq < cut else (whole,):
            store.draw(1, seq, record.task_id, seq)
            store.settle(record)
            if seq % 3:
                store.fate(1, seq, "consumed")
    path = tmp_path_factory.mktemp("run") / "tasks" / "state-s1-c.parquet"
    record_ = write_snapshot(before, path, 1, cut)
    data = read_recorded(path.parents[1], {"tasks": record_})
    assert data == before.snapshot(start=1, next_seq=cut)
    after.load(data)
    for seq, record in list(enumerate(records))[cut:]:
        after.draw(1, seq, record.task_id, seq)
        after.settle(record)
        if seq % 3:
            after.fate(1, seq, "consumed")
    assert after.snapshot(start=1, next_seq=1) == whole.snapshot(start=1, next_seq=1)
    again = TaskStatsStore.from_snapshot(data)
    assert again.snapshot(start=1, next_seq=cut) == data


def test_draws_fates_and_reissues() -> None:
    store = make_store()
    store.draw(1, 0, "hard::0", 0)
    store.draw(1, 1, "hard::1", 1)
    store.draw(1, 2, "gone", 2)
    assert store.reissue((1, 0), (2, 0))
    assert not store.reissue((1, 0), (2, 1))
    assert store.outstanding == [(1, 1, "hard::1", 1), (1, 2, "gone", 2), (2, 0, "hard::0", 0)]
    store.fate(1, 1, "stale")
    store.fate(9, 9, "skipped", "hard::1")
    assert store.counts("hard::1") == (0, 0, 1, 0, 0, None)
    assert store.task("hard::1").fates == {
        "consumed": 0,
        "stale": 1,
        "failed": 0,
        "skipped": 1,
        "lost": 0,
        "rejected": 0,
    }
    assert [drawn[2] for drawn in store.lose_outstanding()] == ["gone", "hard::0"]
    assert store.counts("hard::0").outstanding == 0
    assert store.task("hard::0").fates["lost"] == 1
    assert store.outstanding == []
    assert store.counts("gone") == (0, 0, 0, 0, 0, None)


def test_streaks_kinds_means_and_history() -> None:
    store = make_store()
    for seq in range(10):
        store.settle(passing(seq, "hard::0", 4, version=seq))
    store.settle(group(10, "hard::0", [failed()] * 4, version=10))
    store.settle(group(11, "hard::0", [failed()] * 4, version=11))
    task = store.task("hard::0")
    assert (task.groups, task.attempts, task.passes, task.all_pass_groups) == (12, 40, 40, 10)
    assert (task.uniform_streak, task.no_evidence_streak) == (0, 2)
    assert [summary.seq for summary in task.history] == list(range(4, 12))
    assert task.history[0].seconds == 1.0
    assert task.metric("steps", now=20) == 2.0
    assert task.metric("reward", now=20) == 1.0
    with pytest.raises(KeyError, match="tokens"):
        task.metric("tokens", now=1)
    assert store.entry("hard").groups == store.label("h").groups == store.run().groups == 12
    assert store.run().evidence(now=9)[1] == 0.0
    store.settle(group(12, "elsewhere", [scored(1.0)]))
    assert (store.run().groups, store.entry("hard").groups) == (13, 12)
    store.settle(group(13, "hard::0", [], verdict="unknown"))
    assert store.task("hard::0").no_evidence_streak == 2
    store.settle(group(14, "hard::0", [], verdict="failed"))
    assert store.task("hard::0").no_evidence_streak == 3
    assert store.task("hard::0").reported_groups == 12


def test_step_metrics() -> None:
    store = make_store()
    pool = PoolMetrics(store, {"h": "environment/h", "x": "environment/x"})
    empty = pool.at(0)
    assert (empty["tasks/coverage"], empty["tasks/bands/mid"]) == (0.0, 0.0)
    assert "tasks/pass_at_1" not in empty
    store.settle(passing(0, "hard::0", 2, 0))
    store.settle(passing(1, "hard::1", 4, 0))
    found = pool.at(0)
    rates = [store.posterior(f"hard::{i}", now=0) for i in (0, 1)]
    assert found["tasks/coverage"] == 2 / 6
    assert found["tasks/pass_at_1"] == pytest.approx(sum(a / (a + b) for a, b in rates) / 2)
    assert found["tasks/pass_at_G"] == pytest.approx(sum(pass_at(a, b, 4) for a, b in rates) / 2)
    assert found["tasks/environment/h/pass_at_G"] == found["tasks/pass_at_G"]
    assert found["tasks/environment/x/coverage"] == 0.0
    assert sum(found[f"tasks/bands/{name}"] for name in ("zero", "low", "mid", "high", "solved")) == 2


@pytest.mark.parametrize(
    ("rate", "name"),
    [(0.05, "zero"), (0.051, "low"), (0.2, "low"), (0.21, "mid"), (0.8, "high"), (0.94, "high"), (0.95, "solved")],
)
def test_bands(rate: float, name: str) -> None:
    assert PASS_BANDS[int(bands(np.array([rate]))[0])] == name


@pytest.mark.parametrize("name", ["000016_interrupted", "recovery-000005", "recovery-000010", "recovery-000015"])
def test_snapshots_of_platoon_0_4_0_read_and_carry_over(tmp_path: Path, name: str) -> None:
    data = read_snapshot(FIXTURE / "tasks" / f"state-s1-{name}.json")
    store = TaskStatsStore.from_snapshot(data)
    assert store.snapshot(start=data["start"], next_seq=data["next_seq"]) == data
    path = tmp_path / "tasks" / "state.parquet"
    write_snapshot(data, path, data["start"], data["next_seq"])
    assert read_snapshot(path) == data


def test_snapshots_that_do_not_read_back(tmp_path: Path) -> None:
    path = tmp_path / "tasks" / "state-s1-c.parquet"
    record = write_snapshot(make_store(), path, 1, 0)
    assert record == {"file": "tasks/state-s1-c.parquet", "sha256": record["sha256"], "format": 2, "start": 1}
    assert read_recorded(tmp_path, {"name": "c"}) is None
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SnapshotError, match="SHA-256"):
        read_recorded(tmp_path, {"tasks": record})
    with pytest.raises(SnapshotError, match="names no file"):
        read_recorded(tmp_path, {"name": "c", "tasks": {}})
    path.write_bytes(b"nonsense")
    with pytest.raises(SnapshotError, match="not a snapshot"):
        read_snapshot(path)
    old = tmp_path / "state.json"
    for content, message in ((b"{", "not JSON"), (b"[]", "no JSON object"), (b'{"format": 7}', "format 7")):
        old.write_bytes(content)
        with pytest.raises(SnapshotError, match=message):
            read_snapshot(old)
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_snapshot(tmp_path / "none.parquet")


def test_what_a_snapshot_needs() -> None:
    store = make_store()
    store.hold(passing(0, "hard::0", 1, 0))
    with pytest.raises(ValueError, match="flush"):
        store.snapshot(start=1, next_seq=0)
    with pytest.raises(ValueError, match="format 3"):
        store.load({"format": 3})


def test_a_snapshot_of_another_pool() -> None:
    old = make_store()
    old.draw(1, 0, "hard::5", 0)
    old.settle(passing(0, "hard::5", 1, 0))
    new = TaskStatsStore([("hard::0", "hard", "h"), ("new", "other", None)], {"other": EntryInfo()})
    new.load(old.snapshot(start=1, next_seq=1))
    assert new.run().groups == 1
    assert new.label("h").groups == 1
    assert new.counts("new").groups == 0
    assert new.outstanding == [(1, 0, "hard::5", 0)]
    assert new.entry("other").groups == 0
