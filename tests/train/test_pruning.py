"""Which recovery checkpoints go, what a service may answer, and a real run that deletes its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from platoon.stats.jsonl import append_row, read_jsonl
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.failures import DeletionUnsupported, ServiceError
from platoon.train.pruning import FILE, Pruner, PrunerParts, Rules, doomed
from platoon.train.run import train_run
from tests.train.running import loaded, run_dir


def row(name: str, *, start: int = 1, version: int | None = 0, run: str = "m") -> dict[str, Any]:
    record = {"file": f"tasks/state-s{start}-{name}.parquet", "start": start}
    return {
        "name": name,
        "batch": 0,
        "state_path": f"tinker://{run}/weights/{name}",
        "sampler_path": f"tinker://{run}/sampler_weights/{name}",
        "policy_version": version,
        "tasks": record,
        "dispatch": {**record, "file": f"tasks/dispatch-s{start}-{name}.json", "kept": f"tasks/kept-s{start}-{name}.x"},
    }


RULES = Rules(keep=2, start=2, bound=1, version=9)
SIX = [row(f"recovery-{n:06d}", version=n) for n in range(6)]


def names(rows: list[dict[str, Any]], rules: Rules = RULES, gone: tuple[str, ...] = ()) -> list[str]:
    return [one.name for one in doomed(rows, gone, rules)]


def test_the_newest_stay_and_the_oldest_go_first() -> None:
    assert names(SIX) == [f"recovery-{n:06d}" for n in range(4)]


def test_what_is_recorded_as_gone_neither_counts_as_kept_nor_goes_again() -> None:
    gone = tuple(path for one in SIX[-1:] for path in (one["state_path"], one["sampler_path"]))
    assert names([*SIX, row("final")], gone=gone) == ["recovery-000000", "recovery-000001", "recovery-000002"]


def test_a_state_that_is_gone_still_loses_its_sampler_weights() -> None:
    gone = (SIX[0]["state_path"],)
    assert names(SIX, gone=gone)[0] == "recovery-000000"


def test_permanent_rows_resume_point_and_samplers_in_use_protect() -> None:
    shared = {**row("000001"), "sampler_path": SIX[1]["sampler_path"]}
    rules = Rules(2, 2, 1, 9, in_use=(SIX[2]["sampler_path"],))
    assert names([*SIX, shared], rules) == ["recovery-000000", "recovery-000003"]
    one = [row("recovery-000000"), row("final")]
    assert names([*one, {**SIX[0], "name": "recovery-000009"}], Rules(1, 2, 0, 9)) == []


def test_this_starts_checkpoints_within_the_bound_stay() -> None:
    rows = [row(f"recovery-{n:06d}", start=2, version=n) for n in range(6)]
    assert names(rows, Rules(1, start=2, bound=3, version=5)) == ["recovery-000000", "recovery-000001"]
    assert names(rows, Rules(1, start=3, bound=3, version=5)) == [f"recovery-{n:06d}" for n in range(5)]
    assert names([row("recovery-000000", start=2, version=None), *SIX[1:]], Rules(1, 2, 0, 99))[0] == "recovery-000001"


def test_paths_of_another_form_stay() -> None:
    odd = {**SIX[0], "state_path": "/weights/recovery-000000", "sampler_path": "tinker://m/other/x"}
    assert names([odd, *SIX[1:]])[0] == "recovery-000001"


class Service:
    """A remover that answers as told: by path, else `deleted`."""

    def __init__(self, answers: Mapping[str, str | Exception] | None = None, default: str = "deleted") -> None:
        self.answers, self.default = answers or {}, default
        self.asked: list[str] = []
        self.closed = False

    async def delete(self, path: str) -> Literal["deleted", "absent"]:
        self.asked.append(path)
        answer = self.answers.get(path, self.default)
        if isinstance(answer, Exception):
            raise answer
        return "absent" if answer == "absent" else "deleted"

    async def close(self) -> None:
        self.closed = True


async def prune(directory: Path, rows: list[dict[str, Any]], service: Service, rules: Rules = RULES) -> Pruner:
    """One pass over the rows; the pruner after it."""
    for one in rows:
        append_row(directory / "checkpoints.jsonl", one)

    async def open_remover() -> Service:
        return service

    pruner = Pruner(PrunerParts(directory, lambda: rules, open_remover))
    pruner.saved()
    running = asyncio.create_task(pruner.run())
    await pruner.idle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return pruner


def recorded(directory: Path) -> list[tuple[str, str]]:
    return [(one["path"], one["result"]) for one in read_jsonl(directory / FILE).rows]


async def test_a_pass_records_what_it_deleted_and_removes_the_files_of_those_rows(tmp_path: Path) -> None:
    for file in ("tasks/state-s1-recovery-000000.parquet", "tasks/kept-s1-recovery-000000.x", "tasks/events.jsonl"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    service = Service()
    pruner = await prune(tmp_path, SIX, service)
    assert service.asked == [path for one in SIX[:4] for path in (one["state_path"], one["sampler_path"])]
    assert recorded(tmp_path) == [(path, "deleted") for path in service.asked]
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["events.jsonl"]
    assert service.closed
    assert pruner.metrics() == {
        "checkpoint/deleted": 8.0,
        "checkpoint/delete_failures": 0.0,
        "checkpoint/recovery_kept": 2,
        "checkpoint/pruning": 0.0,
    }


async def test_saves_one_after_the_other_are_each_pruned_once(tmp_path: Path) -> None:
    """Whatever earlier passes deleted, and an earlier process recorded, is never asked for again."""
    service = Service()
    await prune(tmp_path, SIX[:4], Service())

    async def open_remover() -> Service:
        return service

    pruner = Pruner(PrunerParts(tmp_path, lambda: RULES, open_remover))
    running = asyncio.create_task(pruner.run())
    saves = [row(f"recovery-{n:06d}", version=n) for n in range(4, 10)]
    for number, one in enumerate(saves):
        append_row(tmp_path / "checkpoints.jsonl", one)
        pruner.saved()
        await pruner.idle()
        standing = [*SIX[2:4], *saves][number : number + 1]
        assert service.asked[2 * number :] == [standing[0]["state_path"], standing[0]["sampler_path"]]
        assert pruner.metrics()["checkpoint/recovery_kept"] == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_row_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "tasks" / "groups").mkdir(parents=True)
    (tmp_path / "tasks" / "groups" / "part.parquet").touch()
    (tmp_path / "lock.json").touch()
    bad = {**SIX[0], "tasks": {"file": "tasks/groups/part.parquet"}, "dispatch": {"file": "tasks/../lock.json"}}
    await prune(tmp_path, [bad, *SIX[1:]], Service())
    assert (tmp_path / "tasks" / "groups" / "part.parquet").exists()
    assert (tmp_path / "lock.json").exists()


async def test_absence_is_believed_only_after_a_deletion(tmp_path: Path) -> None:
    service = Service({SIX[0]["state_path"]: "absent", SIX[1]["state_path"]: "absent"})
    pruner = await prune(tmp_path, SIX, service)
    assert (SIX[0]["state_path"], "absent") not in recorded(tmp_path)
    assert (SIX[1]["state_path"], "absent") in recorded(tmp_path)
    assert pruner.metrics()["checkpoint/delete_failures"] == 0


async def test_a_service_without_the_route_is_left_alone_after_three(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(f"recovery-{n:06d}", start=2, version=n) for n in range(8)]
    pruner = await prune(tmp_path, rows, Service(default="absent"))
    assert pruner.metrics()["checkpoint/delete_failures"] == 3
    assert recorded(tmp_path) == []
    assert "not deleted any more by this start" in caplog.text


@pytest.mark.parametrize(
    ("error", "asked", "said"),
    [
        (DeletionUnsupported("HTTP 405: no"), 1, "cannot delete checkpoints (HTTP 405: no)"),
        (ServiceError("out of disk"), 3, "3 deletions in a row failed"),
    ],
)
async def test_a_service_that_refuses_ends_pruning_not_the_run(
    error: Exception, asked: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service({path: error for one in SIX for path in (one["state_path"], one["sampler_path"])})
    pruner = await prune(tmp_path, SIX, service)
    assert len(service.asked) == asked
    assert said in caplog.text
    pruner.saved()
    await pruner.idle(seconds=1)  # nothing is owed any more


async def test_a_run_deletes_its_old_recovery_checkpoints(tmp_path: Path) -> None:
    overrides = {"checkpoint__recovery_every": 1, "checkpoint__keep_recovery": 2}
    await train_run(loaded(tmp_path, **overrides))
    directory = run_dir(tmp_path)
    gone = {path for path, result in recorded(directory) if result == "deleted"}
    assert gone == {
        one[key]
        for one in read_jsonl(directory / "checkpoints.jsonl").rows
        for key in ("state_path", "sampler_path")
        if one["name"] in {f"recovery-{n:06d}" for n in range(5)}
    }
    served = {file.read_text() for file in (directory / "service").glob("**/records/*.json")}
    assert len(served) == 6  # two recovery checkpoints and the final one, state and sampler weights each
    kept = sorted(path.name for path in (directory / "tasks").glob("state-*"))
    assert kept == [f"state-s1-{name}.parquet" for name in ("final", "recovery-000005", "recovery-000006")]
    keys = set(read_table(directory, "metrics")["key"])
    assert {"checkpoint/deleted", "checkpoint/delete_failures", "checkpoint/pruning"} <= keys
    extended = await train_run(loaded(tmp_path, **overrides, train__max_training_steps=8, eval__every=0))
    assert extended.step == 8
    assert audit_run(directory).problems == []
