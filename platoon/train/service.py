"""The run's session with a training service, through the public `tinker` SDK.

Promise: one place that knows the SDK. Every wait has a deadline of ours, a refused key is one line, and requests are
submitted in the order of the calls. It does not decide when to train or save, and it imports `tinker` only when a
session opens.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import httpx
import numpy as np

from platoon.config import ConfigError
from platoon.config.service_address import ServiceAddress
from platoon.credit.datum import Datum
from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.rollout.trajectory import Floats
from platoon.train.failures import DeletionUnsupported, ServiceError, service_words, status_of
from platoon.train.quirks import for_sequence_mean, metric_name, sampler_kind, target_logprobs, unique_name
from platoon.train.threads import in_thread

if TYPE_CHECKING:
    from platoon.config import AdamParams

log = logging.getLogger("platoon.service")
T = TypeVar("T")
SAVE_TIMEOUT_SECONDS = 7200.0
OPEN_SECONDS = 1200.0  # a server may load or compile its engine for the first model
ASK_SECONDS = 120.0
CLOSE_SECONDS = 10.0
DELETE_TIMEOUT_SECONDS = 330.0


@dataclass(frozen=True)
class SavedWeights:
    """Paths of one full save: training state and sampler weights."""

    state_path: str
    sampler_path: str


def require_sdk() -> None:
    """ConfigError, before anything is written, when the SDK is not installed."""
    if find_spec("tinker") is None:
        raise ConfigError(
            "training services are reached through the tinker SDK, which is not installed: pip install 'platoon[local]'"
        )


async def probe(address: ServiceAddress, seconds: float = 4.0) -> None:
    """Ask the service whether it is there. ServiceError within `seconds` when nothing answers."""
    url = f"{address.base_url}/api/v1/healthz"
    try:
        async with httpx.AsyncClient(timeout=seconds) as client:
            answer = await client.get(url)
    except httpx.HTTPError as error:
        raise ServiceError(
            f"no training service answers at {address.origin} ({type(error).__name__}: {error})"
        ) from error
    if answer.status_code >= 500:
        raise ServiceError(
            f"the training service at {address.origin} answered HTTP {answer.status_code} to a health request"
        )


class TinkerSampler:
    """A `tinker` sampling client as the gateway's sampler."""

    def __init__(self, client: Any, address: ServiceAddress, path: str | None) -> None:
        self._client = client
        self._address = address
        self.path = path

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        """One completion. Errors of the SDK pass through; the caller's deadline cancels the request."""
        import tinker

        future = self._client.sample(
            prompt=tinker.ModelInput.from_ints(list(prompt)),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                stop=list(params.stop) or None,
                seed=params.seed,
            ),
        )
        response = await asyncio.wrap_future(future)
        if len(response.sequences) != 1:
            raise ServiceError(f"asked for one sample, the service returned {len(response.sequences)}")
        sequence = response.sequences[0]
        if sequence.logprobs is None or len(sequence.logprobs) != len(sequence.tokens):
            raise ServiceError("the service returned a sample without one logprob a token; it cannot be trained on")
        routing = getattr(sequence, "routing_id", None)
        return Sampled(
            tokens=sequence.tokens,
            logprobs=sequence.logprobs,
            stop_reason=sequence.stop_reason,
            routing_id=int(routing) if isinstance(routing, int) and not isinstance(routing, bool) else None,
        )


