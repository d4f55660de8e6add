"""The HTTP server, through real clients over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from platoon.gateway import AgentSession, ModelGateway, OpenAgent
from platoon.gateway.app import build_app
from platoon.gateway.dialects.openai_chat import HARMLESS, REFUSED, SAMPLING
from platoon.gateway.server import GatewayServer
from platoon.render import ChatTemplateRenderer
from platoon.testing import TOY_TOKENIZER_DIR, Completion, ScriptedPolicy, make_gateway, tool_call

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@asynccontextmanager
async def serving(gateway: ModelGateway, **options: Any) -> AsyncIterator[tuple[GatewayServer, httpx.AsyncClient]]:
    async with GatewayServer(gateway, **options) as server, httpx.AsyncClient(base_url=server.base_url) as client:
        yield server, client


def in_process(gateway: ModelGateway) -> httpx.AsyncClient:
    """The same app without a socket, for the many requests that are refused."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(build_app(gateway)), base_url="http://gateway")


def client_of(server: GatewayServer, agent: AgentSession, **options: Any) -> AsyncOpenAI:
    endpoint = server.endpoint(agent)
    return AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, **options)


async def test_the_openai_client_gets_what_the_agent_gets() -> None:
    gateway = make_gateway([f"<think>\nhm\n</think>\n\nSure.\n{tool_call('f', n=1)}", "bye"])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, _), client_of(server, agent) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="any", messages=HELLO, tools=TOOLS, logprobs=True
        )
        reply = raw.parse()
        choice = reply.choices[0]
        assert raw.headers["x-platoon-call-id"] == reply.id == agent.calls[0].call_id
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Sure.")
        assert choice.message.model_extra == {"reasoning_content": "hm"}
        assert choice.message.tool_calls is not None
        assert reply.usage is not None
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == reply.usage.completion_tokens
        assert "".join(t.token for t in choice.logprobs.content).endswith("</tool_call><|im_end|>")
        assert {t.logprob for t in choice.logprobs.content} == {-0.25}
        told = [*HELLO, choice.message.model_dump(exclude_none=True)]
        told.append({"role": "tool", "content": "42", "tool_call_id": choice.message.tool_calls[0].id})
        second = await client.chat.completions.create(model="any", messages=told, tools=TOOLS)
    assert second.choices[0].message.content == "bye"
    assert agent.interactions[second.id].continues == reply.id
    assert agent.prefix_breaks == 0


async def test_a_stream_carries_the_same_reply() -> None:
    gateway = make_gateway([f"<think>\nhm\n</think>\n\nSure.\n{tool_call('f', n=1)}"])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, _), client_of(server, agent) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, tools=TOOLS, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {agent.calls[0].call_id}
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert deltas[1].model_extra == {"reasoning_content": "hm"}
    assert deltas[2].content == "Sure."
    assert deltas[3].tool_calls is not None
    assert deltas[3].tool_calls[0].index == 0
    assert deltas[3].tool_calls[0].function is not None
    assert deltas[3].tool_calls[0].function.arguments == '{"n": 1}'
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-2].choices[0].logprobs is not None
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 5
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == agent.calls[0].usage.completion_tokens


