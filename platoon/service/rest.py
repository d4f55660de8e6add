"""The read and delete side of the API: training runs, checkpoints, sessions and samplers as the SDK lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from platoon.service.checkpoints import Checkpoint
from platoon.service.core import TrainingService
from platoon.service.models import NotFound

Answer = Callable[[Any], Response]
ReadBody = Callable[[Request], Awaitable[dict[str, Any]]]
Handler = Callable[[TrainingService, Request], Awaitable[Response]]


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def checkpoint_row(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": "training" if checkpoint.kind == "weights" else "sampler",
        "time": stamp(checkpoint.created),
        "tinker_path": checkpoint.path,
        "size_bytes": checkpoint.size_bytes,
        "public": False,
        "expires_at": None if checkpoint.expires is None else stamp(checkpoint.expires),
    }


def run_rows(service: TrainingService) -> dict[str, dict[str, Any]]:
    """Every model in memory or with a checkpoint on disk, the latest first."""
    saved: dict[str, list[Checkpoint]] = {}
    for checkpoint in service.store.all():
        saved.setdefault(checkpoint.model_id, []).append(checkpoint)
    rows = {}
    for model_id in {*saved, *service.models}:
        model, kept = service.models.get(model_id), saved.get(model_id, [])
        last = model.last_request if model else kept[-1].created
        by_kind = {c.kind: checkpoint_row(c) for c in kept}
        rows[model_id] = {
            "training_run_id": model_id,
            "base_model": service.engine.model_name if model else kept[-1].base_model,
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": model.rank if model else kept[-1].rank,
            "last_request_time": stamp(last),
            "last_checkpoint": by_kind.get("weights"),
            "last_sampler_checkpoint": by_kind.get("sampler_weights"),
            "user_metadata": model.user_metadata if model else kept[-1].user_metadata,
        }
    return dict(sorted(rows.items(), key=lambda item: str(item[1]["last_request_time"]), reverse=True))


def page(request: Request, rows: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """The rows of the asked-for page, and the cursor that describes it."""
    limit, offset = int(request.query_params.get("limit", 20)), int(request.query_params.get("offset", 0))
    if limit < 0 or offset < 0:
        raise ValueError(f"limit {limit} and offset {offset} cannot be negative")
    return rows[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(rows)}


def rest_routes(answer: Answer, read_body: ReadBody) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the listing routes."""

    def the_checkpoint(service: TrainingService, request: Request) -> Checkpoint:
        where = request.path_params
        return service.store.at(f"tinker://{where['run']}/{where['kind']}/{where['name']}")

    async def runs(service: TrainingService, request: Request) -> Response:
        rows, cursor = page(request, list(run_rows(service).values()))
        return answer({"training_runs": rows, "cursor": cursor})

    async def run(service: TrainingService, request: Request) -> Response:
        row = run_rows(service).get(request.path_params["run"])
        if row is None:
            raise NotFound(f"there is no training run {request.path_params['run']}")
        return answer(row)

    async def run_checkpoints(service: TrainingService, request: Request) -> Response:
        rows = [checkpoint_row(c) for c in service.store.all(request.path_params["run"])]
        return answer({"checkpoints": rows, "cursor": None})

    async def checkpoints(service: TrainingService, request: Request) -> Response:
        rows, cursor = page(request, [checkpoint_row(c) for c in reversed(service.store.all())])
        return answer({"checkpoints": rows, "cursor": cursor})

    async def delete(service: TrainingService, request: Request) -> Response:
        service.store.delete(the_checkpoint(service, request))
        return Response(status_code=204)

    async def set_ttl(service: TrainingService, request: Request) -> Response:
        seconds = (await read_body(request)).get("ttl_seconds")
        if seconds is not None and (not isinstance(seconds, int) or seconds <= 0):
            raise ValueError(f"ttl_seconds has to be a positive integer or null, it is {seconds!r}")
        service.store.set_ttl(the_checkpoint(service, request), seconds)
        return answer({})

    async def sessions(service: TrainingService, request: Request) -> Response:
        rows, _ = page(request, list(service.sessions))
        return answer({"sessions": rows})

    async def session(service: TrainingService, request: Request) -> Response:
        session_id = request.path_params["session"]
        if session_id not in service.sessions:
            raise NotFound(f"there is no session {session_id}")
        models = [m.model_id for m in service.models.values() if m.session_id == session_id]
        return answer({"training_run_ids": models, "sampler_ids": service.samplers.of([session_id])})

    async def sampler(service: TrainingService, request: Request) -> Response:
        found = service.sampler(request.path_params["sampler"])
        base = service.engine.model_name
        return answer({"sampler_id": found.sampler_id, "base_model": base, "model_path": found.path})

    one = "training_runs/{run}/checkpoints/{kind}/{name}"
    return [
        ("GET", "training_runs", runs),
        ("GET", "training_runs/{run}", run),
        ("GET", "training_runs/{run}/checkpoints", run_checkpoints),
        ("GET", "checkpoints", checkpoints),
        ("DELETE", one, delete),
        ("PUT", f"{one}/ttl", set_ttl),
        ("GET", "sessions", sessions),
        ("GET", "sessions/{session}", session),
        ("GET", "samplers/{sampler}", sampler),
    ]
