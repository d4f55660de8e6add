"""The training flow over a run of the same shape as a real one, and what callers and deployments see."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flows import train
from flows.params import RunParams, check_resume
from flows.train import load_training, train_steps
from platoon.config import ConfigError
from platoon.train.step import LoopState, Phase, StepReport
from tasks.recorder import Recorder
from tasks.recording import current_run_id, recorded
from tests.flows.prefect_server import PrefectServer

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
train:
  model_name: platoon-tiny
  renderer_name: chat_template
  max_training_steps: 1
  batch_size: 1
  workflow_config: {group_size: 2, rollout_config: {max_steps: 1}}
stats: {experiment_name: exp, trial_name: flow, wandb: {mode: disabled}}
log_path: runs
tinker_base_url: local
environments: [{env: platoon-number-search, harness: platoon-react}]
"""


class Run:
    """Steps with the phases of a training step; `drop_at` is a step that a stop drops."""

    def __init__(self, start: int, end: int, drop_at: int | None = None) -> None:
        self.state: LoopState | None = LoopState(start, end, start, start)
        self.done: list[tuple[str, int]] = []
        self._drop_at = drop_at
        self._dropped = False

    @property
    def finished(self) -> bool:
        return self._dropped or self.state is None or self.state.finished

    async def step(self, phase: Phase) -> StepReport | None:
        assert self.state is not None
        number = self.state.train_step + 1
        if number == self._drop_at:
            self._dropped = True
            return None

        def body(name: str) -> Callable[[], Awaitable[dict[str, float]]]:
            async def run() -> dict[str, float]:
                self.done.append((name, number))
                return {"reward": 0.25}

            return run

        for name in ("collect", "update", "publish"):
            await phase(name, body(name))
        metrics = await phase("record", body("record"))
        self.state.train_step = number
        return StepReport(number, metrics)


async def test_steps_run_in_order_and_a_dropped_step_ends_the_run() -> None:
    run = Run(3, 9, drop_at=6)
    await train_steps(run)
    assert run.done == [(name, step) for step in (4, 5) for name in ("collect", "update", "publish", "record")]


@pytest.mark.orchestrated
async def test_every_step_is_a_subflow_named_after_it(prefect_api: PrefectServer, recorder: Recorder) -> None:
    @recorded("train", "exp/subflows")
    async def flow(config: str) -> Any:
        run = Run(10, 13)
        await train_steps(run)
        return current_run_id(), run.done

    parent, done = await flow("a.yaml")
    assert len(done) == 12
    steps = prefect_api.flow_runs(parent_flow_run_id={"any_": [str(parent)]})
    assert [(step["name"], step["state_type"]) for step in steps] == [
        ("step-00011", "COMPLETED"),
        ("step-00012", "COMPLETED"),
        ("step-00013", "COMPLETED"),
    ]


def test_a_call_outside_a_loop_trains_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    result = train("run.yaml", overrides=["stats.trial_name=called"], orchestration="off")
    assert (result.status, result.step, result.exit_code) == ("finished", 1, 0)
    assert (tmp_path / "runs/exp/called/checkpoints.jsonl").is_file()
    assert result.metrics.filter(result.metrics["step"] == 1)["train/step"].to_list() == [1.0]
    assert result.tasks["groups"].sum() == result.groups.height == 1
    again = train("run.yaml", overrides={"stats.trial_name": "called"}, orchestration="off")
    assert again.status == "nothing to do"
    with pytest.raises(ConfigError, match="resume: never"):
        train("run.yaml", overrides=["stats.trial_name=called"], resume="never", orchestration="off")


@pytest.mark.orchestrated
async def test_inside_a_loop_it_is_awaited_and_recorded(
    prefect_api: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", prefect_api.url)
    (tmp_path / "run.yaml").write_text(CONFIG)
    result = await train("run.yaml", orchestration="require")
    assert result.status == "finished"
    (run,) = prefect_api.flow_runs(name={"any_": ["exp/flow"]})
    assert run["state_type"] == "COMPLETED"
    assert sorted(run["tags"]) == ["exp", "flow"]
    assert run["parameters"]["config"] == str(tmp_path / "run.yaml")
    steps = prefect_api.flow_runs(parent_flow_run_id={"any_": [run["id"]]})
    assert [step["name"] for step in steps] == ["step-00001"]


def test_require_without_a_server_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "run.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match="orchestration: require"):
        train("run.yaml", orchestration="require")
    assert not (tmp_path / "runs").exists()


def test_a_call_logs_the_doubts_that_the_command_prints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    with caplog.at_level("WARNING", "platoon.config"):
        loaded = load_training(tmp_path / "run.yaml", {"eval.at_start": True})
        load_training(loaded)  # what a command has loaded and told
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["eval.at_start"]


def test_the_flows_do_not_import_prefect() -> None:
    code = "import sys, flows.train, flows.eval, flows.prepare\nassert 'prefect' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize(
    ("resume", "trained", "refused"),
    [
        ("never", True, True),
        ("never", False, False),
        ("must", True, False),
        ("must", False, True),
        ("auto", True, False),
    ],
)
def test_resume_refuses_what_it_rules_out(resume: Any, trained: bool, refused: bool, tmp_path: Path) -> None:
    if trained:
        (tmp_path / "checkpoints.jsonl").write_text('{"batch": 3}\n')
    if not refused:
        check_resume(resume, tmp_path)
        return
    with pytest.raises(ConfigError, match=str(tmp_path)):
        check_resume(resume, tmp_path)


@pytest.mark.orchestrated
def test_deployed_flows_take_one_schema_and_keep_no_results() -> None:
    from flows import deployed

    for flow in (deployed.train, deployed.evaluate, deployed.prepare):
        assert flow.persist_result is False
        assert flow.retries == 0
        schema = flow.parameters.model_dump()
        assert list(schema["properties"]) == ["params"]
        assert set(schema["definitions"]["RunParams"]["properties"]) == {"config", "overrides", "resume"}
        checked = flow.validate_parameters({"params": {"config": "a.yaml"}})
        assert checked["params"] == RunParams(config="a.yaml", overrides=[], resume="auto")
        with pytest.raises(Exception, match="epochs"):
            flow.validate_parameters({"params": {"config": "a.yaml", "epochs": 3}})


@pytest.mark.orchestrated
def test_deployed_flows_load_by_their_entrypoint(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.flows import load_flow_from_entrypoint

    monkeypatch.chdir(ROOT)
    assert load_flow_from_entrypoint("flows/deployed.py:train").name == "train"


@pytest.mark.orchestrated
async def test_a_deployed_run_records_its_steps_under_itself(
    prefect_api: PrefectServer, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

    from flows import deployed

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    params = RunParams(config="run.yaml", overrides=["stats.trial_name=deployed"])
    patience: list[int] = []
    flow = deployed.train.with_options(on_completion=[lambda *_: patience.append(PREFECT_CLIENT_MAX_RETRIES.value())])
    await asyncio.create_task(flow(params))
    assert patience == [5], "the last state is worth a wait"
    assert PREFECT_CLIENT_MAX_RETRIES.value() == 0, "the patience of its end is its own"
    assert os.environ["PREFECT_CLIENT_MAX_RETRIES"] == "0"
    (run,) = prefect_api.flow_runs(name={"any_": ["exp/deployed"]})
    assert run["state_type"] == "COMPLETED"
    assert {"exp", "deployed"} <= set(run["tags"])
    assert run["parameters"]["params"]["overrides"] == ["stats.trial_name=deployed"]
    assert len(prefect_api.flow_runs(parent_flow_run_id={"any_": [run["id"]]})) == 1
