"""Routes of the gateway's HTTP server.

Order for a model call: key, call kind, body, budget cap, dialect, rendering; only then a stream may begin. Between the
cap and the start of the call nothing awaits, so simultaneous calls cannot pass one cap.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Collection
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.datastructures import Headers

from platoon.gateway.agents import AgentSession
from platoon.gateway.answers import Answer, EventStream, answer_unless_gone, json_response
from platoon.gateway.dialects.base import Dialect
from platoon.gateway.dialects.openai_chat import OpenAIChat
from platoon.gateway.errors import GatewayError, RequestError, UnknownAgentError
from platoon.gateway.gateway import ModelGateway
from platoon.gateway.response import ChatResponse
from platoon.harness.contract import CallKind

BODY_LIMIT = 256 * 2**20
KEEPALIVE_SECONDS = 10.0


def build_app(
    gateway: ModelGateway,
    *,
    rollouts: Collection[str] | None = None,
    keepalive_seconds: float = KEEPALIVE_SECONDS,
) -> FastAPI:
    """The app; it holds no state beyond the gateway's."""
    routes = _Routes(gateway, rollouts, keepalive_seconds)
    app = FastAPI(title="platoon gateway", openapi_url=None)
    app.add_exception_handler(Exception, routes.failed)
    app.add_api_route("/healthz", routes.health, methods=["GET"])
    router = APIRouter()
    router.add_api_route("/v1/models", routes.models, methods=["GET"])
    router.add_api_route("/v1/chat/completions", routes.chat_completions, methods=["POST"])
    router.add_api_route("/v1/platoon/agents", routes.mint, methods=["POST"])
    app.include_router(router)
    app.include_router(router, prefix="/s/{secret}")
    return app


class _Routes:
    def __init__(self, gateway: ModelGateway, rollouts: Collection[str] | None, keepalive_seconds: float) -> None:
        self._gateway = gateway
        self._rollouts = rollouts
        self._keepalive_seconds = keepalive_seconds
        self._chat = OpenAIChat()

    async def health(self) -> dict[str, str]:
        return {"status": "ok", "model": self._gateway.model_name}

    async def failed(self, request: Request, error: Exception) -> Response:
        """A fault of ours in the dialect's shape; the server logs its traceback."""
        return _error(self._chat, error)

    async def models(self, request: Request) -> Response:
        try:
            self._agent(request)
        except GatewayError as error:
            return _error(self._chat, error)
        model = {"id": self._gateway.model_name, "object": "model", "created": 0, "owned_by": "platoon"}
        return json_response({"object": "list", "data": [model]})

    async def mint(self, request: Request) -> Response:
        """A child agent of the key's agent, with a key of its own."""
        try:
            parent = self._agent(request)
            body = await _body(request)
            role, goal = body.get("role"), body.get("goal")
            if not isinstance(role, str) or not role:
                raise RequestError("role must be non-empty text", "role")
            if not isinstance(goal, str | None):
                raise RequestError("goal must be text", "goal")
            child = self._gateway.mint_subagent(parent, role, goal)
        except (GatewayError, ValueError) as error:
            return _error(self._chat, error)
        origin = f"{request.url.scheme}://{request.headers.get('host') or request.url.netloc}"
        path = f"/s/{child.secret}/v1" if "secret" in request.path_params else "/v1"
        return json_response(
            {"agent_id": child.agent_id, "api_key": child.secret, "base_url": origin + path}, status=201
        )

    async def chat_completions(self, request: Request) -> Response:
        return await self._call(request, self._chat)

    def _agent(self, request: Request) -> AgentSession:
        agent = self._gateway.agent_of(request.path_params.get("secret") or _header_key(request.headers))
        if self._rollouts is not None and agent.rollout_id not in self._rollouts:
            raise UnknownAgentError("missing or unknown API key")
        return agent

    async def _call(self, request: Request, dialect: Dialect) -> Response:
        gateway = self._gateway
        try:
            agent = self._agent(request)
            kind = cast(CallKind, request.headers.get("x-platoon-call-kind") or "policy")
            gateway.check_kind(agent, kind)
            body = await _body(request)
            # No await from here to the start of the call.
            gateway.check_open(agent)
            stopped = gateway.budget_stop(agent, kind)
            if stopped is None:
                prepared = gateway.prepare(agent, dialect.request(body), kind)
                gateway.check_judges(agent, kind)
                call: Awaitable[ChatResponse] = gateway.submit(agent, prepared, kind)
            else:
                call = _ready(stopped)
        except (GatewayError, ValueError) as error:
            return _error(dialect, error)
        answer = Answer(dialect, body, gateway.renderer.decode, gateway.model_name)
        task = asyncio.ensure_future(call)
        if body.get("stream") is True:
            return EventStream(task, answer, self._keepalive_seconds)
        return await answer_unless_gone(task, request.receive, answer)


async def _ready(response: ChatResponse) -> ChatResponse:
    return response


def _header_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


async def _body(request: Request) -> dict[str, Any]:
    """The request's JSON object. RequestError for anything else, or for more than 256 MiB."""
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > BODY_LIMIT:
            raise RequestError(f"the request body is larger than {BODY_LIMIT} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(f"the request body is a JSON {type(body).__name__}, not an object")
    return body


def _error(dialect: Dialect, error: BaseException) -> Response:
    status, body = dialect.error(error)
    return json_response(body, status=status)
