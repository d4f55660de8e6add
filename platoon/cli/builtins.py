"""What platoon itself brings of each kind of component: name -> where it is. Nothing is imported to say so."""

from __future__ import annotations

from collections.abc import Mapping

_RESOLVERS = {
    "harness": "platoon.harness.registry:get_harness",
    "program": "platoon.rollout.programs:get_program",
    "environment": "platoon.envs.named:resolve_environment",
    "reward_processor": "platoon.credit.processors:get_reward_processor",
    "task_sampler": "platoon.draw.samplers.registry:SAMPLERS.resolve",
    "group_admission": "platoon.draw.admission.rules:RULES.resolve",
}
SAMPLERS = "platoon.draw.samplers.sampling"


def resolve(kind: str, name: str) -> object:
    """A component by kind and name, as a run looks it up; of several versions a text that names them. ValueError or
    ConfigError says why it cannot be used."""
    from platoon.config.problems import ConfigError
    from platoon.extensions.names import import_string

    try:
        return import_string(_RESOLVERS[kind])(name)
    except (ValueError, ConfigError) as error:
        _, several, versions = str(error).partition(" fits several versions")
        if not several:
            raise
        return versions.strip(":; ").removesuffix("; name one").removeprefix("there are ")


def builtins() -> Mapping[str, Mapping[str, str]]:
    """Built-in components by kind."""
    from platoon.config.entries import CORE_ADMISSIONS, CORE_SAMPLERS
    from platoon.envs.named import core_environments
    from platoon.harness.registry import core_harnesses

    return {
        "harness": core_harnesses(),
        "program": {name: f"platoon.rollout.programs:{name}" for name in ("gym", "single")},
        "environment": core_environments(),
        "reward_processor": {"platoon-delegation": "platoon.credit.processors:delegation"},
        "task_sampler": dict.fromkeys(CORE_SAMPLERS, SAMPLERS),
        "group_admission": dict.fromkeys(CORE_ADMISSIONS, "platoon.draw"),
    }
