"""The recording gateway: renders, samples, parses and records the model calls of agents.

In-process calls and every HTTP dialect take the same path. A call is recorded only while its agent is open; a call
that failed, was cancelled, or outlived its agent leaves nothing. Imports no training SDK.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np

from platoon.gateway.agents import AgentSession, CallRecord, CallSlot
from platoon.gateway.continuation import Continuation, conversation_tail, text_after_reply, text_tail
from platoon.gateway.errors import (
    ContextWindowExceededError,
    GatewayError,
)
from platoon.gateway.registry import AgentRegistry
from platoon.gateway.request import ChatRequest, RenderRequest, read_request
from platoon.gateway.response import ChatResponse, Diagnostics, Usage, message_of
from platoon.gateway.sampling import Sampled, Sampler, SamplingParams, call_seed, resolve
from platoon.harness.contract import CallKind
from platoon.render import Renderer
from platoon.rollout.trajectory import Interaction

log = logging.getLogger(__name__)

_SLOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A rendered call. The full prompt is `prompt`; `suffix` is what follows the call named by `continues`."""

    request: RenderRequest
    prompt_text: str
    prompt: list[int]
    suffix: list[int]
    continues: str | None
    params: SamplingParams
    seconds: float


class ModelGateway(AgentRegistry):
    """One policy's gateway; all its methods run on one event loop. Context and lengths count tokens.

    `continuation`: how a prompt is recognised as the continuation of a recorded call; see `continuation.py`.
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        renderer: Renderer,
        model_name: str,
        version: int = 0,
        context_window_length: int | None = None,
        sample_timeout_seconds: float = 600.0,
        max_tokens: int = 4096,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        sampling_seed: int | None = None,
        max_minted_agents: int = 64,
        policy: str = "main",
        continuation: Continuation = "text",
    ) -> None:
        if isinstance(sample_timeout_seconds, bool) or not 0 < sample_timeout_seconds < math.inf:
            raise ValueError(f"sample_timeout_seconds is {sample_timeout_seconds!r}; expected a finite number above 0")
        super().__init__(max_minted_agents)
        self.renderer = renderer
        self.model_name = model_name
        self.context_window_length = context_window_length
        self.sample_timeout_seconds = float(sample_timeout_seconds)
        self.sampling_seed = sampling_seed
        self.policy = policy
        self.continuation = continuation
        self._defaults = SamplingParams(max_tokens, temperature, top_p, top_k, renderer.stop)
        self._policy = (sampler, version)
        self._unparsed_logged = 0

    @property
    def version(self) -> int:
        return self._policy[1]

    def set_policy(self, sampler: Sampler, version: int) -> None:
        """Calls that start from now on use this sampler and carry this version."""
        self._policy = (sampler, version)

    async def chat(self, agent: AgentSession, request: ChatRequest, kind: CallKind = "policy") -> ChatResponse:
        """One model call, recorded under the agent.

        ValueError for a bad request, ContextWindowExceededError, TimeoutError past the sample deadline, GatewayError
        for refusals, and whatever the sampler raised.
        """
        self.check_kind(agent, kind)
        self.check_judges(agent, kind)
        self.check_open(agent)
        prepared = self.prepare(agent, request, kind)
        gap = agent.timeline.call_started()
        slot = CallSlot(agent, kind)
        try:
            return await self._call(agent, prepared, kind, gap, slot)
        finally:
            slot.release()

    def submit(self, agent: AgentSession, prepared: PreparedCall, kind: CallKind) -> asyncio.Task[ChatResponse]:
        """Starts a prepared call. It is counted before this returns; cancelling the task abandons it."""
        gap = agent.timeline.call_started()
        slot = CallSlot(agent, kind)
        call: Coroutine[Any, Any, ChatResponse] = self._call(agent, prepared, kind, gap, slot)
        task = asyncio.create_task(call)
        task.add_done_callback(slot.release)
        return task

    def prepare(self, agent: AgentSession, request: ChatRequest, kind: CallKind) -> PreparedCall:
        """Renders, continues from recorded tokens and fits the context. Nothing is sampled or recorded."""
        started = time.perf_counter()
        with _Counted(agent, caller_faults=True):
            read = read_request(request)
            text, prompt, suffix, continues = self._render(agent, read)
            params = self._params(agent, read, kind, len(prompt))
            agent.calls_started += 1
            return PreparedCall(
                request=read,
                prompt_text=text,
                prompt=prompt,
                suffix=suffix,
                continues=continues,
                params=params,
                seconds=time.perf_counter() - started,
            )

    def _render(self, agent: AgentSession, read: RenderRequest) -> tuple[str, list[int], list[int], str | None]:
        """(text, prompt ids, ids after the continued call, that call's id or None)."""
        text = self.renderer.render(read.messages, read.tools, **read.switches)
        tail = agent.tails.by_text(text)
        rest = None if tail is None else text[tail.length :]
        if tail is None and self.continuation == "conversation":
            tail = agent.tails.by_conversation(read)
            if tail is not None:
                end = agent.interactions[tail.call_id].tokens_A[-1:].tolist()
                rest = text_after_reply(self.renderer, read, tail, self.renderer.decode(end))
        if tail is None or rest is None:
            prompt = self.renderer.encode(text)
            return text, prompt, prompt, None
        suffix = self.renderer.encode(rest)
        recorded = agent.interactions[tail.call_id].tokens_A.tolist()
        return text, [*agent.interactions.prompt(tail.call_id).tolist(), *recorded, *suffix], suffix, tail.call_id

    def _params(self, agent: AgentSession, read: RenderRequest, kind: CallKind, prompt_tokens: int) -> SamplingParams:
        as_kind: CallKind = "policy" if kind == "aux" and agent.policy_only else kind
        seed = call_seed(self.sampling_seed, agent.seed_scope, agent.path, agent.calls_started)
        params = resolve(
            read.overrides,
            agent.sampling_defaults,
            replace(self._defaults, seed=seed),
            precedence=agent.sampling_precedence,
            kind=as_kind,
        )
        window = self.context_window_length
        if window is None:
            return params
        headroom = window - prompt_tokens
        if headroom < 1:
            raise ContextWindowExceededError(prompt_tokens, window)
        if params.max_tokens > headroom:
            log.debug("max_tokens %d clamped to the %d tokens left", params.max_tokens, headroom)
            params = replace(params, max_tokens=headroom)
        return params

    async def _call(
        self, agent: AgentSession, prepared: PreparedCall, kind: CallKind, gap: float, slot: CallSlot
    ) -> ChatResponse:
        started = time.perf_counter()
        with _Counted(agent):
            sampled, version = await self._sample(prepared)
        self.check_open(agent)
        sampled_at = time.perf_counter()
        with _Counted(agent):
            response = self._read(prepared, sampled)
        ended = time.perf_counter()
        self._record(agent, prepared, kind, response, sampled, (version, started, ended))
        slot.release()
        agent.timeline.call_ended(
            gap=gap, render=prepared.seconds, sample=sampled_at - started, parse=ended - sampled_at
        )
        return response

    async def _sample(self, prepared: PreparedCall) -> tuple[Sampled, int]:
        sampler, version = self._policy
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.sample_timeout_seconds) as deadline:
                sampled = await sampler.sample(prepared.prompt, prepared.params)
        except TimeoutError as error:
            if deadline.expired():
                raise TimeoutError(f"sampling took longer than {self.sample_timeout_seconds:g} s") from error
            raise
        except ValueError as error:
            # A ValueError of the sampler is the service's fault; as it is, it would read as the caller's.
            raise GatewayError(f"the sampler failed: {type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - started
        if seconds > _SLOW_SECONDS:
            log.warning("sampling took %.1f s (%d tokens)", seconds, len(sampled.tokens))
        if len(sampled.tokens) != len(sampled.logprobs):
            raise GatewayError(
                f"the sampler returned {len(sampled.tokens)} tokens and {len(sampled.logprobs)} logprobs"
            )
        if not np.isfinite(np.asarray(sampled.logprobs, np.float64)).all():
            raise GatewayError("the sampler returned a logprob that is not finite")
        return sampled, version

    def _read(self, prepared: PreparedCall, sampled: Sampled) -> ChatResponse:
        tokens: list[int] = np.asarray(sampled.tokens, np.int32).tolist()
        parsed = self.renderer.parse(tokens, prompt_text=prepared.prompt_text, tools=prepared.request.tools)
        for block in parsed.unparsed:
            self._unparsed_logged += 1
            if self._unparsed_logged <= 3 or self._unparsed_logged % 1000 == 0:
                text = " ".join(block["raw_text"].split())
                log.info("unparsed tool call no. %d (%s): %.300s", self._unparsed_logged, block["error"], text)
        truncated = sampled.stop_reason == "length"
        message, emitted = message_of(parsed, truncated=truncated)
        return ChatResponse(
            call_id=f"tinker-sampling-{uuid.uuid4()}",
            message=message,
            finish_reason="tool_calls" if emitted else "length" if truncated else "stop",
            usage=Usage(len(prepared.prompt), len(tokens)),
            diagnostics=Diagnostics(
                stop_reason=sampled.stop_reason,
                generated_tokens=len(tokens),
                parse_success=parsed.success,
                parsed_tool_calls=len(parsed.tool_calls),
                emitted_tool_calls=emitted,
                recovered_tool_calls=parsed.recovered,
                unparsed_tool_calls=len(parsed.unparsed),
            ),
            tokens=tokens,
            logprobs=sampled.logprobs,
        )

    def _record(
        self,
        agent: AgentSession,
        prepared: PreparedCall,
        kind: CallKind,
        response: ChatResponse,
        sampled: Sampled,
        when: tuple[int, float, float],
    ) -> None:
        assert response.diagnostics is not None
        version, started, ended = when
        last = next((call.call_id for call in reversed(agent.calls) if call.kind != "judge"), None)
        agent.calls.append(
            CallRecord(
                response.call_id,
                kind,
                response.message,
                response.finish_reason,
                response.usage,
                response.diagnostics,
                version,
                started,
                ended,
            )
        )
        if kind == "judge":
            return
        agent.interactions.add(
            response.call_id,
            Interaction(
                suffix_S=np.asarray(prepared.suffix, np.int32),
                tokens_A=np.asarray(sampled.tokens, np.int32),
                logprobs_A=np.asarray(sampled.logprobs, np.float32),
                version=version,
                continues=prepared.continues,
                routing_id=_routing_id(sampled.routing_id),
                policy=self.policy,
            ),
        )
        if last is not None and prepared.continues != last:
            agent.prefix_breaks += 1
        text = prepared.prompt_text + self.renderer.decode(response.tokens)
        if self.continuation == "conversation":
            tail = conversation_tail(response.call_id, text, prepared.request, response.message)
        else:
            tail = text_tail(response.call_id, text)
        agent.tails.add(tail, prepared.continues)
        if kind == "policy":
            agent.policy_calls += 1
            agent.call_tally.recorded += 1


class _Counted:
    """Counts on the agent what fails inside. With `caller_faults`, a bad request is the caller's and not counted."""

    def __init__(self, agent: AgentSession, *, caller_faults: bool = False) -> None:
        self._agent = agent
        self._caller_faults = caller_faults

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ContextWindowExceededError):
            self._agent.context_overflows += 1
        elif isinstance(error, Exception) and not (
            self._caller_faults and isinstance(error, GatewayError | ValueError)
        ):
            self._agent.gateway_errors += 1


def _routing_id(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    log.warning("ignored routing id %r: not an integer", value)
    return None
