"""The service over plain HTTP: each request once and in order, failures where they belong, everything listed."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.service.core import Waits
from platoon.service.engine import Example, ExampleOutput, LossName, TrainState
from platoon.service.numpy_engine import NumpyEngine
from tests.service.raw import Body, Raw, adam_body, raw_service, sample_body, train_body
from tests.service.small import NAME, engine

Step = tuple[str, Body]


class Fragile(NumpyEngine):
    """Breaks, as an engine should not, on one loss."""

    def forward_backward(
        self,
        state: TrainState,
        data: Sequence[Example],
        loss_fn: LossName,
        config: Mapping[str, float],
        *,
        forward_only: bool = False,
    ) -> tuple[list[ExampleOutput], dict[str, float]]:
        if loss_fn == "dro":
            raise ZeroDivisionError("a bug")
        return super().forward_backward(state, data, loss_fn, config, forward_only=forward_only)


def script(model_id: str) -> list[Step]:
    """Two steps of training, a probe, and saves, numbered as the SDK does."""
    steps: list[Step] = []
    for row in ([1, 2, 3, 4], [4, 3, 2], [9, 8, 7, 6, 5]):
        steps.append(("forward_backward", train_body(model_id, len(steps) + 1, row)))
        steps.append(("forward_backward", train_body(model_id, len(steps) + 1, row[::-1])))
        steps.append(("optim_step", adam_body(model_id, len(steps) + 1)))
    steps.append(("save_weights", {"model_id": model_id, "seq_id": len(steps) + 1, "path": "last"}))
    steps.append(("forward", train_body(model_id, len(steps) + 1, [1, 2, 3, 4])))
    return steps


async def outcomes(raw: Raw, arrival: list[int], seed: int) -> list[Any]:
    """What each request of the script returns when they are sent as `arrival` says, unawaited, with noise between."""
    session_id = await raw.session()
    model_id = await raw.model(session_id)
    steps = script(model_id)
    sampler = {"session_id": session_id, "sampling_session_seq_id": 0, "base_model": NAME}
    sampling_id = (await raw.post("create_sampling_session", sampler))["sampling_session_id"]
    rng = random.Random(seed)

    async def noise(number: int) -> Any:
        source = {"sampling_session_id": sampling_id, "seq_id": number % 3}
        return (await raw.run("asample", sample_body(source, seed=number % 3)))["sequences"]

    sampled: list[asyncio.Task[Any]] = []
    async with asyncio.TaskGroup() as group:
        for index in arrival:
            path, body = steps[index]
            await raw.post(path, body)
            if rng.random() < 0.4:
                sampled.append(group.create_task(noise(len(sampled))))
    results = []
    for number in range(1, len(steps) + 1):
        result = await raw.result(f"{model_id}:{number}")
        assert "error" not in result, result
        results.append({**result, "path": str(result.get("path")).removeprefix(f"tinker://{model_id}")})
    return [*results, {number % 3: task.result() for number, task in enumerate(sampled)}]


COUNT = len(script("m"))
PLAIN = list(range(COUNT))


@given(st.permutations(PLAIN), st.lists(st.sampled_from(PLAIN), max_size=6), st.integers(0, 2**16))
@settings(max_examples=12, deadline=None)
def test_answers_depend_on_the_requests_only(order: list[int], repeated: list[int], seed: int) -> None:
    """Shuffled and repeated arrival, sampling in between: bit for bit what the plain order gives."""

    async def both() -> tuple[list[Any], list[Any]]:
        with tempfile.TemporaryDirectory() as folder:
            async with raw_service(Path(folder)) as raw:
                return await outcomes(raw, PLAIN, 0), await outcomes(raw, [*order, *repeated], seed)

    plain, shuffled = asyncio.run(both())
    assert shuffled[:-1] == plain[:-1]
    for number, sequences in shuffled[-1].items():
        assert plain[-1].get(number, sequences) == sequences


async def test_a_request_that_is_sent_again_runs_once(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        first = await raw.post("forward_backward", train_body(model_id, 1, [1, 2, 3]))
        assert await raw.post("forward_backward", train_body(model_id, 1, [1, 2, 3])) == first
        step = await raw.post("optim_step", adam_body(model_id, 2))
        once = await raw.result(step["request_id"])
        assert await raw.post("optim_step", adam_body(model_id, 2)) == step
        assert await raw.result(step["request_id"]) == once
        assert raw.service.models[model_id].version == 2
        save = {"model_id": model_id, "seq_id": 3, "path": "a"}
        assert (await raw.run("save_weights", save))["path"] == (await raw.run("save_weights", save))["path"]


async def test_a_number_of_long_ago_is_not_run_again(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        body = train_body(model_id, 1, [1, 2, 3])
        request_id = (await raw.post("forward_backward", body))["request_id"]
        await raw.result(request_id)
        raw.service.futures.tidy(2e12)
        assert (await raw.post("forward_backward", body))["request_id"] == request_id
        gone = await raw.http.post("/api/v1/retrieve_future", json={"request_id": request_id})
        assert gone.status_code == 410
        assert raw.service.models[model_id].version == 1


async def test_another_request_under_a_used_number_is_refused(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        await raw.post("forward_backward", train_body(model_id, 1, [1, 2, 3]))
        refused = await raw.http.post("/api/v1/optim_step", json=adam_body(model_id, 1))
        assert refused.status_code == 400
        assert "a different one" in refused.text


async def test_a_gap_in_the_numbers_fails_what_waits_behind_it(tmp_path: Path) -> None:
    async with raw_service(tmp_path, waits=Waits(gap=0.01)) as raw:
        model_id = await raw.model()
        failed = await raw.run("optim_step", adam_body(model_id, 2))
        assert failed["category"] == "user"
        assert f"request 1 of {model_id} did not arrive" in failed["error"]


async def test_a_result_that_is_not_there_is_asked_for_again(tmp_path: Path) -> None:
    async with raw_service(tmp_path, waits=Waits(poll=0.01)) as raw:
        model_id = await raw.model()
        waiting = await raw.run("optim_step", adam_body(model_id, 2))
        assert (waiting["type"], waiting["queue_state"]) == ("try_again", "active")
        await raw.post("forward_backward", train_body(model_id, 1, [1, 2, 3]))
        request_id = f"{model_id}:2"
        while (result := await raw.result(request_id)).get("type") == "try_again":
            pass
        assert result["type"] == "optim_step"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("forward_backward", train_body("M", 1, [1, 2, 3], loss_fn="made_up"), "unknown loss function 'made_up'"),
        ("forward_backward", train_body("M", 1, [1, 999, 3]), "999"),
        ("forward_backward", train_body("M", 1, list(range(80))), "context"),
        (
            "forward_backward",
            {"model_id": "M", "seq_id": 1, "forward_backward_input": {"data": [{}]}},
            "cannot be read",
        ),
        ("optim_step", {"model_id": "M", "seq_id": 1, "optimizer_params": {}}, "Adam is the only optimizer"),
        ("optim_step", adam_body("M", 1, -1.0), "learning_rate"),
        ("save_weights", {"model_id": "M", "seq_id": 1, "path": "../up"}, "cannot name a checkpoint"),
        (
            "load_weights",
            {"model_id": "M", "seq_id": 1, "path": "tinker://x/weights/y", "optimizer": True},
            "no checkpoint",
        ),
    ],
)
async def test_wrong_training_requests_fail_as_the_users(tmp_path: Path, path: str, body: Body, said: str) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        failed = await raw.run(path, {**body, "model_id": model_id})
        assert (failed["category"], said in failed["error"]) == ("user", True), failed
        after = await raw.run("forward_backward", train_body(model_id, 2, [1, 2, 3]))
        assert "loss:sum" in after["metrics"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_samples": 0}, "num_samples is 0"),
        ({"sampling_params": {"max_tokens": 62}}, "exceed the context of 64 tokens"),
        ({"sampling_params": {"temperature": -1}}, "temperature is -1"),
        ({"sampling_params": {"top_p": 0}}, "top_p 0"),
        ({"prompt": {"chunks": []}}, "the prompt is empty"),
        ({"prompt": {"chunks": [{"type": "image"}]}}, "'image'"),
        ({"topk_prompt_logprobs": 3}, "'topk_prompt_logprobs' is not supported"),
    ],
)
async def test_wrong_sampling_requests_fail_as_the_users(tmp_path: Path, change: Body, said: str) -> None:
    async with raw_service(tmp_path) as raw:
        failed = await raw.run("asample", {**sample_body({"base_model": NAME}), **change})
        assert (failed["category"], said in failed["error"]) == ("user", True), failed


async def test_a_bug_in_the_engine_is_the_services_error(tmp_path: Path) -> None:
    small = engine()
    fragile = Fragile(NAME, small.shape, small._base.flat_N, small.tokenizer_dir)
    async with raw_service(tmp_path, fragile) as raw:
        model_id = await raw.model()
        failed = await raw.run("forward_backward", train_body(model_id, 1, [1, 2, 3], loss_fn="dro"))
        assert failed == {"error": "ZeroDivisionError: a bug", "category": "server"}
        assert "metrics" in await raw.run("forward_backward", train_body(model_id, 2, [1, 2, 3]))


async def test_unknown_names_are_404_and_unreadable_bodies_400(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        for path, body in (
            ("optim_step", adam_body("nobody", 1)),
            ("asample", sample_body({"sampling_session_id": "nobody", "seq_id": 0})),
            ("asample", sample_body({"model_path": "tinker://a/weights/b"})),
            ("get_info", {"model_id": "nobody"}),
        ):
            assert (await raw.http.post(f"/api/v1/{path}", json=body)).status_code == 404
        for content in (b"{", b"[]"):
            assert (await raw.http.post("/api/v1/optim_step", content=content)).status_code == 400
        other = {"session_id": await raw.session(), "model_seq_id": 0, "base_model": "another/model"}
        refused = await raw.http.post("/api/v1/create_model", json=other)
        assert refused.status_code == 400
        assert "'another/model'" in refused.text
        assert (await raw.http.post("/api/v1/retrieve_future", json={"request_id": "?"})).status_code == 410
        climbing = {**other, "session_id": "../../up", "base_model": NAME}
        assert (await raw.http.post("/api/v1/create_model", json=climbing)).status_code == 400


async def test_an_existing_name_is_adopted_replaced_or_refused_but_never_blocks(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        save = {"model_id": model_id, "path": "same"}
        first = await raw.run("save_weights", save)
        assert await raw.run("save_weights", save) == first
        record = raw.service.store.at(first["path"])
        await raw.run("forward_backward", train_body(model_id, None, [1, 2, 3]))
        refused = await raw.run("save_weights", save)
        assert refused["category"] == "user"
        assert "overwrite=True" in refused["error"]
        assert raw.service.store.at(first["path"]) == record
        assert await raw.run("save_weights", {**save, "overwrite": True}) == first
        assert raw.service.store.at(first["path"]).version == 1
        sampler = await raw.run("save_weights_for_sampler", save)
        await raw.run("optim_step", adam_body(model_id, None))
        assert await raw.run("save_weights_for_sampler", save) == sampler
        assert raw.service.store.at(sampler["path"]).version == 2


async def test_snapshots_in_memory_are_bounded(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        ids = []
        for number in range(66):
            body = {"model_id": model_id, "sampling_session_seq_id": number}
            ids.append((await raw.run("save_weights_for_sampler", body))["sampling_session_id"])
        oldest = await raw.run("asample", sample_body({"sampling_session_id": ids[0], "seq_id": 0}))
        assert "64 newer ones" in oldest["error"]
        assert "sequences" in await raw.run("asample", sample_body({"sampling_session_id": ids[-1], "seq_id": 0}))


async def test_silent_sessions_are_forgotten_with_what_they_held(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        old = await raw.session()
        model_id = await raw.model(old)
        await raw.run("save_weights_for_sampler", {"model_id": model_id, "sampling_session_seq_id": 0})
        raw.service.sessions[old].last_seen -= 7200
        kept = await raw.session()
        assert list(raw.service.sessions) == [kept]
        assert raw.service.models == {}
        assert (await raw.http.get(f"/api/v1/samplers/{old}:sample:0")).status_code == 404


async def test_unseeded_sampling_repeats_for_the_same_request_only(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        body = {"session_id": await raw.session(), "sampling_session_seq_id": 0, "base_model": NAME}
        session = (await raw.post("create_sampling_session", body))["sampling_session_id"]

        async def sampled(number: int) -> Any:
            source = {"sampling_session_id": session, "seq_id": number}
            return (await raw.run("asample", sample_body(source, seed=None, max_tokens=20)))["sequences"]

        first = await sampled(0)
        raw.service.futures.tidy(2e12)
        assert await sampled(0) == first
        assert await sampled(1) != first


async def test_a_cancelled_sample_says_so(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        request_id = (await raw.post("asample", sample_body({"base_model": NAME})))["request_id"]
        await raw.post("cancel_future", {"request_id": request_id})
        result = await raw.result(request_id)
        assert result.get("error", "cancelled by the client") == "cancelled by the client"


async def test_prompt_scores_cover_a_full_context(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(range(64))}]}
        body = sample_body({"base_model": NAME}, max_tokens=1, prompt_logprobs=True)
        result = await raw.run("asample", {**body, "num_samples": 1, "prompt": prompt})
        assert [s["tokens"] for s in result["sequences"]] == [[]]
        assert result["prompt_logprobs"][0] is None
        assert len(result["prompt_logprobs"]) == 64


async def test_unloading_frees_a_model_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        path = (await raw.run("save_weights", {"model_id": model_id, "path": "a"}))["path"]
        assert (await raw.run("unload_model", {"model_id": model_id}))["model_id"] == model_id
        failed = await raw.run("optim_step", adam_body(model_id, 1))
        assert "has been unloaded" in failed["error"]
        other = await raw.model()
        loaded = await raw.run("load_weights", {"model_id": other, "seq_id": 1, "path": path, "optimizer": True})
        assert loaded["path"] == path


async def test_a_model_can_begin_with_a_load(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        await raw.run("forward_backward", train_body(model_id, 1, [1, 2, 3]))
        await raw.run("optim_step", adam_body(model_id, 2))
        path = (await raw.run("save_weights", {"model_id": model_id, "seq_id": 3, "path": "a"}))["path"]
        body = {"session_id": await raw.session(), "model_seq_id": 0, "path": path, "optimizer": True}
        new = (await raw.run("load_weights", body))["model_id"]
        assert await raw.run("forward", train_body(new, 1, [1, 2, 3])) == await raw.run(
            "forward", train_body(model_id, 4, [1, 2, 3])
        )
        refused = await raw.http.post("/api/v1/load_weights", json={**body, "model_seq_id": 1, "path": "tinker://no"})
        assert refused.status_code == 404


async def test_compressed_bodies_are_read_and_unreadable_ones_refused(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        model_id = await raw.model()
        packed = zstandard.ZstdCompressor().compress(json.dumps(train_body(model_id, 1, [1, 2, 3])).encode())

        async def send(content: bytes, encoding: str) -> httpx.Response:
            headers = {"content-encoding": encoding}
            return await raw.http.post("/api/v1/forward_backward", content=content, headers=headers)

        for content, encoding, said in ((packed[:-4], "zstd", "cannot be unpacked"), (packed, "gzip", "not supported")):
            refused = await send(content, encoding)
            assert (refused.status_code, said in refused.text) == (400, True), refused.text
        assert (await send(packed, "zstd")).status_code == 200
        assert "loss:sum" in (await raw.result(f"{model_id}:1"))["metrics"]


async def test_clones_of_a_sampling_session_get_numbers_of_their_own(tmp_path: Path) -> None:
    async with raw_service(tmp_path) as raw:
        body = {"session_id": await raw.session(), "sampling_session_seq_id": 0, "base_model": NAME}
        join = {"sampling_session_id": (await raw.post("create_sampling_session", body))["sampling_session_id"]}
        counters = [(await raw.post("join_sampling_session", join))["client_counter"] for _ in range(3)]
        assert counters == [1, 2, 3]
