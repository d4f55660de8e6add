"""The run's books: per-task statistics, tables, the audit log, and where a step's numbers go.

Everything that happened to a draw passes through here in order. A checkpoint closes the books at one moment
(`snapshot`, `mark`, `cut`) and confirms them once its row is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platoon.credit import GroupOutput
from platoon.draw.admission.gate import Ruling
from platoon.draw.records import Draw, Key
from platoon.stats.events import EventLog
from platoon.stats.schema import Fate, GroupRecord
from platoon.stats.snapshot import write_snapshot
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import GroupsTable, MetricsTable, UsageTable
from platoon.train.admitting import emptied
from platoon.train.dispatch import DispatchHooks, Settled
from platoon.train.evaluation import Evaluated
from platoon.train.metrics import EvaluationMetrics, StepMetrics
from platoon.train.recorded_groups import group_record
from platoon.train.sinks import Sink
from platoon.train.step import LoopState, StepWork

log = logging.getLogger("platoon.train")
FLUSH_SECONDS = 30.0


@dataclass(frozen=True)
class Tables:
    """This start's table writers."""

    groups: GroupsTable
    metrics: MetricsTable
    usage: UsageTable

    @classmethod
    def open(cls, run_dir: Path, start: int) -> Tables:
        return cls(GroupsTable(run_dir, start), MetricsTable(run_dir, start), UsageTable(run_dir, start))

    def flush(self) -> None:
        for table in (self.groups, self.metrics, self.usage):
            table.flush()

    def cut(self) -> dict[str, list[str]]:
        return {"groups": self.groups.cut(), "metrics": self.metrics.cut(), "usage": self.usage.cut()}

    def confirm(self, parts: Mapping[str, list[str]]) -> None:
        self.groups.confirm(parts["groups"])
        self.metrics.confirm(parts["metrics"])
        self.usage.confirm(parts["usage"])


@dataclass(frozen=True)
class StoredStatistics:
    """The statistics as of one moment."""

    run_dir: Path
    start: int
    data: Mapping[str, Any]

    def write(self, name: str) -> dict[str, Any]:
        path = self.run_dir / "tasks" / f"state-s{self.start}-{name}.parquet"
        return write_snapshot(self.data, path, self.start, self.data["next_seq"])


@dataclass(frozen=True)
class RecorderParts:
    """`wandb_run_id` asks the W&B sink; `progress` feeds the watchdog; `observe` hears
    of groups in draw order; `gauges` measures what no step brings."""

    run_dir: Path
    start: int
    store: TaskStatsStore
    tables: Tables
    events: EventLog
    step_metrics: StepMetrics
    evaluation_metrics: EvaluationMetrics
    sinks: Sequence[Sink]
    wandb_run_id: Callable[[], str | None]
    progress: Callable[[], None]
    gauges: Callable[[], Mapping[str, float]] = dict
    after_step: Callable[[LoopState], None] = lambda state: None
    observe: Callable[[GroupRecord], None] = lambda record: None
    admit: Callable[[Settled[GroupOutput]], Ruling | None] = lambda settled: None
    first_update: Callable[[], Any] = field(default=lambda: None)


