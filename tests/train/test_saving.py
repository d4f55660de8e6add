"""Checkpoints under hard conditions: a disk that takes no more, records that are gone, rows that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platoon.config import ConfigError
from platoon.gateway.sampling import Sampled
from platoon.render import Renderer
from platoon.stats.jsonl import read_jsonl
from platoon.testing.audit import audit_run
from platoon.train.checkpoints import newest_resumable, next_start, warn_of_torn_rows
from platoon.train.run import train_run
from platoon.train.saving import NotSaved
from tests.train.running import loaded, over_fakes, run_dir, to_the_end
from tests.train.test_loop import alternating, renderer, say

__all__ = ["renderer", "say"]


async def test_a_disk_that_takes_no_more_ends_the_run_and_leaves_the_checkpoint_before(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    directory = run_dir(tmp_path)
    settings = {"eval__every": 0, "checkpoint__recovery_every": 1}
    async with over_fakes(tmp_path, alternating(say, renderer), **settings) as (run, session):
        await run.step()
        (directory / "tasks").rename(directory / "away")
        (directory / "tasks").write_text("in the way of every file below tasks/")
        with pytest.raises(NotSaved) as failed:
            await run.step()
    said = str(failed.value)
    assert said.startswith(f"checkpoint recovery-000002 was not saved: {directory} cannot be written (")
    assert said.endswith(
        "bytes are free there); make room and run the same command again: it goes on from checkpoint recovery-000001"
    )
    assert session.saved == ["recovery-000000", "recovery-000001"]
    newest = newest_resumable(directory, 1)
    assert newest is not None
    assert (newest.name, newest.batch) == ("recovery-000001", 1)


async def test_a_rule_run_without_its_scheduler_state_draws_no_position_twice(tmp_path: Path) -> None:
    rule: dict[str, Any] = {
        "train__group_admission": "informative",
        "train__refill__max_groups_per_step": 1.5,
        "eval__every": 0,
    }
    rule["train__group_admission_options"] = {"band": [0.9, 1.0]}  # rejects every group
    assert (await train_run(loaded(tmp_path, train__max_training_steps=2, **rule))).steps == 2
    directory = run_dir(tmp_path)
    row = read_jsonl(directory / "checkpoints.jsonl").rows[-1]
    state = json.loads((directory / row["dispatch"]["file"]).read_bytes())
    assert row["next_position"] == state["next_position"] == 2 * 5
    (directory / row["dispatch"]["file"]).unlink()
    assert (await train_run(loaded(tmp_path, train__max_training_steps=3, **rule))).steps == 1
    assert audit_run(directory).problems == []
    events = read_jsonl(directory / "tasks" / "events.jsonl").rows
    again = [event["position"] for event in events if event["event"] == "draw" and event["start"] == 2]
    assert again[0] == row["next_position"]


def test_a_start_is_new_also_after_one_whose_state_was_not_written(tmp_path: Path) -> None:
    rows = [{"name": "recovery-000000", "batch": 0, "state_path": "tinker://a/weights/b", "parts": {"start": 4}}]
    (tmp_path / "checkpoints.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert next_start(tmp_path) == 5


def test_a_row_that_counts_nothing_is_named(tmp_path: Path) -> None:
    row = {"name": "final", "batch": -1, "state_path": "tinker://a/weights/b"}
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"checkpoints\.jsonl: checkpoint 'final': batch is -1.*remove it to go on"):
        newest_resumable(tmp_path, 1)


def test_a_torn_row_is_said_and_the_checkpoint_before_it_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"name": f"recovery-00000{n}", "batch": n, "state_path": f"tinker://a/weights/{n}"} for n in range(2)]
    (tmp_path / "checkpoints.jsonl").write_text("\n".join(map(json.dumps, rows))[:-9])
    newest = newest_resumable(tmp_path, 1)
    assert newest is not None
    assert newest.batch == 0
    warn_of_torn_rows(tmp_path)
    assert (
        "line 2 is not JSON (cut short: the writer died in it); it is skipped; the checkpoint before it" in caplog.text
    )


def damaged(directory: Path, kind: str, newest_only: bool) -> None:
    """Cut the files of one kind short: of the newest checkpoint, or of all."""
    files = sorted((directory / "tasks").glob(f"{kind}-s1-*"))
    assert files
    for file in files[-1:] if newest_only else files:
        file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("kind", "newest_only", "said", "loaded"),
    [
        ("state", True, "going on with those of recovery-000001", "recovery-000001"),
        ("state", False, "going on with those of no checkpoint", None),
        ("dispatch", True, "its open draws are lost, the order goes on", "recovery-000002"),
    ],
)
async def test_a_record_that_does_not_read_costs_little(
    kind: str,
    newest_only: bool,
    said: str,
    loaded: str | None,
    tmp_path: Path,
    say: Callable[[str], Sampled],
    renderer: Renderer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = run_dir(tmp_path)
    keys: dict[str, Any] = {"train__max_staleness": 1, "checkpoint__recovery_every": 1, "eval__every": 0}
    keys |= {"train__max_concurrent_rollouts": 8, "train__max_training_steps": 4}
    async with over_fakes(tmp_path, alternating(say, renderer), **keys) as (run, _):
        for _ in range(2):
            await run.step()
    state = json.loads((directory / "tasks" / "dispatch-s1-recovery-000002.json").read_bytes())
    damaged(directory, kind, newest_only)
    async with over_fakes(tmp_path, alternating(say, renderer), **keys) as (run, _):
        await to_the_end(run)
    assert said in caplog.text
    events = read_jsonl(directory / "tasks" / "events.jsonl").rows
    begun = next(event for event in events if event["event"] == "start" and event["start"] == 2)
    assert (begun["loaded"], bool(begun["state_lost"])) == (loaded, kind == "state")
    lost = [(event["start"], event["seq"]) for event in events if event.get("fate") == "lost"]
    assert lost == ([tuple(draw[:2]) for draw in state["outstanding"]] if kind == "dispatch" else [])
    lock = json.loads((directory / "lock.json").read_text())
    assert [one["loaded"] for one in lock.get("tasks_state_lost", [])] == ([loaded] if kind == "state" else [])
    audit = audit_run(directory)
    assert audit.problems == []
    assert audit.counts["consumed"] == 4 * 3
