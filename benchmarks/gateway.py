"""Calls per second through the gateway, with a sampler that costs nothing.

Run: python benchmarks/gateway.py [seconds per case]. Everything runs on one core, as inside a trainer.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from platoon.gateway import ChatRequest, ModelGateway, OpenAgent, Sampled, SamplingParams
from platoon.gateway.server import GatewayServer
from platoon.testing import TOY_EOS, make_gateway, toy_renderer

REPLY = [*b"<think>\nhm\n</think>\n\nSure.", TOY_EOS]
SHORT: list[dict[str, Any]] = [
    {"role": "system", "content": "You guess numbers. Answer with a tool call."},
    {"role": "user", "content": "Between 1 and 100. " * 5},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Guess the number.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        },
    }
]


class Instant:
    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        return Sampled(REPLY, [-0.5] * len(REPLY), "stop")


async def rate(name: str, call: Callable[[], Awaitable[Any]], seconds: float) -> None:
    """Prints calls a second of `call` run back to back, and its median milliseconds."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        await call()
        took.append(time.perf_counter() - started)
    print(f"{name:<44} {len(took) / sum(took):9.0f} calls/s  {1e3 * statistics.median(took):7.3f} ms")


async def conversation(gateway: ModelGateway, turns: int, tools: bool) -> None:
    agent = gateway.open_agent(OpenAgent("r"))
    messages = list(SHORT)
    for turn in range(turns):
        response = await gateway.chat(agent, ChatRequest(messages, TOOLS if tools else None))
        messages += [response.message, {"role": "user", "content": f"turn {turn}"}]
    assert agent.prefix_breaks == 0
    gateway.close_rollout("r")


async def main(seconds: float) -> None:
    renderer = toy_renderer()

    async def render(tools: Any) -> None:
        renderer.encode(renderer.render(SHORT, tools))

    text = renderer.render(SHORT, None)
    print(
        f"prompt: {len(renderer.encode(text))} tokens, with tools {len(renderer.encode(renderer.render(SHORT, TOOLS)))}"
    )
    await rate("render and encode", lambda: render(None), seconds)
    await rate("render and encode, with tools", lambda: render(TOOLS), seconds)
    gateway = make_gateway(Instant())
    for tools in (False, True):
        await rate(f"chat, one turn{', tools' if tools else ''}", lambda t=tools: conversation(gateway, 1, t), seconds)  # type: ignore[misc]
    for turns in (10, 50, 200):
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            await conversation(gateway, turns, False)
            count += turns
        took = time.perf_counter() - started
        print(
            f"{f'chat, conversations of {turns} turns':<44} {count / took:9.0f} calls/s  {1e3 * took / count:7.3f} ms"
        )
    await over_http(gateway, seconds)


async def over_http(gateway: ModelGateway, seconds: float) -> None:
    agent = gateway.open_agent(OpenAgent("r"))
    async with GatewayServer(gateway) as server, httpx.AsyncClient() as client:
        url = f"{server.endpoint(agent).base_url}/chat/completions"
        body = {"model": "m", "messages": SHORT}
        await rate("HTTP, one client", lambda: client.post(url, json=body), seconds)

        async def many() -> None:
            await asyncio.gather(*(client.post(url, json=body) for _ in range(32)))

        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            await many()
            count += 32
        took = time.perf_counter() - started
        print(f"{'HTTP, 32 at once (client in the same process)':<44} {count / took:9.0f} calls/s")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
