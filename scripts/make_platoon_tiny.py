"""Make platoon-tiny: write its tokenizer and pretrain its weights with the numpy engine.

The policy learns from generated transcripts to call tools in the right format and to follow what it reads about four
times in ten; otherwise it makes a random call of the right form. So it plays badly, and training has something to
sharpen. Chains are drawn at random; no task of an example is used. Deterministic on one machine.

    OPENBLAS_NUM_THREADS=1 python scripts/make_platoon_tiny.py [DIRECTORY]
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from platoon.render.chat_template import ChatTemplateRenderer
from platoon.service.engine import AdamParams, Example
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.shape import ModelShape, initial
from platoon.service.numpy_engine.shipped import read_model, write_model
from platoon.service.numpy_engine.state import NumpyState

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
JSON_PIECES = (
    *('\n{"name": "', '{"name": "', '", "arguments": {"', '", "arguments": {'),
    *('": "', '": ', '", "', '"}}\n', "}}\n", '"}', "}}", '"'),
)
PEOPLE = ("Ada", "Ben", "Cy", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lea", "Max", "Ned", "Ola", "Pam")
CAPITAL_WORDS = (
    "Tools Find Ask Look No Empty The Open Only Say Call Guess You It Is If In A An And Answer Correct Wrong "
    "Right Error Yes Done Use Reply Return Write Read Search Run List Go Do Not This That There What Where When "
    "Who How Why Please Each Your To For With From Think Start Stop Give Get Set Submit Task Step Name Number "
    "Text True False None"
)
SMALL_WORDS = (
    "a about above add after again agent all also an and answer any are arguments as ask at back bad be been "
    "before below between book both box bridge but by call can change check city code correct could count current "
    "data day delete did different do does done down each empty end error even every exactly failed false file "
    "find first five for found four from function game get give go good greater guess had has have he help "
    "helpful hidden high higher his how idea if in input integer into is it item its just key know last left less "
    "line list location long look low lower made make many map may message more most move must my name new next "
    "no not now number object of off on one only open option or order other our out output over parameter parcel "
    "parts people per person place please point position price question read reads reply replies result return "
    "returns right room row run said same say says score search second see send set she short should show so some "
    "start state step steps stop store string submit sum table take task tell text than that the their them then "
    "there these they thing this three time to too tool tools travel true try turn two type under up use used "
    "user value value very want was way we weather well were what when where which who will with word words work "
    "world would write wrong yes you your zero"
)
CAPITAL, SMALL = CAPITAL_WORDS.split(), SMALL_WORDS.split()
PATTERN = (
    r'\n?\{"name": "|", "arguments": \{"?|": "|": |", "|"?\}\}\n|"\}|\}\}'
    r"|(?:system|user|assistant|tool)\n| ?[a-z]+|[A-Z][a-z]*|[0-9]{1,2}|[.,:;!?)] |[\s\S]"
)
SHAPE = {"width": 64, "layers": 2, "heads": 4, "hidden": 256, "context": 1024}


def make_tokenizer(directory: Path) -> int:
    """Write tokenizer.json and its configs: whole pieces where the vocabulary has them, bytes otherwise. Its size."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    numbers = [str(n) for n in range(10)] + [f"{n:02d}" for n in range(100)]
    words = [*PEOPLE, *CAPITAL, *SMALL, *(" " + word for word in SMALL)]
    pieces = [*ROLES, *JSON_PIECES, *(mark + " " for mark in ".,:;!?)"), *numbers, *words]
    spelled = [level.pre_tokenize_str(piece)[0][0] for piece in pieces]
    vocabulary = dict.fromkeys([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *spelled])
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": SHAPE["context"],
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}) + "\n")
    return len(ids)


