"""Kept groups come back bit for bit, and cost few bytes a token."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platoon.credit import CreditSettings, Datum, GroupOutput, credit_group, same_datum
from platoon.draw.records import Draw
from platoon.stats.schema import RolloutStats, Workload
from platoon.train.dispatch import Settled
from platoon.train.kept import KeptError, KeptGroup, handed_back, kept_group, read_kept, write_kept
from tests.credit.rollouts import member
from tests.stats.groups import group, scored

FIXTURE = Path(__file__).parents[1] / "stats" / "fixtures" / "run-written-by-platoon-0.4.0" / "tasks"
float32 = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -1.5])


@st.composite
def some_datum(draw: st.DrawFn) -> Datum:
    """Any datum, also ones that platoon itself would not make."""
    count = draw(st.integers(1, 8))

    def floats(values: st.SearchStrategy[float]) -> Any:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), np.float32)

    tokens = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count + 1, max_size=count + 1)), np.int32)
    targets = tokens[1:] if draw(st.booleans()) else np.array([7] * count, np.int32)
    errors = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
    return Datum(
        tokens_T=tokens[:-1],
        targets_T=targets,
        logprobs_T=floats(float32),
        advantages_T=floats(float32),
        mask_T=floats(st.sampled_from([0.0, 1.0])),
        version=draw(st.integers(0, 9)),
        depth=draw(st.integers(0, 3)),
        traj_start=draw(st.sampled_from([0.0, 1.0])),
        errors_T=None if errors is None else np.array(errors, np.bool_),
        routing_id=draw(st.none() | st.integers(0, 2**60)),
    )


def same(left: list[KeptGroup], right: list[KeptGroup]) -> bool:
    def plain(kept: KeptGroup) -> KeptGroup:
        return replace(kept, output=None if kept.output is None else replace(kept.output, datums=[]))

    def datums(found: list[KeptGroup]) -> list[Datum]:
        return [datum for kept in found if kept.output is not None for datum in kept.output.datums]

    sizes = [[len(k.output.datums) if k.output else -1 for k in found] for found in (left, right)]
    return (
        list(map(plain, left)) == list(map(plain, right))
        and sizes[0] == sizes[1]
        and all(map(same_datum, datums(left), datums(right)))
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.lists(some_datum(), max_size=3), max_size=4))
def test_groups_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, made: list[list[Datum] | None]) -> None:
    groups = [
        KeptGroup((1, seq), None if datums is None else GroupOutput(datums, "unknown"), entry="e", label=None)
        for seq, datums in enumerate(made)
    ]
    path = tmp_path_factory.mktemp("run") / "tasks" / "kept-s1-c.parquet"
    record = write_kept(path, groups)
    assert record["groups"] == [[1, seq] for seq in range(len(made))]
    assert same(read_kept(path, record["sha256"]), groups)


def test_a_credited_group_comes_back_whole(tmp_path: Path) -> None:
    output = credit_group([member(1.0), member(0.0), member(None)], CreditSettings(), task_id="t", label="l")
    output = replace(output, rollout_stats=RolloutStats({"x": (0.1 + 0.2, 1e-300)}, {"outcome/scored": 2}))
    kept = [KeptGroup((2, 5), output, group(5, "t", [scored(1.0), scored(0.0)], start=2), "e", "l")]
    path = tmp_path / "kept.parquet"
    write_kept(path, kept)
    assert same(read_kept(path), kept)


@pytest.mark.parametrize("name", ["000016_interrupted", "recovery-000005", "recovery-000010", "recovery-000015"])
def test_files_of_platoon_0_4_0(tmp_path: Path, name: str) -> None:
    dispatch = json.loads((FIXTURE / f"dispatch-s1-{name}.json").read_bytes())["kept"]
    path = FIXTURE / f"kept-s1-{name}.json.gz"
    groups = read_kept(path, dispatch["sha256"])
    assert [list(kept.key) for kept in groups] == dispatch["groups"]
    raw = json.loads(gzip.decompress(path.read_bytes()))["groups"]
    for kept, data in zip(groups, raw, strict=True):
        output = kept.output
        assert output is not None
        assert kept.record is not None
        assert output.members == kept.record.members
        assert output.verdict == kept.record.verdict == data["record"]["verdict"]
        assert len(output.datums) == output.task_retained_datums
        assert sum(output.rollout_workloads, Workload()) == output.workload
        rewards = [m.reward for m in output.members if m.reward is not None]
        mean = sum(rewards) / len(rewards)
        assert output.group_stats["credit/baseline/avg"] == mean
        for datum, reward in zip(output.datums, rewards, strict=True):
            assert datum.tokens_T[1:].tolist() == datum.targets_T[:-1].tolist()
            assert set(datum.advantages_T[datum.mask_T > 0].tolist()) == {reward - mean}
            assert datum.action_tokens == 8
    ours = tmp_path / "kept.parquet"
    write_kept(ours, groups)
    assert same(read_kept(ours), groups)


def test_the_tensor_of_the_old_format(tmp_path: Path) -> None:
    tensor = {"dtype": "float32", "shape": [2], "f4": "AAAAAAAAAD8="}
    inputs = {
        "target_tokens": {"dtype": "int64", "shape": [2], "data": [2, 3]},
        "logprobs": tensor,
        "advantages": tensor,
        "mask": tensor,
        "checkpoint_version": {"dtype": "int64", "shape": [1], "data": [4]},
        "routing_handle": {"dtype": "int64", "shape": [1], "data": [9]},
    }
    chunks = [{"tokens": [1], "type": "encoded_text"}, {"tokens": [2], "type": "encoded_text"}]
    datum = {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}
    shared = {"entry": None, "label": None, "record": None}
    groups = [
        {"key": [1, 0], "output": {"type": "datums", "datums": [datum]}, **shared},
        {"key": [1, 1], "output": {"type": "failed"}, **shared},
    ]
    path = tmp_path / "kept-s1-c.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"format": 1, "groups": groups}).encode()))
    first, second = read_kept(path)
    assert second.output is None
    assert first.output is not None
    (found,) = first.output.datums
    assert (found.tokens_T.tolist(), found.targets_T.tolist()) == ([1, 2], [2, 3])
    assert (found.logprobs_T.tolist(), found.version, found.routing_id) == ([0.0, 0.5], 4, 9)


def test_groups_go_to_the_driver_and_back() -> None:
    draw = Draw(1, 4, 4, "t", 0, "e", "l", 2, "auto", reason="exploit", score=0.25, version=7)
    output = credit_group([member(1.0), member(0.0)], CreditSettings(), task_id="t")
    kept = kept_group(Settled(draw, output, None, 2.5), "c")
    assert kept.record is not None
    assert (kept.record.labels, kept.record.members) == ({"c": "l"}, output.members)
    back = handed_back(kept)
    assert (back.key, back.output, back.error, back.seconds) == ((1, 4), output, None, 2.5)
    assert (back.version, back.reason, back.score) == (7, "exploit", 0.25)
    failed = handed_back(kept_group(Settled(draw, None, "boom", 1.0), "c"))
    assert (failed.output, failed.error) == (None, "boom")
    assert handed_back(KeptGroup((1, 0), None)).error is not None


def test_bytes_a_token(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    datums = []
    for _ in range(16):
        turns, half = 20, 200
        mask = np.tile(np.repeat([0.0, 1.0], half), turns).astype(np.float32)
        tokens = rng.integers(0, 150_000, len(mask) + 1, dtype=np.int32)
        logprobs = np.where(mask > 0, -rng.random(len(mask)), 0.0).astype(np.float32)
        advantages = np.where(mask > 0, np.float32(rng.normal()), 0.0).astype(np.float32)
        datums.append(Datum(tokens[:-1], tokens[1:], logprobs, advantages, mask, version=0))
    path = tmp_path / "kept.parquet"
    write_kept(path, [KeptGroup((1, 0), GroupOutput(datums, "unknown"))])
    tokens_kept = sum(len(datum.tokens_T) for datum in datums)
    assert path.stat().st_size / tokens_kept < 5.0


def test_files_that_do_not_read_back(tmp_path: Path) -> None:
    path = tmp_path / "kept-s1-c.parquet"
    record = write_kept(path, [])
    assert read_kept(path, record["sha256"]) == []
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(KeptError, match="SHA-256"):
        read_kept(path, record["sha256"])
    path.write_bytes(b"nonsense")
    with pytest.raises(KeptError, match="not a file of kept groups"):
        read_kept(path)
    with pytest.raises(KeptError, match="cannot be read"):
        read_kept(tmp_path / "none.parquet")
    old = tmp_path / "kept.json.gz"
    old.write_bytes(gzip.compress(b'{"format": 3}'))
    with pytest.raises(KeptError, match="format 1"):
        read_kept(old)
    old.write_bytes(gzip.compress(b'{"format": 1, "groups": []}')[:-9])
    with pytest.raises(KeptError):
        read_kept(old)
