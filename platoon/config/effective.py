"""What an entry's groups really use, and where each setting comes from.

For people (`platoon config show`) and for the run's lock file. Values come from `workflow_settings` and
`rollout_settings`; only the source of each is worked out here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from platoon.config.base import Section, given
from platoon.config.entries import EnvironmentConfig
from platoon.config.layers import rollout_settings
from platoon.config.problems import KeyPath, show
from platoon.config.rollout import EVALUATION_DEFAULTS, EntryRollout, EntryWorkflow, InferenceParams, WorkflowConfig
from platoon.config.runs import EvalRun, TrainRun, workflow_settings

Phase = Literal["train", "eval"]
_OPEN = ("rollout_config", "inference_params")


@dataclass(frozen=True)
class Setting:
    """One effective setting. `below`: the layer it replaced and that layer's value, when it changed something."""

    path: str
    value: Any
    source: str
    below: tuple[str, Any] | None = None

    def __str__(self) -> str:
        note = f"({self.below[0]}: {show(self.below[1])})" if self.below is not None else ""
        return f"{f'{self.path}: {show(self.value)}':<60} {self.source:<24} {note}".rstrip()


def sets_anything(entry: EnvironmentConfig) -> bool:
    """Whether an entry has settings of its own that act on training or evaluation."""
    return entry.sets_workflow or entry.max_staleness is not None or entry.group_admission is not None


def not_applied(config: EvalRun, entry: EnvironmentConfig) -> list[str]:
    """The dotted paths below an entry that it sets and an evaluation does not apply."""
    overrides = given(entry.eval_overrides.workflow_config)
    read = {} if config.split == "train" else _only_rollout(overrides)
    paths = [f"workflow_config.{key}" for key in given(entry.workflow_config) if key != "rollout_config"]
    paths += [f"eval_overrides.workflow_config.{key}" for key in overrides if key not in read]
    return [*paths, *(key for key in ("max_staleness", "group_admission") if getattr(entry, key) is not None)]


def effective_settings(
    config: TrainRun | EvalRun, entry: EnvironmentConfig, phase: Phase, named: frozenset[str] = frozenset()
) -> list[Setting]:
    """The settings of an entry in a phase, in the order of the schema. `named`: dotted paths below the entry's
    `workflow_config` that its named environment brings (see `named_paths`)."""
    entry_layers = _split(given(entry.workflow_config), named)
    overrides = given(entry.eval_overrides.workflow_config)
    if isinstance(config, EvalRun):
        split = "train" if phase == "train" else "eval"
        laid: Section = rollout_settings(config.inference, entry, split)
        layers = [(name, _only_rollout(layer)) for name, layer in entry_layers]
        layers.append(("inference.workflow", {"rollout_config": given(config.inference.workflow.rollout_config)}))
        layers += [("eval_overrides", _only_rollout(overrides))] if phase == "eval" else []
        effective = {f"rollout_config.{path}": value for path, value in _flat(laid.model_dump()).items()}
        paths = [path for path in _paths() if path.startswith("rollout_config.")]
        return _sourced(paths, effective, {}, layers)
    effective = _flat(workflow_settings(config, entry, phase).model_dump())
    training = [("train.workflow_config", given(config.train.workflow_config)), *entry_layers]
    if phase == "train":
        return [*_sourced(_paths(), effective, {}, training), *_of_the_run(config, entry)]
    inherited = [(f"{name}, inherited", _only_rollout(layer)) for name, layer in training]
    layers = [*inherited, ("eval.workflow_config", config.eval_layer), ("eval_overrides", overrides)]
    return _sourced(_paths(), effective, EVALUATION_DEFAULTS, layers)


