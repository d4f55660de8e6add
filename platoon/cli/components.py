"""What a configuration names, looked up without building it, for `config validate`."""

from __future__ import annotations

from collections.abc import Sequence

from platoon.config import EnvironmentConfig, Loaded, TrainRun
from platoon.extensions.components import Components


def component_problems(loaded: Loaded) -> list[str]:
    """One line a component that cannot be found or does not take what the configuration gives it."""
    return [str(problem) for problem in find_components(loaded).problems]


def find_components(loaded: Loaded) -> Components:
    """Everything a configuration names."""
    config = loaded.config
    if isinstance(config, TrainRun):
        from platoon.train.components import resolve_components

        return resolve_components(config)
    from platoon.eval.components import resolve_components as evaluated

    return evaluated(config)


def entry_problems(entries: Sequence[EnvironmentConfig]) -> list[str]:
    """The same of entries without a run, in both phases."""
    from platoon.rollout.components import resolve_entries

    return [str(problem) for problem in resolve_entries(entries, ("train", "eval")).problems]
