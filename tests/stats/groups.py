"""Group records for statistics tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from platoon.stats.schema import GroupRecord, MemberResult


def scored(reward: float, *, version: int = 0, seconds: float | None = 1.0, **more: Any) -> MemberResult:
    return MemberResult(
        reward=reward,
        scored=reward,
        valid=True,
        outcome="scored",
        disposition="completed",
        reward_key="reward",
        steps=2,
        output_tokens=5,
        seconds=seconds,
        versions={"main": (version, version)},
        **more,
    )


def failed(outcome: str = "error") -> MemberResult:
    return MemberResult(reward=None, scored=None, valid=False, outcome=outcome, disposition="completed")


def group(
    seq: int, task: str, members: Sequence[MemberResult], *, start: int = 1, version: int = 0, **more: Any
) -> GroupRecord:
    verdict = more.pop("verdict", None)
    rewards = {m.reward for m in members if m.valid}
    if verdict is None:
        verdict = "no_completed_root" if not rewards else "uniform" if len(rewards) == 1 else "trained"
    return GroupRecord(
        start=start,
        seq=seq,
        task_id=task,
        entry=more.pop("entry", None),
        labels=more.pop("labels", {}),
        group_size=len(members),
        sampler="auto",
        reason="order",
        position=more.pop("position", seq),
        drawn_at={"main": version},
        members=tuple(members),
        verdict=verdict,
        **more,
    )


floats = st.floats(allow_nan=False, width=64)
members = st.builds(
    MemberResult,
    reward=st.none() | floats,
    scored=st.none() | floats,
    valid=st.booleans(),
    outcome=st.sampled_from(["scored", "error"]),
    disposition=st.just("completed"),
    reward_key=st.none() | st.text(max_size=3),
    steps=st.none() | st.integers(0, 9),
    output_tokens=st.none() | st.integers(0, 9),
    seconds=st.none() | floats,
    versions=st.just({}) | st.builds(lambda a: {"main": (a, a + 1)}, st.integers(0, 9)),
    flag=st.booleans(),
)
groups = st.builds(
    group,
    st.integers(0, 10**6),
    st.text(max_size=5),
    st.lists(members, max_size=4),
    version=st.integers(0, 5),
    entry=st.none() | st.text(max_size=3),
    labels=st.just({}) | st.builds(lambda v: {"c": v}, st.text(max_size=3)),
    score=st.none() | floats,
    verdict=st.sampled_from(["trained", "uniform", "failed"]),
)
