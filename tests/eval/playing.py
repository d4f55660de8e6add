"""Evaluations of the small project: in this process with a scripted policy, and as commands on the embedded service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from platoon.config import EvalRun, Loaded, load
from platoon.eval.policy import OpenPolicy, Policy, WeightsSource
from platoon.eval.run import EvalResult, eval_run
from platoon.gateway import Sampler
from platoon.testing import ScriptedPolicy, make_gateway

DEADLINE = 120.0
PROJECT = Path(__file__).parent / "project"
HELD_BACK = ("elapsed_seconds",)


def data(work: Path, tasks: Sequence[str], **inference: Any) -> dict[str, Any]:
    """An evaluation config of tasks; `workflow` among the keyword arguments is merged over one worker's defaults."""
    workflow = {"num_concurrent_workers": 4, **inference.pop("workflow", {})}
    return {
        "tinker_base_url": "local",
        "orchestration": "off",
        "split": "test",
        "inference": {
            "model_name": "platoon-tiny",
            "renderer_name": "chat_template",
            "output_dir": str(work / "out"),
            "workflow": workflow,
            **inference,
        },
        "environments": [entry(work, tasks)],
    }


def entry(work: Path, tasks: Sequence[str], **more: Any) -> dict[str, Any]:
    kwargs = {"tasks": list(tasks), "directory": str(work)}
    return {"service": "endings:Endings", "service_kwargs": kwargs, "harness": "platoon-react", **more}


def written(work: Path, content: dict[str, Any]) -> Path:
    path = work / "eval.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def loaded(work: Path, content: dict[str, Any]) -> Loaded:
    return load(written(work, content))


def scripted(sampler: Sampler | None = None) -> OpenPolicy:
    """A policy that says `Ada` unless another sampler is given."""
    policy = sampler or ScriptedPolicy(lambda prompt: "Ada")

    @asynccontextmanager
    async def opened(config: EvalRun, source: WeightsSource, output: Path) -> AsyncIterator[Policy]:
        yield Policy(make_gateway(policy, context_window_length=500), None)

    return opened


async def evaluated(work: Path, content: dict[str, Any], sampler: Sampler | None = None) -> EvalResult:
    return await eval_run(loaded(work, content), scripted(sampler))


def settled(work: Path) -> list[str]:
    """`<task>/<index>` of every rollout on disk, sorted."""
    found = (work / "out" / "rollouts").glob("*/*/metadata.json")
    return sorted(f"{path.parent.parent.name}/{path.parent.name.removeprefix('rollout_')}" for path in found)


def report(work: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((work / "out" / "reports" / "final_report.json").read_text())
    return content


def comparable(summary: Any) -> str:
    """A summary's JSON text without what tells of the clock."""
    return json.dumps({key: value for key, value in summary.items() if key not in HELD_BACK}, indent=2)


def opened(work: Path) -> list[str]:
    path = work / "opened"
    return path.read_text().split() if path.exists() else []


def command(config: Path, *overrides: str, name: str = "eval") -> list[str]:
    return [sys.executable, "-m", "platoon", name, str(config), *overrides]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


def finish(config: Path, *overrides: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, *overrides),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
        cwd=cwd,
        check=False,
    )


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait for a state of a running process."""
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert process.poll() is None, "the evaluation ended before"
        assert time.monotonic() < deadline, "the evaluation got nowhere"
        time.sleep(0.002)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        if line:
            yield json.loads(line)
