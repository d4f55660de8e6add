"""Writes to Prefect's SQLite queue: what Prefect's own configuration refuses, ours lets wait."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from platoon.cli.server_process import Clients

pytestmark = pytest.mark.orchestrated
SCRIPT = textwrap.dedent(
    """
    import asyncio, sys
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface

    if sys.argv[1] == "ours":
        from platoon.cli.server_database import queue_writes
        queue_writes()

    async def add(db, started, go):
        async with db.session_context(begin_transaction=True) as session:
            await session.execute(sa.text("SELECT sum(n) FROM counter"))
            started.set()
            await go.wait()
            await session.execute(sa.text("INSERT INTO counter VALUES (1)"))

    async def main():
        db = provide_database_interface()
        engine = await db.engine()
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE counter (n INTEGER)"))
        first, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(add(db, first, go))
        await first.wait()
        two = asyncio.create_task(add(db, second, go))
        if sys.argv[1] == "theirs":  # ours lets the second one begin when the first has ended
            await second.wait()
        go.set()
        await asyncio.gather(one, two)
        async with db.session_context() as session:
            print((await session.execute(sa.text("SELECT sum(n) FROM counter"))).scalar())

    asyncio.run(main())
    """
)


def run(whose: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(home), "DO_NOT_TRACK": "1"}
    command = [sys.executable, "-c", SCRIPT, whose]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_two_transactions_that_read_and_then_write(tmp_path: Path) -> None:
    ours = run("ours", tmp_path / "ours")
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.strip() == "2"


def test_prefect_still_needs_it(tmp_path: Path) -> None:
    """When this fails, a newer Prefect begins its writes IMMEDIATE and `server_database.py` can go."""
    theirs = run("theirs", tmp_path / "theirs")
    assert theirs.returncode != 0
    assert "database is locked" in theirs.stderr


async def test_a_503_says_to_try_again_soon() -> None:
    async def busy(scope: object, receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 503, "headers": [(b"x", b"y")]})

    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await Clients(busy)({"type": "http"}, None, send)
    assert sent[0]["headers"] == [(b"x", b"y"), (b"retry-after", b"0.1")]
