"""Services that behave otherwise: the session undoes it, or the run says what is wrong before its first step."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st

from platoon.config import AdamParams, ConfigError
from platoon.config.service_address import ServiceAddress
from platoon.credit import Datum
from platoon.gateway.sampling import SamplingParams
from platoon.train.checkpoints import Checkpoint
from platoon.train.failures import DeletionUnsupported, ServiceError, refused_key, retryable, with_retries
from platoon.train.opening import open_session
from platoon.train.quirks import for_sequence_mean, metric_name, sampler_kind, target_logprobs, unique_name
from platoon.train.service import ServiceSession
from tests.train.odd_service import Habits, odd_service
from tests.train.running import loaded

Opened = Callable[[Habits], AbstractAsyncContextManager[ServiceSession]]


def datum(*advantages: float) -> Datum:
    values = np.asarray(advantages, np.float32)
    tokens = np.arange(len(values), dtype=np.int32)
    return Datum(tokens, tokens, values * 0 - 1, values, np.ones(len(values), np.float32), 0)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def session(habits: Habits) -> AsyncIterator[ServiceSession]:
        with odd_service(tmp_path, habits) as url:
            made = await ServiceSession.open(ServiceAddress.embedded(url), run="test")
            try:
                await made.create("platoon-tiny", 32)
                yield made
            finally:
                await made.close()

    return session


async def test_sampler_paths_without_their_kind_are_completed(opened: Opened) -> None:
    async with opened(Habits(paths_without_kind=True)) as session:
        saved = await session.save("a")
        assert saved.sampler_path == f"tinker://{session.model_id}/sampler_weights/a"
        sampler = await session.sampler(saved.sampler_path)
        sampled = await sampler.sample([1, 2, 3], SamplingParams(max_tokens=2))
        assert len(sampled.tokens) == 2
        assert await session.delete(saved.sampler_path) == "deleted"


async def test_a_name_is_never_used_twice_in_a_session(opened: Opened) -> None:
    async with opened(Habits()) as session:
        first, second, third = [await session.save("final") for _ in range(3)]
    names = [saved.state_path.rpartition("/")[2] for saved in (first, second, third)]
    assert names == ["final", "final-2", "final-3"]


async def test_metrics_lose_the_servers_domain(opened: Opened) -> None:
    async with opened(Habits(metrics_with_domain=True)) as session:
        done = session.submit_forward_backward([datum(1.0, -1.0)], "cispo", {})
        logprobs, _ = await session.forward_backward_result(done, 60, [2])
        assert [len(row) for row in logprobs] == [2]
        step = session.submit_optim_step(AdamParams(grad_clip_norm=1.0), 1e-4)
        assert "grad_norm" in await session.optim_step_result(step, 60)


async def test_a_request_whose_reply_was_lost_counts_once(tmp_path: Path) -> None:
    found = []
    for lost in ([], ["forward_backward", "optim_step"]):
        with odd_service(tmp_path / str(len(lost)), Habits(lost_replies=lost)) as url:
            session = await ServiceSession.open(ServiceAddress.embedded(url), run="test")
            await session.create("platoon-tiny", 32)
            for _ in range(2):
                done = session.submit_forward_backward([datum(1.0, -1.0, 0.5)], "importance_sampling", {})
                logprobs, _ = await session.forward_backward_result(done, 60, [3])
                await session.optim_step_result(session.submit_optim_step(AdamParams(), 1e-2), 60)
            await session.close()
        assert lost == []
        found.append(logprobs[0].tolist())
    assert found[0] == found[1]


async def test_a_service_that_stays_silent_or_fails_is_named(opened: Opened) -> None:
    async with opened(Habits()) as session:
        silent: Future[Any] = Future()
        with pytest.raises(ServiceError, match=r"optim_step: no result from http://127\.0\.0\.1:\d+ within 0 s"):
            await session.optim_step_result(silent, 0.01)
        done = session.submit_forward_backward([datum(float("nan"), 1.0)], "cispo", {})
        step = session.submit_optim_step(AdamParams(), 1e-4)
        with pytest.raises(ServiceError, match=r"(forward_backward|optim_step): .*finite"):
            await asyncio.gather(session.forward_backward_result(done, 60, [2]), session.optim_step_result(step, 60))


async def test_full_adapters_are_waited_for(tmp_path: Path) -> None:
    habits = Habits(adapters_full_times=1)
    with odd_service(tmp_path, habits) as url:
        session = await ServiceSession.open(ServiceAddress.embedded(url), run="test")
        with pytest.raises(Exception, match="Maximum number of LoRA adapters") as caught:
            await session.create("platoon-tiny", 32)
        assert retryable(caught.value)
        await session.create("platoon-tiny", 32)
        assert session.model_id is not None
        await session.close()


async def test_a_service_that_does_not_delete_says_so(opened: Opened) -> None:
    async with opened(Habits(missing=("DELETE",))) as session:
        saved = await session.save("a")
        assert await session.delete(saved.state_path) == "absent"  # told from a deleted one by the pruner's rules
    refusing = Habits(refused={})
    async with opened(refusing) as session:
        saved = await session.save("b")
        path = saved.state_path.removeprefix("tinker://").replace("/weights/", "/checkpoints/weights/")
        refusing.refused = {f"training_runs/{path}": (405, "Method Not Allowed")}
        with pytest.raises(DeletionUnsupported, match="405"):
            await session.delete(saved.state_path)


async def test_a_deletion_nobody_answers_does_not_hold_up_the_run(opened: Opened) -> None:
    habits = Habits()
    async with opened(habits) as session:
        habits.refused = {"create_session": (503, "away"), "client/config": (503, "away")}
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.delete("tinker://a/weights/b")
        assert asyncio.get_running_loop().time() - began < 30  # the SDK tries for five minutes
        habits.refused = {}


async def start(tmp_path: Path, habits: Habits, **overrides: Any) -> int | None:
    """Open a session as a run does; the context length it found."""
    with odd_service(tmp_path / "service", habits) as url:
        config = loaded(tmp_path, **overrides).train_config
        opened = await open_session(config, ServiceAddress.embedded(url), "test", None, asyncio.Event())
        assert opened is not None
        await opened[0].close()
        return opened[1]


async def test_a_plain_service_is_accepted_with_its_context(tmp_path: Path) -> None:
    habits = Habits()
    length = await start(tmp_path, habits)
    assert length is not None
    assert length > 0
    assert "POST optim_step" not in habits.requests


async def test_an_unlisted_context_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert await start(tmp_path, Habits(silent_about_context=True)) is None
    assert "set train.context_window_length" in caplog.text


async def test_a_service_without_a_list_of_models_is_taken_at_its_word(tmp_path: Path) -> None:
    assert await start(tmp_path, Habits(missing=("get_server_capabilities",)), train__context_window_length=128) is None


async def test_a_context_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.context_window_length: 1000000 is more than"):
        await start(tmp_path, Habits(), train__context_window_length=1_000_000)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_loss_that_the_service_lacks_is_refused_before_the_first_step(status: int, tmp_path: Path) -> None:
    habits = Habits(refused={"forward_backward": (status, "loss_fn: input should be 'ppo'")})
    with pytest.raises(ConfigError, match=r"train\.loss_fn: .*does not compute 'cispo'.*input should be 'ppo'"):
        await start(tmp_path, habits)


@pytest.mark.parametrize(
    ("resume", "said"),
    [
        (None, r"checkpoint\.load_checkpoint_path: .*; correct it"),
        ("b", "checkpoint b .*remove its row from checkpoints"),
    ],
)
async def test_weights_that_are_not_there_are_said_at_once(resume: str | None, said: str, tmp_path: Path) -> None:
    path = "tinker://gone/weights/b"
    with odd_service(tmp_path / "service", Habits()) as url:
        config = loaded(tmp_path, checkpoint__load_checkpoint_path=path).train_config
        row = None if resume is None else Checkpoint(resume, 2, path, "", 2, 2)
        with pytest.raises(ConfigError, match=rf"{said}.* says: .*there is no checkpoint {path}"):
            await open_session(config, ServiceAddress.embedded(url), "test", row, asyncio.Event())


async def test_a_loss_key_that_the_service_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'kl'.*correct train\.loss_fn_config"):
        await start(tmp_path, Habits(), train__loss_fn_config={"kl": 0.1})


async def test_another_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not speak the protocol of tinker 0\.25"):
        await start(tmp_path, Habits(missing=("client/config",)))


async def test_a_stop_ends_the_wait_for_a_service(tmp_path: Path) -> None:
    stop = asyncio.Event()
    calls = 0

    async def attempt() -> int:
        nonlocal calls
        calls += 1
        stop.set()
        raise ServiceError("starting")

    assert await with_retries(attempt, ServiceAddress.embedded("http://127.0.0.1:9"), "a session", stop) is None
    assert calls == 1


async def test_a_stop_does_not_wait_for_an_attempt() -> None:
    stop = asyncio.Event()

    async def attempt() -> int:
        stop.set()
        await asyncio.Event().wait()
        return 1

    asking = with_retries(attempt, ServiceAddress.embedded("http://127.0.0.1:9"), "a session", stop)
    assert await asyncio.wait_for(asking, 10) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"detail": "no such key tml-secret"}, "no such key $TINKER_API_KEY"),
        ({"error": {"message": "expired"}}, "expired"),
        ({"message": "blocked"}, "blocked"),
        ({"code": 7}, "{'code': 7}"),
        ("plain", "plain"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_refused_key_is_told_in_the_services_words(body: object, words: str, wrapped: bool) -> None:
    address = ServiceAddress("https://host:8443/base", "tml-secret", "TINKER_API_KEY")
    error: Exception = tinker.AuthenticationError(
        "401", response=httpx.Response(401, request=httpx.Request("POST", "https://host:8443/x")), body=body
    )
    if wrapped:
        error, error.__cause__ = ValueError("could not open"), error
    refused = refused_key(error, address, "a session")
    assert refused is not None
    assert refused.problems == [
        f"TINKER_API_KEY was refused by https://host:8443 (HTTP 401) when asked for a session: {words}"
    ]


class Hurried(asyncio.SelectorEventLoop):
    """Nobody waits: the clock jumps to the next timer."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self._now, select = 0.0, selector.select

        def at_once(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self._now += timeout or 0.0
            return select(0)

        selector.select = at_once  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now


def test_a_service_that_is_not_ready_is_asked_for_twenty_minutes(caplog: pytest.LogCaptureFixture) -> None:
    async def attempt() -> int:
        raise ConnectionError("x" * 600)

    with asyncio.Runner(loop_factory=Hurried) as runner, pytest.raises(ConnectionError):
        runner.run(with_retries(attempt, ServiceAddress.embedded("http://a"), "a session", asyncio.Event()))
    said = [record.getMessage() for record in caplog.records]
    waits = [float(text.removesuffix(" s").rpartition(" ")[2]) for text in said]
    assert waits == [5, 10, 20, 40, *[60] * 18]
    assert all(text.count("x") == 500 for text in said)


@given(st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6), min_size=1, max_size=5))
def test_sequence_means_become_token_sums(rows: list[list[float]]) -> None:
    datums = [datum(*row) for row in rows]
    scaled = for_sequence_mean(datums)
    means = [float((one.advantages_T * one.mask_T).sum() / one.mask_T.sum()) for one in scaled]
    assert sum(means) / len(means) == pytest.approx(sum(sum(row) for row in rows), abs=1e-4)
    assert all(one.advantages_T.dtype == np.float32 for one in scaled)


class Tensor:
    def __init__(self, values: list[float]) -> None:
        self._values = values

    def to_numpy(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.asarray(self._values)


def test_short_logprobs_are_the_last_ones() -> None:
    found = target_logprobs({"logprobs": Tensor([-1.0, -2.0])}, 3)
    assert np.isnan(found[0])
    assert found[1:].tolist() == [-1.0, -2.0]
    assert target_logprobs({"logprobs": Tensor([-1.0])}, 1).dtype == np.float32


def test_names() -> None:
    assert sampler_kind("tinker://m/n") == "tinker://m/sampler_weights/n"
    assert sampler_kind("tinker://m/sampler_weights/n") == "tinker://m/sampler_weights/n"
    assert metric_name("skyrl.ai/grad_norm") == "grad_norm"
    assert metric_name("loss:sum") == "loss:sum"
    assert metric_name("clip/low") == "clip/low"
    assert unique_name("a", {"a": 2}) == "a-3"
