"""What the UI shows of a training run while it runs: progress, tables, a page with the curve, links, events.

One background coroutine reports; the training loop only hands it numbers and never waits for it. While a report is
under way newer numbers replace older ones. A call gets 10 s; while the breaker is open nothing is tried, and what can
be told later is. The run directory says what was saved and evaluated.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl

from platoon.stats.jsonl import JsonlTail
from platoon.stats.tables import with_table
from tasks.artifacts import Artifact, ArtifactShelf, artifact_key
from tasks.pages import KEYS, History, evaluation_page, report_page, steps_table
from tasks.recorder import Recorder
from tasks.recording import current_recorder, current_run_id, send_event, trouble

CALL_SECONDS = 10.0
PROGRESS_SECONDS = 1.0
PAGE_SECONDS = 15.0
log = logging.getLogger("platoon.orchestration")


@dataclass(frozen=True)
class Subject:
    """What is reported on. `run_dir` exists; `links` are addresses by title."""

    experiment: str
    trial: str
    run_dir: Path
    start_step: int
    end_step: int
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.trial}"


class Reporter:
    """Reports one run. `step` and `ended` return at once; `run` is the background coroutine."""

    def __init__(
        self, subject: Subject, recorder: Recorder, run_id: UUID, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.history = History(subject.end_step)
        self._subject = subject
        self._recorder = recorder
        self._shelf = ArtifactShelf(run_id)
        self._clock = clock
        self._run_id = run_id
        self._woken = asyncio.Event()
        self._one = asyncio.Lock()
        self._page_due = 0.0
        self._linked = False
        resumed = subject.start_step > 0
        self._checkpoints = JsonlTail(subject.run_dir / "checkpoints.jsonl", skip=resumed)
        self._evaluations = JsonlTail(subject.run_dir / "evaluations.jsonl", skip=False)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was committed."""
        self.history.step(step, metrics)
        self._woken.set()

    def event(self, name: str, payload: Mapping[str, Any]) -> None:
        """Put an event of the run on its timeline; automations can trigger on it."""
        send_event(f"platoon.{name}", self._run_id, {"run": self._subject.name, **payload})

    async def run(self) -> None:
        """Report whenever there is something new, at most once a second; ends by cancellation only."""
        await asyncio.to_thread(self._remember)
        self._woken.set()
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.report(pages=self._clock() >= self._page_due)
            await asyncio.sleep(PROGRESS_SECONDS)

    async def report(self, *, pages: bool) -> None:
        """Report as things stand now. Never raises for trouble with the API."""
        async with self._one:
            await self._report(pages)

    async def _report(self, pages: bool) -> None:
        await self._take_files()
        if self._recorder.breaker.is_open:
            return
        subject, key = self._subject, artifact_key(self._subject.experiment, self._subject.trial)
        step = self.history.last[-1][0] if self.history.last else subject.start_step
        percent = 100.0 * step / max(subject.end_step, 1)
        about = f"{subject.name}: step {step} of {subject.end_step}"
        artifacts = [Artifact(f"{key}-progress", "progress", percent, about)]
        if not self._linked:
            artifacts.append(Artifact(f"{key}-links", "markdown", links_page(subject), f"Where {subject.name} is"))
        if pages and self.history.last:
            artifacts.append(Artifact(f"{key}-steps", "table", steps_table(self.history), f"{about}: the last steps"))
            page = await asyncio.to_thread(report_page, self.history, subject.name)
            artifacts.append(Artifact(f"{key}-report", "markdown", page, about))
        if await told(self._recorder, self._shelf.put(artifacts)):
            self._linked = True
            if pages and self.history.last:
                self._page_due = self._clock() + PAGE_SECONDS

    async def _take_files(self) -> None:
        """Events of what the run directory says was saved and evaluated since the last look."""
        for row in await asyncio.to_thread(self._checkpoints.read):
            self.event("checkpoint.saved", {key: row.get(key) for key in ("name", "batch", "policy_version")})
        for row in await asyncio.to_thread(self._evaluations.read):
            self.history.evaluation(row)
            self._page_due = 0.0
            self.event("evaluation.finished", row)

    def _remember(self) -> None:
        """What earlier starts of this run trained and evaluated, for the curve."""
        if self._subject.start_step == 0:
            return
        for row in self._evaluations.read():
            self.history.evaluation(row)
        table = with_table(self._subject.run_dir, "metrics", self._plotted)
        self.history.remember(table.iter_rows())

    def _plotted(self, table: pl.LazyFrame) -> pl.DataFrame:
        """The few numbers that pages plot: a run of days has tens of millions."""
        plotted = pl.col("key").is_in(list(KEYS)), pl.col("step") <= self._subject.start_step
        return table.filter(*plotted).select("step", "key", "value").collect()


