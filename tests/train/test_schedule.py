"""The learning rate over a run's planned updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platoon.config import AdamParams
from platoon.stats.tables import read_table
from platoon.train.run import open_training, train_run
from platoon.train.schedule import learning_rate
from platoon.train.stop import StopRequest
from tests.train.running import loaded, run_dir, weights


def adam(**settings: object) -> AdamParams:
    return AdamParams.model_validate({"learning_rate": 1.0, **settings})


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0]),
        ({"schedule": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "min_ratio": 0.5}, [1.0, 0.875, 0.75, 0.625]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1.0, 1.0, 0.5]),
        ({"schedule": "cosine"}, [1.0, 0.8535533905932737, 0.5, 0.14644660940672627]),
        ({"schedule": "linear", "warmup_steps": 9}, [1 / 9, 2 / 9, 3 / 9, 4 / 9]),
    ],
)
def test_rates(settings: dict[str, object], rates: list[float]) -> None:
    assert [learning_rate(adam(**settings), update, 4) for update in range(4)] == pytest.approx(rates, abs=1e-15)


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 20),
    st.floats(0, 1),
    st.integers(1, 50),
    st.integers(0, 60),
)
def test_rate_stays_between_its_bounds(schedule: str, warmup: int, ratio: float, planned: int, update: int) -> None:
    rate = learning_rate(adam(schedule=schedule, warmup_steps=warmup, min_ratio=ratio), update, planned)
    assert (ratio if update >= warmup else 0.0) - 1e-12 <= rate <= 1.0


async def test_a_resumed_run_follows_the_same_curve(tmp_path: Path) -> None:
    keys = {"train__optimizer": {"learning_rate": 3e-4, "schedule": "cosine", "warmup_steps": 2}, "eval__every": 0}
    await train_run(loaded(tmp_path / "whole", **keys))
    stop = StopRequest()
    async with open_training(loaded(tmp_path / "cut", **keys), stop) as run:
        for _ in range(3):
            await run.step()
        stop.request("the test")
        await run.finish()
    await train_run(loaded(tmp_path / "cut", **keys))
    assert weights(run_dir(tmp_path / "cut")) == weights(run_dir(tmp_path / "whole"))
    rates = []
    for name in ("whole", "cut"):
        rows = read_table(run_dir(tmp_path / name), "metrics")
        rates.append({step: value for _, step, key, value in rows.iter_rows() if key == "optim/lr"})
    assert rates[0] == rates[1]
    assert list(rates[0].values())[:2] == pytest.approx([1.5e-4, 3e-4])
    assert sorted(rates[0]) == list(rates[0])
