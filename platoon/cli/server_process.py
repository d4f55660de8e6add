"""The process of `platoon server`: Prefect's own app under uvicorn, plus a record, a lock and an idle stop.

Prefect's app is served by our uvicorn, not by `prefect server start`: so one process knows its open connections and
needs no watcher beside it. A client is any open request or WebSocket; a training run holds one of the latter.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import IO, Any

import uvicorn

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


RETRY_SECONDS = b"0.1"


class Clients:
    """An ASGI app around another one that notes how long nobody has been connected.

    A 503 (a write conflict in SQLite) gets a `Retry-After`: Prefect's client would wait 2 s.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._open = 0
        self._last = time.monotonic()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message["headers"], (b"retry-after", RETRY_SECONDS)]
            await send(message)

        self._open += 1
        try:
            await self._app(scope, receive, answer)
        finally:
            self._open -= 1
            self._last = time.monotonic()

    def idle_seconds(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._last


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening()


async def serve(app: App, directory: Path, listener: socket.socket, idle_seconds: float) -> None:
    """Serve until a signal, or until nobody was connected for `idle_seconds` (0: for ever)."""
    clients = Clients(app)
    settings = uvicorn.Config(clients, log_level="warning", timeout_graceful_shutdown=3, timeout_keep_alive=5)
    record = directory / "server.json"

    def write_record() -> None:
        draft = record.with_suffix(".tmp")
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        draft.write_text(json.dumps({"url": url, "pid": os.getpid(), "started": time.time()}))
        draft.replace(record)

    server = _Server(settings, write_record)

    async def stop_when_idle() -> None:
        while (left := idle_seconds - clients.idle_seconds()) > 0:  # noqa: ASYNC110 (time passes, nothing happens)
            await asyncio.sleep(left)
        print(f"stopping after {idle_seconds:.0f} s without a client", flush=True)
        server.should_exit = True

    async with asyncio.TaskGroup() as group:
        idle = group.create_task(stop_when_idle()) if idle_seconds else None
        try:
            await server.serve(sockets=[listener])
        finally:
            if idle is not None:
                idle.cancel()
            record.unlink(missing_ok=True)


def take(lock: IO[bytes], seconds: float = 2.0) -> bool:
    """Hold the lock. `platoon server status` takes it for an instant to see whether it is free, hence the retries."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def main(directory: Path, listener: socket.socket, idle_seconds: float) -> int:
    with (directory / "running.lock").open("ab") as lock:
        if not take(lock):
            print("another server of this user runs", file=sys.stderr)
            return 1
        from prefect.server.api.server import create_app

        from platoon.cli.server_database import queue_writes

        queue_writes()
        asyncio.run(serve(create_app(final=True), directory, listener, idle_seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), float(sys.argv[3])))
