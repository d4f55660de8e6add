"""The public `tinker` SDK against the served small model: a client's whole life."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from platoon.train.local_service import local_service
from tests.service.conftest import KEY
from tests.service.small import NAME, TOKENIZER

ADAM = types.AdamParams(learning_rate=3e-2)
TARGET = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def datum(tokens: list[int], **inputs: Any) -> types.Datum:
    """Predict each next token; `inputs` replace the weights of cross entropy."""
    count = len(tokens) - 1
    given = inputs or {"weights": np.ones(count, np.float32)}
    arrays = {"target_tokens": np.asarray(tokens[1:], np.int64), **given}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=arrays)


def step(client: Any, rows: list[list[int]]) -> float:
    """One training step; the loss before it."""
    loss = client.forward_backward([datum(row) for row in rows], "cross_entropy")
    client.optim_step(ADAM).result()
    return float(loss.result().metrics["loss:sum"])


def scores(client: Any, tokens: list[int]) -> list[float]:
    """Train logprobs of a row, without a gradient."""
    output = client.forward([datum(tokens)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    return [float(value) for value in output.data]


def sample(sampler: Any, *, seed: int | None = 7, count: int = 2, **params: Any) -> Any:
    settings = types.SamplingParams(max_tokens=8, seed=seed, **params)
    return sampler.sample(types.ModelInput.from_ints(TARGET[:2]), count, settings).result().sequences


def trainer(sdk: Any) -> Any:
    return sdk.create_lora_training_client(base_model=NAME, rank=8)


def test_capabilities_and_info(sdk: Any) -> None:
    [model] = sdk.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == (NAME, 64)
    info = trainer(sdk).get_info()
    assert (info.lora_rank, info.model_data.tokenizer_id) == (8, str(TOKENIZER))


def test_training_lowers_the_loss_and_the_sampler_follows(sdk: Any) -> None:
    client = trainer(sdk)
    losses = [step(client, [TARGET] * 4) for _ in range(40)]
    assert losses[-1] < losses[0] / 10
    sampler = client.save_weights_and_get_sampling_client()
    for sequence in sample(sampler, temperature=0.0):
        assert sequence.tokens == TARGET[2:]
        assert len(sequence.logprobs) == 8
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(TARGET)).result()
    assert scored[0] is None
    assert np.allclose(scored[1:], scores(client, TARGET), atol=1e-5)


def test_a_saved_optimizer_continues_as_if_never_stopped(sdk: Any) -> None:
    client = trainer(sdk)
    for _ in range(3):
        step(client, [TARGET])
    path = client.save_state("three").result().path
    resumed = sdk.create_training_client_from_state_with_optimizer(path)
    cold = sdk.create_training_client_from_state(path)
    for each in (client, resumed, cold):
        for row in (TARGET, TARGET[::-1]):
            step(each, [row])
    assert scores(resumed, TARGET) == scores(client, TARGET)
    assert scores(cold, TARGET) != scores(client, TARGET)


def test_requests_submitted_ahead_equal_requests_awaited_one_by_one(sdk: Any) -> None:
    ahead, awaited = trainer(sdk), trainer(sdk)
    rows = [TARGET, TARGET[::-1]]
    futures: list[Any] = []
    for row in rows:
        futures.append(ahead.forward_backward([datum(row)] * 3, "cross_entropy"))
        futures.append(ahead.optim_step(ADAM))
    for future in futures:
        future.result()
    for row in rows:
        awaited.forward_backward([datum(row)] * 3, "cross_entropy").result()
        awaited.optim_step(ADAM).result()
    assert scores(ahead, TARGET) == scores(awaited, TARGET)


def test_a_call_that_the_sdk_cuts_into_chunks_is_one_gradient(sdk: Any) -> None:
    """More rows than one request holds (1,024), with the optimizer step submitted behind them."""
    client = trainer(sdk)
    rows = [datum(TARGET[:3])] * 1500
    loss = client.forward_backward(rows, "cross_entropy")
    client.optim_step(ADAM)
    assert len(loss.result().loss_fn_outputs) == 1500
    before = trainer(sdk).forward([datum(TARGET[:3])], "cross_entropy").result().metrics["loss:sum"]
    assert loss.result().metrics["loss:sum"] == pytest.approx(1500 * before, rel=1e-4)


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo", "dro"])
def test_policy_losses_raise_what_was_better(sdk: Any, loss_fn: str) -> None:
    client = trainer(sdk)
    old = scores(client, TARGET)
    inputs = {"logprobs": np.asarray(old, np.float32), "advantages": np.ones(len(old), np.float32)}
    output = client.forward_backward([datum(TARGET, **inputs)], loss_fn).result()
    client.optim_step(ADAM).result()
    assert [float(v) for v in output.loss_fn_outputs[0]["logprobs"].data] == old
    assert sum(scores(client, TARGET)) > sum(old)


def test_seeded_samples_repeat_and_seeds_differ(sdk: Any) -> None:
    sampler = sdk.create_sampling_client(base_model=NAME)
    first = [s.tokens for s in sample(sampler)]
    assert [s.tokens for s in sample(sampler)] == first
    assert [s.tokens for s in sample(sampler, seed=8)] != first
    assert [s.tokens for s in sample(sampler, count=1)] == first[:1]
    copy = pickle.loads(pickle.dumps(sampler))
    assert [s.tokens for s in sample(copy)] == first


def test_stop_tokens_and_unseeded_samples(sdk: Any) -> None:
    sampler = sdk.create_sampling_client(base_model=NAME)
    [plain] = sample(sampler, count=1)
    [stopped] = sample(sampler, count=1, stop=[plain.tokens[2]])
    assert stopped.stop_reason == "stop"
    assert stopped.tokens == plain.tokens[: plain.tokens.index(plain.tokens[2]) + 1]
    assert [s.tokens for s in sample(sampler, seed=None)] != [s.tokens for s in sample(sampler, seed=None)]


@pytest.mark.parametrize(
    ("loss_fn", "tokens", "said"),
    [("gspo", TARGET, "unknown loss function 'gspo'"), ("cross_entropy", [1, 4000], "4000")],
)
def test_wrong_requests_are_user_errors_and_the_client_goes_on(
    sdk: Any, loss_fn: Any, tokens: list[int], said: str
) -> None:
    client = trainer(sdk)
    with pytest.raises(tinker.RequestFailedError, match=said) as failure:
        client.forward_backward([datum(tokens)], loss_fn).result(timeout=20)
    assert failure.value.category is types.RequestErrorCategory.User
    assert step(client, [TARGET]) > 0


def test_an_existing_name_fails_at_once_and_later_calls_go_on(sdk: Any) -> None:
    client = trainer(sdk)
    path = client.save_state("name").result().path
    assert client.save_state("name").result().path == path
    step(client, [TARGET])
    with pytest.raises(tinker.RequestFailedError, match="overwrite=True"):
        client.save_state("name").result(timeout=20)
    assert client.save_state("name", overwrite=True).result(timeout=20).path == path


def test_checkpoints_are_listed_deleted_and_expire(sdk: Any) -> None:
    client = trainer(sdk)
    state = client.save_state("a", ttl_seconds=3600).result().path
    sampler = client.save_weights_for_sampler("a").result().path
    assert state == f"tinker://{client.model_id}/weights/a"
    assert sampler == f"tinker://{client.model_id}/sampler_weights/a"
    rest = sdk.create_rest_client()
    listed = {c.tinker_path: c for c in rest.list_checkpoints(client.model_id).result().checkpoints}
    assert set(listed) == {state, sampler}
    assert listed[state].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(state, None).result()
    assert rest.list_checkpoints(client.model_id).result().checkpoints[0].expires_at is None
    run = rest.get_training_run_by_tinker_path(state).result()
    assert (run.base_model, run.lora_rank, run.last_checkpoint.tinker_path) == (NAME, 8, state)
    assert client.model_id in [r.training_run_id for r in rest.list_training_runs(limit=100).result().training_runs]
    rest.delete_checkpoint_from_tinker_path(sampler).result()
    assert sampler not in [c.tinker_path for c in rest.list_user_checkpoints(limit=1000).result().checkpoints]
    with pytest.raises(tinker.NotFoundError):
        sdk.create_sampling_client(model_path=sampler)


def test_a_wrong_key_is_refused_at_once(service_url: str) -> None:
    with pytest.raises(tinker.AuthenticationError):
        tinker.ServiceClient(base_url=service_url, api_key="tml-wrong").get_server_capabilities()


async def test_a_restarted_service_has_its_checkpoints_and_new_model_ids(tmp_path: Path) -> None:
    def first(url: str) -> tuple[str, str, str, list[int], list[float]]:
        sdk = tinker.ServiceClient(base_url=url, api_key=KEY)
        client = trainer(sdk)
        step(client, [TARGET])
        state = client.save_state("a").result().path
        weights = client.save_weights_for_sampler("a").result().path
        tokens = sample(client.create_sampling_client(weights))[0].tokens
        step(client, [TARGET])
        trained = scores(client, TARGET)
        sdk.holder.close()
        return client.model_id, state, weights, tokens, trained

    def second(url: str, state: str, weights: str) -> tuple[str, list[int], list[float]]:
        sdk = tinker.ServiceClient(base_url=url, api_key=KEY)
        assert sdk.create_rest_client().get_weights_info_by_tinker_path(state).result().lora_rank == 8
        client = trainer(sdk)
        client.load_state_with_optimizer(state).result()
        step(client, [TARGET])
        again = sample(sdk.create_sampling_client(model_path=weights))[0].tokens
        resumed = scores(client, TARGET)
        sdk.holder.close()
        return client.model_id, again, resumed

    async with local_service(tmp_path, NAME, key=KEY) as url:
        old_id, state, weights, tokens, trained = await asyncio.to_thread(first, url)
    async with local_service(tmp_path, NAME, key=KEY) as url:
        new_id, again, resumed = await asyncio.to_thread(second, url, state, weights)
    assert new_id != old_id
    assert again == tokens
    assert resumed == trained
