"""Batch transforms: what a microbatch's datums pass through before they are filtered, scaled and sent.

First the depth strategy of the config, then the transforms given to the trainer. Datums are frozen: a transform returns
new ones, so that a group kept for a checkpoint never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from platoon.config import TrainRun, WorkflowConfig
from platoon.credit import Datum
from platoon.credit.depth import apply_depth_discount, apply_depth_weighting, depth_metrics


@dataclass(frozen=True)
class BatchTransformContext:
    """Where a microbatch stands: the step that is being trained (the first is 0) and its numbers within it."""

    config: TrainRun
    train_step: int
    minibatch_num: int
    microbatch_num: int


class BatchTransform(Protocol):
    """Takes a microbatch; None empties it and ends the pipeline. What it raises fails the step."""

    def __call__(self, datums: Sequence[Datum], context: BatchTransformContext, /) -> Sequence[Datum] | None: ...


class DepthLevelWeightingTransform:
    """Equal say for the trajectories of each depth of the agent tree."""

    def __call__(self, datums: Sequence[Datum], context: BatchTransformContext, /) -> Sequence[Datum]:
        return apply_depth_weighting(datums)


@dataclass(frozen=True)
class DepthLevelDiscountTransform:
    """Weight gamma^depth, with the microbatch's total weight kept."""

    gamma: float

    def __call__(self, datums: Sequence[Datum], context: BatchTransformContext, /) -> Sequence[Datum]:
        return apply_depth_discount(datums, self.gamma)


def build_default_batch_transforms(workflow: WorkflowConfig) -> list[BatchTransform]:
    """The depth strategy of the config: discount, else weighting, else nothing."""
    if workflow.depth_level_discount_gamma is not None:
        return [DepthLevelDiscountTransform(workflow.depth_level_discount_gamma)]
    return [DepthLevelWeightingTransform()] if workflow.depth_level_weighting else []


@dataclass(frozen=True)
class Pipeline:
    """All transforms of a run in order. `by_depth`: whether a depth strategy is among them."""

    transforms: tuple[BatchTransform, ...] = ()
    by_depth: bool = False

    @classmethod
    def of(cls, workflow: WorkflowConfig, more: Sequence[BatchTransform] = ()) -> Pipeline:
        depth = build_default_batch_transforms(workflow)
        return cls((*depth, *more), bool(depth))

    def apply(self, datums: list[Datum], context: BatchTransformContext) -> tuple[list[Datum], dict[str, float]]:
        """What is left of a microbatch that is not empty, and the `credit/*` metrics of a depth strategy."""
        after: Sequence[Datum] = datums
        for transform in self.transforms:
            found = transform(after, context)
            after = () if found is None else found
            if not after:
                break
        return list(after), depth_metrics(datums, after) if self.by_depth else {}
