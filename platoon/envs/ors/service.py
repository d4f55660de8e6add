"""Serves openreward environments to rollouts in this process.

Listing a shipped environment's tasks does not load the SDK. Remote environment servers are not part of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

from platoon.envs.contract import EnvSession, EnvSetupError
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.refs import TaskRef, parse_task_id, task_name
from platoon.envs.ors.sdk import environment_class
from platoon.envs.ors.session import Origin
from platoon.envs.ors.threads import in_thread, run_user_callable
from platoon.rollout.trajectory import Task

# Shipped environments list their tasks from modules free of the SDK: SPLITS and task_specs(split).
_LISTINGS = {"platoon.envs.number_search.env:NumberSearchEnvironment": "platoon.envs.number_search.tasks"}


class OrsEnvironmentService:
    """`environment` is a class or `module:Class`; the other options are those of `OrsOptions`."""

    def __init__(self, environment: str | type, **options: Any) -> None:
        self.environment = environment
        self.options = OrsOptions(**options)
        own = environment.rpartition(":")[2] if isinstance(environment, str) else environment.__name__
        self._splits: list[str] | None = None
        self.name = self.options.name or self.options.label or own

    @classmethod
    def from_uri(cls, uri: str, **options: Any) -> OrsEnvironmentService:
        """The service of `python://module:Class`."""
        return cls(uri.removeprefix("python://"), **options)

    @cached_property
    def environment_class(self) -> Any:
        """The served class; loads the SDK. ImportError or TypeError when it is no environment."""
        return environment_class(self.environment)

    @property
    def _listing(self) -> Any:
        """What lists tasks: a module free of the SDK where there is one, else None."""
        name = _LISTINGS.get(self.environment) if isinstance(self.environment, str) else None
        return None if name is None else import_module(name)

    async def list_splits(self) -> list[str]:
        if self._splits is None:
            listed = (
                self._listing.SPLITS
                if self._listing is not None
                else await run_user_callable((await self._class()).list_splits)
            )
            self._splits = [split if isinstance(split, str) else split.name for split in listed]
        return list(self._splits)

    async def list_tasks(self, split: str) -> list[str]:
        """The task ids `<split>:<index>` of a split, narrowed by `task_names` or `task_indices`."""
        await self._check_split(split)
        count = await self._count(split)
        indices: Iterable[int] = range(count)
        if self.options.task_indices is not None:
            outside = [index for index in self.options.task_indices if index >= count]
            if outside:
                raise ValueError(f"task_indices {outside} are outside split {split!r}, which has {count} tasks")
            indices = self.options.task_indices
        elif self.options.task_names is not None:
            wanted = set(self.options.task_names)
            specs = await self._specs(split)
            indices = [index for index, spec in enumerate(specs) if task_name(spec, index) in wanted]
        return [f"{split}:{index}" for index in indices]

    async def list_task_names(self, split: str) -> dict[str, str]:
        """Task id to display name, of the whole split."""
        await self._check_split(split)
        return {f"{split}:{index}": task_name(spec, index) for index, spec in enumerate(await self._specs(split))}

    async def get_task(self, task_id: str) -> Task:
        """The task of an id, an OpenReward reference, or a name. ValueError when there is none."""
        ref = await self._resolve(task_id)
        return Task(id=task_id, misc={"ors": ref.record()})

    async def open(self, task: Task, *, rollout_id: str) -> EnvSession:
        """A new session of the task. EnvSetupError `env_config` for an unknown task, `env_setup` for a failing one."""
        try:
            ref = await self._ref_of(task)
            await self._check_split(ref.split)
        except ValueError as error:
            raise EnvSetupError("env_config", str(error)) from error
        return await Origin(await self._class(), ref, self.options).open(task, rollout_id)

    async def _class(self) -> Any:
        """The environment class. Its first import, and the SDK's, takes seconds and runs beside the event loop."""
        if "environment_class" not in vars(self):
            await in_thread(self._load)
        return self.environment_class

    def _load(self) -> Any:
        try:
            return self.environment_class
        except (ImportError, TypeError, ValueError) as error:
            raise EnvSetupError("env_config", f"environment {self.environment}: {error}") from error

    async def _ref_of(self, task: Task) -> TaskRef:
        misc = task.misc.get("ors")
        if isinstance(misc, Mapping):
            return TaskRef(str(misc["split"]), int(misc["index"]), misc.get("name"))
        if task.id is None:
            raise ValueError("the task names no id, so there is nothing to open")
        return await self._resolve(task.id)

    async def _resolve(self, task_id: str) -> TaskRef:
        ref = parse_task_id(task_id, label=self.options.label)
        if ref is None:
            split = self.options.split
            for index, spec in enumerate(await self._specs(split)):
                if task_name(spec, index) == task_id:
                    return TaskRef(split, index, task_id)
            raise ValueError(f"split {split!r} of {self.name} has no task named {task_id!r}")
        await self._check_split(ref.split)
        try:
            spec = await self._spec(ref)
        except IndexError:
            raise ValueError(f"split {ref.split!r} of {self.name} has no task with index {ref.index}") from None
        return TaskRef(ref.split, ref.index, task_name(spec, ref.index))

    async def _check_split(self, split: str) -> None:
        splits = await self.list_splits()
        if split not in splits:
            raise ValueError(f"{self.name} has no split {split!r}; it has {', '.join(splits)}")

    async def _count(self, split: str) -> int:
        if self._listing is not None:
            return len(await self._specs(split))
        return int(await (await self._class()).num_tasks(split))

    async def _specs(self, split: str) -> Sequence[Any]:
        if self._listing is not None:
            specs: Sequence[Any] = self._listing.task_specs(split)
            return specs
        cls = await self._class()
        return [await cls.get_task(split, index) for index in range(await self._count(split))]

    async def _spec(self, ref: TaskRef) -> Any:
        if self._listing is not None:
            return self._listing.task_specs(ref.split)[ref.index]
        return await (await self._class()).get_task(ref.split, ref.index)
