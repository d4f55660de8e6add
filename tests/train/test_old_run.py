"""A run that platoon 0.4.0 wrote goes on here: scheduler, statistics and kept groups as they stood."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platoon.config.service_address import ServiceAddress
from platoon.stats.jsonl import read_jsonl
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.local_service import local_service
from platoon.train.run import open_training
from platoon.train.service import SavedWeights, ServiceSession
from tests.train.running import loaded, run_dir

FIXTURE = Path(__file__).parents[1] / "stats" / "fixtures" / "run-written-by-platoon-0.4.0"
STATE = json.loads((FIXTURE / "tasks/state-s1-000016_interrupted.json").read_text())
DISPATCH = json.loads((FIXTURE / "tasks/dispatch-s1-000016_interrupted.json").read_text())
KEPT = json.loads(gzip.decompress((FIXTURE / "tasks/kept-s1-000016_interrupted.json.gz").read_bytes()))["groups"]
SETTINGS: dict[str, Any] = {
    "train__batch_size": 4,
    "train__max_staleness": 2,
    "train__max_training_steps": 20,
    "train__workflow_config__group_size": 8,
    "train__sampling_seed": None,
    "eval__every": 0,
    "eval__at_start": False,
    "environments": [{"name": "d", "service": "digits:Digits", "harness": "platoon-react"}],
}


async def saved(url: str) -> SavedWeights:
    """A checkpoint of the embedded service, in the place of the one that the old run's service holds."""
    session = await ServiceSession.open(ServiceAddress.embedded(url), run="old")
    try:
        await session.create("platoon-tiny", 32)
        return await session.save("000016_interrupted")
    finally:
        await session.close()


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """The old run's directory, its newest weights mapped to a checkpoint of the embedded service."""
    target = run_dir(tmp_path)
    shutil.copytree(FIXTURE, target)
    async with local_service(target / "service", "platoon-tiny") as url:
        weights = await saved(url)
    rows = read_jsonl(target / "checkpoints.jsonl").rows
    rows[-1] |= {"state_path": weights.state_path, "sampler_path": weights.sampler_path}
    (target / "checkpoints.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return target


async def test_state_is_taken_up_exactly_and_the_run_goes_on(directory: Path, tmp_path: Path) -> None:
    async with open_training(loaded(tmp_path, **SETTINGS)) as run:
        assert run.state is not None
        assert (run.state.train_step, run.state.policy_version, run.state.optimizer_steps) == (16, 16, 16)
        launch = read_jsonl(directory / "checkpoints.jsonl").rows[-1]
        assert (launch["name"], launch["dispatch"]["start"]) == ("recovery-000016", 2)
        taken_up = json.loads((directory / launch["dispatch"]["file"]).read_text())
        check_dispatch(taken_up)
        check_statistics(directory)
        check_kept(directory / launch["dispatch"]["kept"])
        while not run.finished:
            await run.step()
        assert (await run.finish()).step == 20
    audit = audit_run(directory)
    assert audit.problems == []
    assert sorted(audit.fates) == list(range(80))
    assert set(audit.fates.values()) <= {"consumed", "stale"}
    lock = json.loads((directory / "lock.json").read_text())
    assert "sampling_changed" not in lock
    assert "tasks_state_lost" not in lock


def check_dispatch(state: dict[str, Any]) -> None:
    """Kept groups keep their keys; the other open draws come again at their old positions."""
    assert state["next_position"] == DISPATCH["next_position"]
    assert state["fingerprint"] == DISPATCH["fingerprint"]
    kept = {tuple(key) for key in DISPATCH["kept"]["groups"]}
    now = {(start, seq): (task, position) for start, seq, task, position in state["outstanding"]}
    before = {(start, seq): (task, position) for start, seq, task, position in DISPATCH["outstanding"]}
    assert {key: now[key] for key in kept} == {key: before[key] for key in kept}
    assert sorted(now.values()) == sorted(before.values())
    again = sorted(key for key in now if key not in kept)
    assert again == [(2, seq) for seq in range(4)]
    assert [now[key] for key in again] == [before[key] for key in sorted(set(before) - kept)]


def check_statistics(directory: Path) -> None:
    from platoon.stats.snapshot import read_recorded

    row = read_jsonl(directory / "checkpoints.jsonl").rows[-1]
    taken_up = read_recorded(directory, row)
    assert taken_up is not None
    for key in ("run", "entries", "labels", "column", "group_size", "half_life_versions", "prior_strength"):
        assert taken_up[key] == STATE[key], key
    assert taken_up["tasks"] == STATE["tasks"]


def check_kept(path: Path) -> None:
    """Token for token and bit for bit what the old file holds, in its order."""
    from platoon.train.kept import read_kept

    groups = read_kept(path, None)
    assert [list(group.key) for group in groups] == [group["key"] for group in KEPT]
    for group, old in zip(groups, KEPT, strict=True):
        assert group.output is not None
        assert group.output.verdict == old["output"]["verdict"]
        for datum, was in zip(group.output.datums, old["output"]["datums"], strict=True):
            inputs = was["loss_fn_inputs"]
            tokens = [token for chunk in was["model_input"]["chunks"] for token in chunk["tokens"]]
            assert datum.tokens_T.tolist() == tokens
            assert datum.targets_T.tolist() == inputs["target_tokens"]["data"]
            assert datum.version == inputs["checkpoint_version"]["data"][0]
            for array, name in ((datum.logprobs_T, "logprobs"), (datum.advantages_T, "advantages")):
                assert array.dtype == np.float32
                assert array.tobytes() == floats(inputs[name]).tobytes()


def floats(tensor: dict[str, Any]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    import base64

    return np.frombuffer(base64.b64decode(tensor["f4"]), "<f4")


async def test_statistics_after_the_takeover_count_both_releases_groups(directory: Path, tmp_path: Path) -> None:
    async with open_training(loaded(tmp_path, **{**SETTINGS, "train__max_training_steps": 18})) as run:
        while not run.finished:
            await run.step()
        await run.finish()
    groups = read_table(directory, "groups")
    row = read_jsonl(directory / "checkpoints.jsonl").rows[-1]
    from platoon.stats.snapshot import read_recorded

    data = read_recorded(directory, row)
    assert data is not None
    assert data["run"]["groups"] == STATE["run"]["groups"] + len(groups)
