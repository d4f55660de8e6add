"""Harnesses that end in each way there is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from platoon.harness.contract import AgentContext, AgentResult

SAY = [{"role": "user", "content": "hello"}]


async def raises(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    raise KeyError("in the harness")


async def hangs(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    await asyncio.Event().wait()
    return AgentResult()


async def own_timeout(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    raise TimeoutError("the harness's own")


async def wraps_failures(ctx: AgentContext) -> AgentResult:
    try:
        await ctx.chat(SAY)
    except Exception as error:
        raise RuntimeError("my model is gone") from error
    return AgentResult()


async def chats_in_a_group(ctx: AgentContext) -> AgentResult:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.chat(SAY))
    return AgentResult()


async def survives_failures(ctx: AgentContext) -> AgentResult:
    try:
        await ctx.chat(SAY)
    except TimeoutError:
        await ctx.chat(SAY)
    await ctx.call_tool("finish", {"number": 1})
    return AgentResult()


async def survives_and_crashes(ctx: AgentContext) -> AgentResult:
    with suppress(TimeoutError):
        await ctx.chat(SAY)
    raise KeyError("in the harness")


async def gives_up(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    return AgentResult("cancelled")


async def returns_nothing(ctx: AgentContext) -> Any:
    await ctx.chat(SAY)


async def finishes(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    await ctx.call_tool("finish", {"number": 1})
    return AgentResult()


async def calls(ctx: AgentContext, tool: str = "check") -> AgentResult:
    await ctx.chat(SAY)
    await ctx.call_tool(ctx.options.get("tool", tool), {})
    return AgentResult()


async def overflows(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    await ctx.chat([{"role": "user", "content": "x" * 5000}])
    return AgentResult()


async def spawns(ctx: AgentContext) -> AgentResult:
    await ctx.agents.spawn("do it")
    return AgentResult()


async def annotates(ctx: AgentContext) -> AgentResult:
    ctx.annotate(plan="a")
    await ctx.chat(SAY)
    ctx.annotate_step(thought="b", reward_misc={"reward/style": 0.5})
    ctx.task.goal = "another goal"
    return AgentResult("completed", final_message="bye")


async def gives_no_answer(ctx: AgentContext) -> AgentResult:
    await ctx.chat(SAY)
    return AgentResult()
