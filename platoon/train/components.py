"""The components of a training run: what its entries name, and what acts on the whole run."""

from __future__ import annotations

from platoon.config import Loaded, TrainRun
from platoon.config.problems import ConfigError
from platoon.credit.processors import get_reward_processor
from platoon.extensions.components import Components
from platoon.extensions.entry_points import installed
from platoon.rollout.components import Phase, resolve_entries


def resolve_components(config: TrainRun) -> Components:
    """Look up every component that a training run names. Nothing is built."""
    phases: tuple[Phase, ...] = ("train", "eval") if config.eval.every else ("train",)
    found = resolve_entries(config.environments, phases)
    _reward_processors(config, found)
    return found


def start_components(loaded: Loaded) -> Components:
    """The components of a run that starts now. Raises ConfigError with every problem."""
    found = resolve_components(loaded.train_config)
    found.check()
    return found


def _reward_processors(config: TrainRun, found: Components) -> None:
    for index, entry in enumerate(config.environments):
        reference = entry.reward_processor
        if reference is None:
            continue
        try:
            get_reward_processor(reference)
        except ConfigError as error:
            found.refuse(("environments", index, "reward_processor"), str(error))
            continue
        found.add("reward_processor", reference, source=_processor_source(reference), label=entry.label)


def _processor_source(reference: str) -> str:
    point = installed("reward_processor").get(reference) if ":" not in reference else None
    return point.value if point is not None else reference
