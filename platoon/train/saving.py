"""Saving: what makes a later start go on exactly where this one stood.

A full save captures statistics, dispatcher and kept groups in one synchronous moment, writes their files while the
service saves the weights, and appends the checkpoint's row last. Whatever dies before the row leaves the checkpoint
before it in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from platoon.credit import GroupOutput
from platoon.stats.files import sha256, write_atomic
from platoon.train.checkpoints import Checkpoint, append
from platoon.train.dispatch import DispatchDriver, DriverState
from platoon.train.kept import kept_group, write_kept
from platoon.train.service import SavedWeights, ServiceSession, TinkerSampler
from platoon.train.step import LoopState

log = logging.getLogger("platoon.train")


class NotSaved(RuntimeError):
    """The run directory does not take a checkpoint. The one before it stays in force."""


class Snapshot(Protocol):
    """Statistics as of one moment, ready to be written by another thread."""

    def write(self, name: str) -> dict[str, Any] | None: ...


class Books(Protocol):
    """The run's records that a checkpoint closes: statistics, tables, events."""

    def snapshot(self) -> Snapshot: ...

    def cut(self, name: str, batch: int) -> dict[str, Any]: ...

    def written(self) -> None: ...

    def confirm(self, parts: Mapping[str, Any]) -> None: ...

    @property
    def wandb_run_id(self) -> str | None: ...


@dataclass(frozen=True)
class Cadence:
    """Steps between full saves: permanent ones, and recovery ones (None for never). Counted from step 0 of the run."""

    permanent: int
    recovery: int | None

    def name(self, step: int) -> str | None:
        """The full save due after `step` steps, if any."""
        if self.permanent and step % self.permanent == 0:
            return f"{step:06d}"
        if self.recovery and step % self.recovery == 0:
            return f"recovery-{step:06d}"
        return None


@dataclass(frozen=True)
class SaverParts:
    """`swap` makes a sampler the policy that rollouts use, as of a version; `saved` hears of each full save."""

    run_dir: Path
    start: int
    session: ServiceSession
    driver: DispatchDriver[GroupOutput]
    books: Books
    cadence: Cadence
    label_column: str
    swap: Callable[[TinkerSampler, int, int], Awaitable[None]]
    saved: Callable[[Checkpoint], None] = lambda checkpoint: None


class Saver:
    """Publishes new weights after a step, and makes full saves."""

    def __init__(self, parts: SaverParts) -> None:
        self._parts = parts
        self.newest: Checkpoint | None = None

    async def publish(self, state: LoopState, *, updated: bool) -> None:
        """After a step: the save that is due (also without an update), and the new policy where there was one."""
        name = self._parts.cadence.name(state.train_step)
        sampler: TinkerSampler | None = None
        if name is not None:
            sampler = await self.full(name, state)
        elif updated:
            sampler = await self._parts.session.current_sampler()
        if sampler is not None:
            await self._parts.swap(sampler, state.policy_version, state.train_step)

    async def full(self, name: str, state: LoopState) -> TinkerSampler:
        """One full save under `name`; a sampler on its weights. The row is on the disk when this returns."""
        parts = self._parts
        books, driven = parts.books.snapshot(), parts.driver.state()
        with self._on_disk(name):
            tables = parts.books.cut(name, state.train_step)
        files = asyncio.to_thread(self._write, name, books, driven)
        (tasks, dispatch), saved = await gather_all(files, parts.session.save(name))
        checkpoint = Checkpoint(
            name=name,
            batch=state.train_step,
            state_path=saved.state_path,
            sampler_path=saved.sampler_path,
            policy_version=state.policy_version,
            optimizer_steps=state.optimizer_steps,
            wandb_run_id=parts.books.wandb_run_id,
            tasks=tasks,
            dispatch=dispatch,
            parts=tables,
            extra={"next_position": driven.dispatch["next_position"]} if parts.driver.dispatcher.settings.cap else {},
        )
        parts.books.written()
        with self._on_disk(name):
            append(parts.run_dir, checkpoint)
        parts.books.confirm(tables)
        self.newest = checkpoint
        sampler = await parts.session.sampler(saved.sampler_path)
        parts.saved(checkpoint)
        return sampler

    def _write(
        self, name: str, books: Snapshot, driven: DriverState[GroupOutput]
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The files of a checkpoint. State that no file can hold leaves it without that record (warned)."""
        try:
            with self._on_disk(name):
                return books.write(name), self._write_dispatch(name, driven)
        except ValueError as error:
            log.warning(
                "checkpoint %s has no scheduler state (%s): a resume from it loses its open groups", name, error
            )
            return None, None

    @contextmanager
    def _on_disk(self, name: str) -> Iterator[None]:
        run_dir = self._parts.run_dir
        try:
            yield
        except OSError as error:
            last = f"goes on from checkpoint {self.newest.name}" if self.newest else "starts where this start began"
            raise NotSaved(
                f"checkpoint {name} was not saved: {run_dir} cannot be written ({error}; "
                f"{shutil.disk_usage(run_dir).free:,} bytes are free there); make room and run the same command again: "
                f"it {last}"
            ) from error

    def _write_dispatch(self, name: str, driven: DriverState[GroupOutput]) -> dict[str, Any]:
        """Dispatcher state and kept groups; the record for the checkpoint's row."""
        run_dir, start = self._parts.run_dir, self._parts.start
        state = dict(driven.dispatch)
        kept: dict[str, Any] | None = None
        if driven.kept:
            groups = [kept_group(one, self._parts.label_column) for one in driven.kept]
            kept = write_kept(run_dir / "tasks" / f"kept-s{start}-{name}.parquet", groups)
        state["kept"] = kept
        path = run_dir / "tasks" / f"dispatch-s{start}-{name}.json"
        write_atomic(path, (json.dumps(state, separators=(",", ":"), allow_nan=False) + "\n").encode())
        record = {"file": f"tasks/{path.name}", "sha256": sha256(path), "format": state["format"], "start": start}
        return {**record, "kept": kept["file"]} if kept is not None else record


async def gather_all(files: Awaitable[Any], service: Awaitable[SavedWeights]) -> tuple[Any, SavedWeights]:
    """Both results; when one fails the other is still awaited, so that nothing runs on unowned."""
    results: Sequence[Any] = await asyncio.gather(service, files, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results[1], results[0]
