"""A training service in the process: takes datums, gives samplers, keeps no weights. For soaks and tests of the loop.

It answers as `ServiceSession` does, at once, without the SDK and without a network. It learns nothing; what it proves
is what the run around it does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from platoon.config import AdamParams
from platoon.config.service_address import ServiceAddress
from platoon.credit import Datum
from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.rollout.trajectory import Floats
from platoon.train.service import SavedWeights

Reply = Callable[[Sequence[int], SamplingParams, int], Sampled | Awaitable[Sampled]]


class FakeSampler:
    """Samples by calling (or awaiting) `reply(prompt, params, version)`; what that raises is a failed model call."""

    def __init__(self, reply: Reply, version: int, path: str | None) -> None:
        self._reply = reply
        self._version = version
        self.path = path

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        reply = self._reply(prompt, params, self._version)
        return reply if isinstance(reply, Sampled) else await reply


class FakeTrainingSession:
    """Counts what it was asked. `applied` holds the datums of each update, when `keep` is set.

    `drift`: how far below the sampled logprobs those lie that it answers as the trainer's.
    """

    def __init__(self, reply: Reply, *, keep: bool = False) -> None:
        self.address = ServiceAddress.embedded("http://in-process")
        self.version = 0
        self.saved: list[str] = []
        self.deleted: list[str] = []
        self.drift = 0.0
        self.applied: list[list[Datum]] = []
        self._reply = reply
        self._keep = keep
        self._pending: list[Datum] = []

    async def another(self, run: str) -> FakeTrainingSession:
        return self

    async def base_sampler(self, model_name: str) -> FakeSampler:
        return FakeSampler(self._reply, 0, None)

    async def sampler(self, path: str) -> FakeSampler:
        return FakeSampler(self._reply, self.version, path)

    async def current_sampler(self) -> FakeSampler:
        return FakeSampler(self._reply, self.version, None)

    async def save(self, name: str) -> SavedWeights:
        self.saved.append(name)
        return SavedWeights(f"tinker://fake/weights/{name}", f"tinker://fake/sampler_weights/{name}")

    async def delete(self, path: str) -> Literal["deleted", "absent"]:
        self.deleted.append(path)
        return "deleted"

    def submit_forward_backward(
        self, datums: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None
    ) -> Any:
        if self._keep:
            self._pending += datums
        return [datum.logprobs_T for datum in datums]

    async def forward_backward_result(
        self, future: Any, seconds: float, lengths: Sequence[int]
    ) -> tuple[list[Floats], dict[str, float]]:
        return [np.asarray(logprobs, np.float32) - np.float32(self.drift) for logprobs in future], {}

    def submit_optim_step(self, adam: AdamParams, learning_rate: float) -> Any:
        self.version += 1
        if self._keep:
            self.applied.append(self._pending)
            self._pending = []
        return None

    async def optim_step_result(self, future: Any, seconds: float) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        return
