"""The one thread that touches models: jobs run one after the other, in the order they were submitted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from platoon.service.futures import Failure, Result

log = logging.getLogger("platoon.service")
Job = Callable[[], Result]
Done = Callable[[Result], None]


class ComputeThread:
    """Runs jobs and hands each result to its callback on the event loop. `close` lets the running job end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._finished: deque[tuple[Done, Result]] = deque()
        self._thread = threading.Thread(target=self._run, name="platoon-compute", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        self._jobs.put((job, done))

    def close(self) -> None:
        """End the thread after its current job; jobs still queued are not run."""
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            result = run_job(job)
            self._finished.append((done, result))
            if len(self._finished) == 1 and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._finished:
            done, result = self._finished[0]
            done(result)
            self._finished.popleft()


def run_job(job: Job) -> Result:
    """The job's result, or its failure: ValueError is the user's error, anything else the service's."""
    try:
        return job()
    except ValueError as error:
        return Failure(str(error), "user")
    except Exception as error:  # the boundary: a job must never take the service down, nor stay unanswered
        log.exception("a job failed")
        return Failure(f"{type(error).__name__}: {error}", "server")
