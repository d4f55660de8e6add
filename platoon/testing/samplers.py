"""The conformance check of samplers: what the dispatcher relies on, tried on made-up pools.

It plays no rollout and trains nothing. A sampler given by reference is also run in processes with other hash seeds.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.registry import Component
from platoon.draw.samplers.contract import SamplerCheckContext, SamplerSetup
from platoon.draw.samplers.hosted import HostedSampler, Scene
from platoon.draw.samplers.registry import SAMPLERS
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.extensions.boundary import Boundary
from platoon.stats.schema import EntryInfo, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore

Level = Literal["run", "entry"]
Trace = list[Any]
_GROUP = 4
_TRACED = 40


def check_task_sampler(
    sampler: str | type[Any],
    *,
    options: Mapping[str, Any] | None = None,
    levels: Iterable[Level] = ("entry", "run"),
    budget_ms: float = 20.0,
) -> None:
    """Check a sampler, given by reference or as its class. AssertionError lists the checks that failed.

    `budget_ms`: most of the median decision over 4,096 tasks.
    """
    given = dict(options or {})
    try:
        component = SAMPLERS.resolve(sampler) if isinstance(sampler, str) else SAMPLERS.of_class(sampler)
    except ValueError as error:
        raise AssertionError(f"protocol: {error}") from error
    asked = tuple(levels)
    failed = [f"{level} level, {text}" for level in asked for text in _level(component, given, level, budget_ms)]
    if isinstance(sampler, str) and not failed:
        failed += _elsewhere(component, given, asked)
    if failed:
        raise AssertionError("\n".join([f"{component.source} fails {len(failed)} checks:", *failed]))


def _level(component: Component, options: Mapping[str, Any], level: Level, budget_ms: float) -> Iterator[str]:
    problems = component.problems("sampler", options, _context(level))
    yield from (f"options: {problem}" for problem in problems)
    if problems:
        return
    with Boundary("sampler", quiet=True) as caught:
        one, other = (_Bench(component, options, level) for _ in range(2))
    if caught.error is not None:
        yield f"protocol: it cannot be made: {caught.text}"
        return
    drawn: tuple[Trace, Trace] = ([], [])
    for _ in range(_TRACED):  # by turns, and one without reading metrics and state: neither may matter
        drawn[0].extend(one.play(1))
        drawn[1].extend(other.play(1, told=True))
    for kind, text in {**one.sampler.complaints, **other.sampler.complaints}.items():
        yield f"{_CHECKS[kind]}: {text}"
    yield from one.spoilt
    if drawn[0] != drawn[1]:
        yield f"deterministic: two instances drew differently: {_difference(*drawn)}"
    elif component.cls.adaptive:
        yield from _saved(component, options, level, drawn[0])
    else:
        yield from _static(component, options, level, drawn[0])
    large = _Bench(component, options, level, tasks=4096)
    median = statistics.median(large.timed(30))
    if median > budget_ms:
        yield f"fast: a decision over 4,096 tasks takes {median:.1f} ms at the median; at most {budget_ms} ms"


def _saved(component: Component, options: Mapping[str, Any], level: Level, straight: Trace) -> Iterator[str]:
    """A sampler that loads a saved state goes on as the one that saved it."""
    first, again = _Bench(component, options, level), _Bench(component, options, level)
    first.play(_TRACED // 2)
    for warning in again.sampler.load(first.sampler.record()):
        yield f"state: {warning}"
        return
    again.copy_statistics(first)
    rest, resumed = straight[_TRACED // 2 :], again.play(_TRACED - _TRACED // 2)
    if rest != resumed:
        yield f"state: it goes on differently after a resume: {_difference(rest, resumed)}"


def _static(component: Component, options: Mapping[str, Any], level: Level, straight: Trace) -> Iterator[str]:
    """Each decision follows from its number: a fresh instance makes any of them, in any order, at any time."""
    bench = _Bench(component, options, level)
    for decision in (*range(_TRACED - 1, 0, -7), 0):
        bench.sampler.decisions = decision
        if (found := bench.play(1)) != straight[decision : decision + 1]:
            yield (
                f"static: decision {decision} of a fresh instance is {found[0]}, and {straight[decision]} when those "
                "before it were made; it may depend on ctx.decision, ctx.key and the options alone"
            )
            return


def traces(component: Component, options: Mapping[str, Any], levels: Iterable[Level]) -> list[Trace]:
    """What fresh instances draw on the made-up pool, as JSON values."""
    return [_Bench(component, options, level).play(_TRACED) for level in levels]


_CHECKS = {
    "raised": "pool task or nothing",
    "refused": "pool task or nothing",
    "none": "pool task or nothing",
    "observe": "observe",
    "state": "state",
    "metrics": "metrics",
    "reserved": "metrics",
}


class _Bench:
    """A pool of two entries, statistics that grow as groups settle, and one instance."""

    def __init__(self, component: Component, options: Mapping[str, Any], level: Level, tasks: int = 24) -> None:
        rows = [PoolRow(f"{entry}::{i}", entry, f"l{i % 3}") for entry in ("a", "b") for i in range(tasks // 2)]
        self.pool = TaskPool(rows)
        infos = {
            name: EntryInfo(_GROUP, 1.0, name, float(tasks // 2), 0, index, tuple(self.pool.task_ids(name)))
            for index, name in enumerate(("a", "b"))
        }
        indices = tuple(range(len(rows))) if level == "run" else self.pool.by_entry["a"]
        name = component.ref if level == "run" else f"{component.ref}@a"
        ids = tuple(self.pool[index].task_id for index in indices)
        entry = None if level == "run" else "a"
        setup = SamplerSetup(name, level, entry, ids, infos, 4, "_platoon_environment")
        self.store = TaskStatsStore([(row.task_id, row.entry, row.label) for row in rows], infos, group_size=_GROUP)
        self.sampler = HostedSampler(component, options, setup, indices, self.pool)
        self.version = 0
        self.seq = 0
        self.records: list[GroupRecord] = []
        self.spoilt: list[str] = []
        self.view = TaskStatsView(self.store, lambda: self.version)

    def _decide(self) -> Any:
        closed: frozenset[str | None] = frozenset({f"l{self.seq % 3}"}) if self.seq % 2 else frozenset()
        scene = Scene(self.version, self.version, closed if self.sampler.adaptive else frozenset())
        stats = self.view if self.sampler.adaptive else None
        answer = self.sampler.decide(self.sampler.decisions, scene, stats)
        self.sampler.decisions += 1
        return answer

    def play(self, decisions: int, *, told: bool = False) -> Trace:
        """Decide, and settle each drawn group. `told`: read its metrics and state as a run does."""
        drawn: Trace = []
        for _ in range(decisions):
            answer = self._decide()
            if isinstance(answer, tuple):
                row, draw = answer
                drawn.append([row, draw.reason, draw.score])
                self._settle(self.pool[row].task_id)
            else:
                drawn.append(None if answer is None else answer.entry)
            self.seq += 1
            self.version += self.seq % 4 == 0
            if told and self.seq % 4 == 0:
                self.sampler.metrics(self.view)
                self.sampler.record()
        return drawn

    def _settle(self, task_id: str) -> None:
        self.store.draw(1, self.seq, task_id, self.seq)
        passes = (len(task_id) + self.seq) % (_GROUP + 1)
        members = tuple(MemberResult(1.0, float(i < passes), True, "scored", "ok") for i in range(_GROUP))
        verdict = "trained" if 0 < passes < _GROUP else "uniform"
        at = {"main": self.version}
        labels = {"_platoon_environment": task_id[0]}
        record = GroupRecord(
            1, self.seq, task_id, task_id[0], labels, _GROUP, "check", "order", self.seq, at, members, verdict
        )
        self._take_in(record)
        before = copy.deepcopy(record)
        self.sampler.observe(record)
        if record != before and not self.spoilt:
            self.spoilt.append("observe: it changed the record that it was given; others read it, too")

    def _take_in(self, record: GroupRecord) -> None:
        self.store.settle(record)
        self.store.fate(record.start, record.seq, "consumed")
        self.records.append(record)

    def copy_statistics(self, other: _Bench) -> None:
        """Stand where the other stands, but for the instance."""
        for record in other.records:
            self.store.draw(record.start, record.seq, record.task_id, record.position)
            self._take_in(record)
        self.seq, self.version = other.seq, other.version

    def timed(self, decisions: int) -> list[float]:
        """Milliseconds of each decision."""
        times = []
        for _ in range(decisions):
            before = time.perf_counter()
            self._decide()
            times.append((time.perf_counter() - before) * 1e3)
        return times


def _context(level: Level) -> SamplerCheckContext:
    run = SamplingSettings(4, tuple(EntrySampling(name, group_size=_GROUP) for name in ("a", "b")), "weighted")
    entry = None if level == "run" else "a"
    return SamplerCheckContext(level, entry, run.task_sampler, run.described, run.batch_size, run.label_by)


def _elsewhere(component: Component, options: Mapping[str, Any], levels: tuple[Level, ...]) -> Iterator[str]:
    """The same draws in other processes, whatever order their sets have."""
    program = (
        "import importlib, json, sys; sys.path[:0] = json.loads(sys.argv[4]); importlib.import_module(sys.argv[5]); "
        "from platoon.draw.samplers.registry import SAMPLERS; from platoon.testing.samplers import traces; "
        "print(json.dumps(traces(SAMPLERS.resolve(sys.argv[1]), *map(json.loads, sys.argv[2:4]))))"
    )
    here = json.loads(json.dumps(traces(component, options, levels)))
    values = [json.dumps(value) for value in (dict(options), levels, sys.path)]
    words = [sys.executable, "-c", program, component.ref, *values, component.cls.__module__]
    for seed in ("1", "2"):
        done = subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=False
        )
        if done.returncode != 0:
            yield f"deterministic: it does not run in another process: {done.stderr.strip().splitlines()[-1:]}"
            return
        if json.loads(done.stdout.splitlines()[-1]) != here:
            yield "deterministic: another process draws differently; something depends on the order of a set"
            return


def _difference(one: Trace, other: Trace) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"at {at}: {one[at : at + 1]} and {other[at : at + 1]}"
