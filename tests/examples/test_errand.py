"""The example's rules, and that the shipped policy can play it, badly."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from platoon.render.chat_template import ChatTemplateRenderer
from platoon.service.engines import load_engine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "first-run"


@cache
def module(name: str) -> ModuleType:
    """A module of the example, which is no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # the SDK resolves annotations through it
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="session")
def errand() -> ModuleType:
    pytest.importorskip("openreward")
    return module("errand")


async def play(
    errand: ModuleType, spec: dict[str, Any], calls: list[tuple[str, Any]]
) -> tuple[list[str], float | None]:
    """Texts of a call sequence, up to the end, and the reward if there is one."""
    env, texts = errand.Errand(spec), []
    for name, value in calls:
        arguments = errand.Ask(name=value) if name == "ask" else errand.Open(box=value)
        output = await getattr(env, name)(arguments)
        texts.append(output.blocks[0].text)
        if output.finished:
            return texts, output.reward
    return texts, None


def solution(spec: dict[str, Any]) -> list[tuple[str, Any]]:
    return [*(("ask", name) for name in spec["people"]), ("open", spec["box"])]


def tasks(errand: ModuleType) -> list[dict[str, Any]]:
    return [*errand.specs("train"), *errand.specs("test")]


async def test_following_the_answers_scores(errand: ModuleType) -> None:
    for spec in tasks(errand):
        texts, reward = await play(errand, spec, solution(spec))
        assert reward == 1.0
        assert texts[:-1] == [*(f"Ask {name}." for name in spec["people"][1:]), f"Look in box {spec['box']}."]
    env = errand.Errand(tasks(errand)[0])
    (block,) = await env.get_prompt()
    assert block.text == f"Find the parcel. Ask {env.people[0]}."


async def test_shortcuts_and_wrong_boxes_do_not_score(errand: ModuleType) -> None:
    spec = {"id": "x", "people": ["Ada", "Cy", "Eve"], "box": 42}
    assert await play(errand, spec, [("open", 42)]) == (["Empty."], 0.0)
    assert await play(errand, spec, [("ask", "Eve"), ("ask", "Cy"), ("open", 42)]) == (
        ["No idea.", "No idea.", "Empty."],
        0.0,
    )
    assert await play(errand, spec, [*solution(spec)[:-1], ("open", 43)]) == (
        ["Ask Cy.", "Ask Eve.", "Look in box 42.", "Empty."],
        0.0,
    )
    again = [("ask", "Ada"), ("ask", "Ada"), ("ask", "Ben"), *solution(spec)[1:]]
    assert (await play(errand, spec, again))[1] == 1.0


async def test_no_fixed_sequence_solves_two_tasks(errand: ModuleType) -> None:
    """Every task pays for its own box alone, and the first box opened ends the episode."""
    specs = tasks(errand)
    assert len({spec["box"] for spec in specs}) == len(specs) == 90
    for mine, other in itertools.permutations(specs[:12], 2):
        assert (await play(errand, other, solution(mine)))[1] == 0.0


def test_splits_are_apart_and_ids_come_from_content(errand: ModuleType) -> None:
    train, test = ({spec["id"] for spec in errand.specs(split)} for split in ("train", "test"))
    assert not train & test
    assert (len(train), len(test)) == (60, 30)
    for spec in tasks(errand):
        assert spec["id"] == "-".join([*spec["people"], str(spec["box"])]).lower()
    for split in ("train", "test"):
        assert {len(spec["people"]) for spec in errand.specs(split)} == {1, 2, 3}
    assert [split.name for split in errand.Errand.list_splits()] == ["train", "test"]


def definitions(errand: ModuleType) -> list[dict[str, Any]]:
    listed = errand.Errand.list_tools().tools
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.input_schema}}
        for t in listed
    ]


async def test_the_shipped_policy_speaks_the_format_and_plays_badly(errand: ModuleType) -> None:
    engine = load_engine("platoon-tiny")
    renderer, weights, tools = ChatTemplateRenderer(engine.tokenizer_dir), engine.weights(None), definitions(errand)
    rewards, formed, longest = [], [], 0
    for seed, spec in enumerate(tasks(errand)):
        env, reward = errand.Errand(spec), 0.0
        messages: list[dict[str, Any]] = [{"role": "user", "content": (await env.get_prompt())[0].text}]
        for turn in range(6):
            text = renderer.render(messages, tools)
            prompt = renderer.encode(text)
            (drawn,) = engine.sample(
                weights, prompt, num_samples=1, max_tokens=32, stop=renderer.stop, seed=10 * seed + turn
            )
            longest = max(longest, len(prompt) + len(drawn.tokens))
            parsed = renderer.parse(drawn.tokens, prompt_text=text, tools=tools)
            formed.append(len(parsed.tool_calls) == 1 and not parsed.unparsed)
            if not formed[-1]:
                break
            call = parsed.tool_calls[0]
            messages.append({"role": "assistant", "content": parsed.content, "tool_calls": [{"function": call}]})
            value = next(iter(call["arguments"].values()))
            texts, outcome = await play(errand, spec, [*taken(messages[:-1]), (call["name"], value)])
            if outcome is not None:
                reward = outcome
                break
            messages.append({"role": "tool", "content": texts[-1]})
        rewards.append(reward)
    assert sum(formed) / len(formed) > 0.95
    assert 0.05 < sum(rewards) / len(rewards) < 0.4
    assert longest <= 300


def taken(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The calls of a conversation, to be played again."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    return [(call["name"], next(iter(call["arguments"].values()))) for call in calls]


async def test_the_trivial_environment_grades_the_reply() -> None:
    pytest.importorskip("openreward")
    trivial = module("trivial")
    env = trivial.Say({"id": "say-ada", "word": "Ada"})
    assert (await env.get_prompt())[0].text == "Say Ada."
    assert (await env.submit(trivial.Answer(text=" Ada\n"))).reward == 1.0
    assert (await env.submit(trivial.Answer(text="Ben"))).reward == 0.0
    assert trivial.Say.list_tools().terminal_tool.name == "submit"
