"""Keys that are read but whose feature is not built yet: set to anything but what works, they are refused by name.

One line a key; a line is deleted when its feature lands. `*` stands for any list index. `accepts` holds the values
that work without the feature; a key that nobody wrote is never refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from platoon.config.base import Section, given, number_of
from platoon.config.problems import KeyPath, Problem, show


@dataclass(frozen=True)
class Unbuilt:
    key: str
    what: str
    accepts: tuple[Any, ...] = (None,)


_PROCESS = "running rollouts in worker processes"
_LOADERS = "loading tasks or playing rollouts by functions of your own"
_AGENTS = "sub-agents"
_WORKER_DEFAULTS: dict[str, Any] = {
    "rollout_isolation": "inprocess",
    "worker_start_method": "forkserver",
    "worker_preload": (),
    "worker_startup_budget_seconds": 300.0,
    "worker_finalize_grace_seconds": 120.0,
    "worker_parent_grace_seconds": 60.0,
    "worker_termination_grace_seconds": 10.0,
    "worker_launch_concurrent_groups": 2,
    "worker_rss_soft_limit_bytes": 24 * 1024**3,
    "worker_mem_available_floor_bytes": 0,
    "worker_binding_poll_seconds": 5.0,
    "worker_unbounded_rollout_budget_seconds": 86400.0,
    "worker_python_env_isolation": False,
}
_RUN_WORKFLOWS = ("train.workflow_config", "eval.workflow_config")
_ROLLOUTS = tuple(f"{at}.rollout_config" for at in _RUN_WORKFLOWS)
_ENTRY_ROLLOUTS = (
    "environments.*.workflow_config.rollout_config",
    "environments.*.eval_overrides.workflow_config.rollout_config",
)


def _of_rollouts(places: tuple[str, ...]) -> tuple[Unbuilt, ...]:
    """The keys of every `rollout_config`."""
    rows: list[Unbuilt] = []
    for at in places:
        rows += [
            Unbuilt(f"{at}.step_timeout", "a harness that reads it", (300,)),
            Unbuilt(f"{at}.enable_subagent_verifiers", _AGENTS, (True,)),
        ]
    return tuple(rows)


TRAIN: tuple[Unbuilt, ...] = (
    *(Unbuilt(f"{at}.{key}", _PROCESS, (value,)) for at in _RUN_WORKFLOWS for key, value in _WORKER_DEFAULTS.items()),
    *_of_rollouts(_ROLLOUTS),
)
EVAL: tuple[Unbuilt, ...] = (
    *_of_rollouts(("inference.workflow.rollout_config",)),
    Unbuilt("inference.hosted", "evaluating a hosted model"),
    Unbuilt("inference.workflow.use_subprocesses", _PROCESS, (False,)),
    Unbuilt("inference.workflow.subprocess_max_workers", _PROCESS),
)
ENTRIES: tuple[Unbuilt, ...] = (
    *(
        Unbuilt(f"environments.*.{key}", _LOADERS)
        for key in ("dataset_loader", "eval_dataset_loader", "task_loader", "rollout", "eval_rollout")
    ),
    Unbuilt("environments.*.workflow", "a workflow class of your own", ("group_rollout",)),
    Unbuilt("environments.*.workflow_kwargs", "a workflow class of your own", ({},)),
    Unbuilt("environments.*.eval_workflow_kwargs", "a workflow class of your own", ({},)),
    Unbuilt("environments.*.placement", "choosing where a harness runs", ("auto",)),
    Unbuilt("environments.*.builtins", "harnesses with tools of their own", ("default",)),
    *_of_rollouts(_ENTRY_ROLLOUTS),
    Unbuilt("environments.*.agents.max_depth", _AGENTS, (None, 0)),
    Unbuilt("environments.*.agents.budget", _AGENTS, ("linear",)),
    Unbuilt("environments.*.agents.child_max_steps", _AGENTS, (15,)),
    Unbuilt("environments.*.agents.child_grading", _AGENTS, ("none",)),
    Unbuilt("environments.*.agents.child_access", _AGENTS, ("full",)),
    Unbuilt("environments.*.agents.verifier.enabled", _AGENTS, (True,)),
    Unbuilt("environments.*.agents.verifier.max_steps", _AGENTS, (20,)),
    Unbuilt("environments.*.agents.verifier.access", _AGENTS, ("read_only",)),
    Unbuilt("environments.*.agents.fork", _AGENTS),
    Unbuilt("environments.*.agents.child_timeout_s", _AGENTS),
)


TABLES: dict[str, tuple[Unbuilt, ...]] = {"train": (*TRAIN, *ENTRIES), "eval": (*EVAL, *ENTRIES)}


def unbuilt_problems(config: Section | Mapping[str, Any], table: tuple[Unbuilt, ...]) -> Iterator[Problem]:
    """A problem for each key of the table that somebody set to a value that does not work yet. `config`: a built
    section, or the plain data of one."""
    for row in table:
        for path, value in _given_at(config, row.key.split("."), ()):
            if not any(_same(value, works) for works in row.accepts):
                yield Problem(path, f"needs {row.what}, which is not built yet (got {show(value)}); remove the key")


def _same(value: Any, works: Any) -> bool:
    if isinstance(works, tuple) and isinstance(value, list):
        return tuple(value) == works
    if isinstance(works, float) and not isinstance(value, bool):
        return bool(number_of(value) == works)
    return type(value) is type(works) and bool(value == works)


def _given_at(value: Any, parts: list[str], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not parts:
        yield path, given(value) if isinstance(value, Section) else value
    elif parts[0] == "*":
        for index, item in enumerate(value if isinstance(value, (list, tuple)) else ()):
            yield from _given_at(item, parts[1:], (*path, index))
    elif isinstance(value, Section) and parts[0] in value.model_fields_set:
        yield from _given_at(getattr(value, parts[0]), parts[1:], (*path, parts[0]))
    elif isinstance(value, Mapping) and parts[0] in value:
        yield from _given_at(value[parts[0]], parts[1:], (*path, parts[0]))
