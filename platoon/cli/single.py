"""One rollout outside of a run: which task and policy, which settings, where its records go."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from platoon.config import (
    ConfigError,
    EnvironmentConfig,
    EvalRun,
    Loaded,
    RolloutConfig,
    TrainRun,
    lay,
    rollout_settings,
    run_directory,
    workflow_settings,
)
from platoon.config.files import write_text
from platoon.config.records import RESOLVED, dump_resolved, start_records, write_lock
from platoon.envs.listing import find_task
from platoon.eval.policy import WeightsSource, policy_record, weights_source
from platoon.gateway.dump import to_dict
from platoon.rollout.components import resolve_entries
from platoon.rollout.episode import Episode, EpisodeRequest, new_rollout_id, run_episode
from platoon.rollout.route import build_route
from platoon.train.policy import PolicySettings, open_policy


@dataclass(frozen=True)
class Asked:
    """What the command line asked for; None keeps the configuration's."""

    task: str
    split: str | None = None
    output_dir: Path | None = None
    model: str | None = None
    model_path: str | None = None
    renderer: str | None = None


async def play(loaded: Loaded, asked: Asked, argv: Sequence[str] = ()) -> tuple[Episode, Path]:
    """Play the task; the episode and the directory of its records. ConfigError, before anything is written, for what
    the user can mend."""
    config = loaded.config
    entry, task = find_entry(config, asked.task)
    own_split = config.split if isinstance(config, EvalRun) else "train"
    phase: Literal["train", "eval"] = "train" if (asked.split or own_split) == "train" else "eval"
    components = resolve_entries(config.environments, (phase,))
    components.check()
    policy = policy_settings(config, asked)
    records = {
        **start_records(loaded),
        **components.records(),
        "policy": policy_record(policy.model_name, policy.renderer_name, policy.weights, policy.tinker_base_url),
    }
    if isinstance(config, EvalRun):
        records["judges"] = {"enabled": config.inference.judges}
    service = build_route(entry, phase, "").service
    task_id = await find_task(entry, phase, service, task, split=own_split, asked=asked.split)
    directory = (asked.output_dir or loaded.site.runs / "adhoc" / f"{stamp()}-{slug(asked.task)}").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    own = {"return_dict": True, "train": False, "output_dir": str(directory / "rollouts")}
    settings = lay(_settings(config, entry, asked.split or own_split, phase), {**own, "model_name": policy.model_name})
    dump_resolved(loaded, directory / RESOLVED)
    write_lock(directory, argv, **records)
    route = build_route(entry, phase, task_id)
    request = EpisodeRequest(task_id, route, settings, new_rollout_id(task_id), asked.task)
    state_dir = _state_dir(config, weights_of(config, asked), directory)
    async with open_policy(policy, state_dir, f"rollout/{slug(asked.task)}") as opened:
        episode = await run_episode(request, opened.gateway, opened.server)
    if episode.collection is not None:
        text = json.dumps(to_dict(episode.collection), ensure_ascii=False)
        write_text(text + "\n", directory / "trajectory_collection.json")
    return episode, directory


def find_entry(config: TrainRun | EvalRun, task: str) -> tuple[EnvironmentConfig, str]:
    """The entry that plays a task and the task's own id. In a mixture the id starts with `ENTRY::`."""
    entries = config.environments
    if not entries:
        raise ConfigError("environments: the configuration has none to play")
    if len(entries) == 1:
        return entries[0], task
    label, divider, task_id = task.partition("::")
    for entry in entries:
        if divider and entry.label == label:
            return entry, task_id
    labels = ", ".join(entry.label for entry in entries)
    raise ConfigError(f"--task {task}: in a mixture write ENTRY::ID with one of the entries {labels}")


def policy_settings(config: TrainRun | EvalRun, asked: Asked) -> PolicySettings:
    """The policy of the configuration with the command line's changes. ConfigError without a renderer."""
    source = config.train if isinstance(config, TrainRun) else config.inference
    renderer = asked.renderer or source.renderer_name
    if renderer is None:
        raise ConfigError("inference.renderer_name: missing; set it, or give --renderer")
    return PolicySettings(
        model_name=asked.model or source.model_name,
        renderer_name=renderer,
        renderer_kwargs=source.renderer_kwargs,
        weights=weights_of(config, asked).path,
        context_window_length=source.context_window_length,
        sample_timeout_seconds=source.sample_timeout_seconds,
        tinker_base_url=config.tinker_base_url,
        sampling_seed=config.train.sampling_seed if isinstance(config, TrainRun) else None,
    )


def weights_of(config: TrainRun | EvalRun, asked: Asked) -> WeightsSource:
    """The weights that were asked for, else the evaluation's. ConfigError for a run that has none."""
    own = config.inference.model_path if isinstance(config, EvalRun) else None
    return weights_source(asked.model_path or own)


def _settings(
    config: TrainRun | EvalRun, entry: EnvironmentConfig, split: str, phase: Literal["train", "eval"]
) -> RolloutConfig:
    if isinstance(config, EvalRun):
        return rollout_settings(config.inference, entry, split)
    return workflow_settings(config, entry, phase).rollout_config


def _state_dir(config: TrainRun | EvalRun, source: WeightsSource, directory: Path) -> Path:
    """Where an embedded service keeps its weights: the run's when its weights are asked for."""
    if source.run_dir is not None:
        return source.run_dir / "service"
    if isinstance(config, TrainRun) and source.path is not None:
        return run_directory(config) / "service"
    return directory / "service"


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def slug(task: str) -> str:
    """A task's id as part of a directory's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", task).strip("-.")[-60:].lstrip("-.") or "task"
