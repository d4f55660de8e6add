"""Restarts of a run that dies: when there are any, and what a signal to the supervisor does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platoon.stats.jsonl import read_jsonl
from platoon.train.supervise import FINAL_CODES, Restarts, Supervisor, resume_step
from tests.train.running import command, finish, run_dir, wait_until, weights

CODES = st.sampled_from([0, 1, 2, 78, 130, 137, 143])


@given(st.lists(st.tuples(CODES, st.integers(0, 1)), min_size=1, max_size=30), st.integers(0, 12))
def test_a_run_is_started_again_within_its_bounds(starts: list[tuple[int, int]], most: int) -> None:
    restarts, step, made, barren = Restarts(most), 0, 0, 0
    for code, moved in starts:
        made += 1
        barren = 0 if moved else barren + 1
        again = restarts.again(code, step, step + moved)
        step += moved
        assert again == (code not in FINAL_CODES and barren < 3 and made <= most)
        if not again:
            break
    assert made <= most + 1


START = """
import json, os, sys
path, codes = sys.argv[1], json.loads(sys.argv[2])
state = os.path.join(path, "count")
count = int(open(state).read()) if os.path.exists(state) else 0
open(state, "w").write(str(count + 1))
code, step = codes[count]
with open(os.path.join(path, "checkpoints.jsonl"), "a") as file:
    file.write(json.dumps({"name": "x", "batch": step, "state_path": "tinker://x"}) + "\\n")
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("codes", "most", "result", "starts"),
    [
        ([(0, 1)], 5, 0, 1),
        ([(1, 1), (2, 2), (0, 3)], 5, 0, 3),
        ([(1, 1), (78, 1)], 5, 78, 2),
        ([(1, 1), (1, 2), (1, 3)], 1, 1, 2),
        ([(1, 0), (1, 0), (1, 0), (0, 9)], 9, 1, 3),
        ([(1, 0), (1, 0), (1, 1), (1, 1), (1, 1), (1, 1), (0, 1)], 9, 1, 6),
        ([(-9, 1), (0, 2)], 5, 0, 2),
        ([(-9, 1), (-9, 2)], 1, 137, 2),
    ],
)
def test_starts_of_a_run(codes: list[tuple[int, int]], most: int, result: int, starts: int, tmp_path: Path) -> None:
    reaped: list[Path] = []
    start = [sys.executable, "-c", START, str(tmp_path), json.dumps(codes)]
    supervisor = Supervisor(start, tmp_path, Restarts(most), reap=reaped.append)
    assert supervisor.run() == result
    assert int((tmp_path / "count").read_text()) == starts
    assert reaped == [tmp_path] * (starts - 1)
    assert resume_step(tmp_path) == codes[starts - 1][1]


def supervised(log_path: Path, *overrides: str) -> subprocess.Popen[str]:
    log_path.mkdir(parents=True, exist_ok=True)
    with (log_path / "output").open("a") as output:
        argv = command(log_path, "watchdog.max_restarts=3", *overrides)
        return subprocess.Popen(argv, stdout=output, stderr=output, text=True, start_new_session=True)


def checkpoints(log_path: Path) -> int:
    path = run_dir(log_path) / "checkpoints.jsonl"
    return len(read_jsonl(path).rows) if path.exists() else 0


def trainer(log_path: Path) -> int:
    """The process that trains, from process.json."""
    record = json.loads((run_dir(log_path) / "process.json").read_text())
    assert record["pid"] != record["trainer_pid"]
    return int(record["trainer_pid"])


def test_a_killed_run_goes_on_by_itself_and_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    assert finish(plain).returncode == 0
    process = supervised(watched)
    wait_until(lambda: checkpoints(watched) >= 2, process)
    os.kill(trainer(watched), signal.SIGKILL)
    assert process.wait(120) == 0, (watched / "output").read_text()
    assert "start 2 of 4 follows" in (watched / "output").read_text()
    assert weights(run_dir(watched)) == weights(run_dir(plain))
    header = (run_dir(watched) / "config.resolved.yaml").read_text().splitlines()
    assert any(line.endswith("tests/train/project/run.yaml") for line in header if line.startswith("# source: "))


def test_a_signal_to_the_supervisor_stops_the_run_with_a_final_save(tmp_path: Path) -> None:
    process = supervised(tmp_path, "train.max_training_steps=1000")
    wait_until(lambda: checkpoints(tmp_path) >= 2, process)
    process.terminate()
    assert process.wait(60) == 0, (tmp_path / "output").read_text()
    assert read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]["name"].endswith("_interrupted")


def test_a_signal_before_training_began_ends_with_130(tmp_path: Path) -> None:
    process = supervised(tmp_path)
    wait_until(lambda: (run_dir(tmp_path) / "config.resolved.yaml").exists(), process)
    process.terminate()
    ended = (0, 130, 143, -signal.SIGTERM)  # the last: the supervisor had not begun, and died of it
    assert process.wait(60) in ended, (tmp_path / "output").read_text()
    assert checkpoints(tmp_path) == 0 or process.returncode == 0


def test_a_bad_configuration_is_not_tried_again(tmp_path: Path) -> None:
    process = supervised(tmp_path, "environments.0.harness=platoon-reakt")
    assert process.wait(60) == 78
    assert (tmp_path / "output").read_text().count("did you mean platoon-react") == 1
