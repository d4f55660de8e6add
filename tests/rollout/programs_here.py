"""Programs that tests name."""

from __future__ import annotations

from typing import Any

from platoon.rollout.episode_context import EpisodeContext
from platoon.rollout.outcome import Outcome
from platoon.rollout.programs import program
from platoon.rollout.trajectory import TrajectoryCollection


@program("acme-halved", version="1.2")
async def halved(episode: EpisodeContext) -> Outcome:
    """Half the environment's reward."""
    await episode.run()
    grade = await episode.grade()
    return Outcome("scored", {"reward": (grade.reward or 0.0) / 2})


async def with_another_harness(episode: EpisodeContext) -> Outcome:
    await episode.run("tests.rollout.loops:annotates", goal="say hello", options={"a": 1})
    calls = len(episode.snapshot().root.steps)
    return Outcome("scored", {"reward": float(calls)})


async def runs_twice(episode: EpisodeContext) -> Outcome:
    await episode.run()
    await episode.run()
    return await episode.grade()


async def grades_first(episode: EpisodeContext) -> Outcome:
    return await episode.grade()


async def returns_a_number(episode: EpisodeContext) -> Any:
    await episode.run()
    return 1.0


def note(collection: TrajectoryCollection) -> None:
    collection.root.misc.setdefault("notes", []).append("sync")


async def note_later(collection: TrajectoryCollection) -> None:
    collection.root.misc["notes"].append("async")


async def finalized(episode: EpisodeContext) -> Outcome:
    for fn in (note, note_later, note):
        episode.add_finalizer(fn)
    await episode.run()
    return await episode.grade()


async def badly_finalized(episode: EpisodeContext) -> Outcome:
    def broken(collection: TrajectoryCollection) -> None:
        note(collection)
        raise LookupError("no judge")

    episode.add_finalizer(broken)
    await episode.run()
    return await episode.grade()