async def test_comments_keep_a_waiting_stream_alive() -> None:
    release = asyncio.Event()
    gateway = make_gateway([Completion("late", delay=release.wait)])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway, keepalive_seconds=0.01) as (_, http):
        body = {"messages": HELLO, "stream": True}
        async with http.stream("POST", f"/s/{agent.secret}/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            lines = response.aiter_lines()
            assert await anext(lines) == ": keepalive"
            release.set()
            rest = [line async for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"
    assert len(agent.calls) == 1


async def test_health_models_and_keys() -> None:
    gateway = make_gateway([])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (_, http):
        assert (await http.get("/healthz")).json() == {"status": "ok", "model": "platoon/toy"}
        for headers in ({"authorization": f"bearer {agent.secret}"}, {"x-api-key": agent.secret}):
            listed = await http.get("/v1/models", headers=headers)
            assert listed.json()["data"][0]["id"] == "platoon/toy"
        assert (await http.get(f"/s/{agent.secret}/v1/models", headers={"x-api-key": "other"})).status_code == 200
        for path, headers in (("/v1/models", {}), ("/s/nonsense/v1/models", {"x-api-key": agent.secret})):
            refused = await http.get(path, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        gateway.close_agent(agent)
        closed = await http.post(f"/s/{agent.secret}/v1/chat/completions", json={"messages": HELLO})
        assert closed.status_code == 410
        assert closed.json()["error"]["code"] == "agent_closed"


async def test_a_server_of_one_rollout_knows_no_other_keys() -> None:
    gateway = make_gateway(["x"])
    mine, other = gateway.open_agent(OpenAgent("mine")), gateway.open_agent(OpenAgent("other"))
    async with serving(gateway, rollouts={"mine"}) as (_, http):
        body = {"messages": HELLO}
        assert (await http.post(f"/s/{other.secret}/v1/chat/completions", json=body)).status_code == 401
        assert (await http.post(f"/s/{mine.secret}/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_overflow_has_the_vendors_words_and_comes_before_any_stream(stream: bool) -> None:
    gateway = make_gateway([], context_window_length=10)
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, http), client_of(server, agent) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 10 tokens") as caught:
            await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        assert (await http.get("/healthz")).status_code == 200
    assert agent.context_overflows == 1


async def test_failures_have_their_status() -> None:
    gateway = make_gateway(
        [RuntimeError("down"), Completion("x", delay=asyncio.Event().wait)], sample_timeout_seconds=0.05
    )
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, _), client_of(server, agent) as client:
        with pytest.raises(openai.InternalServerError, match="RuntimeError: down") as failed:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert failed.value.type == "server_error"
        with pytest.raises(openai.InternalServerError, match="took longer") as late:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert (late.value.status_code, late.value.code, late.value.type) == (504, "sample_timeout", "timeout")
    assert (agent.gateway_errors, agent.calls) == (2, [])


async def test_a_fault_of_ours_has_the_dialects_shape() -> None:
    class Faulty(ChatTemplateRenderer):
        def render(self, *args: Any, **overrides: Any) -> str:
            raise NotImplementedError("no tools here")

    gateway = make_gateway([], renderer=Faulty(TOY_TOKENIZER_DIR))
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (_, http):
        answer = await http.post(f"/s/{agent.secret}/v1/chat/completions", json={"messages": HELLO})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "NotImplementedError: no tools here"
    assert agent.gateway_errors == 1


async def test_a_failure_in_a_stream_is_an_event_without_done() -> None:
    gateway = make_gateway([RuntimeError("down")])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (_, http):
        response = await http.post(f"/s/{agent.secret}/v1/chat/completions", json={"messages": HELLO, "stream": True})
    lines = [line for line in response.text.split("\n") if line]
    assert response.status_code == 200
    assert len(lines) == 1
    assert json.loads(lines[0].removeprefix("data: "))["error"]["message"] == "RuntimeError: down"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_abandons_its_call(stream: bool) -> None:
    entered, gone = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    gateway = make_gateway([Completion("never", delay=wait)])
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, _), httpx.AsyncClient(base_url=server.base_url) as http:
        call = asyncio.create_task(
            http.post(f"/s/{agent.secret}/v1/chat/completions", json={"messages": HELLO, "stream": stream})
        )
        await entered.wait()
        call.cancel()
        await asyncio.wait_for(gone.wait(), 5)
    assert (agent.calls, agent.gateway_errors, agent.call_tally.in_flight) == ([], 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_simultaneous_calls_do_not_pass_a_cap(stream: bool) -> None:
    gateway = make_gateway(lambda prompt: "x")
    agent = gateway.open_agent(OpenAgent("r", call_cap=1))
    async with serving(gateway) as (_, http):
        path = f"/s/{agent.secret}/v1/chat/completions"
        body = {"messages": HELLO, "stream": stream}
        first = await asyncio.gather(*(http.post(path, json=body) for _ in range(2)))
        stops = [response for response in first if "platoon-budget-" in response.text]
        assert (len(stops), len(agent.calls)) == (1, 1)
        assert (agent.call_tally.recorded, agent.call_tally.in_flight) == (1, 0)
        for _ in range(7):
            assert (await http.post(path, json=body)).status_code == 200
        assert agent.misc["budget"] == {"enforce": "gateway", "max_steps": 1, "stops": 8}
        assert (await http.post(path, json=body)).status_code == 400
        assert agent.misc["budget"]["stops"] == 8
        aux = await http.post(path, json=body, headers={"x-platoon-call-kind": "aux"})
        assert aux.status_code == 200
    assert (agent.call_kinds, agent.call_tally.recorded) == (["policy", "aux"], 1)


async def test_call_kinds() -> None:
    gateway = make_gateway(lambda prompt: "x")
    caged = gateway.open_agent(OpenAgent("r", policy_only=True))
    free = gateway.open_agent(OpenAgent("q", judges=False))
    async with serving(gateway) as (_, http):

        async def call(agent: AgentSession, kind: str) -> httpx.Response:
            headers = {"x-platoon-call-kind": kind}
            return await http.post(f"/s/{agent.secret}/v1/chat/completions", json={"messages": HELLO}, headers=headers)

        refused = await call(caged, "judge")
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await call(free, "judge")).status_code == 403
        assert (await call(free, "nonsense")).status_code == 400
        for kind in ("", "policy", "aux"):
            assert (await call(free, kind)).status_code == 200
    assert free.call_kinds == ["policy", "policy", "aux"]
    assert caged.calls == []


async def test_minting_an_agent() -> None:
    gateway = make_gateway(["x"], max_minted_agents=1)
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, http):
        for body in ({}, {"role": ""}, {"role": "helper", "goal": 3}, [1]):
            assert (await http.post(f"/s/{agent.secret}/v1/platoon/agents", json=body)).status_code == 400
        made = await http.post(f"/s/{agent.secret}/v1/platoon/agents", json={"role": "helper", "goal": "g"})
        assert made.status_code == 201
        child = made.json()
        assert child["base_url"] == f"{server.base_url}/s/{child['api_key']}/v1"
        answer = await http.post(f"{child['base_url']}/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 200
        more = await http.post("/v1/platoon/agents", json={"role": "h"}, headers={"x-api-key": agent.secret})
        assert (more.status_code, more.json()["error"]["type"]) == (400, "invalid_request_error")
    session = gateway.agents("r")[1]
    assert (session.agent_id, session.role, session.goal) == (child["agent_id"], "helper", "g")
    assert len(session.calls) == 1


@pytest.mark.parametrize("raw", [b"", b"[", b"[1]", b'"x"', b"[" * 100_000, b"\xff"])
async def test_bodies_that_are_no_object(raw: bytes) -> None:
    gateway = make_gateway([])
    agent = gateway.open_agent(OpenAgent("r"))
    async with in_process(gateway) as http:
        answer = await http.post(f"/s/{agent.secret}/v1/chat/completions", content=raw)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


# Every field of OpenAI's schema: a value that asks for something, and what must happen.
ASKING: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "frequency_penalty": 0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "logit_bias": {"5": 1},
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "n": 2,
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "response_format": {"type": "json_object"},
    "store": True,
    "top_logprobs": 5,
    "verbosity": "low",
    "web_search_options": {},
}
HONOURED = {*SAMPLING, "messages", "model", "tools", "logprobs", "stream", "stream_options"}
SCHEMA = sorted(
    {*CompletionCreateParamsNonStreaming.__annotations__, *CompletionCreateParamsStreaming.__annotations__}
    | set().union(*(base.__annotations__ for base in CompletionCreateParamsStreaming.__orig_bases__))  # type: ignore[attr-defined]
)


def test_the_schema_is_read_whole() -> None:
    assert {"messages", "stream", "top_logprobs", "logit_bias", "seed"} <= set(SCHEMA)
    assert set(REFUSED) <= set(SCHEMA)
    assert set(ASKING) == set(REFUSED)


@pytest.mark.parametrize("field", SCHEMA)
async def test_every_field_of_the_schema_is_honoured_or_refused(field: str) -> None:
    assert (field in HONOURED) + (field in HARMLESS) + (field in REFUSED) == 1, f"decide about {field}"
    if field in HONOURED:
        return
    gateway = make_gateway(lambda prompt: "x")
    agent = gateway.open_agent(OpenAgent("r"))
    async with in_process(gateway) as http:
        path = f"/s/{agent.secret}/v1/chat/completions"
        assert (await http.post(path, json={"messages": HELLO, field: None})).status_code == 200
        for neutral in REFUSED.get(field, ()):
            assert (await http.post(path, json={"messages": HELLO, field: neutral})).status_code == 200
        answer = await http.post(path, json={"messages": HELLO, field: ASKING.get(field, "x")})
    if field in HARMLESS:
        assert answer.status_code == 200
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field)
        assert field in error["message"]


