"""Agents to trajectories, and their dump."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from platoon.gateway import AgentSession, ChatRequest, ModelGateway, OpenAgent
from platoon.gateway.dump import jsonable, to_dict
from platoon.gateway.trace import attach_judge_audit, build_trajectory_collection
from platoon.harness.contract import LIMIT_MESSAGE, AgentResult, CallKind
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import SubTask, Task
from platoon.testing import make_gateway

HELLO = [{"role": "user", "content": "hello"}]
SCORED = Outcome("scored", {"score": 0.5, "other": 1.0}, primary="score")


@pytest.fixture
def gateway() -> ModelGateway:
    return make_gateway(lambda prompt: "x")


async def call(gateway: ModelGateway, agent: AgentSession, *kinds: CallKind) -> None:
    for kind in kinds:
        await gateway.chat(agent, ChatRequest(HELLO), kind)


async def test_one_step_a_call_that_is_no_judges(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    await call(gateway, root, "policy", "judge", "aux", "policy")
    root.annotate(note="kept")
    root.annotate_step(exclude_from_training=True, reward_misc={"reward/extra": 2.0}, action_misc={"ignored": 1})
    root.result = AgentResult("completed", "done")
    root.execution_span = (1.0, 2.0)
    task = Task("win", "t1", max_steps=3)
    agents = gateway.close_rollout("r")
    collection = build_trajectory_collection(agents, rollout_id="r", task=task, outcome=SCORED, model_name="m")
    assert collection.id == "r"
    trajectory = collection.root
    assert (trajectory.id, trajectory.task, trajectory.parent_info) == (root.trajectory_id, task, None)
    ids = [step.misc["action_misc"]["completion_id"] for step in trajectory.steps]
    assert ids == [record.call_id for record in root.calls if record.kind != "judge"] == list(root.interactions)
    assert [step.misc["action_misc"].get("kind") for step in trajectory.steps] == [None, "aux", None]
    assert trajectory.steps[0].misc == {
        "action_misc": {"completion_id": ids[0], "usage": root.calls[0].usage.record(), "model": "m"},
        "message": {"role": "assistant", "content": "x"},
    }
    assert trajectory.steps[-1].misc["reward_misc"] == {"reward/extra": 2.0, "reward/success": 0.5}
    assert trajectory.steps[-1].misc["exclude_from_training"] is True
    assert "ignored" not in trajectory.steps[-1].misc["action_misc"]
    assert (trajectory.reward, trajectory.finish_message, trajectory.error_message) == (0.5, "done", None)
    misc = trajectory.misc
    assert misc["note"] == "kept"
    assert misc["agent"] == {"agent_id": root.agent_id, "role": "policy"}
    assert misc["outcome"] == {
        "status": "scored",
        "rewards": {"score": 0.5, "other": 1.0},
        "reason": None,
        "reward_key": "score",
    }
    assert misc["agent_result"] == {"status": "completed", "error": None}
    assert misc["execution_span"] == [1.0, 2.0]
    assert list(misc["model_generations"]) == list(misc["model_call_spans"]) == [c.call_id for c in root.calls]
    assert misc["model_generations"][ids[0]]["finish_reason"] == "stop"
    assert [entry["call_id"] for entry in misc["judge_calls"]] == [root.calls[1].call_id]
    assert not trajectory.interrupted


async def test_order_parents_and_tasks(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    await call(gateway, root, "policy", "judge")
    first = gateway.open_agent(OpenAgent("r", parent=root, goal="half", max_steps=2))
    second = gateway.open_agent(OpenAgent("r", parent=first, goal="quarter", task=Task("own", "x")))
    collection = build_trajectory_collection(
        [first, second, root], rollout_id="r", task=Task("win", "t1", misc={"a": 1}), outcome=SCORED
    )
    assert list(collection.trajectories) == [root.trajectory_id, first.trajectory_id, second.trajectory_id]
    child = collection.trajectories[first.trajectory_id]
    assert child.parent_info is not None
    assert (child.parent_info.id, child.parent_info.fork_step) == (root.trajectory_id, 2)
    assert isinstance(child.task, SubTask)
    assert (child.task.goal, child.task.max_steps, child.task.misc) == ("half", 2, {"a": 1})
    assert collection.trajectories[second.trajectory_id].task == Task("own", "x")
    assert child.reward == 0.5, "a child without an outcome of its own shares the episode's"
    assert "outcome" not in child.misc
    assert collection.depths() == {root.trajectory_id: 0, first.trajectory_id: 1, second.trajectory_id: 2}


@pytest.mark.parametrize(
    ("status", "marker"),
    [
        ("invalid", "trajectory_invalid"),
        ("error", "trajectory_invalid"),
        ("timeout", "trajectory_timed_out"),
        ("cancelled", "trajectory_cancelled"),
    ],
)
async def test_what_is_not_scored_has_no_reward(
    gateway: ModelGateway, status: Literal["invalid", "error", "timeout", "cancelled"], marker: str
) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    await call(gateway, root, "policy")
    outcome = Outcome.infra("grader", status=status, reason="it broke")
    trajectory = build_trajectory_collection([root], rollout_id="r", task=None, outcome=outcome).root
    assert trajectory.misc[marker] is True
    assert trajectory.interrupted
    assert trajectory.error_message == f"{status}: it broke"
    assert "reward_misc" not in trajectory.steps[0].misc
    assert trajectory.misc["outcome"]["failure_kind"] == "grader"


async def test_a_childs_own_ending_and_outcome(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    late = gateway.open_agent(OpenAgent("r", parent=root))
    late.result = AgentResult("timeout", error="too slow")
    own = gateway.open_agent(OpenAgent("r", parent=root))
    own.outcome = Outcome("scored", {"reward": 0.0})
    own.result = AgentResult("limit")
    collection = build_trajectory_collection([root, late, own], rollout_id="r", task=None, outcome=SCORED)
    timed_out = collection.trajectories[late.trajectory_id]
    assert (timed_out.reward, timed_out.interrupted, timed_out.error_message) == (0.5, True, "too slow")
    graded = collection.trajectories[own.trajectory_id]
    assert (graded.reward, graded.interrupted, graded.error_message) == (0.0, False, LIMIT_MESSAGE)
    assert graded.misc["outcome"]["reward_key"] == "reward"


async def test_judge_agents_and_their_children_have_no_trajectory(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    child = gateway.open_agent(OpenAgent("r", parent=root))
    judge = gateway.open_agent(OpenAgent("r", parent=child, role="judge"))
    helper = gateway.open_agent(OpenAgent("r", parent=judge, role="helper"))
    await call(gateway, judge, "policy")
    await call(gateway, helper, "policy")
    agents = [root, child, judge, helper]
    collection = build_trajectory_collection(agents, rollout_id="r", task=None, outcome=SCORED)
    assert list(collection.trajectories) == [root.trajectory_id, child.trajectory_id]
    entries = collection.trajectories[child.trajectory_id].misc["judge_calls"]
    assert [(entry["call_id"], entry["role"]) for entry in entries] == [
        (judge.calls[0].call_id, "judge"),
        (helper.calls[0].call_id, "helper"),
    ]
    assert "judge_calls" not in collection.root.misc
    await call(gateway, judge, "judge")
    attach_judge_audit(collection, agents)
    assert len(collection.trajectories[child.trajectory_id].misc["judge_calls"]) == 3
    lone = gateway.open_agent(OpenAgent("s", role="judge"))
    assert len(build_trajectory_collection([lone], rollout_id="s", task=None, outcome=SCORED).trajectories) == 1


async def test_counts_and_switches_are_told(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r", judges=False))
    root.gateway_errors = 2
    misc = build_trajectory_collection([root], rollout_id="r", task=None, outcome=SCORED).root.misc
    assert misc["judges"] == {"enabled": False}
    assert misc["gateway_errors"] == 2
    assert "prefix_breaks" not in misc


def test_a_collection_needs_one_root_and_no_orphans(gateway: ModelGateway) -> None:
    root, other = gateway.open_agent(OpenAgent("r")), gateway.open_agent(OpenAgent("r"))
    child = gateway.open_agent(OpenAgent("r", parent=root))
    for agents in ([], [root, other], [other, child]):
        with pytest.raises(ValueError, match="r"):
            build_trajectory_collection(agents, rollout_id="r", task=None, outcome=SCORED)


def test_annotating_a_step_needs_one(gateway: ModelGateway) -> None:
    with pytest.raises(RuntimeError, match="model call"):
        gateway.open_agent(OpenAgent("r")).annotate_step(x=1)


@dataclass
class Point:
    x: int
    inner: Any


class Dumped:
    def model_dump(self, mode: str) -> dict[str, str]:
        return {"mode": mode}


class Undumpable:
    def model_dump(self, mode: str) -> None:
        raise TypeError

    def __str__(self) -> str:
        return "undumpable"


async def test_the_dump_is_json_with_the_root_first(gateway: ModelGateway) -> None:
    root = gateway.open_agent(OpenAgent("r"))
    await call(gateway, root, "policy")
    child = gateway.open_agent(OpenAgent("r", parent=root, goal="half"))
    root.annotate(odd={1: Point(2, {3}), "model": Dumped(), "bad": Undumpable(), "other": 1j})
    collection = build_trajectory_collection([root, child], rollout_id="r", task=Task("g", "t"), outcome=SCORED)
    data = json.loads(json.dumps(to_dict(collection)))
    assert list(data) == ["id", "trajectories"]
    assert list(data["trajectories"]) == [root.trajectory_id, child.trajectory_id]
    top = data["trajectories"][root.trajectory_id]
    keys = ["id", "task", "parent_info", "steps", "reward", "finish_message", "error_message", "misc"]
    assert list(top) == keys
    assert top["task"] == {"goal": "g", "id": "t", "max_steps": None, "misc": {}, "fork_strategy": "subtask"}
    assert list(top["steps"][0]) == ["misc"]
    assert top["misc"]["odd"] == {
        "1": {"x": 2, "inner": [3]},
        "model": {"mode": "json"},
        "bad": "undumpable",
        "other": "1j",
    }
    below = data["trajectories"][child.trajectory_id]
    assert below["parent_info"] == {"id": root.trajectory_id, "fork_step": 1}
    assert below["task"]["parent_tasks"] == [top["task"]]


def test_classes_are_told_by_name() -> None:
    assert jsonable(Point) == str(Point)
