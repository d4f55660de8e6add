"""A slurmrestd of one node that really runs the scripts it is given: ping, submit a job, a job's state (API 0.0.42)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "header.payload.signature"
API = "/slurm/v0.0.42"


class Node:
    """Runs batch scripts, each as a job of its own with the environment that the request names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.specs: list[dict[str, Any]] = []
        self._jobs: list[subprocess.Popen[bytes]] = []

    def submit(self, spec: dict[str, Any]) -> int:
        number = len(self._jobs) + 1
        script = self.directory / f"job-{number}.sh"
        script.write_text(spec["script"])
        given = dict(pair.partition("=")[::2] for pair in spec["environment"])
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **given, "SLURM_JOB_ID": str(number)}
        environment["FAKE_SLURM_JOB"] = f"{self.directory}/{number}"
        with (self.directory / f"job-{number}.log").open("wb") as output:
            job = subprocess.Popen(
                ["/bin/bash", str(script)],
                cwd=spec["current_working_directory"],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.specs.append(spec)
        self._jobs.append(job)
        return number

    def state(self, number: int) -> str:
        code = self._jobs[number - 1].poll()
        return "RUNNING" if code is None else "COMPLETED" if code == 0 else "FAILED"

    def output(self, number: int) -> str:
        return (self.directory / f"job-{number}.log").read_text()

    def signal(self, number: int, which: signal.Signals) -> None:
        """To every process of the job, whatever its group, as Slurm's cgroup does at a time limit."""
        mark = f"FAKE_SLURM_JOB={self.directory}/{number}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), which)
            except (OSError, ProcessLookupError):
                continue  # another user's, or gone meanwhile

    def close(self) -> None:
        for job in self._jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


@contextmanager
def slurmrestd(directory: Path) -> Iterator[tuple[str, Node]]:
    """The address and the node behind it."""
    node = Node(directory)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == f"{API}/ping/":
                self._answer(200, {"pings": [], "errors": [], "warnings": []})
            elif asked.path == f"{API}/jobs/state/":
                number = int(parse_qs(asked.query)["job_id"][0])
                self._answer(200, {"jobs": [{"job_id": number, "state": [node.state(number)]}]})
            else:
                self._answer(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != f"{API}/job/submit":
                self._answer(404, {})
            elif self.headers.get("X-SLURM-USER-TOKEN") != TOKEN:
                self._answer(401, {})
            else:
                self._answer(200, {"job_id": node.submit(body["job"]), "errors": [], "warnings": []})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            payload = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", node
    finally:
        server.shutdown()
        server.server_close()
        node.close()