def _of_the_run(config: TrainRun, entry: EnvironmentConfig) -> Iterator[Setting]:
    """What an entry may set beside `workflow_config`, and the run's straggler policies."""
    train = config.train
    own = entry.max_staleness
    changed = ("train.max_staleness", train.max_staleness) if own not in (None, train.max_staleness) else None
    if own is None:
        yield Setting("max_staleness", train.max_staleness, "train.max_staleness")
    else:
        yield Setting("max_staleness", own, "entry", changed)
    if entry.group_admission is not None:
        below = (
            ("train.group_admission", train.group_admission) if entry.group_admission != train.group_admission else None
        )
        yield Setting("group_admission", _rule(entry.group_admission, entry.group_admission_options), "entry", below)
    elif train.group_admission != "all":
        rule = _rule(train.group_admission, train.group_admission_options)
        yield Setting("group_admission", rule, "train.group_admission")
    policies = train.workflow_config.straggler_policies
    if policies:
        shown = {label: policy.model_dump() for label, policy in policies.items()}
        yield Setting("straggler_policies", shown, "train.workflow_config")


def _rule(name: str, options: Mapping[str, Any]) -> Any:
    return {name: dict(options)} if options else name


def named_paths(entry: EnvironmentConfig, index: int, places: Mapping[KeyPath, str]) -> frozenset[str]:
    """The dotted paths below an entry's `workflow_config` that no file and no override wrote: those of its named
    environment. `index`: the entry's place in `environments`; `places`: where each value comes from."""
    at: KeyPath = ("environments", index, "workflow_config")

    def written(path: str) -> bool:
        whole = (*at, *path.split("."))
        above = (whole[:length] for length in range(1, len(whole)))
        return whole in places or any(places.get(one, "").startswith("override ") for one in above)

    if entry.env is None:
        return frozenset()
    return frozenset(path for path in _flat(given(entry.workflow_config)) if not written(path))


def _split(own: Mapping[str, Any], named: frozenset[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """An entry's layer as the two it was made of."""
    layers = [("named environment", _keep(own, lambda path: path in named))] if named else []
    return [*layers, ("entry", _keep(own, lambda path: path not in named))]


def _keep(layer: Mapping[str, Any], wanted: Callable[[str], bool], prefix: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in layer.items():
        if key in _OPEN and isinstance(value, Mapping):
            kept[key] = _keep(value, wanted, f"{prefix}{key}.")
        elif wanted(prefix + key):
            kept[key] = value
    return kept


def entry_settings(config: TrainRun) -> dict[str, dict[str, Any]]:
    """For lock.json: label -> phase -> path -> value, where an entry differs from the run. Empty when none does."""
    found: dict[str, dict[str, Any]] = {}
    run = {"train": config.train.workflow_config, "eval": config.eval.workflow_config}
    phases: tuple[Phase, Phase] = ("train", "eval")
    for entry in config.environments:
        record: dict[str, Any] = {}
        for phase in phases:
            base = _flat(run[phase].model_dump())
            own = _flat(workflow_settings(config, entry, phase).model_dump())
            changed = {path: own[path] for path in _paths() if own.get(path) != base.get(path)}
            if changed:
                record[phase] = changed
        if entry.max_staleness not in (None, config.train.max_staleness):
            record["max_staleness"] = entry.max_staleness
        if record:
            found[entry.label] = record
    return found


def _sourced(
    paths: Sequence[str],
    effective: Mapping[str, Any],
    defaults: Mapping[str, Any],
    layers: Sequence[tuple[str, Mapping[str, Any]]],
) -> list[Setting]:
    flat = [(name, _flat(layer)) for name, layer in layers]
    base = {**_flat(WorkflowConfig().model_dump()), **defaults}
    settings = []
    for path in paths:
        steps = [("default", base[path]), *((name, layer[path]) for name, layer in flat if path in layer)]
        below = steps[-2] if len(steps) > 1 and steps[-2][1] != effective[path] else None
        settings.append(Setting(path, effective[path], steps[-1][0], below))
    return settings


def _paths() -> list[str]:
    """The dotted paths that an entry may set, sections before their keys left out."""
    rollout = [key for key in EntryRollout.model_fields if key != "inference_params"]
    sampling = [f"inference_params.{key}" for key in InferenceParams.model_fields]
    plain = [key for key in EntryWorkflow.model_fields if key != "rollout_config"]
    return [*plain, *(f"rollout_config.{key}" for key in (*rollout[:3], *sampling, *rollout[3:]))]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in _OPEN and isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _only_rollout(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key == "rollout_config"}
