from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from platoon.config import OnHarnessExit
from platoon.envs.contract import EnvSession, EnvSetupError, ToolResult, ToolSpec
from platoon.gateway.server import GatewayServer
from platoon.harness.contract import AgentContext, AgentResult
from platoon.harness.registry import FunctionHarness
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task
from platoon.testing import Completion, make_gateway
from platoon.testing.episodes import EpisodeRun, run_episode

COUNTING = "python://tests.envs.worlds:Counting"
GRADE_BOTH = OnHarnessExit(timeout="grade", crash="grade")
CLEAN = OnHarnessExit(crash="grade_if_gateway_clean")


async def play(loop: str, policy: Any = ("hi",) * 3, **settings: Any) -> EpisodeRun:
    return await run_episode(
        "train:0",
        service=settings.pop("service", COUNTING),
        harness=f"tests.rollout.loops:{loop}",
        policy=policy,
        **settings,
    )


def ending(run: EpisodeRun) -> tuple[str, str | None, str | None]:
    return run.outcome.status, run.outcome.failure_kind, run.outcome.reason


async def test_a_scored_rollout() -> None:
    run = await play("finishes")
    assert ending(run) == ("scored", None, None)
    assert run.reward == run.root.reward == 1.0
    assert run.root.misc["outcome"]["reward_key"] == "reward"
    assert run.episode.disposition == "completed"
    assert run.episode.seconds > 0
    assert run.episode.first_call_seconds is not None
    assert len(run.episode.call_spans) == len(run.interactions) == 1
    assert run.root.misc["harness"]["spec"] == "tests.rollout.loops:finishes@1"


@pytest.mark.parametrize(
    ("loop", "on_exit", "expected"),
    [
        ("raises", None, ("error", "harness_crash")),
        ("raises", GRADE_BOTH, ("scored", None)),
        ("raises", CLEAN, ("scored", None)),
        ("own_timeout", None, ("timeout", None)),
        ("own_timeout", GRADE_BOTH, ("scored", None)),
        ("gives_up", GRADE_BOTH, ("cancelled", None)),
        ("returns_nothing", None, ("error", "harness_crash")),
        ("spawns", None, ("error", "harness_crash")),
    ],
)
async def test_endings(loop: str, on_exit: OnHarnessExit | None, expected: tuple[str, str | None]) -> None:
    run = await play(loop, on_harness_exit=on_exit or OnHarnessExit())
    assert (run.outcome.status, run.outcome.failure_kind) == expected
    assert (run.reward is None) == (expected[0] != "scored")
    assert run.root.interrupted == (expected[0] != "scored")


async def test_a_reason_of_ours_keeps_the_graders_own() -> None:
    run = await play("raises", on_harness_exit=GRADE_BOTH)
    assert run.outcome.reason == "harness_crash"
    assert run.root.misc["outcome"]["grade_reason"] == "no_submit"


@pytest.mark.parametrize(("on_exit", "status"), [(OnHarnessExit(), "timeout"), (GRADE_BOTH, "scored")])
async def test_the_agents_own_time_limit(on_exit: OnHarnessExit, status: str) -> None:
    run = await play("hangs", rollout={"timeout": 1}, on_harness_exit=on_exit)
    assert (run.outcome.status, run.outcome.reason) == (status, "agent_timeout")
    assert run.root.misc["agent_result"]["status"] == "timeout"


@pytest.mark.parametrize("loop", ["finishes", "wraps_failures", "chats_in_a_group"])
@pytest.mark.parametrize("failure", [TimeoutError("slow"), ConnectionError("down"), RuntimeError("odd")])
async def test_a_model_service_that_fails_is_never_graded(loop: str, failure: Exception) -> None:
    run = await play(loop, [failure], on_harness_exit=GRADE_BOTH)
    kind = "sample_timeout" if isinstance(failure, TimeoutError) else "sample_error"
    assert (run.outcome.status, run.outcome.failure_kind, run.reward) == ("error", kind, None)
    assert run.root.interrupted


async def test_a_gateway_deadline_is_told_from_the_agents_own_limit() -> None:
    never = Completion("late", delay=asyncio.Event().wait)
    gateway = make_gateway([never], sample_timeout_seconds=0.05)
    run = await play("finishes", gateway=gateway, rollout={"timeout": 60}, on_harness_exit=GRADE_BOTH)
    assert (run.outcome.status, run.outcome.failure_kind) == ("error", "sample_timeout")


