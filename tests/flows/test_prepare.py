"""Preparing: steps at once, tried again, reported when they still fail; recorded and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.prepare import prepare
from platoon.config import ConfigError
from tasks.recorder import Recorder
from tasks.recording import recorded
from tasks.retrying import Retries, retried
from tests.flows.prefect_server import PrefectServer


class Flaky:
    """Work that fails some times first."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    async def work(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return self.calls


QUICK = Retries(on=(OSError,), count=2, seconds=0.01)


async def test_unrecorded_it_tries_again_and_gives_up() -> None:
    assert await retried("work", Flaky(2, OSError("away")).work, QUICK) == 3
    with pytest.raises(OSError, match="away"):
        await retried("work", Flaky(3, OSError("away")).work, QUICK)
    once = Flaky(1, ConfigError("wrong"))
    with pytest.raises(ConfigError):
        await retried("work", once.work, QUICK)
    assert once.calls == 1


@pytest.mark.orchestrated
async def test_recorded_the_same_policy_holds(prefect_api: PrefectServer, recorder: Recorder) -> None:
    good, hopeless, once = Flaky(2, OSError("away")), Flaky(9, OSError("away")), Flaky(1, ConfigError("wrong"))

    @recorded("prepare", "prepare-retries")
    async def flow() -> tuple[int, str, str]:
        value = await retried("good", good.work, QUICK)
        with pytest.raises(OSError, match="away") as first:
            await retried("hopeless", hopeless.work, QUICK)
        with pytest.raises(ConfigError) as second:
            await retried("once", once.work, QUICK)
        return value, str(first.value), str(second.value)

    assert await flow() == (3, "away", "wrong")
    assert (good.calls, hopeless.calls, once.calls) == (3, 3, 1)
    (run,) = prefect_api.flow_runs(name={"any_": ["prepare-retries"]})
    assert run["state_type"] == "COMPLETED"


def config(tmp_path: Path, model: str = "platoon-tiny") -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""
train: {{model_name: {model}, renderer_name: chat_template, max_training_steps: 1}}
stats: {{experiment_name: e, trial_name: t}}
log_path: {tmp_path}/runs
environments: [{{env: platoon-number-search, harness: platoon-react}}]
"""
    )
    return path


def test_every_step_is_reported_in_the_configs_order(tmp_path: Path) -> None:
    steps = prepare(config(tmp_path), orchestration="off")
    assert [(step.subject, step.step, step.status) for step in steps] == [
        ("policy", "tokenizer", "current"),
        ("environments[default]", "tasks (train)", "current"),
        ("environments[default]", "tasks (eval)", "current"),
    ]


def test_a_dry_run_fetches_nothing_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer, *_ = prepare(config(tmp_path, "nobody/has-this-model"), dry_run=True, orchestration="off")
    assert (tokenizer.status, tokenizer.detail) == ("missing", "nobody/has-this-model is not on this machine yet")
