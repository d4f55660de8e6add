"""Small runs for the tests of the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Draw, Start
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings


def listing(labels: str, rounds: int = 40) -> TaskPool:
    """Rows whose labels repeat the given letters; each letter is an entry as well."""
    letters = labels * rounds
    return TaskPool([PoolRow(f"{letter}{index}", letter, letter) for index, letter in enumerate(letters)])


def in_listing_order(pool: TaskPool, settings: DispatchSettings, *, start: int = 1, steps: int = 4) -> Dispatcher:
    """A dispatcher that draws the pool's rows as they are listed: position = row."""
    run = SamplingSettings(settings.batch_size, (EntrySampling("default"),), listing_ordered=True)
    return Dispatcher(pool, build_sampling(run, pool), settings, start=start, steps_left=steps)


def bounds(
    batch_size: int,
    ahead: int | None,
    *,
    limits: Mapping[str, int] | None = None,
    backlog: int | None = None,
    sizes: Mapping[str, int] | None = None,
    cap: int | None = None,
) -> DispatchSettings:
    return DispatchSettings(batch_size, 1, ahead, sizes or {}, limits or {}, backlog, cap)


def start_all(dispatcher: Dispatcher) -> list[Draw]:
    """Start draws until the dispatcher waits."""
    started: list[Draw] = []
    while isinstance(decision := dispatcher.choose(), Start):
        started.append(decision.draw)
    return started


def names(draws: Sequence[Draw]) -> list[str]:
    return [draw.task_id for draw in draws]
