"""`rollout_client/*`: where the time of model calls went, and what this process used, since the last export.

Bounded memory: at most 512 calls of a rollout are sampled for percentiles. Export never raises.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from platoon.rollout.episode import Episode

SAMPLES_PER_ROLLOUT = 512
PARTS = ("tool", "model", "client")


class CallTimes:
    """Seconds of each model call and of its parts: tools before it, the model itself, rendering and parsing."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._samples = array("d")  # tool, model, client of a sampled call
        self._totals = dict.fromkeys(PARTS, 0.0)
        self._first_calls: list[float] = []
        self._calls = self._rollouts = 0

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Take in a group's rollouts; one that never began to play counts for nothing."""
        for episode in episodes:
            if episode.collection is None:
                continue
            self._rollouts += 1
            self._calls += len(episode.call_seconds)
            if episode.first_call_seconds is not None:
                self._first_calls.append(episode.first_call_seconds)
            stride = max(1, -(-len(episode.call_seconds) // SAMPLES_PER_ROLLOUT))
            for index, (gap, render, sample, parse) in enumerate(episode.call_seconds):
                parts = (gap if index else 0.0, sample, render + parse)
                for name, seconds in zip(PARTS, parts, strict=True):
                    self._totals[name] += seconds
                if index % stride == 0:
                    self._samples.extend(parts)

    def export(self) -> dict[str, float]:
        """The window's metrics without prefix; nothing where there was no rollout. The next window begins."""
        found: dict[str, float] = {}
        if self._rollouts:
            found["model_calls_per_rollout_mean"] = self._calls / self._rollouts
        found |= _percentiles("dequeue_to_first_model_call_seconds", np.asarray(self._first_calls))
        if self._samples:
            parts = np.frombuffer(self._samples, np.float64).reshape(-1, len(PARTS))
            found["agent_step_samples"] = float(len(parts))
            found |= _percentiles("agent_step_seconds", parts.sum(axis=1))
            for index, name in enumerate(PARTS):
                found |= _percentiles(f"agent_step_{name}_seconds", parts[:, index])
            accounted = sum(self._totals.values())
            found["agent_step_seconds_accounted_total"] = accounted
            for name, seconds in self._totals.items():
                found[f"agent_step_{name}_seconds_total"] = seconds
                if accounted > 0:
                    found[f"agent_step_{name}_fraction"] = seconds / accounted
        self._clear()
        return found


def _percentiles(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    """Median and 90th percentile, linear between neighbours; {} without a value."""
    if not len(values):
        return {}
    return {f"{name}_p50": float(np.quantile(values, 0.5)), f"{name}_p90": float(np.quantile(values, 0.9))}


class ProcessUse:
    """Processor time and memory of this process and its reaped children."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = self._now()

    def _now(self) -> tuple[float, float, float]:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._clock(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime

    def export(self) -> dict[str, float]:
        """Percent of one core since the last export, cores busy, share of all cores, resident bytes, threads."""
        before, self._last = self._last, self._now()
        seconds = max(self._last[0] - before[0], 1e-9)
        own, children = ((self._last[i] - before[i]) / seconds * 100 for i in (1, 2))
        found = {
            "cpu_percent": own,
            "worker_cpu_percent": children,
            "total_cpu_percent": own + children,
            "cpu_cores_busy": (own + children) / 100,
            "cpu_saturation": (own + children) / 100 / (os.cpu_count() or 1),
            "threads": float(threading.active_count()),
        }
        resident = resident_bytes()
        return found if resident is None else {**found, "rss_bytes": float(resident)}


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
