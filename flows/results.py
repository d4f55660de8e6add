"""What a call from a notebook or a script returns: where the run is, and its tables as polars frames.

Frames are read from the run directory when they are asked for, so they are as new as its files.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from platoon.eval.run import EvalResult
from platoon.train.run import RunResult

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class TrainResult(RunResult):
    """How a run ended, with its tables."""

    @classmethod
    def of(cls, result: RunResult) -> Self:
        return cls(**{field.name: getattr(result, field.name) for field in fields(RunResult)})

    @property
    def metrics(self) -> pl.DataFrame:
        """One row a step, one column a metric, null where a step did not bring it. Step 0 has what was evaluated."""
        from platoon.stats.tables import read_table

        long = read_table(self.run_dir, "metrics").unique(["step", "key"], keep="last", maintain_order=True)
        return long.pivot("key", index="step", values="value").sort("step")

    @property
    def tasks(self) -> pl.DataFrame:
        """One row a task with its statistics as of the newest checkpoint, as `platoon tasks export` writes them."""
        import polars as pl

        from platoon.stats.export import COLUMNS, read_statistics, task_rows

        return pl.DataFrame(task_rows(read_statistics(self.run_dir)), schema=COLUMNS)

    @property
    def groups(self) -> pl.DataFrame:
        """One row a settled group, with its members."""
        from platoon.stats.tables import read_table

        return read_table(self.run_dir, "groups")


@dataclass(frozen=True)
class EvaluationResult(EvalResult):
    """How an evaluation ended, with its tables. FileNotFoundError when only rollouts were asked for."""

    @classmethod
    def of(cls, result: EvalResult) -> Self:
        return cls(**{field.name: getattr(result, field.name) for field in fields(EvalResult)})

    @property
    def rollouts(self) -> pl.DataFrame:
        """One row a rollout."""
        return self._table("rollouts.parquet")

    @property
    def calls(self) -> pl.DataFrame:
        """One row a model call."""
        return self._table("calls.parquet")

    def _table(self, name: str) -> pl.DataFrame:
        import polars as pl

        return pl.read_parquet(self.output_dir / "reports" / name)
