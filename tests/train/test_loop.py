"""The loop over a training service in this process: slow evaluations, failing model calls, stragglers, a stuck run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.render import Renderer, build_renderer
from platoon.stats.jsonl import read_jsonl
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.testing.recompute import statistics_problems
from platoon.train.watchdog import Watchdog
from tests.train.running import finish, over_fakes, run_dir, to_the_end

HELD_OUT = ("Max", "Ned", "Ola", "Pam")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return build_renderer("platoon-tiny", "chat_template", {})


@pytest.fixture
def say(renderer: Renderer) -> Callable[[str], Sampled]:
    def words(text: str) -> Sampled:
        tokens = [*renderer.encode(text), int(renderer.stop[0])]
        return Sampled(tokens, [-1.0] * len(tokens), "stop")

    return words


def alternating(say: Callable[[str], Sampled], renderer: Renderer) -> Callable[..., Sampled]:
    """Right and wrong in turn, so that every group of four is informative."""
    calls: Counter[str] = Counter()

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        text = renderer.decode(list(prompt))
        calls[text] += 1
        return say("Zoe" if calls[text] % 2 else asked_word(text))

    return reply


def asked_word(text: str) -> str:
    return text.rpartition("Say ")[2].partition(".")[0]


def series(directory: Path, key: str) -> dict[int, float]:
    rows = read_table(directory, "metrics")
    return {step: value for _, step, name, value in rows.iter_rows() if name == key}


async def test_evaluations_slower_than_training_are_all_made(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    gate = asyncio.Event()
    train = alternating(say, renderer)
    asked: list[int] = []

    async def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        if asked_word(renderer.decode(list(prompt))) not in HELD_OUT:
            return train(prompt, params, version)
        await gate.wait()
        asked.append(version)
        return say(asked_word(renderer.decode(list(prompt))))

    async with over_fakes(tmp_path, reply, eval__every=1, eval__at_start=False) as (run, _):
        for _ in range(6):
            await run.step()
        assert read_jsonl(run.run_dir / "evaluations.jsonl").rows == []
        gate.set()
        await run.finish()
    rows = read_jsonl(run_dir(tmp_path) / "evaluations.jsonl").rows
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["policy_version"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert asked == sorted(asked)  # each one sampled the weights of its own step
    assert Counter(asked) == dict.fromkeys(range(1, 7), 4)


async def test_the_first_update_waits_for_the_starting_policys_evaluation(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    gate = asyncio.Event()
    train = alternating(say, renderer)

    async def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        if asked_word(renderer.decode(list(prompt))) in HELD_OUT:
            await gate.wait()
        return train(prompt, params, version)

    async with over_fakes(tmp_path, reply, train__max_training_steps=1, eval__every=5) as (run, session):
        step = asyncio.ensure_future(run.step())
        await asyncio.sleep(0.2)
        assert session.version == 0
        assert not step.done()
        gate.set()
        await step
        assert session.version == 1
        await run.finish()


async def test_failing_model_calls_fail_their_rollouts_and_never_score(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    train = alternating(say, renderer)
    calls = 0

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        nonlocal calls
        calls += 1
        if 12 < calls <= 24 or (24 < calls <= 36 and calls % 4 == 0):  # the whole second step, a quarter of the third
            raise ConnectionError("the service is away")
        return train(prompt, params, version)

    async with over_fakes(tmp_path, reply, eval__every=0) as (run, session):
        assert (await to_the_end(run)).step == 6
    directory = run_dir(tmp_path)
    groups = read_table(directory, "groups").sort("intake")
    members = [m for row in groups["members"].to_list() for m in row]
    failed = [m for m in members if m["outcome"] != "scored"]
    assert len(failed) == 15
    assert {m["outcome"] for m in failed} == {"error"}
    assert not any(m["valid"] or m["scored"] is not None for m in failed)
    assert sorted(groups["verdict"].to_list()[3:6]) == ["no_results"] * 3
    assert session.version == 5
    assert series(directory, "train/batch/optimizer_updates") == {1: 1.0, 2: 0.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 1.0}
    assert 2 not in series(directory, "train/batch/task_reward/avg")
    assert series(directory, "train/batch/outcome/error")[3] == 3.0
    assert audit_run(directory).fates == dict.fromkeys(range(18), "consumed")
    assert statistics_problems(directory) == []


async def test_stragglers_are_cut_and_what_the_cut_cost_is_measured(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    train = alternating(say, renderer)
    calls: Counter[str] = Counter()

    async def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        text = renderer.decode(list(prompt))
        calls[text] += 1
        if calls[text] % 4 == 0:
            await asyncio.Event().wait()
        return train(prompt, params, version)

    settings = {"straggler_timeout_seconds": 0.02, "group_size": 4, "rollout_config": {"max_steps": 1}}
    keys = {"train__max_training_steps": 2, "train__workflow_config": settings, "eval__every": 0}
    async with over_fakes(tmp_path, reply, **keys) as (run, _):
        assert (await to_the_end(run)).step == 2
    directory = run_dir(tmp_path)
    members = [m["disposition"] for row in read_table(directory, "groups")["members"].to_list() for m in row]
    assert Counter(members) == {"completed": 18, "straggler_killed": 6}
    assert series(directory, "train/batch/censoring/censored_share") == {1: 0.25, 2: 0.25}
    assert series(directory, "train/straggler_cancelled") == {1: 1.0, 2: 1.0}
    assert series(directory, "train/batch/censoring/mixed_groups") == {1: 3.0, 2: 3.0}
    assert set(series(directory, "train/batch/outcome/cancelled").values()) == {3.0}


async def test_without_a_policy_nothing_is_said_of_cutting(
    tmp_path: Path, say: Callable[[str], Sampled], renderer: Renderer
) -> None:
    keys = {"train__max_training_steps": 1, "eval__every": 0}
    async with over_fakes(tmp_path, alternating(say, renderer), **keys) as (run, _):
        await to_the_end(run)
    keys_logged = set(read_table(run_dir(tmp_path), "metrics")["key"])
    assert not [key for key in keys_logged if "censoring" in key or "straggler" in key]


def test_watchdog_says_where_the_thread_that_it_watches_is(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watchdog = Watchdog(1.0, clock=lambda: now[0], leave=lambda code: None)
    now[0] = 2.0
    looking = threading.Thread(target=watchdog.check)
    looking.start()
    looking.join()
    assert "; it is at" in caplog.text
    assert "in test_watchdog_says_where" in caplog.text


def test_watchdog_counts_from_the_last_progress() -> None:
    now, left = [0.0], []
    watchdog = Watchdog(100.0, 7, lambda: left.append(-1), clock=lambda: now[0], leave=left.append)
    now[0] = 99.0
    assert not watchdog.check()
    watchdog.heartbeat()
    now[0] = 198.0
    assert not watchdog.check()
    assert left == []
    now[0] = 199.1
    assert watchdog.check()
    assert left == [-1, 7]


def test_a_run_without_progress_ends_with_the_watchdogs_code(tmp_path: Path) -> None:
    settings = ("watchdog.timeout_seconds=1.5", "watchdog.exit_code=7", "eval.every=0")
    done = finish(tmp_path, *settings, "environments.0.service=saying:Stuck")
    assert done.returncode == 7, done.stderr
    assert "no progress for 2 s (watchdog.timeout_seconds 2): leaving" in done.stderr
    again = finish(tmp_path, "eval.every=0")
    assert again.returncode == 0, again.stderr
    assert audit_run(run_dir(tmp_path)).fates == dict.fromkeys(range(18), "consumed")


def test_a_working_run_outlasts_its_watchdog(tmp_path: Path) -> None:
    done = finish(tmp_path, "watchdog.timeout_seconds=1.5", "eval.every=0", "train.max_training_steps=30")
    assert done.returncode == 0, done.stderr