async def told(recorder: Recorder, call: Coroutine[Any, Any, None]) -> bool:
    """Await a call to the API for `CALL_SECONDS`; False when it failed. Trouble with the API trips the breaker."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await call
    except Exception as error:  # whatever Prefect makes of a report, it is not the run's failure
        if not trouble(recorder, error):
            log.warning("a report to Prefect was refused: %s", str(error).partition("\n")[0][:200])
        return False
    return True


def links_page(subject: Subject) -> str:
    rows = [f"- Run directory: [`{subject.run_dir}`]({subject.run_dir.as_uri()})"]
    rows += [f"- [{title}]({address})" for title, address in subject.links.items()]
    return "\n".join(rows) + "\n"


def wandb_links() -> dict[str, str]:
    """The address of this process's W&B run, if it has one that is online."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    address = getattr(run, "url", None)
    return {"Weights & Biases": str(address)} if address else {}


async def name_run(name: str, tags: Sequence[str]) -> None:
    """Call the flow run of this code `name` and add tags to it: a deployed run is made before its config is read."""
    recorder, run_id = current_recorder(), current_run_id()
    if recorder is None or run_id is None or not await recorder.allow():
        return
    from prefect import get_client

    async def rename() -> None:
        async with get_client() as client:
            run = await client.read_flow_run(run_id)
            await client.update_flow_run(run_id, name=name, tags=sorted({*run.tags, *tags}))

    await told(recorder, rename())


class Silent:
    """The reporter of a run that nobody records."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        return

    def event(self, name: str, payload: Mapping[str, Any]) -> None:
        return


@asynccontextmanager
async def reporting(subject: Subject) -> AsyncIterator[Reporter | Silent]:
    """A reporter for the flow run this code runs in, until the block ends; then it reports once more, within 10 s."""
    recorder, run_id = current_recorder(), current_run_id()
    if recorder is None or run_id is None:
        yield Silent()
        return
    reporter = Reporter(subject, recorder, run_id)
    background = asyncio.create_task(reporter.run(), name="prefect-reporter")
    watch = asyncio.create_task(recorder.watch(), name="prefect-watch", context=contextvars.Context())
    cancelled = False
    try:
        yield reporter
    except asyncio.CancelledError:
        cancelled = True
        raise
    finally:
        background.cancel()
        watch.cancel()
        await asyncio.gather(background, watch, return_exceptions=True)
        if not cancelled:  # a cancelled run has seconds to leave in
            await reporter.report(pages=True)


async def report_evaluation(summary: Mapping[str, Any], output_dir: Path) -> None:
    """The report of an evaluation as a page of this flow run, with an event."""
    recorder, run_id = current_recorder(), current_run_id()
    if recorder is None or run_id is None or recorder.breaker.is_open:
        return
    page = evaluation_page(summary, str(output_dir))
    key = artifact_key("evaluation", output_dir.name)
    artifact = Artifact(key, "markdown", page, f"Evaluation in {output_dir}")
    await told(recorder, ArtifactShelf(run_id).put([artifact]))
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    send_event("platoon.evaluation.finished", run_id, {"output_dir": str(output_dir), **numbers})
