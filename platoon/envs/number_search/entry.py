"""The named environment `platoon-number-search@1`."""

from __future__ import annotations

from platoon.envs.named import EnvironmentEntry

_PROMPT = (
    "You find a hidden number. Call the tool guess with a number; the reply says whether it was too low or too high. "
    "Halve the range that is left with every guess, and go on until the reply is Correct!"
)

NUMBER_SEARCH = EnvironmentEntry(
    "platoon-number-search",
    "1",
    description="Find a hidden number by guessing: replies say too low or too high.",
    harness_defaults={"platoon-react": {"system_prompt": _PROMPT}},
    service="python://platoon.envs.number_search.env:NumberSearchEnvironment",
    agents={"max_depth": 0},
    eval_dataset_kwargs={"split_name": "val"},
)
