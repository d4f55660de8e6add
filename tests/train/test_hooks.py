"""Hooks that a package registers reach the credit of every group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from platoon.credit import CompletionHooks, CreditPlugins
from platoon.hooks import register
from platoon.rollout.trajectory import TrajectoryStep
from platoon.train.group import with_hooks


def errors(steps: Sequence[TrajectoryStep]) -> Collection[str]:
    return {"a"}


def messages(steps: Sequence[TrajectoryStep]) -> Collection[str]:
    return {"b"}


def test_registered_hooks_follow_those_of_the_program(tmp_path: Path) -> None:
    register("trajectory.error_completion_ids", errors)
    register("trajectory.message_completion_ids", messages)
    made = with_hooks(CreditPlugins(hooks=CompletionHooks(errors=(messages,))))
    assert made.hooks.errors == (messages, errors)
    assert made.hooks.message_only == (messages,)
