"""The trainer as a class, for programs that train from Python: config in, trained run out.

    async with PlatoonTinkerRLTrainer(load("run.yaml"), batch_transforms=[my_transform]) as trainer:
        result = await trainer.train()

Tasks and their order come from the config's environments. `platoon train` does the same without a line of code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from platoon.config import (
    AdamParams,
    CheckpointConfig,
    EvalConfig,
    Loaded,
    StatsConfig,
    TrainConfig,
    TrainRun,
    WatchdogConfig,
    WorkflowConfig,
    run_directory,
)
from platoon.credit import CreditPlugins
from platoon.train.extensions import TrainingExtensions
from platoon.train.run import RunResult, TrainingRun, open_training
from platoon.train.stop import StopRequest
from platoon.train.transforms import (
    BatchTransform,
    BatchTransformContext,
    DepthLevelWeightingTransform,
    build_default_batch_transforms,
)
from platoon.train.watchdog import Watchdog

PlatoonTinkerRLTrainerConfig = TrainRun

__all__ = [
    "AdamParams",
    "BatchTransform",
    "BatchTransformContext",
    "CheckpointConfig",
    "DepthLevelWeightingTransform",
    "EvalConfig",
    "PlatoonTinkerRLTrainer",
    "PlatoonTinkerRLTrainerConfig",
    "StatsConfig",
    "TrainConfig",
    "Watchdog",
    "WatchdogConfig",
    "WorkflowConfig",
    "build_default_batch_transforms",
]


class PlatoonTinkerRLTrainer:
    """One start of a run. Entering opens it (or resumes it); leaving closes everything it started.

    `batch_transforms` act on each microbatch after the config's depth strategy; `plugins` holds a reward processor, a
    baseline rule and completion hooks. `stop` ends training at the next safe point, with a final save.
    """

    def __init__(
        self,
        loaded: Loaded,
        batch_transforms: Sequence[BatchTransform] = (),
        plugins: CreditPlugins | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        self._loaded = loaded
        self._extensions = TrainingExtensions(tuple(batch_transforms), plugins or CreditPlugins())
        self._stop = stop
        self._stack = AsyncExitStack()
        self._run: TrainingRun | None = None

    @property
    def run_log_path(self) -> Path:
        """The run directory."""
        return run_directory(self._loaded.train_config)

    @property
    def run(self) -> TrainingRun:
        """The open run, for whoever drives it step by step. RuntimeError before the trainer is entered."""
        if self._run is None:
            raise RuntimeError("the trainer is not open; use it with async with")
        return self._run

    async def __aenter__(self) -> PlatoonTinkerRLTrainer:
        opened = open_training(self._loaded, self._stop, extensions=self._extensions)
        self._run = await self._stack.enter_async_context(opened)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._run = None
        await self._stack.__aexit__(kind, error, at)

    async def train(self) -> RunResult:
        """Train to the end of the config's plan, or to a stop."""
        while not self.run.finished:
            await self.run.step()
        return await self.run.finish()
