"""The prepare flow: make what a config needs before its run starts, and say what is there.

For now: the policy's tokenizer, and every environment's task list in both phases. Independent steps run at once, each a
task with retries. A file of environments alone is prepared without a policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flows.running import chosen_recording, exit_guard, finish_command, in_loop, run_to_end
from platoon.config import ConfigError, EvalRun, Loaded, TrainRun, add_project_path, load
from platoon.config.partial import EnvironmentsOnly, Partial, kind_of, load_partial
from platoon.envs.named import NamedEnvironments
from platoon.rollout.components import resolve_entries
from tasks.endpoint import Orchestration
from tasks.preparing import Prepared, attempted, policy_model, prepare_environment, prepare_tokenizer
from tasks.recording import recorded

Overrides = Sequence[str] | Mapping[str, Any]


def prepare(
    config: str | Path | Loaded | Partial,
    overrides: Overrides = (),
    *,
    dry_run: bool = False,
    orchestration: Orchestration | None = None,
) -> Any:
    """Prepare and return the list of `Prepared` steps. Inside an event loop: `await prepare(...)`."""

    async def work() -> list[Prepared]:
        loaded = load_any(config, overrides)
        with chosen_recording(loaded, orchestration):
            return await prepare_flow(loaded, dry_run)

    return work() if in_loop() else run_to_end(work)


def run_prepare(
    config: str | Path | Loaded | Partial,
    overrides: Overrides = (),
    orchestration: Orchestration | None = None,
    *,
    dry_run: bool = False,
) -> int:
    """`platoon prepare`: print each step and a last line. 0 ready, 1 when a step failed or is missing."""
    loaded = load_any(config, overrides)
    with chosen_recording(loaded, orchestration) as recorder, exit_guard(recorder):

        def work() -> Coroutine[Any, Any, list[Prepared]]:
            return prepare_flow(loaded, dry_run)

        steps = run_to_end(work)
        for step in steps:
            print(step)
        bad = [f"{one.subject} {one.step}" for one in steps if one.status in ("failed", "missing")]
        made = sum(one.status == "done" for one in steps)
        current = sum(one.status == "current" for one in steps)
        print(f"not ready: {', '.join(bad)}" if bad else f"ready (made {made}, {current} current)")
        return finish_command(recorder, 1 if bad else 0)


def load_any(config: str | Path | Loaded | Partial, overrides: Overrides) -> Loaded | Partial:
    """A run's configuration, or a file of environments. Raises ConfigError."""
    if isinstance(config, Loaded | Partial):
        return config
    add_project_path(Path(config))
    if kind_of(config, overrides) == "environments":
        return load_partial(config, overrides, schema=EnvironmentsOnly, resolver=NamedEnvironments())
    return load(config, overrides, resolver=NamedEnvironments())


async def prepare_flow(loaded: Loaded | Partial, dry_run: bool) -> list[Prepared]:
    """The flow `prepare`: one task for the tokenizer and one for each entry and phase."""

    @recorded("prepare", "prepare")
    async def prepare(config: str, overrides: list[str], dry_run: bool) -> list[Prepared]:
        return await prepare_body(loaded, dry_run)

    return await prepare(str(loaded.path), [str(one) for one in loaded.overrides], dry_run)


async def prepare_body(loaded: Loaded | Partial, dry_run: bool) -> list[Prepared]:
    """All steps at once, each a task with retries; the list is in the config's order. ConfigError, before any, for a
    component that cannot be used."""
    config = loaded.config
    if not isinstance(config, TrainRun | EvalRun | EnvironmentsOnly) or not config.environments:
        raise ConfigError(f"environments: {loaded.path} names none, so there is nothing to prepare")
    phases: tuple[Literal["train", "eval"], ...] = ("eval",) if isinstance(config, EvalRun) else ("train", "eval")
    resolve_entries(config.environments, phases).check()
    steps = []
    if not isinstance(config, EnvironmentsOnly):
        tokenizer = partial(prepare_tokenizer, policy_model(config), dry_run)
        steps.append(attempted("tokenizer", "policy", "tokenizer", tokenizer))
    for entry in config.environments:
        for name in phases:
            body = partial(prepare_environment, entry, name)
            steps.append(
                attempted(f"tasks-{entry.label}-{name}", f"environments[{entry.label}]", f"tasks ({name})", body)
            )
    found = await asyncio.gather(*steps, return_exceptions=True)
    prepared: list[Prepared] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        prepared.append(one)
    return prepared
