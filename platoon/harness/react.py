"""`platoon-react`: the plain tool-calling loop. Model, tools, model, until a tool ends the episode.

Malformed calls are answered with what is wrong with them and never reach the environment: a rollout goes on, so that
the bad call is trained on rather than lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from platoon.envs.contract import ToolSpec
from platoon.harness.contract import (
    LIMIT_MESSAGE,
    AgentContext,
    AgentResult,
    ChatReply,
    out_of_steps,
    terminal_arguments,
    terminal_tool,
)
from platoon.harness.registry import harness

_OPTIONS = ("system_prompt", "sampling")
_MALFORMED = (
    "Error: a tool call in the last message could not be read and was not made. "
    "Write its arguments as one complete JSON object."
)


@harness("platoon-react")
async def react(ctx: AgentContext) -> AgentResult:
    """Options: `system_prompt` (text), `sampling` (Chat Completions parameters of every call)."""
    system, sampling = _options(ctx.options)
    tools = await ctx.list_tools()
    terminal = terminal_tool(tools)
    functions = [_function(tool) for tool in tools if tool is not terminal] or None
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": ctx.instruction})
    taken = 0
    while not out_of_steps(ctx, taken):
        reply = await ctx.chat(messages, tools=functions, **sampling)
        taken += 1
        messages.append(reply.message)
        if not reply.tool_calls and not reply.unparsed_tool_calls:
            return await _answer(ctx, terminal, reply)
        if await _call_tools(ctx, reply, messages):
            return AgentResult("completed", final_message=str(messages[-1]["content"]))
    return AgentResult("limit", error=LIMIT_MESSAGE)


def _options(options: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"platoon-react has no option {', '.join(unknown)}; it takes {', '.join(_OPTIONS)}")
    system, sampling = options.get("system_prompt"), options.get("sampling") or {}
    if system is not None and not isinstance(system, str):
        raise ValueError(f"platoon-react: system_prompt must be text, not {system!r}")
    if not isinstance(sampling, Mapping):
        raise ValueError(f"platoon-react: sampling must be a mapping of sampling parameters, not {sampling!r}")
    return system, dict(sampling)


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }


async def _answer(ctx: AgentContext, terminal: ToolSpec | None, reply: ChatReply) -> AgentResult:
    if terminal is not None:
        await ctx.call_tool(terminal.name, terminal_arguments(terminal, reply.text))
    return AgentResult("completed", final_message=reply.text)


async def _call_tools(ctx: AgentContext, reply: ChatReply, messages: list[dict[str, Any]]) -> bool:
    """Answer the reply's calls in order; True when one ended the episode (later ones are not made)."""
    for call in reply.tool_calls:
        name, arguments, problem = read_call(call)
        answer = {"role": "tool", "tool_call_id": call.get("id"), "name": name}
        if problem is not None:
            messages.append({**answer, "content": problem})
            continue
        result = await ctx.call_tool(name, arguments)
        messages.append({**answer, "content": result.as_text()})
        if result.finished:
            return True
    if reply.unparsed_tool_calls:
        messages.append({"role": "tool", "content": _MALFORMED})
    return False


def read_call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """A tool call's name and arguments, and what is wrong with them (None when nothing is)."""
    function = call.get("function") or {}
    name, raw = str(function.get("name") or ""), function.get("arguments")
    if isinstance(raw, Mapping):
        return name, dict(raw), None
    try:
        arguments = json.loads(raw if raw else "{}")
    except (TypeError, ValueError) as error:
        return name, {}, f"Error: the arguments of {name} are not valid JSON ({error}): {raw}"
    if not isinstance(arguments, dict):
        return name, {}, f"Error: the arguments of {name} must be a JSON object, not {raw}"
    return name, arguments, None
