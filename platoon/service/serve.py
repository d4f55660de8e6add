"""Running the application on a socket until a signal ends it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import uvicorn

from platoon.service.app import build_app
from platoon.service.checkpoints import CheckpointStore
from platoon.service.engines import load_engine


class ReadyServer(uvicorn.Server):
    """A server that says where it is once it answers requests."""

    def __init__(self, config: uvicorn.Config, url: str, key: str | None, ready: Path | None) -> None:
        super().__init__(config)
        self._url = url
        self._key = "=tml-local (any key that starts with tml-)" if key is None else ", the key given to this service"
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.started:
            return
        print(f"platoon: training service on {self._url}", flush=True)
        print(f"platoon: a client needs TINKER_BASE_URL={self._url} and TINKER_API_KEY{self._key}", flush=True)
        if self._ready is not None:
            temporary = self._ready.with_name(f"{self._ready.name}.{os.getpid()}")
            temporary.write_text(self._url, encoding="utf-8")
            os.replace(temporary, self._ready)


def serve(model: str, state: Path, listener: socket.socket, *, key: str | None, ready: Path | None) -> None:
    """Serve `model` on the listening socket; checkpoints live below `state`. ValueError for an unknown model."""
    host, port = listener.getsockname()[:2]
    app = build_app(load_engine(model), CheckpointStore(state / "checkpoints"), key=key)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=1,
        lifespan="on",
        ws="none",
    )
    ReadyServer(config, f"http://{host}:{port}", key, ready).run(sockets=[listener])
