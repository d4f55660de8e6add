"""Sampling sessions and the weights behind them: the base model, checkpoints on disk, snapshots in memory.

What is kept in memory is bounded; weights of a checkpoint are read again when they are needed, a snapshot that had to
go is gone. `weights`, `keep_*` and `answer` run on the compute thread, the rest on the event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from platoon.service.checkpoints import Checkpoint, CheckpointStore
from platoon.service.engine import Engine, SampledSequence, Weights
from platoon.service.models import NotFound, Recent, Sampler
from platoon.service.requests import SampleRequest
from platoon.service.wire import SampleOutput

MOST_SNAPSHOTS = 64
MOST_LOADED = 8


class Samplers:
    """All sampling sessions of the service, by id."""

    def __init__(self, engine: Engine, store: CheckpointStore) -> None:
        self._engine = engine
        self._store = store
        self._sessions: dict[str, Sampler] = {}
        self._snapshots = Recent(MOST_SNAPSHOTS)
        self._loaded = Recent(MOST_LOADED)
        self._base: Weights | None = None

    def open(self, sampler: Sampler) -> None:
        """Known from now on; one that is opened again stays as it was."""
        self._sessions.setdefault(sampler.sampler_id, sampler)

    def get(self, sampler_id: str) -> Sampler:
        found = self._sessions.get(sampler_id)
        if found is None:
            raise NotFound(f"this service has no sampling session {sampler_id}")
        return found

    def of(self, session_ids: Collection[str]) -> list[str]:
        return [s.sampler_id for s in self._sessions.values() if s.session_id in session_ids]

    def drop(self, sampler_ids: Collection[str]) -> None:
        for sampler_id in sampler_ids:
            self._sessions.pop(sampler_id, None)

    def check_source(self, path: str | None, base: str | None) -> None:
        """ValueError for a base model of another server; UnknownCheckpoint for a path that does not exist."""
        if path is not None:
            self.compatible(path)
        elif base != self._engine.model_name:
            raise ValueError(f"this service samples from {self._engine.model_name!r} or a checkpoint, not {base!r}")

    def compatible(self, path: str) -> Checkpoint:
        """The checkpoint at `path`. ValueError when it is of another base model."""
        checkpoint = self._store.at(path)
        if checkpoint.base_model != self._engine.model_name:
            raise ValueError(f"{path} is of {checkpoint.base_model!r}; this service serves {self._engine.model_name!r}")
        return checkpoint

    def keep_snapshot(self, sampler_id: str, weights: Weights) -> None:
        self._snapshots.put(sampler_id, weights)

    def keep_loaded(self, checkpoint: Checkpoint, weights: Weights) -> None:
        """Spare the first sampling session on a new checkpoint the way over the disk."""
        self._loaded.put(checkpoint.data, weights)

    def forget_snapshots(self, sampler_ids: Collection[str]) -> None:
        for sampler_id in sampler_ids:
            self._snapshots.pop(sampler_id, None)

    def weights(self, sampler: Sampler) -> Weights:
        """ValueError when its snapshot or checkpoint is gone."""
        if sampler.snapshot:
            found = self._snapshots.used(sampler.sampler_id)
            if found is None:
                raise ValueError(
                    f"the weights of sampling session {sampler.sampler_id} are not there: saving them failed, or "
                    f"{MOST_SNAPSHOTS} newer ones were used since; save named sampler weights to keep them"
                )
            return found
        if sampler.path is None:
            if self._base is None:
                self._base = self._engine.weights(None)
            return self._base
        checkpoint = self.compatible(sampler.path)
        found = self._loaded.used(checkpoint.data)
        if found is None:
            found = self._engine.load_weights(self._store.folder(checkpoint))
            self._loaded.put(checkpoint.data, found)
        return found

    def answer(self, weights: Weights, request: SampleRequest, request_id: str) -> SampleOutput:
        """Sample, and score the prompt where asked to. ValueError when prompt and answer exceed the context.

        Without a seed the request id is the seed: a request that is sent again gets the same answer again.
        """
        room = self._engine.context_length - len(request.prompt)
        wanted = max(room, 0) if request.max_tokens is None else request.max_tokens
        scoring = request.prompt_logprobs and wanted <= 1  # the SDK scores a full context with max_tokens=1
        if room < 0 or (room < max(wanted, 1) and not scoring):
            raise ValueError(
                f"{len(request.prompt)} prompt tokens and {max(wanted, 1)} to sample exceed the context of "
                f"{self._engine.context_length} tokens"
            )
        logprobs = self._engine.prompt_logprobs(weights, request.prompt) if request.prompt_logprobs else None
        if room == 0:
            return SampleOutput([SampledSequence([], [], "length")] * request.num_samples, logprobs)
        seed = request.seed
        if seed is None:
            seed = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:7], "big")
        sequences = self._engine.sample(
            weights,
            request.prompt,
            num_samples=request.num_samples,
            max_tokens=wanted,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=request.stop,
            seed=seed,
        )
        return SampleOutput(sequences, logprobs)
