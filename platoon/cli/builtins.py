"""What platoon itself brings of each kind of component: name -> where it is. Nothing is imported to say so."""

from __future__ import annotations

from collections.abc import Mapping

SAMPLERS = "platoon.draw.samplers.sampling"


def builtins() -> Mapping[str, Mapping[str, str]]:
    """Built-in components by kind."""
    from platoon.config.entries import CORE_ADMISSIONS, CORE_SAMPLERS
    from platoon.envs.named import core_environments
    from platoon.harness.registry import core_harnesses

    return {
        "harness": core_harnesses(),
        "program": {"single": "platoon.rollout.programs:single"},
        "environment": core_environments(),
        "reward_processor": {"platoon-delegation": "platoon.credit.processors:delegation"},
        "task_sampler": dict.fromkeys(CORE_SAMPLERS, SAMPLERS),
        "group_admission": dict.fromkeys(CORE_ADMISSIONS, "platoon.draw"),
    }
