"""What a group's rollouts used: one row a rollout and call kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from platoon.rollout.episode import Episode
from platoon.stats.tables import Usage


def usage_rows(
    episodes: Sequence[Episode],
    *,
    seq: int | None,
    task_id: str,
    entry: str | None,
    model: str,
    phase: Literal["train", "eval"] = "train",
) -> Iterator[Usage]:
    """Rows of a group's episodes. Calls whose tokens are not kept (a judge's) count without input length."""
    for member, episode in enumerate(episodes):
        if episode.collection is None:
            continue
        kinds: dict[str, list[int]] = {}
        for trajectory in episode.collection.trajectories.values():
            for step in trajectory.steps:
                action = step.misc.get("action_misc") or {}
                usage = action.get("usage") or {}
                counts = kinds.setdefault(str(action.get("kind") or "policy"), [0, 0, 0])
                counts[0] += 1
                counts[1] += int(usage.get("prompt_tokens") or 0)
                counts[2] += int(usage.get("completion_tokens") or 0)
        for kind, (calls, prompt, completion) in kinds.items():
            yield Usage(
                seq=seq,
                member=member,
                rollout_id=episode.collection.id,
                task_id=task_id,
                entry=entry,
                kind=kind,
                calls=calls,
                input_tokens=prompt,
                output_tokens=completion,
                seconds=episode.seconds,
                model=model,
                phase=phase,
            )
