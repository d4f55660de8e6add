"""`platoon eval` as a command, on the embedded service: output, signals, policies of training runs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from flows.eval import evaluate
from platoon.cli.app import run
from platoon.config import load, run_directory
from platoon.stats.jsonl import read_jsonl
from tests.eval.playing import (
    DEADLINE,
    command,
    comparable,
    data,
    environment,
    evaluated,
    finish,
    opened,
    report,
    settled,
    until,
    written,
)

SHORT = {"max_steps": 1, "inference_params": {"max_completion_tokens": 8}}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_evaluation_goes_on_exactly_where_it_was(tmp_path: Path, number: signal.Signals, code: int) -> None:
    workflow = {"num_rollouts_per_task": 4, "num_concurrent_workers": 8, "rollout_config": SHORT}
    config = written(tmp_path, data(tmp_path, ["pass-a", "hold-b"], workflow=workflow))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command(config), stdout=log, stderr=log, text=True, env=environment())
        try:
            until(process, lambda: len(settled(tmp_path)) == 4 and len(opened(tmp_path)) == 8)
            process.send_signal(number)
            assert process.wait(60) == code, (tmp_path / "log").read_text()
        finally:
            process.kill()
    assert settled(tmp_path) == [f"pass-a/{index}" for index in range(4)]
    files = {path.name for path in (tmp_path / "out" / "rollouts").rglob("*") if path.is_file()}
    assert files == {"metadata.json", "trajectory_collection.json"}
    assert not (tmp_path / "out" / "reports").exists()
    assert "Traceback" not in (tmp_path / "log").read_text()
    (tmp_path / "release").touch()
    done = finish(config)
    assert done.returncode == 0, done.stderr
    assert "4 of 8 rollouts are to be played" in done.stderr
    assert sorted(opened(tmp_path)) == ["hold-b"] * 8 + ["pass-a"] * 4
    assert json.loads(done.stdout) == report(tmp_path)["summary"]


def test_standard_output_is_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(written(tmp_path, data(tmp_path, ["pass", "refuse"], workflow={"rollout_config": SHORT})))
    assert run(["eval", config, "stage=rollouts"]) == 0
    assert json.loads(capsys.readouterr().out)["output_dir"] == str(tmp_path / "out")
    assert run(["eval", config, "stage=report"]) == 0
    assert json.loads(capsys.readouterr().out) == report(tmp_path)["summary"]
    assert run(["eval", config, "inference.workflow.fail_fast=true", "inference.retry_errored=false"]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert "platoon: 1 of 2 rollouts errored, the first: nobody answers" in captured.err


def test_weights_that_are_not_there_are_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(written(tmp_path, data(tmp_path, ["pass"], model_path="tinker://gone/sampler_weights/1")))
    assert run(["eval", config]) == 78
    captured = capsys.readouterr()
    assert not captured.out
    assert "tinker://gone/sampler_weights/1 is not at" in captured.err
    assert "name the run directory instead" in captured.err


def test_a_trained_run_does_better_than_the_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one slow test of this room: trains the small project of tests/train for twelve steps."""
    project = ROOT / "tests" / "train" / "project"
    log_path = f"log_path={tmp_path / 'runs'}"
    steps = ["train.max_training_steps=12", "train.batch_size=6", "train.optimizer.learning_rate=2e-3", "eval.every=0"]
    trained = subprocess.run(
        command(project / "run.yaml", log_path, *steps, name="train"),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    content = data(tmp_path, [], workflow={"num_rollouts_per_task": 8, "num_concurrent_workers": 16})
    content["split"] = "train"  # the words it trained on: few steps need not carry over to others
    content["environments"] = [{"service": "saying:Saying", "harness": "platoon-react"}]
    content["inference"]["workflow"]["rollout_config"] = SHORT
    monkeypatch.syspath_prepend(str(project))
    config = written(tmp_path, content)
    base = evaluate(config)
    run_dir, own_dir = tmp_path / "runs" / "e" / "t", tmp_path / "own"
    own = evaluate(config, {"inference.model_path": str(run_dir), "inference.output_dir": str(own_dir)})
    assert base.summary["total_rollouts"] == own.summary["total_rollouts"] == 12 * 8
    assert base.summary["errored_rollouts"] == own.summary["errored_rollouts"] == 0
    assert own.summary["reward_mean"] > base.summary["reward_mean"] + 0.1
    assert not (own_dir / "service").exists(), "the run's own service state was to be used"
    newest = read_jsonl(run_dir / "checkpoints.jsonl").rows[-1]["sampler_path"]
    lock = json.loads((own_dir / "lock.json").read_text())
    assert lock["policy"]["model_path"] == newest


async def test_inside_a_loop_the_flow_is_awaited(tmp_path: Path) -> None:
    content = data(tmp_path, ["pass", "fail"])
    first = await evaluated(tmp_path, content)
    result = await evaluate(written(tmp_path, content), ["stage=report"])
    assert comparable(result.summary) == comparable(first.summary)


def test_the_example_is_a_whole_config() -> None:
    config = load(ROOT / "examples" / "first-run" / "eval.yaml", kind="eval").eval_config
    training = load(ROOT / "examples" / "first-run" / "train.yaml", kind="train").train_config
    assert Path(str(config.inference.model_path)).absolute() == run_directory(training)
    assert (config.split, config.inference.workflow.num_rollouts_per_task) == ("test", 4)