async def test_a_harness_that_survives_a_failure_is_graded() -> None:
    run = await play("survives_failures", [TimeoutError("once"), "hi"])
    assert run.reward == 1.0


async def test_grade_if_gateway_clean_excludes_a_crash_after_a_failed_call() -> None:
    run = await play("survives_and_crashes", [TimeoutError("once")], on_harness_exit=CLEAN)
    assert run.outcome.failure_kind == "harness_crash_gateway"


@pytest.mark.parametrize(("on_overflow", "expected"), [("grade", "scored"), ("exclude", "error")])
async def test_context_overflow(on_overflow: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    gateway = make_gateway(["hi"] * 2, context_window_length=1000, max_tokens=64)
    run = await play("overflows", gateway=gateway, on_context_overflow=on_overflow)
    assert run.outcome.status == expected
    assert "context_overflow" in (run.outcome.reason, run.outcome.failure_kind)
    assert not [record for record in caplog.records if record.exc_info]  # a full window is no fault to trace


async def test_notes_and_a_changed_goal_are_recorded() -> None:
    run = await play("annotates")
    assert run.root.misc["plan"] == "a"
    assert run.root.steps[0].misc["thought"] == "b"
    assert run.root.steps[0].misc["reward_misc"]["reward/style"] == 0.5
    assert run.root.task is not None
    assert run.root.task.goal == "another goal"
    assert run.root.finish_message == "bye"


@pytest.mark.parametrize(("task_id", "kind"), [("nowhere:0", "env_config"), ("train:99", "env_config")])
async def test_an_unknown_task_leaves_an_error_and_no_trajectory(task_id: str, kind: str) -> None:
    run = await run_episode(task_id, service=COUNTING, policy=[])
    assert (run.outcome.status, run.outcome.failure_kind) == ("error", kind)
    assert run.episode.collection is None
    assert run.episode.disposition == "error"
    assert run.episode.error


class Plain:
    """A session without the optional parts, whose calls must be made one at a time."""

    sandbox = None
    instruction = "plain"

    def __init__(self, faults: dict[str, Any]) -> None:
        self.task = Task(id="t")
        self.faults = faults
        self.inside = 0
        self.most_inside = 0

    def _fail(self, place: str) -> Any:
        fault = self.faults.get(place)
        if isinstance(fault, BaseException):
            raise fault
        return fault

    async def tools(self) -> list[ToolSpec]:
        self._fail("tools")
        return [ToolSpec("look", "Look.", {}), ToolSpec("end", "End.", {}, terminal=True)]

    async def call_tool(self, name: str, arguments: Any) -> Any:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        return self._fail("call_tool") or ToolResult.text(name)

    async def grade(self) -> Any:
        return self._fail("grade") or Outcome("scored", {"reward": 0.5})

    async def fork(self, mode: Any = "shared", *, task: Task | None = None) -> EnvSession:
        raise NotImplementedError

    async def close(self) -> None:
        self._fail("close")


class PlainService:
    name = "plain"

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.session = Plain(faults)

    async def list_tasks(self, split: str) -> list[str]:
        return ["t"]

    async def get_task(self, task_id: str) -> Task:
        return Task(id=task_id)

    async def open(self, task: Task, *, rollout_id: str) -> EnvSession:
        if "open" in self.faults:
            raise self.faults["open"]
        return self.session


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({}, ("scored", None)),
        ({"close": OSError("x")}, ("scored", None)),
        ({"grade": ZeroDivisionError("x")}, ("error", "unexpected:ZeroDivisionError")),
        ({"grade": "zero"}, ("error", "unexpected:TypeError")),
        ({"open": EnvSetupError("env_healthcheck", "x")}, ("error", "env_healthcheck")),
        ({"open": OSError("x")}, ("error", "env_setup")),
        ({"tools": OSError("x")}, ("error", "env_error")),
        ({"call_tool": OSError("x")}, ("scored", None)),
        ({"call_tool": "no result"}, ("scored", None)),
    ],
)
async def test_what_an_environment_raises_is_its_own(faults: dict[str, Any], expected: tuple[str, str | None]) -> None:
    service = PlainService(**faults)
    run = await play("calls", service=service, harness_options={"tool": "look"}, on_harness_exit=GRADE_BOTH)
    assert (run.outcome.status, run.outcome.failure_kind) == expected
    assert run.reward in (None, 0.5)


