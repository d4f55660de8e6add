"""Where a step's numbers go: the metrics table, Weights & Biases, and one line for the person who watches.

A sink never fails a step: what W&B refuses is warned about once, and the table holds every number either way.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from platoon.config import TrainRun

log = logging.getLogger("platoon.train")
_FAILURES: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, RuntimeError)


class Sink(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, exit_code: int) -> None: ...


class WandbSink:
    """Metrics to W&B; its run id is kept in every checkpoint so that a resume goes on in the same run."""

    def __init__(self, run: Any, failures: tuple[type[Exception], ...] = ()) -> None:
        self._run = run
        self._failures = failures or _FAILURES
        self._warned = False

    @property
    def run_id(self) -> str | None:
        return str(self._run.id) if self._run is not None else None

    @classmethod
    def open(cls, config: TrainRun, run_dir: Path, data: Mapping[str, Any], run_id: str | None) -> WandbSink | None:
        """A W&B run as `stats.wandb` says; None when it is disabled, missing or refuses (with a warning)."""
        settings, stats = config.stats.wandb, config.stats
        if settings.mode == "disabled":
            return None
        try:
            import wandb
        except ImportError as error:
            log.warning("W&B is off for this run: %s", error)
            return None
        try:
            if settings.base_url or settings.api_key:
                wandb.login(key=settings.api_key, host=settings.base_url)
            resume_id = run_id or settings.resume_run_id
            mode: Any = settings.mode
            run = wandb.init(
                mode=mode,
                dir=str(run_dir),
                project=settings.project or stats.experiment_name,
                entity=settings.entity,
                name=settings.name or stats.trial_name,
                group=settings.group or f"{stats.experiment_name}_{stats.trial_name}",
                tags=list(settings.tags) or None,
                notes=settings.notes,
                id=resume_id,
                resume="must" if resume_id else "allow",
                config=dict(data),
            )
        except (wandb.Error, *_FAILURES) as error:
            log.warning("W&B is off for this run: %s", error)
            return None
        return cls(run, (wandb.Error, *_FAILURES))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            self._run.log(dict(metrics), step=step)
        except self._failures as error:
            if not self._warned:
                self._warned = True
                log.warning("W&B did not take the metrics of step %d (said once): %s", step, error)

    def close(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except self._failures as error:
            log.warning("W&B did not end its run: %s", error)


class Progress:
    """One line a step: rewritten in place on a terminal, plain lines in a pipe."""

    def __init__(self, steps: int, start: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._steps = steps
        self._start = start
        self._began = time.monotonic()
        self._live = self._stream.isatty()
        self._width = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a training step; those of an evaluation print a line of their own."""
        if "train/step" not in metrics:
            if "eval/task_reward" in metrics:
                at, score = metrics.get("eval/step", step), metrics["eval/task_reward"]
                tasks, seconds = metrics.get("eval/num_tasks", 0), metrics.get("eval/time", 0)
                self._print(
                    f"evaluation at step {at:.0f}: reward {score:.3f} on {tasks:.0f} tasks in {seconds:.1f} s",
                    keep=True,
                )
            return
        done = max(step - self._start, 1)
        left = (time.monotonic() - self._began) / done * (self._steps - step)
        reward = metrics.get("train/batch/task_reward/avg")
        tokens = metrics.get("train/workload/batch/total_tokens", 0.0)
        text = (
            f"step {step}/{self._steps}  reward {'-' if reward is None else f'{reward:.3f}'}  "
            f"groups in flight {metrics.get('rollout_client/groups_in_flight_mean', 0):.1f}  tokens {tokens:.0f}  "
            f"{metrics.get('timing/batch_total', 0):.2f} s a step  {clock(left)} left"
        )
        self._print(text, keep=not self._live or step >= self._steps)

    def _print(self, text: str, *, keep: bool) -> None:
        if not self._live:
            print(text, file=self._stream, flush=True)
            return
        padded = text.ljust(self._width)
        self._width = 0 if keep else len(text)
        print("\r" + padded, end="\n" if keep else "", file=self._stream, flush=True)

    def close(self, exit_code: int) -> None:
        if self._live and self._width:
            print(file=self._stream, flush=True)


def clock(seconds: float) -> str:
    """Seconds as `1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
