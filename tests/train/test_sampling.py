"""Labels, limits and samplers in whole runs on the embedded service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from platoon.config import ConfigError
from platoon.envs.contract import EnvNotPrepared
from platoon.stats.jsonl import read_jsonl
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


async def test_pass_rate_draws_by_what_settled_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    settings = {"train__task_sampler": "pass_rate", "train__max_staleness": 1, "eval__every": 0}
    first = await train_run(loaded(tmp_path, train__max_training_steps=3, **settings))
    assert first.status == "finished"
    rows = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows
    state = json.loads((run_dir(tmp_path) / rows[-1]["dispatch"]["file"]).read_text())
    assert state["samplers"]["run"]["class"].endswith(":PassRateSampler")
    decided = state["samplers"]["run"]["decisions"]
    assert decided == state["next_position"] == 9
    assert (await train_run(loaded(tmp_path, **settings))).status == "finished"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    events = read_jsonl(run_dir(tmp_path) / "tasks" / "events.jsonl").rows
    draws = [event for event in events if event["event"] == "draw"]
    assert {event["reason"] for event in draws} <= {"explore", "exploit", "reissue"}
    assert all(0.0 <= event["score"] <= 1.0 for event in draws if "reissues" not in event)
    keys = set(read_table(run_dir(tmp_path), "metrics")["key"])
    wanted = ("draws", "decision_ms", "prior_share", "eligible_share", "predicted_informative", "informative_share")
    assert {f"train/sampler/{name}" for name in wanted} <= keys


async def test_an_entry_draws_by_pass_rate_below_the_weighted_order(tmp_path: Path) -> None:
    easy = {"name": "easy", "service": "saying:Saying", "harness": "platoon-react", "task_sampler": "pass_rate"}
    plain = {"name": "plain", "service": "saying:Saying", "harness": "platoon-react"}
    config = loaded(tmp_path, environments=[easy, plain], train__rollout_group_limits={"easy": 1}, eval__every=0)
    assert (await train_run(config)).status == "finished"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    events = read_jsonl(run_dir(tmp_path) / "tasks" / "events.jsonl").rows
    samplers = {event["sampler"] for event in events if event["event"] == "draw"}
    assert samplers == {"pass_rate@easy", "uniform@plain"}
    keys = set(read_table(run_dir(tmp_path), "metrics")["key"])
    assert {"train/sampler/environment/easy/tokens", "train/sampler/environment/easy/prior_share"} <= keys


async def test_an_environment_that_is_not_prepared_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvNotPrepared, match="run platoon prepare"):
        await train_run(loaded(tmp_path, environments__0__service="saying:Unprepared", eval__every=0))


async def test_a_sampler_of_ones_own_is_named_by_its_class_and_keeps_its_state(tmp_path: Path) -> None:
    own = {"train__task_sampler": "tests.draw.own_samplers:Listener", "train__max_staleness": 1, "eval__every": 0}
    assert (await train_run(loaded(tmp_path, train__max_training_steps=2, **own))).steps == 2
    rows = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows
    saved = json.loads((run_dir(tmp_path) / rows[-1]["dispatch"]["file"]).read_text())["samplers"]["run"]
    assert len(saved["state"]["heard"]) == 6, "it heard of each settled group"
    assert (await train_run(loaded(tmp_path, **own))).steps == 4
    rows = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows
    later = json.loads((run_dir(tmp_path) / rows[-1]["dispatch"]["file"]).read_text())["samplers"]["run"]
    assert later["state"]["heard"][:6] == saved["state"]["heard"]
    assert (later["decisions"], len(later["state"]["heard"])) == (18, 18)
    assert audit_run(run_dir(tmp_path)).problems == []
    assert "train/sampler/heard" in set(read_table(run_dir(tmp_path), "metrics")["key"])
