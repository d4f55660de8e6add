"""Evaluating from Python: the report's summary and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import flows
from platoon.config import load
from platoon.envs.named import NamedEnvironments

CONFIG = """
tinker_base_url: local
inference:
  model_name: platoon-tiny
  renderer_name: chat_template
  output_dir: {output}
  workflow: {{num_rollouts_per_task: 2, rollout_config: {{max_steps: 1}}}}
environments: [{{service: "saying:Saying", harness: platoon-react}}]
"""


def test_an_evaluation_gives_its_summary_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = Path(__file__).resolve().parents[1] / "train" / "project"
    (tmp_path / "saying.py").write_text((project / "saying.py").read_text())
    (tmp_path / "eval.yaml").write_text(CONFIG.format(output=tmp_path / "out"))
    result = flows.evaluate("eval.yaml", orchestration="off")
    assert isinstance(result, flows.EvaluationResult)
    assert result.summary is not None
    assert result.output_dir == tmp_path / "out"
    rollouts = result.rollouts
    assert rollouts.height == 2 * rollouts["task_id"].n_unique() > 0
    assert result.calls.height >= rollouts.height


def test_a_loaded_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        f"""
train: {{model_name: platoon-tiny, renderer_name: chat_template, max_training_steps: 1}}
stats: {{experiment_name: e, trial_name: t}}
log_path: {tmp_path}
environments: [{{env: platoon-number-search, harness: platoon-react}}]
"""
    )
    loaded = load(tmp_path / "train.yaml", resolver=NamedEnvironments())
    assert [step.status for step in flows.prepare(loaded, dry_run=True, orchestration="off")] == ["current"] * 3
