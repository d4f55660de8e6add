"""A policy that answers from a script, behind the gateway's `Sampler` protocol.

It counts and keeps its calls, appends the stop token to replies that stop, and cuts replies at `max_tokens`, as a real
sampler does. It never sleeps: a completion may wait for an awaitable that the test controls.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any, Literal

from platoon.gateway import Sampled, SamplingParams
from platoon.render import Tokenizer
from platoon.testing.toy import TOY_EOS, toy_tokenizer

_USER_TURN = re.compile(r"<\|im_start\|>user\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)


class ScriptExhaustedError(AssertionError):
    """The policy was called more often than its script says, or with a prompt that no rule answers."""


@dataclass(frozen=True)
class Completion:
    """One scripted reply. `delay` is awaited before the reply; `logprob` (default: the policy's) is every token's."""

    text: str
    stop_reason: Literal["stop", "length"] = "stop"
    routing_id: int | None = None
    delay: Callable[[], Awaitable[Any]] | None = None
    logprob: float | None = None


Reply = Completion | str | BaseException
Script = Sequence[Reply] | Callable[[str], Reply]


@dataclass(frozen=True)
class PolicyCall:
    """One call that the policy answered. `text` is the decoded prompt."""

    prompt: tuple[int, ...]
    text: str
    sampling_params: SamplingParams
    completion: Completion
    tokens: tuple[int, ...]

    @property
    def last_user_message(self) -> str:
        return last_user_message(self.text)


class ScriptedPolicy:
    """`script`: replies in order, or a function of the decoded prompt. An exception as a reply is raised."""

    def __init__(
        self,
        script: Script,
        *,
        tokenizer: Tokenizer | None = None,
        stop_token: int = TOY_EOS,
        logprob: float = -0.25,
    ) -> None:
        self._script = script
        self._tokenizer = tokenizer or toy_tokenizer()
        self._stop_token = stop_token
        self._logprob = logprob
        self._next = 0
        self.calls: list[PolicyCall] = []

    @property
    def prompts(self) -> list[str]:
        return [call.text for call in self.calls]

    @property
    def remaining(self) -> int:
        """Replies left of a sequence; 0 for a function."""
        return 0 if callable(self._script) else len(self._script) - self._next

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        text = self._tokenizer.decode(prompt)
        reply = self._reply(text)
        if isinstance(reply, BaseException):
            raise reply
        completion = Completion(reply) if isinstance(reply, str) else reply
        if completion.delay is not None:
            await completion.delay()
        tokens = self._tokenizer.encode(completion.text)
        if completion.stop_reason == "stop" and not any(
            isinstance(stop, str) and stop in completion.text for stop in params.stop
        ):
            tokens.append(self._stop_token)
        cut = len(tokens) > params.max_tokens
        tokens = tokens[: params.max_tokens]
        self.calls.append(PolicyCall(tuple(prompt), text, params, completion, tuple(tokens)))
        logprob = self._logprob if completion.logprob is None else completion.logprob
        return Sampled(
            tokens, [logprob] * len(tokens), "length" if cut else completion.stop_reason, completion.routing_id
        )

    def _reply(self, text: str) -> Reply:
        if callable(self._script):
            return self._script(text)
        if self._next >= len(self._script):
            raise ScriptExhaustedError(
                f"the script has {len(self._script)} replies and was asked for one more:\n{text}"
            )
        self._next += 1
        return self._script[self._next - 1]


def last_user_message(prompt_text: str) -> str:
    """The last user turn of a decoded ChatML prompt (tool results are user turns there); '' without one."""
    turns = _USER_TURN.findall(prompt_text)
    return turns[-1] if turns else ""


def rules(table: Mapping[str, Reply | Callable[[str], Reply]], default: Reply | None = None) -> Callable[[str], Reply]:
    """A script: the first key that occurs in the last user message decides; then `default`."""

    def answer(prompt_text: str) -> Reply:
        message = last_user_message(prompt_text)
        for pattern, reply in table.items():
            if pattern in message:
                return reply(prompt_text) if callable(reply) else reply
        if default is None:
            raise ScriptExhaustedError(f"no rule of {sorted(table)} answers {message!r}")
        return default

    return answer


def tool_call(name: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any) -> str:
    """The text of a tool call as the toy template writes it."""
    call = {"name": name, "arguments": {**(arguments or {}), **kwargs}}
    return f"<tool_call>\n{dumps(call, ensure_ascii=False)}\n</tool_call>"
