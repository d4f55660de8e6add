"""Where the time of model calls went, what cutting costs, and the warning about stale groups."""

from __future__ import annotations

import pytest

from platoon.rollout.episode import Episode
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interactions, TrajectoryCollection
from platoon.train.client_metrics import CallTimes, ProcessUse
from platoon.train.stale_warning import StaleWarning


def episode(*calls: tuple[float, float, float, float], first: float | None = 0.5) -> Episode:
    return Episode(
        TrajectoryCollection(),
        Interactions(),
        Outcome("scored", {"reward": 1.0}),
        "completed",
        1.0,
        first_call_seconds=first,
        call_seconds=calls,
    )


def test_a_call_is_split_into_tools_model_and_client() -> None:
    times = CallTimes()
    times.observe([episode((9.0, 1.0, 2.0, 3.0), (1.0, 0.0, 4.0, 0.0))])
    times.observe([Episode.failed("error", Outcome.infra("env_setup"))])
    found = times.export()
    assert found["agent_step_samples"] == 2
    assert found["agent_step_tool_seconds_total"] == 1.0  # the gap before the first call is not a tool's
    assert found["agent_step_model_seconds_total"] == 6.0
    assert found["agent_step_client_seconds_total"] == 4.0
    assert found["agent_step_seconds_accounted_total"] == 11.0
    assert found["agent_step_model_fraction"] == pytest.approx(6 / 11)
    assert found["agent_step_seconds_p50"] == 5.5
    assert found["agent_step_seconds_p90"] == pytest.approx(5.9)
    assert found["model_calls_per_rollout_mean"] == 2
    assert found["dequeue_to_first_model_call_seconds_p50"] == 0.5
    assert times.export() == {}


def test_long_rollouts_are_sampled_evenly() -> None:
    times = CallTimes()
    times.observe([episode(*[(0.0, 0.0, float(index), 0.0) for index in range(2000)])])
    found = times.export()
    assert found["agent_step_samples"] == 500
    assert found["agent_step_model_seconds_total"] == 1999 * 1000


def test_processor_share_is_of_the_time_between_exports() -> None:
    now = [0.0]
    use = ProcessUse(lambda: now[0])
    now[0] = 1e9
    found = use.export()
    assert 0.0 <= found["cpu_percent"] < 1.0
    assert found["rss_bytes"] > 1e6
    assert found["threads"] >= 1


def steps(warning: StaleWarning, number: int, stale: int, **shares: float) -> list[str | None]:
    metrics = {f"train/dispatch/blocked_share/{reason}": share for reason, share in shares.items()}
    return [warning.step(stale, 10, metrics) for _ in range(number)]


def test_stale_groups_are_warned_of_once_from_the_tenth_step() -> None:
    warning = StaleWarning(2)
    given = steps(warning, 12, 1, permits=0.6, horizon=0.01)
    assert [index for index, text in enumerate(given) if text] == [9]
    assert given[9] is not None
    assert "permits (60% of the time)" in given[9]
    assert "train.max_staleness: 3 (this changes only which groups are dropped)" in given[9]


def test_a_run_at_its_horizon_is_told_what_a_larger_bound_does() -> None:
    (text,) = steps(StaleWarning(0), 10, 3, permits=0.1, horizon=0.4)[9:]
    assert text is not None
    assert "data ages more" in text


def test_no_warning_without_a_bound_or_below_the_share() -> None:
    assert not any(steps(StaleWarning(None), 20, 5))
    rare = StaleWarning(1)
    assert not any(rare.step(int(index == 0), 10, {}) for index in range(20))
