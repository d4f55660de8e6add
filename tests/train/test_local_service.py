"""The embedded service as a child: what ends it and what does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx

from platoon.train.local_service import running_service


async def test_a_signal_to_every_process_of_a_job_leaves_the_service_to_the_trainer(tmp_path: Path) -> None:
    async with running_service(tmp_path, "platoon-tiny") as service:
        os.kill(service.child.pid, signal.SIGTERM)
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"{service.url}/api/v1/healthz")
        assert reply.is_success
        assert service.child.poll() is None
    assert service.child.returncode == 0


async def test_this_process_still_hears_sigterm(tmp_path: Path) -> None:
    async with running_service(tmp_path, "platoon-tiny"):
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
