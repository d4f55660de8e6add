from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from platoon.envs.number_search.tasks import task_specs, triples
from platoon.testing.episodes import run_episode
from platoon.testing.policy import tool_call

SERVICE = "python://platoon.envs.number_search.env:NumberSearchEnvironment"
DIGESTS = {
    "train": "c7c922295d67c59e3172cd5eb02b8f8db09731c188c0462b3c19396fa4dc41e0",
    "val": "f299bf9ea0d30bebb7f228da3f3dee3e3c286936fa96dafc10c4e49cced9f593",
}


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_tasks_are_exactly_these(split: str) -> None:
    text = json.dumps([list(triple) for triple in triples(split)], separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[split]


def test_first_and_last_triples() -> None:
    train, val = triples("train"), triples("val")
    assert [tuple(t) for t in train[:3]] == [(6, 228, 988), (250, 563, 678), (52, 285, 978)]
    assert tuple(train[-1]) == (644, 833, 905)
    assert tuple(val[0]) == (119, 447, 965)
    assert tuple(val[-1]) == (501, 536, 568)


def test_a_spec_names_its_range_and_carries_the_target() -> None:
    spec = task_specs("val")[0]
    assert spec["id"] == "number_search.val.0"
    assert spec["max_steps"] == 1
    assert spec["misc"] == {"low": 119, "high": 965, "target": 447}
    assert "119" in spec["goal"]
    assert "965" in spec["goal"]
    assert "447" not in spec["goal"]


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(ValueError, match=r"train, val.*'test'"):
        triples("test")


def test_listing_does_not_load_the_sdk() -> None:
    code = f"""
import asyncio, sys
from platoon.envs.services import build_service
service = build_service({SERVICE!r}, {{}})
ids = asyncio.run(service.list_tasks("train"))
assert len(ids) == 50000 and ids[7] == "train:7", ids[:3]
assert "openreward" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_hit_scores_and_a_miss_says_where() -> None:
    script = [tool_call("guess", number=100), tool_call("guess", number=900), tool_call("guess", number=228)]
    run = await run_episode("train:0", service=SERVICE, policy=script)
    assert [call["text"] for call in run.root.misc["tool_calls"]] == ["100 is too low.", "900 is too high.", "Correct!"]
    assert run.reward == 1.0
    assert run.outcome.reward_key == "reward"


async def test_never_hitting_scores_zero_for_no_submission() -> None:
    run = await run_episode("train:0", service=SERVICE, policy=[tool_call("guess", number=1)] * 2, max_steps=2)
    assert (run.reward, run.outcome.reason) == (0.0, "no_submit")
    assert run.root.misc["agent_result"]["status"] == "limit"
