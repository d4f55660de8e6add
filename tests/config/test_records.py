"""What a start writes: no secret, atomic files, the lock of the run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import platoon
from platoon.config import ConfigError, RunLock, add_project_path, load, update_run_lock
from platoon.config.records import RESOLVED, dump_resolved, write_lock, write_process_record
from platoon.config.run_lock import FRESH_SECONDS, current_boot_id

from .conftest import MINIMAL, Write

HOLD = """
import sys
from pathlib import Path
from platoon.config import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_no_secret_is_written_or_shown(write: Write) -> None:
    secret = "k-123456"
    path = write({**MINIMAL, "stats": {"wandb": {"api_key": secret}}})
    overrides = [f"stats.wandb.api_key={secret}", f"stats.wandb={{api_key: {secret}, notes: null}}"]
    loaded = load(path, overrides)
    assert loaded.train_config.stats.wandb.api_key == secret
    assert secret not in repr(loaded.config)
    assert all(secret not in override for override in loaded.overrides)
    target = path.parent / "out" / RESOLVED
    dump_resolved(loaded, target)
    text = target.read_text()
    assert secret not in text
    assert "# not written: stats.wandb.api_key" in text
    assert "notes: null" in text
    write_lock(target.parent, ["train", str(path), *overrides])
    assert secret not in (target.parent / "lock.json").read_text()
    with pytest.raises(ConfigError) as caught:
        load(path, {"stats.wandb": [{"api_key": secret}]})
    assert secret not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(path, {"stats.wandb.api_key": 123456})
    assert "123456" not in str(caught.value)


def test_the_resolved_file_says_where_it_came_from(write: Write) -> None:
    base = write(MINIMAL, "base.yaml")
    loaded = load(write({"extends": "base.yaml"}), ["train.renderer_kwargs.x=a\nb"])
    target = base.parent / RESOLVED
    dump_resolved(loaded, target)
    head = [line for line in target.read_text().splitlines() if line.startswith("#")]
    assert head == [
        f"# written by platoon {platoon.__version__}",
        f"# source: {base}",
        f"# source: {loaded.path}",
        "# override: train.renderer_kwargs.x=a\\nb",
    ]
    assert not list(base.parent.glob(".*.partial"))


def test_a_resolved_file_finds_the_projects_modules(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(write(MINIMAL, "project/run.yaml"))
    target = loaded.path.parent.parent / "elsewhere" / RESOLVED
    dump_resolved(loaded, target)
    monkeypatch.setattr(sys, "path", ["first"])
    add_project_path(load(target))
    assert sys.path == ["first", str(target.parent), str(loaded.path.parent)]


def test_lock_json(tmp_path: Path) -> None:
    written = write_lock(tmp_path, ["train", "x.yaml"], entry_settings={"a": 1})
    update_run_lock(tmp_path, excluded_tasks={"b": 2})
    lock = json.loads((tmp_path / "lock.json").read_text())
    assert lock == {**written, "excluded_tasks": {"b": 2}}
    assert lock["versions"]["platoon"] == platoon.__version__
    assert set(lock["versions"]) == {"platoon", "tinker", "tinker_cookbook", "openreward", "hpc_sandbox"}
    assert lock["argv"] == ["train", "x.yaml"]
    assert lock["platoon_git_sha"] is None or len(lock["platoon_git_sha"]) == 40
    with pytest.raises(ConfigError, match="cannot be read"):
        update_run_lock(tmp_path / "none", a=1)
    write_process_record(tmp_path, "train")
    record = json.loads((tmp_path / "process.json").read_text())
    assert (record["pid"], record["label"]) == (os.getpid(), {"platoon.run": str(tmp_path)})


def hold(run_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_kill_frees_the_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = hold(run_dir)
    try:
        with pytest.raises(ConfigError, match=f"in use by process {first.pid} on host"), RunLock(run_dir):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert (run_dir / "owner.json").exists()
    with RunLock(run_dir):
        assert json.loads((run_dir / "owner.json").read_text())["pid"] == os.getpid()
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"), RunLock(run_dir):
            pass
    assert not (run_dir / "owner.json").exists()
    with RunLock(run_dir):
        pass


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Upf", "--map-root-user", "true"], capture_output=True).returncode != 0,
    reason="this machine makes no PID namespaces for us",
)
def test_another_pid_namespace_is_refused_too(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        inside = subprocess.run(
            ["unshare", "-Upf", "--map-root-user", sys.executable, "-c", HOLD, str(tmp_path)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    assert inside.returncode == 1
    assert f"in use by process {os.getpid()}" in inside.stderr


def test_another_machine_counts_as_live_while_its_heartbeat_is_fresh(tmp_path: Path) -> None:
    now = 1_000_000.0
    owner = {"host": "far", "boot_id": "other", "pid": 7, "heartbeat": now}
    for age, free in ((FRESH_SECONDS - 1, False), (FRESH_SECONDS + 1, True)):
        (tmp_path / "owner.json").write_text(json.dumps(owner))
        lock = RunLock(tmp_path, clock=lambda age=age: now + age)  # type: ignore[misc]
        if free:
            with lock:
                pass
        else:
            with pytest.raises(ConfigError, match="process 7 on host far"), lock:
                pass
    (tmp_path / "owner.json").write_text(json.dumps({**owner, "boot_id": current_boot_id()}))
    with RunLock(tmp_path, clock=lambda: now):
        pass
    (tmp_path / "owner.json").write_text("{torn")
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize(("key", "remedy"), [("stats.trial_name", "log_path"), ("inference.output_dir",) * 2])
def test_a_place_that_cannot_hold_results_is_a_problem_of_the_configuration(
    tmp_path: Path, key: str, remedy: str
) -> None:
    (tmp_path / "file").write_text("")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=f"cannot hold the results: .*use {remedy}"), RunLock(run_dir, key=key):
            pass
