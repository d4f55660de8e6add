"""The embedded service behind a layer that behaves as other servers were seen to behave, one switch a habit."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from platoon.service.app import build_app
from platoon.service.checkpoints import CheckpointStore
from platoon.service.engines import load_engine


@dataclass
class Habits:
    """What the server does otherwise. `missing`: path parts answered 404. `refused`: path part to (status, words).
    `lost_replies`: paths whose next answer, once the request was carried out, is HTTP 503; one entry a time."""

    missing: tuple[str, ...] = ()
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    paths_without_kind: bool = False
    silent_about_context: bool = False
    metrics_with_domain: bool = False
    adapters_full_times: int = 0
    unique_names: bool = False
    lost_replies: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Layer:
    def __init__(self, app: ASGIApp, habits: Habits) -> None:
        self._app, self._habits = app, habits
        self._names: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix("/api/v1/")
        self._habits.requests.append(f"{scope['method']} {path}")
        if any(part in f"{scope['method']} {path}" for part in self._habits.missing):
            await answer(send, 404, {"detail": "Not Found"})
            return
        for part, (status, words) in self._habits.refused.items():
            if path == part:
                await answer(send, status, {"detail": words})
                return
        body = await whole(receive)
        if path == "save_weights" and self._habits.unique_names and (refused := self._repeated(body)):
            await answer(send, 409, refused)
            return
        start: Message = {}
        sent = b""

        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def catch(message: Message) -> None:
            nonlocal start, sent
            if message["type"] == "http.response.start":
                start = message
            else:
                sent += message.get("body", b"")

        await self._app(scope, replay, catch)
        if path in self._habits.lost_replies:
            self._habits.lost_replies.remove(path)
            await answer(send, 503, {"detail": "the proxy lost the reply"})
            return
        sent = self._changed(path, sent)
        headers = [(k, v) for k, v in start["headers"] if k != b"content-length"]
        length = (b"content-length", str(len(sent)).encode())
        await send({**start, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": sent})

    def _repeated(self, body: bytes) -> dict[str, Any] | None:
        """Names are never used twice, also where a request is sent again."""
        request = json.loads(body)
        key = (str(request["model_id"]), str(request["path"]))
        known = key in self._names
        self._names.add(key)
        return {"detail": f"checkpoint {key[1]} exists already"} if known else None

    def _changed(self, path: str, sent: bytes) -> bytes:
        habits = self._habits
        data: dict[str, Any]
        try:
            data = json.loads(sent)
        except ValueError:
            return sent
        if path == "get_server_capabilities" and habits.silent_about_context:
            for model in data["supported_models"]:
                model.pop("max_context_length")
        if path == "retrieve_future" and habits.paths_without_kind and "/sampler_weights/" in str(data.get("path")):
            data["path"] = data["path"].replace("/sampler_weights/", "/")
        if path == "retrieve_future" and habits.metrics_with_domain and "metrics" in data:
            data["metrics"] = {f"skyrl.ai/{key}": value for key, value in data["metrics"].items()}
        if path == "retrieve_future" and data.get("type") == "create_model" and habits.adapters_full_times:
            habits.adapters_full_times -= 1
            data = {"error": "Maximum number of LoRA adapters reached: 1", "category": "user"}
        return json.dumps(data).encode()


async def whole(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def answer(send: Send, status: int, data: dict[str, Any]) -> None:
    body = json.dumps(data).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def odd_service(state: Path, habits: Habits) -> Iterator[str]:
    """Its URL, for as long as the block runs."""
    app = Layer(build_app(load_engine("platoon-tiny"), CheckpointStore(state / "checkpoints")), habits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join(10)
