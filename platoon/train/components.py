"""The components of a training run: what its entries name, and what acts on the whole run."""

from __future__ import annotations

from platoon.config import Loaded, TrainRun
from platoon.config.problems import ConfigError, Problem
from platoon.credit.processors import add_reward_processors
from platoon.draw.admission.gate import EntryRule, check_admission
from platoon.draw.admission.rules import RULES
from platoon.draw.samplers.checks import check_sampling
from platoon.extensions.components import Components
from platoon.rollout.components import Phase, resolve_entries
from platoon.train.admitting import admission_settings
from platoon.train.environments import sampling_settings


def resolve_components(config: TrainRun) -> Components:
    """Look up every component that a training run names. Nothing is built."""
    phases: tuple[Phase, ...] = ("train", "eval") if config.eval.every else ("train",)
    found = resolve_entries(config.environments, phases)
    add_reward_processors(config.environments, found)
    if not any(problem.path[-1] == "package" for problem in found.problems):
        _samplers(config, found)
        _rules(config, found)
    return found


def start_components(loaded: Loaded) -> Components:
    """The components of a run that starts now. Raises ConfigError with every problem."""
    found = resolve_components(loaded.train_config)
    found.check()
    return found


def _samplers(config: TrainRun, found: Components) -> None:
    try:
        samplers = check_sampling(sampling_settings(config))
    except ConfigError as error:
        found.problems += [Problem((), text) for text in error.problems]
        return
    options = {entry.label: entry.task_sampler_options for entry in config.environments}
    for label, sampler in samplers.items():
        recorded = sampler.recorded(config.train.task_sampler_options if label is None else options[label])
        found.add(
            "task_sampler",
            sampler.ref,
            source=sampler.source,
            label=label,
            level="run" if label is None else "entry",
            options={"train": recorded} if label is None and recorded else recorded,
        )


def _rules(config: TrainRun, found: Components) -> None:
    settings = admission_settings(config)
    try:
        check_admission(settings, sampling_settings(config))
    except ConfigError as error:
        found.problems += [Problem((), text) for text in error.problems if text not in map(str, found.problems)]
        return
    run = EntryRule(settings.rule, settings.options)
    for label, own in [(None, run), *settings.entries.items()]:
        if own.rule == "all":  # admits every group; as the plain orders of sampling, not worth a record
            continue
        rule = RULES.resolve(own.rule)
        recorded = rule.recorded(own.options)
        found.add(
            "group_admission",
            rule.ref,
            source=rule.source,
            label=label,
            level="run" if label is None else "entry",
            options={"train": recorded} if label is None and recorded else recorded,
        )
