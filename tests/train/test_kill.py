"""kill -9 of the trainer at several moments, then the same command: nothing is lost, nothing happens twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platoon.testing.audit import audit_run
from platoon.testing.recompute import statistics_problems
from tests.train.running import finish, kill_when, lines, run_dir, start, weights

EVENTS_OF_A_RUN = 18 * 3 + 7  # draw, settle and fate of 18 positions; starts and saves


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("undisturbed")
    done = finish(path)
    assert done.returncode == 0, done.stderr
    return weights(run_dir(path))


@pytest.mark.parametrize("seed", [1, 3])
def test_killed_run_ends_like_an_undisturbed_one(seed: int, undisturbed: dict[str, str], tmp_path: Path) -> None:
    random_ = random.Random(seed)
    directory = run_dir(tmp_path)
    kills = 0
    for _ in range(2):
        target = lines(directory / "tasks/events.jsonl") + random_.randrange(1, EVENTS_OF_A_RUN // 2)
        process = start(tmp_path)
        kills += kill_when(process, lambda t=target: lines(directory / "tasks/events.jsonl") >= t)  # type: ignore[misc]
    assert kills > 0
    done = finish(tmp_path)
    assert done.returncode == 0, done.stderr
    audit = audit_run(directory)
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(18), "consumed")
    assert audit.starts == 1 + kills
    assert statistics_problems(directory) == []
    assert weights(directory) == undisturbed
