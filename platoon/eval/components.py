"""What an evaluation names: components of its rollouts, and how they are judged."""

from __future__ import annotations

from platoon.config import EvalRun
from platoon.credit.processors import add_reward_processors, dumped_processor
from platoon.eval.records import Judging
from platoon.extensions.components import Components
from platoon.rollout.components import import_package, resolve_entries


def resolve_components(config: EvalRun) -> Components:
    """Everything that the config names. A report of kept rollouts needs only its reward processors."""
    if config.stage == "report":
        found = Components()
        for index, entry in enumerate(config.environments):
            import_package(entry, ("environments", index), found)
    else:
        found = resolve_entries(config.environments, ("train",) if config.split == "train" else ("eval",))
    add_reward_processors(config.environments, found)
    return found


def judging_of(config: EvalRun) -> Judging:
    """How rollouts are judged, once the components are found."""
    workflow, mixed = config.inference.workflow, len(config.environments) > 1
    processors = {
        f"{entry.label}::" if mixed else "": dumped_processor(entry.reward_processor)
        for entry in config.environments
        if entry.reward_processor is not None
    }
    return Judging(workflow.success_threshold, workflow.count_timeout_as_failure, processors)
