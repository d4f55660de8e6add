"""HTTP over the service: one ASGI application with the routes the `tinker` SDK calls.

Handlers read raw bytes and answer raw bytes; they hold no state. Wrong requests are 4xx at once, failures of queued
work travel in the future they belong to, and 409 or 5xx are never used on purpose since the SDK repeats those.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from platoon.service.checkpoints import CheckpointStore, UnknownCheckpoint
from platoon.service.core import WAITS, TrainingService, Waits, numbered
from platoon.service.engine import Engine
from platoon.service.models import NotFound
from platoon.service.rest import rest_routes
from platoon.service.wire import PROTOBUF, batch_from_json, batch_from_protobuf, protobuf_key

MOST_BODY_BYTES = 256 * 1024 * 1024
CLIENT_CONFIG = {"parallel_fwdbwd_chunks": False, "sample_join_sampling_session": True}
Handler = Callable[[TrainingService, Request], Awaitable[Response]]
Call = Callable[[TrainingService, dict[str, Any]], dict[str, Any]]


def answer(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


async def raw_body(request: Request) -> bytes:
    """The body, unpacked where it came compressed."""
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "identity":
        return body
    if encoding != "zstd":
        raise ValueError(f"content-encoding {encoding!r} is not supported; send the body plain or as zstd")
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=MOST_BODY_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"the zstd body cannot be unpacked: {error}") from error


async def json_body(request: Request) -> dict[str, Any]:
    body = orjson.loads(await raw_body(request))
    if not isinstance(body, dict):
        raise ValueError("the request body has to be a JSON object")
    return body


async def retrieve_future(service: TrainingService, request: Request) -> Response:
    request_id = (await json_body(request)).get("request_id")
    pending = service.futures.get(str(request_id))
    if pending is None:
        return answer({"detail": f"no result is kept for request {request_id}"}, 410)
    result = await service.futures.wait(pending, service.waits.poll)
    if result is None:
        return answer({"type": "try_again", "request_id": request_id, "queue_state": "active"})
    pending.fetched_at = time.time()
    encode = getattr(result, "protobuf", None)
    if encode is not None and "protobuf" in request.headers.get("accept", ""):
        return Response(encode(), media_type=PROTOBUF)
    return answer(result.json())


async def asample(service: TrainingService, request: Request) -> Response:
    raw = await raw_body(request)
    return answer(service.sample(orjson.loads(raw), len(raw)))


async def forward_backward(service: TrainingService, request: Request) -> Response:
    raw = await raw_body(request)
    if "protobuf" in request.headers.get("content-type", ""):
        return answer(service.forward_backward(protobuf_key(raw), len(raw), lambda: batch_from_protobuf(raw)))
    body = orjson.loads(raw)
    only = request.url.path.endswith("/forward")
    return answer(service.forward_backward(numbered(body), len(raw), lambda: batch_from_json(body, forward_only=only)))


async def healthz(service: TrainingService, request: Request) -> Response:
    return answer({"status": "ok"})


async def client_config(service: TrainingService, request: Request) -> Response:
    return answer(CLIENT_CONFIG)


async def dynamic_config(service: TrainingService, request: Request) -> Response:
    return answer({"refresh_interval_sec": 3600})


async def telemetry(service: TrainingService, request: Request) -> Response:
    return answer({"status": "accepted"})


async def capabilities(service: TrainingService, request: Request) -> Response:
    engine = service.engine
    model = {"model_name": engine.model_name, "max_context_length": engine.context_length}
    return answer({"supported_models": [model]})


def posted(call: Call) -> Handler:
    """A handler that gives the JSON body to `call`."""

    async def handle(service: TrainingService, request: Request) -> Response:
        return answer(call(service, await json_body(request)))

    return handle


def get_info(service: TrainingService, body: dict[str, Any]) -> dict[str, Any]:
    model_id, _ = numbered(body)
    model = service.models.get(model_id)
    if model is None:
        raise NotFound(f"this service has no model {model_id}")
    engine = service.engine
    data = {"arch": "platoon", "model_name": engine.model_name, "tokenizer_id": str(engine.tokenizer_dir)}
    return {
        "type": "get_info",
        "model_id": model_id,
        "model_name": engine.model_name,
        "is_lora": True,
        "lora_rank": model.rank,
        "model_data": data,
    }


def weights_info(service: TrainingService, body: dict[str, Any]) -> dict[str, Any]:
    checkpoint = service.store.at(str(body.get("tinker_path")))
    return {"base_model": checkpoint.base_model, "is_lora": True, "lora_rank": checkpoint.rank}


ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "retrieve_future", retrieve_future),
    ("POST", "asample", asample),
    ("POST", "forward_backward", forward_backward),
    ("POST", "forward", forward_backward),
    ("POST", "optim_step", posted(TrainingService.optim_step)),
    ("POST", "save_weights_for_sampler", posted(TrainingService.save_for_sampler)),
    ("POST", "save_weights", posted(TrainingService.save_weights)),
    ("POST", "load_weights", posted(TrainingService.load_weights)),
    ("POST", "create_sampling_session", posted(TrainingService.create_sampling_session)),
    ("POST", "join_sampling_session", posted(TrainingService.join_sampling_session)),
    ("POST", "create_model", posted(TrainingService.create_model)),
    ("POST", "unload_model", posted(TrainingService.unload_model)),
    ("POST", "create_session", posted(TrainingService.create_session)),
    ("POST", "session_heartbeat", posted(TrainingService.heartbeat)),
    ("POST", "cancel_future", posted(TrainingService.cancel)),
    ("POST", "get_info", posted(get_info)),
    ("POST", "weights_info", posted(weights_info)),
    ("POST", "client/config", client_config),
    ("POST", "client/dynamic_config", dynamic_config),
    ("POST", "telemetry", telemetry),
    ("GET", "get_server_capabilities", capabilities),
    ("GET", "healthz", healthz),
]


class KeyCheck:
    """Refuses (401) requests without the right `X-API-Key`; the health check needs none."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].endswith("/healthz"):
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            if not hmac.compare_digest(given, self._key):
                refusal = answer({"detail": "the API key is missing or wrong"}, 401)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_app(engine: Engine, store: CheckpointStore, *, key: str | None = None, waits: Waits = WAITS) -> ASGIApp:
    """The application. It opens its compute thread on start-up and closes it and the store on shutdown."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = TrainingService(engine, store, waits)
        yield
        app.state.service.close()

    routes: list[BaseRoute] = [
        Route(f"/api/v1/{path}", _endpoint(handler), methods=[method])
        for method, path, handler in [*ROUTES, *rest_routes(answer, json_body)]
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    return app if key is None else KeyCheck(app, key)


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request.app.state.service, request)
        except (NotFound, UnknownCheckpoint) as error:
            return answer({"detail": str(error)}, 404)
        except ValueError as error:
            return answer({"detail": str(error)}, 400)

    return endpoint
