"""The training service without HTTP: models, samplers and checkpoints behind numbered requests.

Promise: a model's requests run in the order of their numbers, each once, on one compute thread; an answer depends on
the request and the weights it names only. Methods here are called on the event loop and never block it.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from platoon.service.checkpoints import NAME, Checkpoint, CheckpointStore, Kind, new_checkpoint
from platoon.service.compute import ComputeThread, Job
from platoon.service.engine import Engine
from platoon.service.futures import Failure, FutureTable, Pending, Reply, Result
from platoon.service.models import SILENT_SESSION_SECONDS, Model, NotFound, Sampler, Session
from platoon.service.requests import adam_params, optional, required, sample_request
from platoon.service.sampling import Samplers
from platoon.service.wire import Batch, TrainOutput

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Waits:
    """Seconds: one long poll for a result, and a request held back for a missing one before it."""

    poll: float = 30.0
    gap: float = 60.0


WAITS = Waits()


class TrainingService:
    """One engine, its models and its checkpoints. Create and close it on the event loop."""

    def __init__(self, engine: Engine, store: CheckpointStore, waits: Waits) -> None:
        self.engine = engine
        self.store = store
        self.waits = waits
        self.futures = FutureTable()
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers = Samplers(engine, store)
        self._compute = ComputeThread(asyncio.get_running_loop())

    def close(self) -> None:
        self._compute.close()
        self.store.close()

    # sessions

    def create_session(self, body: Body) -> dict[str, Any]:
        self.tidy()
        session = Session(str(uuid.uuid4()), time.time(), body.get("user_metadata") or {})
        self.sessions[session.session_id] = session
        return {"type": "create_session", "session_id": session.session_id}

    def heartbeat(self, body: Body) -> dict[str, Any]:
        self._session(required(body, "session_id", str))
        self.tidy()
        return {"type": "session_heartbeat"}

    def _session(self, session_id: str) -> Session:
        """The session, heard of just now. One of before a restart is taken up again."""
        if not NAME.fullmatch(session_id):  # it becomes part of file names
            raise ValueError(f"{session_id!r} is not the id of a session")
        session = self.sessions.setdefault(session_id, Session(session_id, time.time()))
        session.last_seen = time.time()
        return session

    def tidy(self) -> None:
        """Forget old results, and sessions that went silent with all they held in memory."""
        now = time.time()
        self.futures.tidy(now)
        silent = {s for s, session in self.sessions.items() if now - session.last_seen > SILENT_SESSION_SECONDS}
        if not silent:
            return
        gone = self.samplers.of(silent)
        self.samplers.drop(gone)
        self.models = {k: m for k, m in self.models.items() if m.session_id not in silent}
        self.sessions = {k: s for k, s in self.sessions.items() if k not in silent}

        def forget() -> Result:
            self.samplers.forget_snapshots(gone)
            return Reply({})

        self._compute.submit(forget, lambda _: None)

    # requests

    def _submit(self, pending: Pending, job: Job) -> None:
        def run() -> Result:
            return pending.result if pending.result is not None else job()  # cancelled while it was waiting

        self._compute.submit(run, lambda result: self.futures.finish(pending, result, time.time()))

    def _known(self, request_id: str, fingerprint: tuple[str, int]) -> Pending | None:
        """The future of a request that is sent again. ValueError when another request had its number."""
        pending = self.futures.get(request_id)
        if pending is not None and pending.fingerprint != fingerprint:
            raise ValueError(
                f"request {request_id} was a different one ({pending.fingerprint[0]}, not {fingerprint[0]})"
            )
        return pending

    def _train_request(
        self, key: tuple[str, int | None], fingerprint: tuple[str, int], job: Callable[[Model], Result]
    ) -> dict[str, Any]:
        """Queue `job` for a model; `key` is (model id, number), None: in order of arrival."""
        model_id, number = key
        model = self.models.get(model_id)
        if model is None:
            raise NotFound(f"this service has no model {model_id}")
        self._session(model.session_id)
        model.last_request = time.time()
        if number is None:
            pending = self.futures.open(f"{model_id}:{uuid.uuid4().hex}", fingerprint)
            self._submit(pending, lambda: job(model))
            return {"request_id": pending.request_id, "model_id": model_id}
        request_id = f"{model_id}:{number}"
        if number < 1:
            raise ValueError(f"{model_id}: requests are numbered from 1, this one has number {number}")
        # below `next`, a number without a future has run and been fetched long ago: it is not run again
        if self._known(request_id, fingerprint) is None and number >= model.gate.next:
            pending = self.futures.open(request_id, fingerprint)
            for go in model.gate.arrive(number, lambda: self._submit(pending, lambda: job(model))):
                go()
            if number >= model.gate.next:
                asyncio.get_running_loop().call_later(self.waits.gap, self._give_up, model, number, pending)
        return {"request_id": request_id, "model_id": model_id}

    def _give_up(self, model: Model, number: int, pending: Pending) -> None:
        if model.gate.withdraw(number) is not None:
            text = (
                f"request {model.gate.next} of {model.model_id} did not arrive within {self.waits.gap:g} s of {number}"
            )
            self.futures.finish(pending, Failure(text, "user"), time.time())

    def cancel(self, body: Body) -> dict[str, Any]:
        """Take a sampling request back. Training requests are never skipped: later ones build on them."""
        pending = self.futures.get(required(body, "request_id", str))
        if pending is not None and pending.fingerprint[0] == "sample":
            self.futures.finish(pending, Failure("cancelled by the client", "user"), time.time())
        return {}

    # training

    def create_model(self, body: Body) -> dict[str, Any]:
        base = required(body, "base_model", str)
        if base != self.engine.model_name:
            raise ValueError(f"this service trains {self.engine.model_name!r}, not {base!r}")
        config = body.get("lora_config") or {}
        rank, seed = optional(config, "rank", int) or 32, optional(config, "seed", int) or 0

        def create(model: Model) -> Result:
            model.state = self.engine.create(rank=rank, seed=seed)
            return Reply({"type": "create_model", "model_id": model.model_id})

        return self._new_model(body, rank, "create_model", create)

    def _new_model(self, body: Body, rank: int, what: str, job: Callable[[Model], Result]) -> dict[str, Any]:
        session = self._session(required(body, "session_id", str))
        model_id = f"{session.session_id}:train:{required(body, 'model_seq_id', int)}"
        request_id = f"{model_id}:0"
        if self._known(request_id, (what, 0)) is None and model_id not in self.models:
            if self.store.all(model_id):
                raise ValueError(f"model {model_id} existed before this server started; open a new session")
            now = time.time()
            model = Model(model_id, session.session_id, rank, now, now, body.get("user_metadata"))
            self.models[model_id] = model
            self._submit(self.futures.open(request_id, (what, 0)), lambda: job(model))
        return {"request_id": request_id, "model_id": model_id}

    def forward_backward(self, key: tuple[str, int | None], size: int, decode: Callable[[], Batch]) -> dict[str, Any]:
        def job(model: Model) -> Result:
            with readable():
                batch = decode()
            state = model.trained()
            outputs, metrics = self.engine.forward_backward(
                state, batch.data, batch.loss_fn, batch.config, forward_only=batch.forward_only
            )
            model.version += not batch.forward_only
            return TrainOutput(outputs, metrics)

        return self._train_request(key, ("forward_backward", size), job)

    def optim_step(self, body: Body) -> dict[str, Any]:
        def job(model: Model) -> Result:
            metrics = self.engine.optim_step(model.trained(), adam_params(body))
            model.version += 1
            return Reply({"type": "optim_step", "metrics": metrics})

        return self._train_request(numbered(body), ("optim_step", 0), job)

    def load_weights(self, body: Body) -> dict[str, Any]:
        """Into a model, or (session addressing) as the first thing a new model is."""

        def job(model: Model) -> Result:
            path = required(body, "path", str)
            folder = self.store.folder(self.samplers.compatible(path))
            model.state = self.engine.load(folder, optimizer=bool(body.get("optimizer")))
            model.version += 1
            return Reply({"type": "load_weights", "path": path, "model_id": model.model_id})

        if body.get("model_id") is None:
            rank = self.samplers.compatible(required(body, "path", str)).rank
            return self._new_model(body, rank, "load_weights", job)
        return self._train_request(numbered(body), ("load_weights", 0), job)

    # saving

    def save_weights(self, body: Body) -> dict[str, Any]:
        def job(model: Model) -> Result:
            state = model.trained()
            saved = self._save(model, "weights", body, lambda path: self.engine.save(state, path))
            return Reply({"type": "save_weights", "path": saved.path})

        return self._train_request(numbered(body), ("save_weights", 0), job)

    def save_for_sampler(self, body: Body) -> dict[str, Any]:
        """Under a name on disk, or (no name) as a snapshot in memory with its own sampling session."""
        model_id, _ = numbered(body)
        number = optional(body, "sampling_session_seq_id", int)
        if body.get("path") is None and number is not None and model_id in self.models:
            session_id = self.models[model_id].session_id
            sampler_id = f"{session_id}:sample:{number}"
            self.samplers.open(Sampler(sampler_id, session_id, snapshot=True))
        else:
            sampler_id = None

        def job(model: Model) -> Result:
            weights = self.engine.weights(model.trained())
            if sampler_id is not None:
                self.samplers.keep_snapshot(sampler_id, weights)
                return Reply({"type": "save_weights_for_sampler", "path": None, "sampling_session_id": sampler_id})
            saved = self._save(model, "sampler_weights", body, lambda path: self.engine.save_weights(weights, path))
            self.samplers.keep_loaded(saved, weights)
            return Reply({"type": "save_weights_for_sampler", "path": saved.path})

        return self._train_request(numbered(body), ("save_weights_for_sampler", 0), job)

    def _save(self, model: Model, kind: Kind, body: Body, write: Callable[[Any], None]) -> Checkpoint:
        """Save under the name of the request. A name that holds this very state already is adopted.

        A training checkpoint of another state is only replaced on `overwrite`; sampler weights, which have no such
        flag, are replaced.
        """
        name = optional(body, "path", str) or f"{model.version:06d}"
        ttl = optional(body, "ttl_seconds", int)
        found = self.store.find(model.model_id, kind, name)
        if found is not None and found.version == model.version:
            saved = found
        elif found is not None and kind == "weights" and not body.get("overwrite"):
            raise ValueError(f"{found.path} holds another state of the model; pass overwrite=True or take another name")
        else:
            fresh = new_checkpoint(
                model.model_id,
                kind,
                name,
                version=model.version,
                base_model=self.engine.model_name,
                rank=model.rank,
                user_metadata=body.get("user_metadata") or model.user_metadata,
            )
            saved = self.store.save(fresh, write)
        if ttl is not None or saved.expires is not None:
            self.store.set_ttl(saved, ttl)
        return saved

    # sampling

    def create_sampling_session(self, body: Body) -> dict[str, Any]:
        session = self._session(required(body, "session_id", str))
        sampler_id = f"{session.session_id}:sample:{required(body, 'sampling_session_seq_id', int)}"
        path, base = optional(body, "model_path", str), optional(body, "base_model", str)
        self.samplers.check_source(path, base)
        self.samplers.open(Sampler(sampler_id, session.session_id, path))
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def sampler(self, sampler_id: str) -> Sampler:
        found = self.samplers.get(sampler_id)
        self._session(found.session_id)
        return found

    def sample(self, body: Body, size: int) -> dict[str, Any]:
        number = optional(body, "seq_id", int)
        if body.get("sampling_session_id") is not None:
            sampler = self.sampler(required(body, "sampling_session_id", str))
        else:
            path = optional(body, "model_path", str)
            self.samplers.check_source(path, optional(body, "base_model", str))
            sampler, number = Sampler("direct", "", path), None
        request_id = f"{sampler.sampler_id}:{uuid.uuid4().hex if number is None else number}"
        pending = self._known(request_id, ("sample", size))
        if pending is None:
            pending = self.futures.open(request_id, ("sample", size))

            def job() -> Result:
                with readable():
                    request = sample_request(body)
                return self.samplers.answer(self.samplers.weights(sampler), request, request_id)

            self._submit(pending, job)
        count = body.get("num_samples", 1)
        ids = [f"{request_id}:{i}" for i in range(count if isinstance(count, int) else 1)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def join_sampling_session(self, body: Body) -> dict[str, Any]:
        sampler = self.sampler(required(body, "sampling_session_id", str))
        sampler.clones += 1
        return {"type": "join_sampling_session", "client_counter": sampler.clones}

    def unload_model(self, body: Body) -> dict[str, Any]:
        """Free the model's memory once its earlier requests are done. Its checkpoints stay."""
        model = self.models.get(required(body, "model_id", str))
        if model is None:
            raise NotFound(f"this service has no model {body['model_id']}")

        def job() -> Result:
            model.state = None
            return Reply({"type": "unload_model", "model_id": model.model_id})

        pending = self.futures.open(f"{model.model_id}:{uuid.uuid4().hex}", ("unload_model", 0))
        self._submit(pending, job)
        return {"request_id": pending.request_id, "model_id": model.model_id}


def numbered(body: Body) -> tuple[str, int | None]:
    """Model id and request number."""
    return required(body, "model_id", str), optional(body, "seq_id", int)


@contextmanager
def readable() -> Iterator[None]:
    """What a body of the wrong shape raises while it is read becomes a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError(f"the request body cannot be read: {type(error).__name__}: {error}") from error
