"""Admission with refill in whole runs on the embedded service."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from platoon.config import ConfigError
from platoon.stats.jsonl import read_jsonl
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.run import train_run
from tests.train.running import loaded, run_dir

INFORMATIVE = {"train__group_admission": "informative", "eval__every": 0}


@pytest.mark.parametrize("ahead", [0, 1])
async def test_uniform_groups_are_replaced(tmp_path: Path, ahead: int) -> None:
    config = loaded(tmp_path, train__max_staleness=ahead, train__num_microbatches=3, **INFORMATIVE)
    assert (await train_run(config)).status == "finished"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert {"consumed", "rejected"} <= set(audit.fates.values()) <= {"consumed", "rejected", "stale", "failed"}
    events = read_jsonl(run_dir(tmp_path) / "tasks" / "events.jsonl").rows
    rejected = [event for event in events if event.get("fate") == "rejected"]
    assert {event["admission"] for event in rejected} <= {"uniform_pass", "uniform_fail"}
    assert {event["rule"] for event in rejected} == {"informative"}
    verdicts = {(e["start"], e["seq"]): e["verdict"] for e in events if e["event"] == "settle"}
    consumed = [e for e in events if e.get("fate") == "consumed"]
    assert {verdicts[e["start"], e["seq"]] for e in consumed} == {"trained"}
    numbers = read_table(run_dir(tmp_path), "metrics")
    by_key = {str(key): frame["value"].to_list() for (key,), frame in numbers.group_by("key", maintain_order=True)}
    for admitted, counted, short in zip(
        by_key["train/admission/groups_admitted"],
        by_key["train/admission/counted"],
        by_key["train/admission/short"],
        strict=True,
    ):
        assert counted <= 9
        assert (admitted == 3) == (short == 0.0)
        assert admitted == 3 or counted == 9
    total = pl.Series(by_key["train/admission/groups_admitted"]).sum()
    assert total == len(consumed)


async def test_a_rule_run_goes_on_after_its_end(tmp_path: Path) -> None:
    assert (await train_run(loaded(tmp_path, train__max_training_steps=2, **INFORMATIVE))).steps == 2
    assert (await train_run(loaded(tmp_path, **INFORMATIVE))).steps == 4
    assert audit_run(run_dir(tmp_path)).problems == []


async def test_a_step_that_admits_nothing_takes_no_update(tmp_path: Path) -> None:
    band = {"train__group_admission_options": {"band": [0.9, 1.0]}, "train__refill__max_groups_per_step": 1.5}
    config = loaded(tmp_path, train__max_training_steps=2, **INFORMATIVE, **band)
    assert (await train_run(config)).status == "finished"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert set(audit.fates.values()) <= {"rejected", "consumed"}
    assert len(audit.fates) == 2 * 5  # each step counts up to ceil(1.5 * 3)


async def test_bad_rules_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.group_admission_options\.band: needs 0 <= low < high <= 1"):
        await train_run(loaded(tmp_path, train__group_admission_options={"band": [1, 0]}, **INFORMATIVE))