class ServiceSession:
    """One SDK session: a training client and the samplers made from it.

    Requests of the training client are executed by the service in the order in which these methods are called; each
    method that submits returns before its result is there, or awaits it under its own deadline, as its name says.
    """

    def __init__(self, address: ServiceAddress, service: Any) -> None:
        self.address = address
        self._service = service
        self._training: Any = None
        self._names: dict[str, int] = {}
        self.model_id: str | None = None
        self.sequence_mean = False

    @classmethod
    async def open(cls, address: ServiceAddress, *, run: str) -> ServiceSession:
        """Open a session (retry rules are the caller's: `with_retries`)."""
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        if os.environ.get("TINKER_SUBPROCESS_SAMPLING", "").lower() in {"1", "true", "yes"}:
            raise ConfigError(["TINKER_SUBPROCESS_SAMPLING is set; platoon samples in its own process: unset it"])
        import tinker

        def build() -> Any:
            service = tinker.ServiceClient(
                base_url=address.base_url, api_key=address.api_key, user_metadata={"platoon_run": run}
            )
            _ = service.holder  # the session is opened here, on this thread
            return service

        return cls(address, await within(in_thread(build), OPEN_SECONDS, "a session", address))

    async def another(self, run: str) -> ServiceSession:
        """A second session with the same service. ServiceError when it does not open."""
        import tinker

        try:
            return await ServiceSession.open(self.address, run=run)
        except (tinker.TinkerError, ConnectionError, ValueError) as error:
            raise ServiceError(f"no second session: {service_words(error, self.address)}") from error

    async def models(self) -> dict[str, int | None]:
        """Model name to context length in tokens (None where the service does not say); {} when it lists none."""
        import tinker

        try:
            answer = await self._call(self._service.get_server_capabilities, ASK_SECONDS, "the list of models")
        except tinker.NotFoundError:
            return {}
        return {
            str(m.model_name): getattr(m, "max_context_length", None) for m in answer.supported_models if m.model_name
        }

    async def create(self, model_name: str, rank: int) -> None:
        """A fresh training client on the base model."""
        self._training = await self._call(
            lambda: self._service.create_lora_training_client(base_model=model_name, rank=rank),
            OPEN_SECONDS,
            "a training client",
        )
        self.model_id = str(self._training.model_id)

    async def load(self, model_name: str, rank: int, path: str, *, optimizer: bool) -> None:
        """A fresh training client that loads `path` as its first request (what every known server allows)."""
        await self.create(model_name, rank)
        call = self._training.load_state_with_optimizer if optimizer else self._training.load_state
        what = f"loading {path}"
        await self._result(await self._call(lambda: call(path), ASK_SECONDS, what), SAVE_TIMEOUT_SECONDS, what)

    async def base_sampler(self, model_name: str) -> TinkerSampler:
        client = await self._call(
            lambda: self._service.create_sampling_client(base_model=model_name), OPEN_SECONDS, "a sampling client"
        )
        return TinkerSampler(client, self.address, None)

    async def sampler(self, path: str) -> TinkerSampler:
        """A sampler on saved sampler weights."""
        client = await self._call(
            lambda: self._service.create_sampling_client(model_path=path), OPEN_SECONDS, f"a sampling client on {path}"
        )
        return TinkerSampler(client, self.address, path)

    async def current_sampler(self) -> TinkerSampler:
        """A sampler on the training client's weights as of this call; not resumable."""
        client = await self._call(
            self._training.save_weights_and_get_sampling_client, SAVE_TIMEOUT_SECONDS, "saving sampler weights"
        )
        return TinkerSampler(client, self.address, None)

    async def save(self, name: str) -> SavedWeights:
        """Training state and sampler weights; both are there when this returns. The service's name of them is `name`,
        with a number where this session had saved under it before."""
        served = unique_name(name, self._names)
        self._names[name] = self._names.get(name, 0) + 1
        what = f"saving {served}"
        state = await self._call(lambda: self._training.save_state(served, overwrite=True), ASK_SECONDS, what)
        sampler = await self._call(lambda: self._training.save_weights_for_sampler(served), ASK_SECONDS, what)
        state_path = await self._saved(state, f"{what} (training state)", f"weights/{served}")
        sampler_path = await self._saved(sampler, f"{what} (sampler weights)", f"sampler_weights/{served}")
        return SavedWeights(state_path=state_path, sampler_path=sampler_kind(sampler_path))

    async def _saved(self, future: Any, what: str, served: str) -> str:
        """The path of a save. A conflict means that a request that was sent again had come through: it is adopted
        when the service lists it, since requests run in order and hold the same weights."""
        import tinker

        try:
            return str((await self._answer(future, SAVE_TIMEOUT_SECONDS, what)).path)
        except tinker.ConflictError as error:
            listing = (await self._rest()).list_checkpoints
            listed = await self._call(lambda: listing(self.model_id).result(ASK_SECONDS), ASK_SECONDS, "checkpoints")
            for checkpoint in listed.checkpoints:
                if checkpoint.checkpoint_id == served:
                    log.warning("%s: the service has it already (%s); going on with that", what, error)
                    return str(checkpoint.tinker_path)
            raise ServiceError(f"{what}: {service_words(error, self.address)}") from error

    async def try_loss(self, loss_fn: str, loss_fn_config: Mapping[str, float] | None, seconds: float) -> None:
        """Have the service compute the loss of two tokens without a gradient. ServiceError with its words when it
        refuses; nothing of the model changes."""
        import tinker

        zeros = np.zeros(2, np.float32)
        tokens = np.zeros(2, np.int32)
        datum = Datum(tokens, tokens, zeros, zeros, np.ones(2, np.float32), version=0)
        data = [wire_datum(datum, weighted=self.sequence_mean)]
        config = dict(loss_fn_config) if loss_fn_config else None
        try:
            future = await self._call(lambda: self._training.forward(data, loss_fn, config), ASK_SECONDS, "a loss")
            await self._result(future, seconds, f"the loss {loss_fn}")
        except (tinker.TinkerError, ValueError) as error:
            raise ServiceError(service_words(error, self.address)) from error

    def submit_forward_backward(
        self, datums: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None
    ) -> Any:
        """Submit one forward-backward call; `advantages` of the datums are sent as they are. Returns its future."""
        sent = for_sequence_mean(datums) if self.sequence_mean else datums
        data = [wire_datum(datum, weighted=self.sequence_mean) for datum in sent]
        return self._training.forward_backward(data, loss_fn, dict(loss_fn_config) if loss_fn_config else None)

    async def forward_backward_result(
        self, future: Any, seconds: float, lengths: Sequence[int]
    ) -> tuple[list[Floats], dict[str, float]]:
        """Train logprobs per datum (float32[T], T of `lengths`) and the call's metrics."""
        output = await self._answer(future, seconds, "forward_backward")
        if len(output.loss_fn_outputs) != len(lengths):
            raise ServiceError(f"forward_backward: {len(output.loss_fn_outputs)} results for {len(lengths)} datums")
        logprobs = [target_logprobs(o, length) for o, length in zip(output.loss_fn_outputs, lengths, strict=True)]
        return logprobs, {str(k): float(v) for k, v in (output.metrics or {}).items()}

    def submit_optim_step(self, adam: AdamParams, learning_rate: float) -> Any:
        import tinker

        return self._training.optim_step(
            tinker.AdamParams(
                learning_rate=learning_rate,
                beta1=adam.beta1,
                beta2=adam.beta2,
                eps=adam.eps,
                weight_decay=adam.weight_decay,
                grad_clip_norm=adam.grad_clip_norm,
            )
        )

    async def optim_step_result(self, future: Any, seconds: float) -> dict[str, float]:
        output = await self._answer(future, seconds, "optim_step")
        return {metric_name(str(k)): float(v) for k, v in (output.metrics or {}).items()}

    async def delete(self, path: str) -> Literal["deleted", "absent"]:
        """Delete a checkpoint by its `tinker://` path. DeletionUnsupported, ServiceError."""
        import tinker

        try:
            rest = await self._rest()
            if not hasattr(rest, "delete_checkpoint_from_tinker_path"):
                raise DeletionUnsupported("the SDK has no deletion")
            deleting = await self._call(
                lambda: rest.delete_checkpoint_from_tinker_path(path), ASK_SECONDS, f"deleting {path}"
            )
            await self._result(deleting, DELETE_TIMEOUT_SECONDS, f"deleting {path}")
        except (tinker.TinkerError, ConnectionError, ValueError) as error:
            status, words = status_of(error), service_words(error, self.address)
            if status == 404:
                return "absent"
            if status in (405, 501):
                raise DeletionUnsupported(f"HTTP {status}: {words}") from error
            raise ServiceError(words) from error
        return "deleted"

    async def _rest(self) -> Any:
        """The SDK's REST client, which opens a connection of its own and blocks while nobody answers."""
        return await self._call(self._service.create_rest_client, ASK_SECONDS, "a REST client")

    async def _answer(self, future: Any, seconds: float, what: str) -> Any:
        """The result of a request of the run. ServiceError with the service's words when it failed; a conflict is left
        to the caller."""
        import tinker

        try:
            return await self._result(future, seconds, what)
        except tinker.ConflictError:
            raise
        except tinker.TinkerError as error:
            raise ServiceError(f"{what}: {service_words(error, self.address)}") from error

    async def _result(self, future: Any, seconds: float, what: str) -> Any:
        waiting = asyncio.wrap_future(future) if isinstance(future, Future) else future.result_async()
        return await within(waiting, seconds, what, self.address)

    async def _call(self, call: Callable[[], T], seconds: float, what: str) -> T:
        return await within(in_thread(call), seconds, what, self.address)

    async def close(self) -> None:
        """End the session's background work. The service keeps what was saved."""
        holder = getattr(self._service, "_session_holder", None)
        if holder is not None and hasattr(holder, "close"):
            try:
                await self._call(holder.close, CLOSE_SECONDS, "closing the session")
            except ServiceError as error:
                log.info("%s", error)


async def within(waiting: Awaitable[T], seconds: float, what: str, address: ServiceAddress) -> T:
    """The result of a wait for the service, ServiceError once `seconds` are over: the SDK itself may retry for ever."""
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError as error:
        raise ServiceError(f"{what}: no result from {address.origin} within {seconds:.0f} s") from error


def wire_datum(datum: Datum, *, weighted: bool = False) -> Any:
    """A datum as the SDK sends it: input tokens, and only what a loss reads. `weighted` adds the action mask, which
    services that take means over a sequence's weights need."""
    import tinker

    inputs: dict[str, Any] = {
        "target_tokens": datum.targets_T.astype(np.int64),
        "logprobs": datum.logprobs_T,
        "advantages": datum.advantages_T,
    }
    if weighted:
        inputs["weights"] = datum.mask_T
    if datum.routing_id is not None:
        inputs["routing_handle"] = np.asarray([datum.routing_id], np.int64)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(datum.tokens_T.tolist()), loss_fn_inputs=inputs)
