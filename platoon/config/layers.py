"""Laying settings over each other: what an entry's groups and evaluations really use.

A layer is the mapping of keys somebody gave. Nested sections merge key by key; anything else (null, lists, free-form
mappings such as `extra`) replaces. The result is a checked section; no layer is ever changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from platoon.config.base import Section, given
from platoon.config.entries import EnvironmentConfig
from platoon.config.inference import InferenceConfig
from platoon.config.rollout import EVALUATION_DEFAULTS, INHERITED_BY_EVALUATION, RolloutConfig, WorkflowConfig

S = TypeVar("S", bound=Section)


def lay(base: S, *layers: Mapping[str, Any]) -> S:
    """`base` with each layer over it, lowest first. Raises pydantic's ValidationError for what the class refuses."""
    values = base.model_dump()
    for layer in layers:
        values = _merge(values, layer, type(base))
    return type(base).model_validate(values)


def _merge(values: Mapping[str, Any], layer: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in layer.items():
        field = section.model_fields.get(key)
        nested = field.annotation if field is not None else None
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        if both and isinstance(nested, type) and issubclass(nested, Section):
            merged[key] = _merge(merged[key], value, nested)
        else:
            merged[key] = value
    return merged


def evaluation_settings(training: WorkflowConfig, *layers: Mapping[str, Any]) -> WorkflowConfig:
    """Evaluation's defaults, what it takes over from training, then the layers."""
    inherited = training.model_dump(include=set(INHERITED_BY_EVALUATION))
    return lay(WorkflowConfig(), EVALUATION_DEFAULTS, inherited, *layers)


def entry_training_settings(run: WorkflowConfig, entry: EnvironmentConfig) -> WorkflowConfig:
    """The settings of an entry's training groups; the run's own object when the entry sets nothing."""
    own = given(entry.workflow_config)
    return lay(run, own) if own else run


def rollout_settings(inference: InferenceConfig, entry: EnvironmentConfig, split: str) -> RolloutConfig:
    """The rollout config of an entry under `platoon eval`. `judges` is always the run's."""
    run = inference.workflow.rollout_config
    own = given(entry.workflow_config).get("rollout_config") or {}
    overrides = given(entry.eval_overrides.workflow_config).get("rollout_config") or {}
    layers = (own, given(run), {} if split == "train" else overrides, {"judges": inference.judges})
    return lay(RolloutConfig(), *layers)