async def test_a_task_without_a_goal_is_recorded_under_the_instruction() -> None:
    run = await play("calls", service=PlainService(), harness_options={"tool": "look"})
    assert run.root.task is not None
    assert run.root.task.goal == "plain"
    assert [call["text"] for call in run.root.misc["tool_calls"]] == ["look"]


async def test_an_unknown_tool_is_an_error_result_and_leaves_no_record() -> None:
    run = await play("calls", service=PlainService(), harness_options={"tool": "nothing"})
    assert run.outcome.status == "scored"
    assert "tool_calls" not in run.root.misc


@pytest.mark.parametrize(("own", "runs", "expected"), [(7, 2, 2), (7, None, 7), (None, 2, 2), (None, None, None)])
async def test_the_runs_step_limit_beats_the_tasks_own(own: int | None, runs: int | None, expected: int | None) -> None:
    service = PlainService()
    service.session.task = Task(id="t", max_steps=own)
    seen: list[tuple[int | None, float]] = []

    async def look(ctx: AgentContext) -> AgentResult:
        seen.append((ctx.max_steps, ctx.budget.remaining()))
        return AgentResult()

    harness = FunctionHarness("look", "1", "inline", False, look)
    run = await run_episode("t", service=service, harness=harness, policy=[], max_steps=runs)
    assert seen == [(expected, float("inf") if expected is None else expected)]
    assert run.root.task is not None
    assert run.root.task.max_steps == expected
    assert service.session.task.max_steps == own, "the environment's task stays as it was"


async def test_exit_in_foreign_code_ends_the_rollout_and_not_the_process() -> None:
    async def leaves(ctx: AgentContext) -> AgentResult:
        raise SystemExit(3)

    harness = FunctionHarness("leaves", "1", "inline", False, leaves)
    run = await run_episode("t", service=PlainService(grade=SystemExit(3)), harness=harness, policy=[])
    assert (run.outcome.status, run.outcome.failure_kind) == ("error", "harness_crash")
    run = await play("calls", service=PlainService(grade=SystemExit(3)), harness_options={"tool": "look"})
    assert run.outcome.failure_kind == "unexpected:SystemExit"


async def swallows(ctx: AgentContext) -> AgentResult:
    try:
        await ctx.chat([{"role": "user", "content": "x"}])
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    return AgentResult()


async def test_a_harness_cannot_swallow_its_time_limit() -> None:
    harness = FunctionHarness("swallows", "1", "inline", False, swallows)
    run = await run_episode("t", service=PlainService(), harness=harness, policy=["x"], rollout={"timeout": 1})
    assert (run.outcome.status, run.outcome.reason) == ("timeout", "agent_timeout")


async def test_a_harness_cannot_swallow_the_rollouts_cancellation() -> None:
    harness = FunctionHarness("swallows", "1", "inline", False, swallows)
    sampling = asyncio.Event()

    async def stall() -> None:
        sampling.set()
        await asyncio.Event().wait()

    policy = [Completion("late", delay=stall)]
    rollout = asyncio.create_task(run_episode("t", service=PlainService(), harness=harness, policy=policy))
    await sampling.wait()
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout


async def test_a_status_that_there_is_not_is_a_crash() -> None:
    async def odd(ctx: AgentContext) -> AgentResult:
        status: Any = "done"
        return AgentResult(status)

    harness = FunctionHarness("odd", "1", "inline", False, odd)
    run = await run_episode("t", service=PlainService(), harness=harness, policy=[])
    assert run.outcome.failure_kind == "harness_crash"
    assert "'done'" in str(run.outcome.reason)


async def test_a_client_of_the_openai_api_plays_over_http() -> None:
    async def over_http(ctx: AgentContext) -> AgentResult:
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                f"{ctx.endpoint.base_url}/chat/completions",
                json={"model": ctx.endpoint.model, "messages": [{"role": "user", "content": "hello"}]},
                headers={"Authorization": f"Bearer {ctx.endpoint.api_key}", **ctx.endpoint.headers()},
            )
        await ctx.call_tool("finish", {"number": 1})
        return AgentResult("completed", final_message=answer.json()["choices"][0]["message"]["content"])

    gateway = make_gateway(["over the wire"])
    harness = FunctionHarness("over-http", "1", "inline", False, over_http)
    async with GatewayServer(gateway) as server:
        run = await run_episode("train:0", service=COUNTING, harness=harness, gateway=gateway, server=server)
    assert run.reward == 1.0
    assert run.root.finish_message == "over the wire"
    assert len(run.interactions) == 1
