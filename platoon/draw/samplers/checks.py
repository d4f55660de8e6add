"""Samplers that a config names, looked up and checked before a run opens: all problems in one report."""

from __future__ import annotations

from typing import Any

from platoon.config import ConfigError
from platoon.draw.registry import Component
from platoon.draw.samplers.contract import SamplerCheckContext
from platoon.draw.samplers.registry import SAMPLERS
from platoon.draw.samplers.settings import PLAIN_SAMPLERS, SamplingSettings


def check_sampling(settings: SamplingSettings) -> dict[str | None, Component]:
    """The components that the run (None) and its entries name, platoon's plain orders left out. ConfigError."""
    problems: list[str] = []
    found: dict[str | None, Component] = {}
    places: list[tuple[str | None, str, str | None, Any]] = [
        (None, "train.task_sampler", settings.task_sampler, settings.task_sampler_options)
    ]
    for entry in settings.entries:
        at = f"environments[{entry.label}].task_sampler"
        places.append((entry.label, at, entry.task_sampler, entry.task_sampler_options))
    for label, at, name, options in places:
        if name is None or (name in PLAIN_SAMPLERS and label is None) or (name == "uniform" and label is not None):
            if options:
                problems.append(f"{at}_options: the sampler {name or 'uniform'} takes no options; remove them")
            continue
        try:
            component = SAMPLERS.resolve(name)
        except ValueError as error:
            problems.append(f"{at}: {error}")
            continue
        found[label] = component
        problems += component.problems(at, options, _context(settings, label))
    if not problems:
        problems += _level_problems(settings, found)
    if problems:
        raise ConfigError(problems, "the samplers cannot draw")
    return found


def _level_problems(settings: SamplingSettings, found: dict[str | None, Component]) -> list[str]:
    """Entry samplers under a run sampler that hands no slots."""
    if settings.hands_slots:
        return [
            f"environments[{label}].task_sampler: {component.ref} hands slots; set it as train.task_sampler"
            for label, component in found.items()
            if label is not None and getattr(component.cls, "entry_slots", False)
        ]
    return [
        f"environments[{label}].task_sampler: the run's sampler {settings.task_sampler} draws the tasks itself; "
        "remove the key"
        for label in found
        if label is not None
    ]


def _context(settings: SamplingSettings, label: str | None) -> SamplerCheckContext:
    return SamplerCheckContext(
        level="run" if label is None else "entry",
        entry=label,
        run_sampler=settings.task_sampler,
        entries=settings.described,
        batch_size=settings.batch_size,
        label_column=settings.label_by,
    )
