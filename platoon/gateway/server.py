"""The gateway over HTTP: one server a process, every key reaches its own agent only.

Routes live under `/` (key in a header) and under `/s/<key>`. A client that disconnects abandons its call, and nothing
is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Iterator
from typing import Self

import uvicorn

from platoon.gateway.agents import AgentSession
from platoon.gateway.app import KEEPALIVE_SECONDS, build_app
from platoon.gateway.gateway import ModelGateway
from platoon.harness.contract import ModelEndpoint

# An agent may think or run a tool for minutes between two calls; a connection that closes meanwhile fails its next one.
IDLE_SECONDS = 600
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class _Server(uvicorn.Server):
    """uvicorn inside a run: the run owns the process's signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayServer:
    """Async context manager. `base_url` is `http://host:port`, reachable once the context is entered.

    `rollouts`: answer only keys of these rollouts, 401 to others; None serves all.
    """

    def __init__(
        self,
        gateway: ModelGateway,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        rollouts: Collection[str] | None = None,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        self.gateway = gateway
        self._host, self._port = host, port
        app = build_app(gateway, rollouts=rollouts, keepalive_seconds=keepalive_seconds)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=IDLE_SECONDS,
            ws="none",
        )
        self._server = _Server(config)
        self._socket: socket.socket | None = None
        self._loop: asyncio.Task[None] | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # With the protocol named, asyncio switches Nagle's algorithm off; without, small answers wait 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self._port))
            sock.listen(2048)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        shown = _WILDCARDS.get(self._host, self._host)
        self.base_url = f"http://{f'[{shown}]' if ':' in shown else shown}:{sock.getsockname()[1]}"
        # The socket listens already: a client that connects before the loop runs waits in its backlog.
        self._loop = asyncio.create_task(self._server.serve(sockets=[sock]), name="gateway-server")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._socket is not None
        self._server.should_exit = True
        try:
            await self._loop
        finally:
            self._socket.close()

    def endpoint(self, agent: AgentSession) -> ModelEndpoint:
        """Where the agent's own client finds its model: `<base_url>/s/<key>/v1`."""
        return ModelEndpoint(f"{self.base_url}/s/{agent.secret}/v1", agent.secret, self.gateway.model_name)
