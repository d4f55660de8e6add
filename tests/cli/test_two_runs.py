"""One run directory, one process: the second `platoon train` is refused, wherever it runs, until the first is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from platoon.stats.jsonl import read_jsonl
from tests.train.running import command, run_dir, start, wait_until

NAMESPACE = ("unshare", "-Upf", "--map-root-user", "--mount-proc")
MAY_UNSHARE = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def second(log_path: Path, steps: int, *, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    argv = [*within, *command(log_path, f"train.max_training_steps={steps}", "eval.every=0", "eval.at_start=false")]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_directory_in_use_is_refused_and_free_after_a_kill(tmp_path: Path) -> None:
    first = start(tmp_path, "train.max_training_steps=100000")
    try:
        wait_until(lambda: (run_dir(tmp_path) / "checkpoints.jsonl").exists(), first)
        lock = (run_dir(tmp_path) / "lock.json").read_bytes()
        places: list[Sequence[str]] = [(), NAMESPACE] if MAY_UNSHARE else [()]
        for within in places:
            refused = second(tmp_path, 100000, within=within)
            assert refused.returncode == 78, refused.stderr
            assert f"{run_dir(tmp_path)} is in use by process {first.pid} on host" in refused.stderr
        assert (run_dir(tmp_path) / "lock.json").read_bytes() == lock
        owner = json.loads((run_dir(tmp_path) / "owner.json").read_text())
        assert owner["pid"] == first.pid
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    saved = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]["batch"]
    again = second(tmp_path, saved + 1)
    assert again.returncode == 0, again.stderr
    assert read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]["batch"] == saved + 1


def test_a_bad_key_of_the_service_is_one_line(tmp_path: Path) -> None:
    argv = [*command(tmp_path, "tinker_base_url=http://127.0.0.1:9")]
    for key, words in ((None, "TINKER_API_KEY"), ("abc", "tml-")):
        env = {name: value for name, value in os.environ.items() if name != "TINKER_API_KEY"}
        env |= {"TINKER_API_KEY": key} if key is not None else {}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
        assert done.returncode == 78
        lines = [line for line in done.stderr.splitlines() if line.startswith("platoon: ") and words in line]
        assert len(lines) == 1
        assert "abc" not in lines[0]
    assert not run_dir(tmp_path).exists()


def test_an_unexpected_failure_is_1_with_its_traceback(tmp_path: Path) -> None:
    argv = command(tmp_path, "environments.0.service=saying:Unlisted")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: no tasks to share\nwhile environments[default] listed the tasks of train" in done.stderr
