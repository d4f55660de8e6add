"""`pass_rate`: draw the task whose group is likeliest to have rollouts that pass and rollouts that fail.

Thompson sampling over the belief on each task's pass rate, with a share of exploring draws, at most so many draws of a
task per pass over the pool, and no second draw of a task whose first group is still out. Each decision's random numbers
come from (run, sampler, decision) alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from platoon.draw.samplers.contract import Draw, SamplerCheckContext, SamplerContext, SamplerSetup
from platoon.draw.view import TaskStatsView
from platoon.stats.columns import NO_VERSION, TaskColumns
from platoon.stats.passk import informative_at

log = logging.getLogger("platoon.draw")
Ints = npt.NDArray[np.int64]
NO_EVIDENCE = 3  # groups in a row without a valid rollout: not scored until explored again


@dataclass(frozen=True)
class PassRateOptions:
    """`explore`: share of exploring draws. `candidates`: most tasks scored at one decision."""

    explore: float = 0.2
    max_draws_per_epoch: int | None = 3
    max_outstanding_per_task: int | None = None
    candidates: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.explore <= 1.0:
            raise ValueError(f"explore: must be between 0 and 1; got {self.explore}")
        for name in ("max_draws_per_epoch", "max_outstanding_per_task", "candidates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1; got {value}")


class PassRateSampler:
    """See the module. Index i of an array is the i-th distinct task of the pool in listing order."""

    adaptive: ClassVar[bool] = True
    options_schema: ClassVar[type[PassRateOptions]] = PassRateOptions

    @staticmethod
    def check(options: PassRateOptions, ctx: SamplerCheckContext) -> None:
        labels = list(ctx.entries) if ctx.entry is None else [ctx.entry]
        alone = [label for label in labels if ctx.entries[label]["group_size"] == 1]
        if alone:
            raise ValueError(
                f"pass_rate needs groups of at least 2 rollouts; group_size is 1 for {', '.join(map(repr, alone))}"
            )

    def __init__(self, setup: SamplerSetup, options: PassRateOptions) -> None:
        self._name = setup.name
        self._options = options
        self._ids = tuple(dict.fromkeys(setup.task_ids))
        self._index = {task_id: index for index, task_id in enumerate(self._ids)}
        entry_of = {task_id: label for label, info in setup.entries.items() for task_id in info.task_ids}
        sizes = [setup.entries[entry_of[i]].group_size if i in entry_of else 1 for i in self._ids]
        self._size_N: Ints = np.array(sizes, np.int64)
        count = len(self._ids)
        self._last_N: Ints = np.full(count, -1, np.int64)  # decision of the last draw
        self._window = 0
        self._drawn_N: Ints = np.zeros(count, np.int64)  # draws of this window
        self._before_N: Ints | None = None  # draws of the window before
        self._columns: TaskColumns | None = None
        self._warned = False
        self._clear()

    def _clear(self) -> None:
        self._decisions = self._lifted = 0
        self._shares = self._priors = 0.0
        self._ages: list[int] = []

    def next(self, ctx: SamplerContext) -> Draw | None:
        self._enter_window(ctx.decision // len(self._ids))
        count = len(self._ids)
        pool_C: Ints = np.arange(count) if ctx.eligible_N is None else np.flatnonzero(ctx.eligible_N)
        if not len(pool_C):
            return None
        columns = self._statistics(ctx.stats)
        if columns is not None:
            pool_C = self._without_waiting(pool_C, columns)
        cap = self._options.max_draws_per_epoch
        if cap is not None:
            below_C = pool_C[self._drawn_N[pool_C] < cap]
            self._lifted += not len(below_C)
            pool_C = below_C if len(below_C) else pool_C
        rng = np.random.default_rng(ctx.key)
        chosen: int | None = None
        now = ctx.versions["main"]
        if columns is not None and rng.random() >= self._options.explore:
            chosen = self._exploit(pool_C, columns, now, rng)
        reason = "explore" if chosen is None else "exploit"
        if chosen is None:
            last_C = self._last_N[pool_C]
            chosen = _one_of(pool_C[last_C == last_C.min()], rng)
        return self._draw(chosen, ctx, len(pool_C) / count, reason, now)

    def _draw(self, chosen: int, ctx: SamplerContext, share: float, reason: str, now: int) -> Draw:
        self._last_N[chosen] = ctx.decision
        self._drawn_N[chosen] += 1
        self._decisions += 1
        self._shares += share
        task_id = self._ids[chosen]
        if ctx.stats is None or self._columns is None:
            return Draw(task_id, reason)
        alpha, beta = ctx.stats.posterior(task_id)
        self._priors += 2.0 / (alpha + beta)
        if (version := int(self._columns.version_N[chosen])) != NO_VERSION:
            self._ages.append(max(0, now - version))
        return Draw(task_id, reason, informative_at(alpha, beta, int(self._size_N[chosen])))

    def _enter_window(self, window: int) -> None:
        if window == self._window:
            return
        self._before_N = self._drawn_N if window == self._window + 1 else None
        self._drawn_N = np.zeros(len(self._ids), np.int64)
        self._window = window

    def _statistics(self, stats: TaskStatsView | None) -> TaskColumns | None:
        if stats is None or not stats.live:
            if not self._warned:
                log.warning("sampler %s: the task statistics stopped; it explores only", self._name)
            self._warned = True
            return None
        if self._columns is None:
            self._columns = stats.columns(self._ids)
        self._columns.refresh()
        return self._columns

    def _without_waiting(self, pool_C: Ints, columns: TaskColumns) -> Ints:
        """Leave out tasks whose only groups are still out, and those with too many out; keep the least of all else."""
        out_C = columns.outstanding_N[pool_C]
        pool_C = _kept(pool_C, ~((out_C > 0) & (columns.groups_N[pool_C] == 0)), out_C)
        limit = self._options.max_outstanding_per_task
        if limit is not None:
            out_C = columns.outstanding_N[pool_C]
            pool_C = _kept(pool_C, out_C < limit, out_C)
        return pool_C

    def _exploit(self, pool_C: Ints, columns: TaskColumns, now: int, rng: np.random.Generator) -> int | None:
        scored_C = pool_C[columns.silent_N[pool_C] < NO_EVIDENCE]
        if not len(scored_C):
            return None
        most = self._options.candidates
        if len(scored_C) > most:
            scored_C = scored_C[np.sort(rng.choice(len(scored_C), most, replace=False, shuffle=False))]
        alpha_C, beta_C = columns.posterior(scored_C, now=now)
        rate_C = rng.beta(alpha_C, beta_C)
        size_C = self._size_N[scored_C]
        power: Any = int(size_C[0]) if (size_C == size_C[0]).all() else size_C
        score_C = 1.0 - rate_C**power - (1.0 - rate_C) ** power
        return _one_of(scored_C[score_C == score_C.max()], rng)

    def metrics(self, stats: TaskStatsView | None) -> dict[str, float]:
        found = {"top10_share": self._top_share()}
        if self._decisions:
            found["eligible_share"] = self._shares / self._decisions
            found["cap_lifted"] = self._lifted / self._decisions
            found["prior_share"] = self._priors / self._decisions
        if self._ages:
            found["evidence_age"] = sum(self._ages) / len(self._ages)
        self._clear()
        return found

    def _top_share(self) -> float:
        """Share of a window's draws that went to the tenth of the tasks drawn most."""
        count = len(self._ids)
        full = self._drawn_N.sum() >= count / 2 or self._before_N is None
        drawn_N = self._drawn_N if full or self._before_N is None else self._before_N
        total = int(drawn_N.sum())
        return float(np.sort(drawn_N)[-max(1, count // 10) :].sum() / total) if total else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_drawn": {self._ids[i]: int(self._last_N[i]) for i in np.flatnonzero(self._last_N >= 0)},
            "window": self._window,
            "window_draws": self._by_id(self._drawn_N),
            "previous_window_draws": {} if self._before_N is None else self._by_id(self._before_N),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        last_N = self._from_ids(state, "last_drawn", -1)
        drawn_N, before_N = self._from_ids(state, "window_draws", 0), self._from_ids(state, "previous_window_draws", 0)
        self._window = _count(state, "window")
        self._last_N, self._drawn_N = last_N, drawn_N
        self._before_N = before_N if before_N.any() else None

    def _by_id(self, count_N: Ints) -> dict[str, int]:
        return {self._ids[i]: int(count_N[i]) for i in np.flatnonzero(count_N)}

    def _from_ids(self, state: Mapping[str, Any], name: str, missing: int) -> Ints:
        found = state.get(name)
        if not isinstance(found, Mapping):
            raise ValueError(f"{name} is {found!r}, not a mapping of task ids to counts")
        count_N = np.full(len(self._ids), missing, np.int64)
        for task_id in found:
            value = _count(found, task_id)
            if (index := self._index.get(task_id)) is not None:
                count_N[index] = value
        return count_N


def _kept(pool_C: Ints, keep_C: npt.NDArray[np.bool_], out_C: Ints) -> Ints:
    """The tasks a rule keeps; when it keeps none, those with the fewest groups out."""
    return pool_C[keep_C] if keep_C.any() else pool_C[out_C == out_C.min()]


def _one_of(ties: Ints, rng: np.random.Generator) -> int:
    return int(ties[0] if len(ties) == 1 else ties[rng.integers(len(ties))])


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}, not a count")
    return value
