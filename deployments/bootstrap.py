"""Register pools, deployments and the heartbeat automation at a Prefect server. Safe to run again.

    PREFECT_API_URL=http://server:4200/api python deployments/bootstrap.py
    python deployments/bootstrap.py --file deployments/slurm/prefect.yaml

Waits for the server, creates the work pools that the file names, deploys all of it, and makes the automation that marks
a run Crashed once its heartbeat has stopped. That changes a label only: nothing starts a trainer by it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
AUTOMATION = "platoon: a run without a heartbeat is Crashed"
HEARTBEAT = "prefect.flow-run.heartbeat"
ENDS = [f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling")]
POOLS = {"platoon": "process", "platoon-slurm": "slurm", "platoon-kubernetes": "kubernetes"}
SILENCE_SECONDS = 600  # three of Prefect's heartbeats, and some


async def bootstrap(file: Path, silence: float, seconds: float) -> None:
    from prefect import get_client

    async with get_client() as client:
        await wait_for_server(client, seconds)
        for pool in sorted(pools_of(file)):
            await ensure_pool(client, pool)
        await ensure_automation(client, silence)


async def wait_for_server(client: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (trouble := await client.api_healthcheck()) is not None:
        if time.monotonic() > deadline:
            raise SystemExit(f"the Prefect server at {client.api_url} does not answer: {trouble}")
        await asyncio.sleep(0.5)


def pools_of(file: Path) -> set[str]:
    found = yaml.safe_load(file.read_text())
    return {deployment["work_pool"]["name"] for deployment in found["deployments"]}


async def ensure_pool(client: Any, name: str) -> None:
    """The pool, of the type that `POOLS` says, with that type's own job template where Prefect knows it."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    try:
        pool = await client.read_work_pool(name)
        print(f"work pool {name}: there ({pool.type})")
    except ObjectNotFound:
        kind = POOLS.get(name, "process")
        await client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template(kind)))
        print(f"work pool {name}: made ({kind})")


def template(kind: str) -> dict[str, Any]:
    """A pool's job template: ours for Kubernetes; for the others the worker brings its own when it first starts."""
    if kind != "kubernetes":
        return {}
    found: dict[str, Any] = yaml.safe_load((ROOT / "deployments/kubernetes/job-template.yaml").read_text())
    return found


async def ensure_automation(client: Any, silence: float) -> None:
    """Replace the automation, so that a changed silence takes effect."""
    for old in await client.read_automations_by_name(AUTOMATION):
        await client.delete_automation(old.id)
    await client.create_automation(heartbeat_automation(silence))
    print(f"automation {AUTOMATION!r}: after {silence:.0f} s of silence")


def heartbeat_automation(silence: float) -> Any:
    """A heartbeat, then for `silence` seconds neither another one nor an end: the run is marked Crashed."""
    from prefect.automations import AutomationCore
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return AutomationCore(
        name=AUTOMATION,
        description="Only the label: whoever submits the run again resumes it, under the run directory's lock.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            after={HEARTBEAT},
            expect={HEARTBEAT, *ENDS},
            threshold=1,
            within=timedelta(seconds=silence),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name="Crashed", message="No heartbeat: the process is gone.", force=False
            )
        ],
    )


def deploy(file: Path) -> int:
    environment = {"PLATOON_PROJECT": str(ROOT), **os.environ}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=ROOT / "deployments" / "prefect.yaml")
    parser.add_argument("--silence", type=float, default=SILENCE_SECONDS, help="seconds without a heartbeat")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds to wait for the server")
    asked = parser.parse_args()
    os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    asyncio.run(bootstrap(asked.file, asked.silence, asked.wait))
    return deploy(asked.file)


if __name__ == "__main__":
    sys.exit(main())
