"""Labels, limits and samplers in whole runs on the embedded service."""

from __future__ import annotations

from pathlib import Path

import pytest

from platoon.config import ConfigError
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.run import train_run
from tests.train.running import loaded, run_dir


async def test_limits_by_a_column_park_draws_and_are_counted(tmp_path: Path) -> None:
    limits = {"3": 1}
    config = loaded(
        tmp_path, train__label_by="length", train__rollout_group_limits=limits, train__max_staleness=1, eval__every=0
    )
    assert (await train_run(config)).status == "finished"
    assert audit_run(run_dir(tmp_path)).problems == []
    metrics = read_table(run_dir(tmp_path), "metrics")
    keys = set(metrics["key"])
    assert {"train/batch/skipped_rows", "train/batch/length/3/parked_rows", "train/tasks/length/2/coverage"} <= keys
    parked = metrics.filter(metrics["key"] == "train/batch/length/3/parked_rows")["value"]
    assert parked.max() > 0  # type: ignore[operator]


async def test_a_label_column_that_no_task_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no training task has a column 'lenght'; did you mean 'length'\?"):
        await train_run(loaded(tmp_path, train__label_by="lenght"))
