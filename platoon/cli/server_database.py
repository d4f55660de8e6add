"""Prefect's SQLite set up for one user: writes wait for their turn instead of failing.

Prefect begins its write transactions DEFERRED. Where another one wrote in between, SQLite refuses the upgrade at once
whatever the busy timeout, the API answers 503 and the client sleeps 2 s: it cost nearly every step of four tasks 2 s.
Begun IMMEDIATE, they queue. Uses internals of Prefect 3.9 (the database configuration and where it is looked up).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import get_current_settings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class QueuedWrites(AioSqliteConfiguration):
    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def queue_writes() -> None:
    """Use `QueuedWrites` for the server of this process; call before its app is made."""
    url = get_current_settings().server.database.connection_url
    assert url is not None, "Prefect derives it from PREFECT_HOME"
    MODELS_DEPENDENCIES["database_config"] = QueuedWrites(connection_url=url.get_secret_value())
