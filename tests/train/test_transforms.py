"""Batch transforms: order, what ends the pipeline, depth strategies, and a run that has one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from platoon.config import WorkflowConfig
from platoon.credit import Datum
from platoon.credit.depth import DepthError
from platoon.stats.tables import read_table
from platoon.train.tinker import BatchTransformContext, PlatoonTinkerRLTrainer
from platoon.train.transforms import Pipeline
from tests.train.running import loaded, run_dir


def datum(advantage: float, *, depth: int = 0, actions: int = 2, start: float = 1.0) -> Datum:
    ones = np.ones(actions, np.float32)
    tokens = np.arange(actions, dtype=np.int32)
    return Datum(tokens, tokens, -ones, ones * np.float32(advantage), ones, 0, depth=depth, traj_start=start)


@pytest.fixture
def context(tmp_path: Path) -> BatchTransformContext:
    return BatchTransformContext(loaded(tmp_path).train_config, 0, 0, 0)


def test_transforms_run_in_order_after_the_depth_strategy(context: BatchTransformContext) -> None:
    def doubled(datums: Sequence[Datum], at: BatchTransformContext) -> list[Datum]:
        assert at is context
        return [replace(one, advantages_T=one.advantages_T * 2) for one in datums]

    def first_only(datums: Sequence[Datum], at: BatchTransformContext) -> Sequence[Datum]:
        return datums[:1]

    pipeline = Pipeline.of(WorkflowConfig(depth_level_discount_gamma=0.5), [doubled, first_only])
    before = [datum(1.0), datum(1.0, depth=1)]
    after, measured = pipeline.apply(before, context)
    assert [one.advantages_T.tolist() for one in after] == [[pytest.approx(8 / 3)] * 2]
    assert measured["credit/max_depth"] == 1
    assert measured["credit/depth0/weight"] == pytest.approx(8 / 3)
    assert measured["credit/depth1/weight"] == 0.0
    assert before[0].advantages_T.tolist() == [1.0, 1.0]


def test_none_empties_the_microbatch_and_ends_the_pipeline(context: BatchTransformContext) -> None:
    def nothing(datums: Sequence[Datum], at: BatchTransformContext) -> None:
        return None

    def unreachable(datums: Sequence[Datum], at: BatchTransformContext) -> Sequence[Datum]:
        raise AssertionError("the pipeline had ended")

    pipeline = Pipeline.of(WorkflowConfig(), [nothing, unreachable])
    assert pipeline.apply([datum(1.0)], context) == ([], {})


def test_weighting_gives_each_depths_trajectories_equal_say(context: BatchTransformContext) -> None:
    batch = [datum(1.0), datum(1.0, depth=1), datum(1.0, depth=1)]
    after, _ = Pipeline.of(WorkflowConfig(depth_level_weighting=True)).apply(batch, context)
    mass = [float(np.abs(one.advantages_T).sum()) for one in after]
    assert mass[0] == pytest.approx(mass[1] + mass[2])
    assert sum(mass) == pytest.approx(6.0)


def test_a_microbatch_without_started_trajectories_fails(context: BatchTransformContext) -> None:
    with pytest.raises(DepthError):
        Pipeline.of(WorkflowConfig(depth_level_weighting=True)).apply([datum(1.0, start=0.0)], context)


async def test_the_trainer_class_trains_with_a_transform(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    def watch(datums: Sequence[Datum], at: BatchTransformContext) -> Sequence[Datum] | None:
        seen.append((at.train_step, at.minibatch_num, at.microbatch_num))
        return datums if at.train_step else None

    settings = {"train__batch_size": 4, "train__num_minibatches": 2, "train__num_microbatches": 2, "eval__every": 0}
    config = loaded(tmp_path, train__max_training_steps=2, **settings)
    async with PlatoonTinkerRLTrainer(config, batch_transforms=[watch]) as trainer:
        assert trainer.run_log_path == run_dir(tmp_path)
        result = await trainer.train()
    assert (result.status, result.steps) == ("finished", 2)
    assert set(seen) <= {(step, mini, micro) for step in (0, 1) for mini in (0, 1) for micro in (0, 1)}
    rows = read_table(run_dir(tmp_path), "metrics")
    updates = {step: value for _, step, key, value in rows.iter_rows() if key == "train/batch/optimizer_updates"}
    assert updates[1] == 0.0
    assert updates[2] > 0.0
