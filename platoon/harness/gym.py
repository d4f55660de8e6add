"""The harness of a step environment: the model's text is the action, the observation is the next user message."""

from __future__ import annotations

from typing import Any

from platoon.envs.gym import EnvFactory, StepEpisode
from platoon.harness.contract import LIMIT_MESSAGE, AgentContext, AgentFn, AgentResult, out_of_steps


def loop(env_factory: EnvFactory, *, max_turns: int | None = None, system: str | None = None) -> AgentFn:
    """A harness function that plays an environment of its own, made by `env_factory`, with the rollout's task.

    It notes `gym_return`, the sum of rewards so far, on the trajectory, and `gym` {action, observation, reward} on each
    step. It ends `completed` when the environment is done, `limit` after `max_turns` or the step budget. An
    environment that fails makes the rollout an error, whatever `on_harness_exit` says. ValueError for bad `max_turns`.
    """
    if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
        raise ValueError(f"max_turns must be a whole number from 1, or None for no limit, not {max_turns!r}")

    async def play(ctx: AgentContext) -> AgentResult:
        ctx.annotate(gym_return=0.0)
        episode, turns = StepEpisode(), 0
        messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        try:
            messages.append({"role": "user", "content": await episode.start(env_factory, ctx.task)})
            while not out_of_steps(ctx, turns) and (max_turns is None or turns < max_turns):
                reply = await ctx.chat(messages)
                turns += 1
                messages.append(reply.message)
                move = await episode.step(reply.text)
                ctx.annotate(gym_return=episode.total)
                ctx.annotate_step(gym={"action": reply.text, "observation": move.observation, "reward": move.reward})
                if move.done:
                    return AgentResult("completed", final_message=reply.text)
                messages.append({"role": "user", "content": move.observation})
            return AgentResult("limit", error=LIMIT_MESSAGE)
        finally:
            await episode.close()

    # The harness is the factory's: a registry tells functions apart, and whose they are, by these names.
    play.__module__ = getattr(env_factory, "__module__", None) or __name__
    play.__qualname__ = f"loop({getattr(env_factory, '__qualname__', type(env_factory).__qualname__)})"
    return play