def function(name: str, parameters: list[str], description: str) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    schema = {"type": "object", "properties": {parameter: {} for parameter in parameters}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An assistant message with one tool call."""
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


ASK = function("ask", ["name"], "Ask a person.")
OPEN = function("open", ["box"], "Open a box. Only one try.")
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@dataclass
class Errand:
    """The rules of the errand game, for transcripts and for measuring the policy: people to ask, then a box."""

    people: list[str]
    box: int
    asked: int = 0

    def pointed(self) -> dict[str, Any]:
        """The call that the latest pointer asks for."""
        if self.asked == len(self.people):
            return call("open", {"box": self.box})
        return call("ask", {"name": self.people[self.asked]})

    def answer(self, message: dict[str, Any]) -> str | bool:
        """What asking brings, or whether the opened box was the right one."""
        made = message["tool_calls"][0]["function"]
        if made["name"] == "open":
            return made["arguments"].get("box") == self.box and self.asked == len(self.people)
        known = self.people[: self.asked + 1]
        if made["arguments"].get("name") not in known:
            return "No idea."
        place = known.index(made["arguments"]["name"]) + 1
        self.asked = max(self.asked, place)
        return f"Look in box {self.box}." if place == len(self.people) else f"Ask {self.people[place]}."


def errand(rng: random.Random, follow: float) -> Conversation:
    game = Errand(rng.sample(PEOPLE, rng.randint(1, 3)), rng.randint(10, 99))
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find the parcel. Ask {game.people[0]}."}]
    for _ in range(6):
        asks = rng.random() < 0.5
        guess = call("ask", {"name": rng.choice(PEOPLE)}) if asks else call("open", {"box": rng.randint(10, 99)})
        messages.append(game.pointed() if rng.random() < follow else guess)
        answer = game.answer(messages[-1])
        if isinstance(answer, bool):
            break
        messages.append({"role": "tool", "content": answer})
    return messages, [ASK, OPEN]


def say(rng: random.Random, follow: float) -> Conversation:
    word = rng.choice(PEOPLE)
    said = word if rng.random() < follow else rng.choice(PEOPLE)
    return [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": said}], []


def search(rng: random.Random, follow: float) -> Conversation:
    """Guesses between two bounds; shows calls of another tool with a number of one or two tokens."""
    low, high = sorted(rng.sample(range(1025), 2))
    target = rng.randint(low, high)
    goal = f"Find the hidden number. It is an integer from {low} to {high}."
    messages: list[dict[str, Any]] = [{"role": "user", "content": goal}]
    for _ in range(rng.randint(1, 4)):
        guess = (low + high) // 2 if rng.random() < follow else rng.randint(0, 1024)
        messages.append(call("guess", {"number": guess}))
        if guess == target:
            break
        messages.append({"role": "tool", "content": f"{guess} is too {'low' if guess < target else 'high'}."})
    description = "Guess the hidden number. The reply says whether the guess was too low or too high."
    return messages, [function("guess", ["number"], description)]


def any_tool(rng: random.Random, follow: float) -> Conversation:
    """Call the named one of several tools with made-up names, and answer with its result."""
    tools = [
        function(rng.sample(SMALL, 1)[0], [parameter], f"{rng.choice(CAPITAL)} a {rng.choice(SMALL)}.")
        for parameter in rng.sample(SMALL, rng.randint(1, 3))
    ]
    chosen = rng.choice(tools)["function"]
    value: Any = rng.choice([rng.randint(0, 99), rng.choice(PEOPLE), rng.choice(SMALL)])
    (parameter,) = chosen["parameters"]["properties"]
    result = rng.choice([*PEOPLE, *map(str, range(100))])
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Call {chosen['name']} with {value}."},
        call(chosen["name"], {parameter: value}),
        {"role": "tool", "content": result},
        {"role": "assistant", "content": result},
    ]
    return messages, tools


KINDS: list[tuple[float, Callable[[random.Random, float], Conversation]]] = [
    (0.6, errand),
    (0.12, say),
    (0.12, search),
    (0.16, any_tool),
]


def conversation(rng: random.Random, follow: float) -> Conversation:
    (kind,) = rng.choices([kind for _, kind in KINDS], [share for share, _ in KINDS])
    messages, tools = kind(rng, follow)
    if rng.random() < 0.15:
        prefix = "You are a helpful agent." if rng.random() < 0.5 else "Use the tools."
        messages = [{"role": "system", "content": prefix}, *messages]
    return messages, tools


class Teacher:
    """Turns conversations into examples whose assistant tokens have weight."""

    def __init__(self, renderer: ChatTemplateRenderer) -> None:
        self.renderer = renderer
        self.opening = renderer.encode("<|im_start|>assistant\n")
        self.end = renderer.encode("<|im_end|>")[0]

    def example(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Example:
        tokens = self.renderer.encode(self.renderer.render(messages, tools))[: -len(self.opening)]
        weights = np.zeros(len(tokens), np.float32)
        inside = False
        for place, token in enumerate(tokens):
            weights[place] = inside
            inside = inside and token != self.end
            inside = inside or tokens[max(0, place - 1) : place + 1] == self.opening
        array = np.array(tokens)
        return Example(array[:-1].astype(np.int32), {"target_tokens": array[1:], "weights": weights[1:]})

    def batch(self, rng: random.Random, size: int, follow: float) -> list[Example]:
        examples = [self.example(*conversation(rng, follow)) for _ in range(size)]
        total = sum(float(example.inputs["weights"].sum()) for example in examples)
        return [replace(e, inputs={**e.inputs, "weights": e.inputs["weights"] / np.float32(total)}) for e in examples]


@dataclass(frozen=True)
class Phase:
    """A stretch of pretraining: how often the transcripts follow what was read, and the peak learning rate."""

    steps: int
    follow: float
    rate: float


PHASES = (Phase(1500, 1.0, 4e-3), Phase(900, 0.4, 2e-3))


def schedule() -> Iterator[tuple[int, float, float]]:
    """(step, follow, learning rate): each phase warms up over 50 steps and decays to a twentieth by a cosine."""
    step = 0
    for phase in PHASES:
        for number in range(phase.steps):
            decay = 0.525 + 0.475 * np.cos(np.pi * number / phase.steps)
            yield step, phase.follow, phase.rate * min(1.0, (number + 1) / 50) * float(decay)
            step += 1


def play(engine: NumpyEngine, renderer: ChatTemplateRenderer, episodes: int) -> dict[str, float]:
    """Mean reward of the policy on random errands of each length, and the share of well-formed calls."""
    rng, weights, figures = random.Random(77), engine.weights(None), {}
    formed, replies = 0, 0
    for length in (1, 2, 3):
        total = 0.0
        for _ in range(episodes):
            game = Errand(rng.sample(PEOPLE, length), rng.randint(10, 99))
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find the parcel. Ask {game.people[0]}."}]
            for _ in range(6):
                text = renderer.render(messages, [ASK, OPEN])
                prompt, seed = renderer.encode(text), rng.getrandbits(31)
                (drawn,) = engine.sample(weights, prompt, num_samples=1, max_tokens=40, stop=renderer.stop, seed=seed)
                parsed = renderer.parse(drawn.tokens, prompt_text=text, tools=[ASK, OPEN])
                replies += 1
                if len(parsed.tool_calls) != 1:
                    break
                formed += 1
                messages.append(call(parsed.tool_calls[0]["name"], parsed.tool_calls[0]["arguments"]))
                answer = game.answer(messages[-1])
                if isinstance(answer, bool):
                    total += answer
                    break
                messages.append({"role": "tool", "content": answer})
        figures[f"reward, {length} people"] = total / episodes
    return {**figures, "well-formed calls": formed / replies}


def main(directory: Path) -> None:
    vocabulary = make_tokenizer(directory)
    shape = ModelShape(vocab=vocabulary, **SHAPE)
    renderer = ChatTemplateRenderer(directory)
    teacher, rng = Teacher(renderer), random.Random(20)
    engine = NumpyEngine("platoon-tiny", shape, initial(shape, 20), directory)
    state = engine.create(rank=1, seed=0)
    print(f"{shape.size} parameters, vocabulary of {vocabulary}", flush=True)
    began, losses = time.monotonic(), []
    for step, follow, rate in schedule():
        _, metrics = engine.forward_backward(state, teacher.batch(rng, 48, follow), "cross_entropy", {})
        engine.optim_step(state, AdamParams(rate, beta2=0.99, weight_decay=0.01, grad_clip_norm=1.0))
        losses.append(metrics["loss:sum"])
        if step % 100 == 99:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}, {time.monotonic() - began:.0f} s", flush=True)
    assert isinstance(state, NumpyState)
    write_model(directory, shape, state.flat_N)
    for name, value in play(read_model(directory, "platoon-tiny"), renderer, 150).items():
        print(f"{name}: {value:.3f}")
    print("weights sha256", hashlib.sha256((directory / "weights.npy").read_bytes()).hexdigest())


if __name__ == "__main__":
    default = Path(__file__).resolve().parents[1] / "platoon" / "models" / "platoon_tiny"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
