"""An entry of `environments`: what is played, by which harness, with which settings of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from platoon.config.base import Count, CountOrZero, Number, NumericMap, Positive, Section, Text, Texts, given, number_of
from platoon.config.problems import Problem, show
from platoon.config.rollout import EntryWorkflow

Ending = Literal["grade", "exclude"]
_HARBOR_REMOVED = {
    "cache": "set cache in the site profile",
    "image_map": "images are kept below the site profile's cache",
    "toolchain_root": "toolchains are kept below the site profile's cache",
}
CORE_SAMPLERS = ("auto", "weighted", "uniform", "pass_rate")
CORE_ADMISSIONS = ("all", "informative")


def _harness(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, dict) and value and all(isinstance(name, str) and name.strip() for name in value):
        weights = {name: number_of(weight) for name, weight in value.items()}
        if all(_is_weight(weight) for weight in weights.values()):
            return {name: float(weight) for name, weight in weights.items()}
    raise ValueError("must be a harness name, or a mapping of harness names to numbers above 0; got " + show(value))


def _weight(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    number = number_of(value)
    if value == "tasks" or _is_weight(number):
        return value if value == "tasks" else float(number)
    raise ValueError(f"must be a number above 0, or tasks; got {show(value)}")


def _is_weight(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _both_endings(value: Any) -> Any:
    return {"timeout": value, "crash": value} if value in ("grade", "exclude") else value


class OnHarnessExit(Section):
    """Whether a rollout whose harness ran out of time or crashed is graded. A text sets both."""

    timeout: Ending = "exclude"
    crash: Literal["grade", "grade_if_gateway_clean", "exclude"] = "exclude"


class VerifierConfig(Section):
    """The agent that checks a child's work under `child_grading: verifier`."""

    enabled: bool = True
    max_steps: CountOrZero = 20
    access: Literal["full", "no_terminal", "read_only"] = "read_only"


class AgentsConfig(Section):
    """Sub-agents: how deep, with what budget, how graded, what they may touch."""

    max_depth: CountOrZero | None = None
    budget: Literal["linear", "depth_aware"] = "linear"
    child_max_steps: Count = 15
    child_grading: Literal["env", "verifier", "none"] = "none"
    child_access: Literal["full", "no_terminal", "read_only"] = "full"
    verifier: VerifierConfig = VerifierConfig()
    fork: Literal["shared", "copy", "fresh"] | None = None
    child_timeout_s: Positive | None = None


# dumped as it was given: a default written out would lie over the run's own value when the dump is loaded
OwnWorkflow = Annotated[EntryWorkflow, PlainSerializer(given, return_type=dict[str, Any])]


class EvalOverrides(Section):
    """What an entry does differently when it is evaluated."""

    HINTS: ClassVar = {
        "max_steps": "set workflow_config.rollout_config.max_steps below eval_overrides",
        "inference_params": "set workflow_config.rollout_config.inference_params below eval_overrides",
        "group_size": "set workflow_config.group_size below eval_overrides",
        "dataset_kwargs": "set the entry's eval_dataset_kwargs",
    }

    harness_options: dict[str, Any] = Field(default_factory=dict)
    workflow_config: OwnWorkflow = EntryWorkflow()


class EnvironmentConfig(Section):
    """One environment. `workflow_config` holds only the keys given (`given()`): absent differs from null."""

    env: Text | None = None
    package: Text | None = None
    trainer_config: Text | None = None
    dataset_loader: Text | None = None
    eval_dataset_loader: Text | None = None
    task_loader: Text | None = None
    rollout: Text | None = None
    eval_rollout: Text | None = None
    reward_processor: Text | None = None
    workflow: Text = "group_rollout"
    dataset_kwargs: dict[str, Any] = Field(default_factory=dict)
    eval_dataset_kwargs: dict[str, Any] = Field(default_factory=dict)
    exclude_tasks: Texts = ()
    workflow_kwargs: dict[str, Any] = Field(default_factory=dict)
    eval_workflow_kwargs: dict[str, Any] = Field(default_factory=dict)
    name: Text | None = None
    weight: Annotated[float | Literal["tasks"], WrapValidator(_weight)] = "tasks"
    task_sampler: Text | None = None
    task_sampler_options: NumericMap = Field(default_factory=dict)
    group_admission: Text | None = None
    group_admission_options: NumericMap = Field(default_factory=dict)
    workflow_config: OwnWorkflow = EntryWorkflow()
    max_staleness: CountOrZero | None = None
    success_threshold: Number = 1.0
    service: Text | None = None
    service_kwargs: dict[str, Any] = Field(default_factory=dict)
    harness: Annotated[dict[str, float] | str | None, WrapValidator(_harness)] = None
    placement: Literal["auto", "task_sandbox", "local"] = "auto"
    builtins: Literal["default", "keep", "disable"] = "default"
    on_context_overflow: Ending = "grade"
    on_harness_exit: Annotated[OnHarnessExit, BeforeValidator(_both_endings)] = OnHarnessExit()
    seed: int = 0
    program: Text = "single"
    harness_options: dict[str, Any] = Field(default_factory=dict)
    eval_overrides: EvalOverrides = EvalOverrides()
    agents: AgentsConfig = AgentsConfig()

    def complete(self) -> Iterator[Problem]:
        self.derive(exclude_tasks=tuple(dict.fromkeys(self.exclude_tasks)))
        for index, task in enumerate(self.exclude_tasks):
            if task != task.strip():
                yield Problem(("exclude_tasks", index), f"has spaces around the id: {task!r}")
        if self.name is not None and "::" in self.name:
            yield Problem(("name",), f"must not contain '::', which divides it from a task id; got {self.name!r}")
        if self.harness is not None and self.service is None and self.env is None and self.rollout is None:
            yield Problem(("harness",), "needs a service (or env) to play", (("service",), ("env",)))
        if self.service == "harbor":
            for key in _HARBOR_REMOVED.keys() & self.service_kwargs.keys():
                yield Problem(("service_kwargs", key), f"platoon 0.3.0 removed it; {_HARBOR_REMOVED[key]}")
        if self.task_sampler in ("auto", "weighted"):
            text = f"{self.task_sampler} is a sampler of the whole run; set train.task_sampler"
            yield Problem(("task_sampler",), text)
        for key in ("task_sampler", "group_admission"):
            options = f"{key}_options"
            if getattr(self, options) and getattr(self, key) is None:
                yield Problem((options,), f"needs the entry's own {key}", ((key,),))

    @property
    def label(self) -> str:
        return self.name if self.name is not None else "default"

    @property
    def sets_workflow(self) -> bool:
        """Whether the entry lays settings of its own over the run's."""
        return bool(given(self.workflow_config) or given(self.eval_overrides.workflow_config))


def entry_label(entry: EnvironmentConfig) -> str:
    """The entry's name, or `default`."""
    return entry.label
