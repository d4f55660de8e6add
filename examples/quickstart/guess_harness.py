"""A harness is one async function: it talks to the model, calls the tools, and says how it ended."""

from __future__ import annotations

import json
from typing import Any

import platoon as pt


@pt.harness("example-guesser")
async def guesser(ctx: pt.AgentContext) -> pt.AgentResult:
    """Ask the model for a guess, make it, tell the answer; until it is correct or the steps are used up."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in await ctx.list_tools()
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": ctx.instruction}]
    while ctx.budget.remaining() > 0:
        reply = await ctx.chat(messages, tools=tools)
        messages.append(reply.message)
        if not reply.tool_calls:
            messages.append({"role": "user", "content": "Call the tool guess with a number."})
        for call in reply.tool_calls:
            # Only calls whose arguments are a JSON object get here; what the model wrote malformed stays in the text.
            result = await ctx.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.as_text()})
            if result.finished:
                return pt.AgentResult("completed", final_message=result.as_text())
    return pt.AgentResult("limit")
