"""What a long rollout keeps: about its own tokens, not turns times context."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

from platoon.gateway import ChatRequest, OpenAgent, Sampled, SamplingParams
from platoon.rollout.trajectory import Interactions
from platoon.testing import TOY_EOS, make_gateway

TURNS = 200
BYTES_A_TOKEN = 4 + 4  # int32 id and float32 logprob


class Parrot:
    """Says the length of the prompt, and keeps nothing."""

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        tokens = [*f"reply number {len(prompt)}".encode(), TOY_EOS]
        return Sampled(tokens, [-0.5] * len(tokens), "stop")


def merged_tokens(calls: Interactions) -> int:
    return sum(len(call.suffix_S) + len(call.tokens_A) for call in calls.values())


async def test_a_long_rollout_keeps_less_than_three_times_its_tokens() -> None:
    gateway = make_gateway(Parrot())
    agent = gateway.open_agent(OpenAgent("r"))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x" * 3000}]
    await gateway.chat(agent, ChatRequest(messages))
    gateway.close_rollout("r")

    agent = gateway.open_agent(OpenAgent("r"))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(TURNS):
            response = await gateway.chat(agent, ChatRequest(messages))
            messages = [*messages, dict(response.message), {"role": "user", "content": f"turn {turn}: " + "y" * 45}]
        last = gateway.interactions("r").prompt_length(response.call_id)
        del messages, response
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    merged = merged_tokens(gateway.interactions("r"))
    assert last > 20_000
    assert merged < 1.1 * last, "every token is stored once"
    assert agent.prefix_breaks == 0
    assert kept < 3 * BYTES_A_TOKEN * merged, f"{kept} bytes for {merged} tokens"
    print(f"{kept} bytes kept for {merged} merged tokens: {kept / merged:.1f} bytes a token")