class Recorder:
    """Takes draws, settles, fates, steps and evaluations; gives checkpoints their records."""

    def __init__(self, parts: RecorderParts) -> None:
        self._parts = parts
        self._next_seq = 0

    # -- what the driver tells

    def hooks(self) -> DispatchHooks[GroupOutput]:
        return DispatchHooks(
            self._drawn,
            self._settled,
            self._fated,
            self._parts.events.append,
            before_decision=self._take_in,
            admit=self._parts.admit,
            emptied=emptied,
        )

    def _drawn(self, draw: Draw) -> None:
        self._next_seq = max(self._next_seq, draw.seq + 1)
        if draw.reissues is None or not self._parts.store.reissue(draw.reissues, draw.key):
            self._parts.store.draw(draw.start, draw.seq, draw.task_id, draw.position)

    def _settled(self, settled: Settled[GroupOutput]) -> None:
        record = group_record(settled, self._parts.store.column)
        self._parts.store.hold(record)
        self._parts.step_metrics.settled(settled)
        threshold = self._parts.store.threshold(record.entry)
        self._parts.events.append(
            {
                "event": "settle",
                "start": record.start,
                "seq": record.seq,
                "task_id": record.task_id,
                "verdict": record.verdict,
                "valid": record.valid,
                "passes": record.passes(threshold),
                "version": record.oldest_version,
            }
        )
        self._parts.progress()

    def _fated(self, key: Key, fate: Fate) -> None:
        self._parts.store.fate(*key, fate)

    # -- what the step loop tells

    async def first_update(self) -> bool:
        """Hold the run's first update until the starting policy was evaluated; False when a stop ends the wait."""
        return bool(await self._parts.first_update())

    def commit(self, work: StepWork) -> None:
        """The step's fates are given: its events go to the disk."""
        self._parts.events.flush()

    def progress(self) -> None:
        self._parts.progress()

    async def record(self, work: StepWork, state: LoopState) -> dict[str, float]:
        """Count the step, log its metrics and let what falls due after it start."""
        self._take_in()
        metrics = {**self._parts.step_metrics.of(work, state), **self._parts.gauges()}
        self.log(state.train_step, metrics)
        self._parts.events.flush()
        self._parts.after_step(state)
        return metrics

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """To the metrics table and every sink."""
        self._parts.tables.metrics.append(step, metrics)
        for sink in self._parts.sinks:
            sink.log(step, metrics)

    def event(self, event: Mapping[str, Any]) -> None:
        """Add to the audit log; it reaches the disk with the next flush."""
        self._parts.events.append(event)

    def evaluated(self, evaluated: Evaluated, step: int) -> dict[str, Any]:
        """Log an evaluation at the step training stands on; returns what its row in `evaluations.jsonl` adds."""
        metrics = self._parts.evaluation_metrics.of(evaluated)
        self.log(step, metrics)
        self._parts.progress()
        row: dict[str, Any] = {"logged_at": step, "policy_version": evaluated.due.version}
        if "eval/task_reward" in metrics:
            row["task_reward"] = metrics["eval/task_reward"]
        return row

    def _take_in(self) -> None:
        for intake, record in self._parts.store.flush():
            self._parts.tables.groups.append(record, intake)
            self._parts.observe(record)

    # -- what a checkpoint asks

    @property
    def wandb_run_id(self) -> str | None:
        return self._parts.wandb_run_id()

    def snapshot(self) -> StoredStatistics:
        self._take_in()
        data = self._parts.store.snapshot(start=self._parts.start, next_seq=self._next_seq)
        return StoredStatistics(self._parts.run_dir, self._parts.start, data)

    def cut(self, name: str, batch: int) -> dict[str, Any]:
        """Close the tables' parts, and note the save at its place among the events."""
        self._parts.events.append({"event": "save", "start": self._parts.start, "checkpoint": name, "batch": batch})
        return {"start": self._parts.start, **self._parts.tables.cut()}

    def written(self) -> None:
        """The checkpoint's files and weights are there: the events go to the disk before its row."""
        self._parts.events.flush()

    def confirm(self, parts: Mapping[str, Any]) -> None:
        self._parts.tables.confirm(parts)

    # -- life

    async def keep_flushing(self) -> None:
        """Write held rows at least once a minute; a background task of the run."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._parts.events.flush()
            self._flush_tables("their rows are held")

    def _flush_tables(self, otherwise: str) -> None:
        try:
            self._parts.tables.flush()
        except OSError as error:
            log.warning("the tables cannot be written now (%s); %s", error, otherwise)

    def close(self, exit_code: int = 0) -> None:
        """Write what is held, end the sinks, and say when nothing was learned."""
        self._take_in()
        self._flush_tables("rows since the last checkpoint are lost")
        self._parts.events.close()
        for sink in self._parts.sinks:
            sink.close(exit_code)
        if text := self._parts.step_metrics.idle.ended():
            log.warning("%s", text)
