"""What a start of a run is to do, once its tasks are listed and its place is read from the run directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from platoon.config import TrainRun
from platoon.draw.plan import SamplingPlan
from platoon.train.checkpoints import Checkpoint
from platoon.train.environments import Environments
from platoon.train.evaluation import EvaluationPlan, evaluated_steps
from platoon.train.extensions import TrainingExtensions


@dataclass(frozen=True)
class RunPlan:
    """What a start is to do, known before the training service is asked for anything."""

    config: TrainRun
    run_dir: Path
    train: Environments
    held_out: Environments | None
    sampling: SamplingPlan
    end_step: int
    evaluation: EvaluationPlan
    resume: Checkpoint | None
    start: int
    extensions: TrainingExtensions = field(default_factory=TrainingExtensions)

    @property
    def start_step(self) -> int:
        return self.resume.batch if self.resume is not None else 0

    @property
    def nothing_to_do(self) -> bool:
        """True when every step is trained and the evaluation due at the end was made."""
        return nothing_left(self.run_dir, self.start_step, self.end_step, self.evaluation)


def nothing_left(run_dir: Path, step: int, end_step: int, evaluation: EvaluationPlan) -> bool:
    """Whether a run that stands at `step` trained all its steps and made the evaluation due at the last one."""
    due = evaluation.due(end_step) and end_step not in evaluated_steps(run_dir)
    return step >= end_step and not due
