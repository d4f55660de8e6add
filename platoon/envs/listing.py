"""An entry's tasks, as the service lists them: splits, exclusion, order, limit, columns.

The order is exclusion's business last: all ids are shuffled first, so that excluding a task moves no other.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from platoon.config.entries import EnvironmentConfig
from platoon.config.problems import ConfigError, show, unknown_key
from platoon.envs.contract import EnvironmentService, EnvNotPrepared, EnvSetupError
from platoon.extensions.boundary import Boundary

Phase = Literal["train", "eval"]
_OPTIONS = ("split_name", "shuffle_seed", "limit")


@dataclass(frozen=True)
class TaskRow:
    """One task of a listing. `columns` are the service's labels of it, as text."""

    task_id: str
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    """`excluded`: split -> (tasks listed, ids left out), for the run's lock file."""

    rows: tuple[TaskRow, ...]
    excluded: Mapping[str, tuple[int, tuple[str, ...]]]


async def list_rows(
    entry: EnvironmentConfig, phase: Phase, service: EnvironmentService, *, split: str | None = None
) -> list[TaskRow]:
    """The rows of an entry in one phase. ConfigError names `environments[<label>]` and the key."""
    return list((await list_entry(entry, phase, service, split=split)).rows)


async def list_entry(
    entry: EnvironmentConfig, phase: Phase, service: EnvironmentService, *, split: str | None = None
) -> Listing:
    """As `list_rows`, with what was excluded. `split` is used where the entry names none (default: the phase)."""
    where = f"environments[{entry.label}]"
    key = "dataset_kwargs" if phase == "train" else "eval_dataset_kwargs"
    options = entry.dataset_kwargs if phase == "train" else entry.eval_dataset_kwargs
    problems = dataset_problems(options)
    if problems:
        raise ConfigError([f"{where}.{key}.{text}" for text in problems])
    splits = _splits(options.get("split_name"), split or phase)
    try:
        return await _list(entry, service, splits, options)
    except EnvNotPrepared:
        raise
    except EnvSetupError as error:
        if error.failure_kind != "env_config":
            raise
        raise ConfigError(f"{where}.service: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:
        error.add_note(f"while {where} listed the tasks of {', '.join(splits)}")
        raise


async def find_task(
    entry: EnvironmentConfig,
    phase: Phase,
    service: EnvironmentService,
    task: str,
    *,
    split: str | None = None,
    asked: str | None = None,
) -> str:
    """The id of the task that an id or a display name stands for: in the splits that `list_entry` lists, else wherever
    the service finds it. `asked`, where the service has such a split, stands for the entry's.

    ConfigError for a task that there is not; it names the splits and the nearest tasks.
    """
    options = entry.dataset_kwargs if phase == "train" else entry.eval_dataset_kwargs
    list_splits = getattr(service, "list_splits", None)
    if asked is not None and list_splits is not None and asked in await list_splits():
        splits = [asked]
    else:
        splits = _splits(options.get("split_name"), split or phase)
    known: dict[str, set[str]] = {}
    why = ""
    try:
        known = await _names(service, {name: await service.list_tasks(name) for name in splits})
    except EnvNotPrepared:
        raise
    except (ValueError, EnvSetupError) as error:
        if isinstance(error, EnvSetupError) and error.failure_kind != "env_config":
            raise
        why = f" ({error})"
    if task in known:
        return task if task in known[task] else min(known[task])
    with Boundary("environment", quiet=True) as caught:
        await service.get_task(task)
    if isinstance(caught.error, EnvNotPrepared):
        raise caught.error
    if not isinstance(caught.error, ValueError | LookupError | EnvSetupError):
        return task  # it is there, or only its rollout can say what is wrong
    near = difflib.get_close_matches(task, known, n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else f"; tasks are, say, {', '.join(list(known)[:3])}"
    text = f"environments[{entry.label}]: split {', '.join(splits)} has no task {task!r}{why}"
    raise ConfigError(text + hint if known else text)


def dataset_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong with `dataset_kwargs` of an entry whose service lists its tasks."""
    problems = [f"{key}: {unknown_key((key,), _OPTIONS, {})}" for key in options if key not in _OPTIONS]
    name = options.get("split_name")
    texts = [name] if isinstance(name, str) else name
    if name is not None and not (
        isinstance(texts, list | tuple) and texts and all(isinstance(text, str) and text for text in texts)
    ):
        problems.append(f"split_name: must be a split's name or a list of them; got {show(name)}")
    seed, limit = options.get("shuffle_seed"), options.get("limit")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        problems.append(f"shuffle_seed: must be a whole number; got {show(seed)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        problems.append(f"limit: must be a whole number from 1; got {show(limit)}")
    return problems


def _splits(name: Any, default: str) -> list[str]:
    if name is None:
        return [default]
    return [name] if isinstance(name, str) else list(name)


async def _list(
    entry: EnvironmentConfig, service: EnvironmentService, splits: list[str], options: Mapping[str, Any]
) -> Listing:
    listed = {split: await service.list_tasks(split) for split in dict.fromkeys(splits)}
    dropped = await _excluded(entry.exclude_tasks, service, listed)
    check = getattr(service, "check_tasks", None)
    if check is not None:
        for split, ids in listed.items():
            await check(split, [task for task in ids if task not in dropped])
    ids = [task for split in splits for task in listed[split]]
    seed = options.get("shuffle_seed")
    if seed is not None:
        random.Random(seed).shuffle(ids)
    kept = [task for task in ids if task not in dropped][: options.get("limit")]
    columns = await _columns(service, kept)
    report = {
        split: (len(tasks), tuple(task for task in tasks if task in dropped))
        for split, tasks in listed.items()
        if not dropped.isdisjoint(tasks)
    }
    return Listing(tuple(TaskRow(task, columns.get(task, {})) for task in kept), report)


async def _excluded(
    items: Iterable[str], service: EnvironmentService, listed: Mapping[str, list[str]]
) -> frozenset[str]:
    wanted = list(items)
    if not wanted:
        return frozenset()
    by_item = await _names(service, listed)
    unknown = [item for item in wanted if item not in by_item]
    if unknown:
        await _refuse_unknown(unknown, service, listed, by_item)
    dropped = frozenset(task for item in wanted for task in by_item.get(item, ()))
    for split, ids in listed.items():
        if ids and dropped.issuperset(ids):
            raise ValueError(f"exclude_tasks leaves no task of split {split!r}")
    return dropped


async def _names(service: EnvironmentService, listed: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Each id and each display name to the ids it stands for."""
    found: dict[str, set[str]] = {}
    names = getattr(service, "list_task_names", None)
    for split, ids in listed.items():
        for task in ids:
            found.setdefault(task, set()).add(task)
        if names is not None:
            wanted = set(ids)
            for task, name in (await names(split)).items():
                if task in wanted:
                    found.setdefault(name, set()).add(task)
    return found


async def _refuse_unknown(
    unknown: list[str],
    service: EnvironmentService,
    listed: Mapping[str, list[str]],
    known: Mapping[str, set[str]],
) -> None:
    """ValueError unless each item names a task of another split, where excluding it is merely without effect."""
    splits = getattr(service, "list_splits", None)
    if splits is not None:
        others = [split for split in await splits() if split not in listed]
        elsewhere = await _names(service, {split: await service.list_tasks(split) for split in others})
        unknown = [item for item in unknown if item not in elsewhere]
    if unknown:
        examples = ", ".join(repr(item) for item in list(known)[:2])
        hint = (
            " (write the id without its environment's name and '::')" if any("::" in item for item in unknown) else ""
        )
        raise ValueError(
            f"exclude_tasks: no task is named {', '.join(map(repr, unknown))}; tasks are, say, {examples}{hint}"
        )


async def _columns(service: EnvironmentService, ids: list[str]) -> dict[str, dict[str, str]]:
    ask = getattr(service, "task_columns", None)
    if ask is None:
        return {}
    given: Mapping[str, Mapping[str, Any]] = await ask(ids)
    return {task: _texts(columns) for task, columns in given.items()}


def _texts(columns: Mapping[str, Any]) -> dict[str, str]:
    out = {}
    for name, value in columns.items():
        text = _text(value)
        if text and name != "task_id" and not name.startswith("_platoon"):
            out[name] = text
    return out


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str | int | float) else None
