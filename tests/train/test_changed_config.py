"""Going on under a changed configuration: nothing is lost but what left, nothing happens twice, and it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platoon.gateway.sampling import Sampled
from platoon.render import Renderer
from platoon.stats.jsonl import read_jsonl
from platoon.testing.audit import audit_run
from platoon.testing.recompute import statistics_problems
from tests.train.running import over_fakes, run_dir, to_the_end
from tests.train.test_loop import alternating, renderer, say

__all__ = ["renderer", "say"]
A, B, C, D = ({"name": name, "service": "saying:Saying", "harness": "platoon-react"} for name in "abcd")
BEFORE: dict[str, Any] = {
    "environments": [A, B, C],
    "eval__every": 0,
    "train__max_staleness": 1,
    "train__max_concurrent_rollouts": 12,
    "train__max_training_steps": 4,
    "checkpoint__recovery_every": 1,
}
SAME: list[str] = []


@pytest.mark.parametrize(
    ("changed", "said", "total"),
    [
        ({"train__max_training_steps": 6}, SAME, 6 * 3),
        ({"train__batch_size": 2, "train__max_training_steps": 5}, ["batch_size: 3 became 2"], 2 * 3 + 3 * 2),
        ({"train__workflow_config": {"group_size": 2, "rollout_config": {"max_steps": 1}}}, SAME, 4 * 3),
        ({"train__max_staleness": 0}, SAME, 4 * 3),
        ({"environments": [A, B]}, ["environment 'c' left"], 4 * 3),
        ({"environments": [{**A, "seed": 5}, B, C, D]}, ["environment 'd' joined", "'a': seed 0 became 5"], 4 * 3),
        ({"environments": [B, A, C], "train__task_sampler": "uniform"}, ["order of the", "became 'uniform'"], 4 * 3),
        ({"train__task_sampler": "pass_rate", "train__group_admission": "informative"}, ["pass_rate", "rule"], 4 * 3),
    ],
    ids=lambda value: next(iter(value), "same") if isinstance(value, dict) else None,
)
async def test_a_run_goes_on(
    changed: dict[str, Any],
    said: list[str],
    total: int,
    tmp_path: Path,
    say: Callable[[str], Sampled],
    renderer: Renderer,
) -> None:
    directory = run_dir(tmp_path)
    async with over_fakes(tmp_path, alternating(say, renderer), **BEFORE) as (run, _):
        for _ in range(2):
            await run.step()
    async with over_fakes(tmp_path, alternating(say, renderer), **{**BEFORE, **changed}) as (run, _):
        result = await to_the_end(run)
    assert result.status == "finished"
    audit = audit_run(directory)
    assert audit.problems == []
    counts = audit.counts
    assert counts["consumed"] + counts["stale"] == total, counts
    assert sorted({**audit.fates, **audit.open}) == list(range(len(audit.fates) + len(audit.open)))
    lost = [event for event in read_jsonl(directory / "tasks/events.jsonl").rows if event.get("fate") == "lost"]
    assert all(event["start"] == 1 for event in lost)
    assert bool(lost) == (changed.get("environments") == [A, B])
    assert statistics_problems(directory) == []
    lock = json.loads((directory / "lock.json").read_text())
    changes = [text for record in lock.get("sampling_changed", []) for text in record["changes"]]
    assert len(changes) >= len(said)
    assert bool(changes) == bool(said)
    for text in said:
        assert any(text in change for change in changes), changes