async def test_honoured_fields_reach_the_sampler() -> None:
    policy = ScriptedPolicy(lambda prompt: "x")
    gateway = make_gateway(policy)
    agent = gateway.open_agent(OpenAgent("r"))
    async with serving(gateway) as (server, _), client_of(server, agent) as client:
        await client.chat.completions.create(
            model="m",
            messages=[{"role": "developer", "content": "be brief"}, *HELLO],
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop="\n",
            extra_body={"top_k": 4, "unheard_of": 1, "chat_template_kwargs": {"enable_thinking": False}},
        )
    params = policy.calls[0].sampling_params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 0.5, 0.9, 4)
    assert (params.seed, params.stop) == (3, ("\n",))
    assert policy.prompts[0].startswith("<|im_start|>system\nbe brief<|im_end|>")
    assert policy.prompts[0].endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": HELLO, "stream": 1}, "stream"),
        ({"messages": HELLO, "logprobs": "yes"}, "logprobs"),
        ({"messages": HELLO, "stream_options": 1}, "stream_options"),
        ({"messages": HELLO, "model": 1}, "model"),
        ({"messages": HELLO, "tools": "f"}, "tools"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "n": True}, "n"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
    ],
)
async def test_bad_fields_are_named(body: dict[str, Any], param: str) -> None:
    gateway = make_gateway([])
    agent = gateway.open_agent(OpenAgent("r"))
    async with in_process(gateway) as http:
        answer = await http.post(f"/s/{agent.secret}/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_text_that_utf8_cannot_hold_is_the_requests_fault() -> None:
    gateway = make_gateway([])
    agent = gateway.open_agent(OpenAgent("r"))
    async with in_process(gateway) as http:
        answer = await http.post(
            f"/s/{agent.secret}/v1/chat/completions",
            content=b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        )
    assert answer.status_code == 400
    assert agent.gateway_errors == 0


async def test_leaving_the_server_ends_open_calls() -> None:
    entered, gone = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    gateway = make_gateway([Completion("never", delay=wait)])
    agent = gateway.open_agent(OpenAgent("r"))
    async with httpx.AsyncClient() as http:
        async with GatewayServer(gateway) as server:
            url = f"{server.endpoint(agent).base_url}/chat/completions"
            call = asyncio.create_task(http.post(url, json={"messages": HELLO}))
            await entered.wait()
        await asyncio.wait_for(gone.wait(), 5)
        with pytest.raises(httpx.HTTPError):
            (await call).raise_for_status()
    assert agent.calls == []
