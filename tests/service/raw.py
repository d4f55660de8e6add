"""The service in this process behind plain HTTP requests, without the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from platoon.service.app import build_app
from platoon.service.checkpoints import CheckpointStore
from platoon.service.core import WAITS, TrainingService, Waits
from platoon.service.engine import Engine
from tests.service.small import NAME, engine

Body = dict[str, Any]


class Raw:
    """A client that sends what it is told and waits for results by request id."""

    def __init__(self, http: httpx.AsyncClient, service: TrainingService) -> None:
        self.http = http
        self.service = service

    async def post(self, path: str, body: Body) -> Body:
        """The JSON answer of a request that has to succeed."""
        answer = await self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def result(self, request_id: str) -> Body:
        return await self.post("retrieve_future", {"request_id": request_id})

    async def run(self, path: str, body: Body) -> Body:
        """Post, then wait for the result."""
        return await self.result((await self.post(path, body))["request_id"])

    async def session(self) -> str:
        return str((await self.post("create_session", {"tags": []}))["session_id"])

    async def model(self, session_id: str | None = None, number: int = 0) -> str:
        """A fresh model's id."""
        body = {"session_id": session_id or await self.session(), "model_seq_id": number, "base_model": NAME}
        return str((await self.run("create_model", {**body, "lora_config": {"rank": 8}}))["model_id"])


@asynccontextmanager
async def raw_service(state: Path, served: Engine | None = None, waits: Waits = WAITS) -> AsyncIterator[Raw]:
    app = build_app(served or engine(), CheckpointStore(state), waits=waits)
    assert isinstance(app, Starlette)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http,
    ):
        yield Raw(http, app.state.service)


def train_body(model_id: str, seq_id: int | None, tokens: list[int], *, loss_fn: str = "cross_entropy") -> Body:
    """A JSON forward-backward request: predict each next token."""
    count = len(tokens) - 1
    inputs = {
        "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [count]},
        "weights": {"data": [1.0] * count, "dtype": "float32", "shape": [count]},
    }
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]}, "loss_fn_inputs": inputs}
    call = {"data": [datum], "loss_fn": loss_fn}
    return {"model_id": model_id, "seq_id": seq_id, "forward_backward_input": call}


def adam_body(model_id: str, seq_id: int | None, learning_rate: float = 1e-2) -> Body:
    return {"model_id": model_id, "seq_id": seq_id, "adam_params": {"learning_rate": learning_rate}}


def sample_body(source: Body, *, seed: int | None = 0, max_tokens: int = 6, **more: Any) -> Body:
    """A sampling request of two sequences. `source` names the sampling session and number, or the model."""
    params = {"max_tokens": max_tokens, "seed": seed, "temperature": 1.0}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
    return {**source, "num_samples": 2, "prompt": prompt, "sampling_params": params, **more}
