"""A cluster of one node: `sbatch` and `scontrol requeue` that really run the script.

As Slurm does it: the `#SBATCH` lines of the script with the command line over them, SIGTERM to the batch shell when the
time limit comes near (`--signal=B:TERM@N`), SIGKILL to the whole job at the end of it, a requeue as the same job. The
time limit comes near when a file says so, so that a test need not guess how long its machine takes.

    FAKE_SLURM=dir python fake_slurm.py sbatch [--option=value ...] script arguments...
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

DIRECTORY = Path(os.environ["FAKE_SLURM"])
POLL_SECONDS = 0.05
GRACE_SECONDS = 120.0


def options_of(script: Path, given: list[str]) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH\s+(--\S+)", script.read_text(), re.MULTILINE)
    found = {}
    for option in [*lines, *given]:
        name, _, value = option.removeprefix("--").partition("=")
        found[name] = value
    return found


def sbatch(arguments: list[str]) -> int:
    given = []
    while arguments and arguments[0].startswith("--"):
        given.append(arguments.pop(0))
    script = Path(arguments[0]).resolve()
    job = len(list(DIRECTORY.glob("job-*.json"))) + 1
    record = {
        "script": str(script),
        "arguments": arguments[1:],
        "options": options_of(script, given),
        "cwd": os.getcwd(),
    }
    (DIRECTORY / f"job-{job}.json").write_text(json.dumps(record))
    spawn(job)
    print(f"Submitted batch job {job}")
    return 0


def spawn(job: int) -> None:
    """The node: runs the job to its end, detached from who submitted it."""
    with (DIRECTORY / "node.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, __file__, "node", str(job)], stdout=log, stderr=log, start_new_session=True, close_fds=True
        )


def node(job: int) -> int:
    record = json.loads((DIRECTORY / f"job-{job}.json").read_text())
    who, _, at = record["options"]["signal"].partition("@")
    assert (who, at) == ("B:TERM", "120"), record["options"]
    near, requeue = DIRECTORY / f"near-{job}", DIRECTORY / f"requeue-{job}"
    environment = {**os.environ, "SLURM_JOB_ID": str(job), "SLURM_SUBMIT_DIR": record["cwd"]}
    starts = 0
    while True:
        starts += 1
        with (DIRECTORY / f"platoon-{job}.log").open("ab") as output:
            batch = subprocess.Popen(
                ["/bin/bash", record["script"], *record["arguments"]],
                cwd=record["cwd"],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code, killed = attend(batch, near)
        if not requeue.exists():
            break
        requeue.unlink()
    done = {"code": code, "killed": killed, "starts": starts}
    partial = DIRECTORY / f"done-{job}.partial"
    partial.write_text(json.dumps(done))
    partial.rename(DIRECTORY / f"done-{job}.json")
    return 0


def attend(batch: subprocess.Popen[bytes], near: Path) -> tuple[int, bool]:
    """The script's exit code, and whether the time limit had to kill it."""
    limit = float("inf")
    while (code := batch.poll()) is None:
        if near.exists():
            near.unlink()
            batch.send_signal(signal.SIGTERM)  # to the batch shell alone, as B: asks
            limit = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > limit:
            os.killpg(batch.pid, signal.SIGKILL)
            return batch.wait(), True
        time.sleep(POLL_SECONDS)
    return code, False


def scontrol(arguments: list[str]) -> int:
    command, job = arguments
    assert command == "requeue", arguments
    (DIRECTORY / f"requeue-{job}").touch()
    return 0


def main(command: str, rest: list[str]) -> int:
    if command == "sbatch":
        return sbatch(rest)
    return scontrol(rest) if command == "scontrol" else node(int(rest[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
