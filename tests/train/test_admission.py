"""Admission with refill in whole runs on the embedded service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from platoon.config import ConfigError, TrainRun
from platoon.credit import GroupOutput
from platoon.draw.admission.gate import AdmissionGate, AdmissionSettings, Ruling
from platoon.draw.records import Draw
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.stats.jsonl import read_jsonl
from platoon.stats.metrics import Dequeued
from platoon.stats.schema import EntryInfo
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.admitting import AdmissionMetrics, admission_warnings
from platoon.train.dispatch import Settled
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


def test_the_numbers_of_a_step(caplog: pytest.LogCaptureFixture) -> None:
    def item(label: str, verdict: str | None, ruling: Ruling, *, stale: bool = False) -> tuple[Any, Dequeued]:
        output = None if verdict is None else GroupOutput([], verdict)
        draw = Draw(1, 0, 0, "t", 0, label, label, 4, "auto")
        marker = not ruling.admit
        settled = Settled(draw, output, None if output else "gone", 1.0, ruling, marker)
        return settled, Dequeued(output, stale=stale, marker=marker)

    good = Ruling(True, "admitted", "informative")
    items = [
        item("x", "trained", good),
        item("y", "odd", Ruling(True, "unknown", "informative")),
        item("x", "uniform", Ruling(False, "uniform_fail", "informative")),
        item("y", None, Ruling(False, "failed", "informative")),
        item("x", "trained", good, stale=True),
    ]
    sampling = SamplingSettings(3, (EntrySampling("x"), EntrySampling("y")))
    infos = {label: EntryInfo(4, name=label) for label in ("x", "y")}
    gate = AdmissionGate(
        AdmissionSettings("informative"), sampling, infos, TaskStatsView(TaskStatsStore([], infos), lambda: 0)
    )
    metrics = AdmissionMetrics(gate, 3, {"x": "e/x", "y": "e/y", "z": "e/z"})
    taken, dequeued = [settled for settled, _ in items], [one for _, one in items]
    nothing = {"admitted": 0.0, "rejected": 0.0, "stale": 0.0, "failed": 0.0, "informative_rate": 0.0}
    parts = {
        "": {"groups_admitted": 2.0, "admitted/unknown": 1.0, "rejected": 1.0, "rejected/uniform_fail": 1.0},
        "e/x/": {**nothing, "admitted": 1.0, "rejected": 1.0, "rejected/uniform_fail": 1.0, "stale": 1.0},
        "e/y/": {**nothing, "admitted": 1.0, "admitted/unknown": 1.0, "failed": 1.0},
        "e/z/": nothing,
    }
    parts[""] |= {"stale": 1.0, "failed": 1.0, "informative_rate": 2 / 4, "counted": 5.0, "short": 1.0, "errors": 0.0}
    parts[""]["draws_per_admitted"] = 10 / 2
    parts["e/x/"]["informative_rate"] = 2 / 3
    for _ in range(2):
        found = metrics.of(taken, dequeued, counted=5, draws=10.0)
        assert found == {f"admission/{p}{key}": value for p, part in parts.items() for key, value in part.items()}
    metrics.of([], [], counted=0, draws=0.0)
    assert [record.getMessage()[:27] for record in caplog.records] == [
        f"a step trained {n} of 3 groups"[:27] for n in (2, 0)
    ]


@pytest.mark.parametrize(
    ("batch_size", "most", "cap"), [(3, 1.5, 5), (10, 1.1, 11), (4, 1.0, 4), (7, 3.0, 21), (100, 1.001, 101)]
)
def test_a_step_counts_whole_groups(batch_size: int, most: float, cap: int, tmp_path: Path) -> None:
    given = loaded(tmp_path, train__batch_size=batch_size, train__refill__max_groups_per_step=most)
    assert isinstance(given.config, TrainRun)
    assert given.config.train.groups_per_step_cap == cap


@pytest.mark.parametrize(
    ("train", "warned"),
    [
        ({}, False),
        ({"loss_fn": "ppo", "loss_fn_config": {"clip_high_threshold": 2}}, False),
        ({"loss_fn": "dro"}, True),
        ({"loss_fn_config": {"beta": 0.1}}, True),
        ({"loss_fn": "dro", "group_admission": "all"}, False),
    ],
)
def test_a_rule_under_a_loss_that_learns_at_zero_advantage_is_warned_about(train: dict[str, Any], warned: bool) -> None:
    base = {"model_name": "m", "renderer_name": "r", "group_admission": "informative"}
    found = admission_warnings(TrainRun.model_validate({"train": {**base, **train}}))
    text = f"train.group_admission: the loss {train.get('loss_fn', 'cispo')} is not zero at zero advantages"
    assert [one.partition(", so that")[0] for one in found] == ([text] if warned else [])
