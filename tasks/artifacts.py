"""Artifacts of one flow run, made once and updated in place.

Prefect's own helpers make a new version with every call; a run that reports for days would fill the database with them.
Here a key is one artifact of this run; a later run under the same key is its next version. Uses the client's `request`,
without the events of Prefect's update, which would carry the whole content each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

Kind = Literal["progress", "table", "markdown"]


@dataclass(frozen=True)
class Artifact:
    """What the UI shows under a key. `data`: percent, rows or Markdown, as the kind asks."""

    key: str
    kind: Kind
    data: Any
    description: str | None = None


@dataclass
class ArtifactShelf:
    """The artifacts of one flow run."""

    flow_run_id: UUID
    _ids: dict[str, str] = field(default_factory=dict)

    async def put(self, artifacts: Sequence[Artifact]) -> None:
        """Create or update them. Raises what Prefect's client raises."""
        from prefect import get_client

        async with get_client() as client:
            for artifact in artifacts:
                await self._put(client, artifact)

    async def _put(self, client: Any, artifact: Artifact) -> None:
        data = rows_as_json(artifact)
        known = self._ids.get(artifact.key)
        if known is not None:
            body = {"data": data, "description": artifact.description}
            await client.request("PATCH", "/artifacts/{id}", path_params={"id": known}, json=body)
            return
        body = {
            "key": artifact.key,
            "type": artifact.kind,
            "data": data,
            "description": artifact.description,
            "flow_run_id": str(self.flow_run_id),
        }
        reply = await client.request("POST", "/artifacts/", json=body)
        self._ids[artifact.key] = str(reply.json()["id"])


def rows_as_json(artifact: Artifact) -> Any:
    """Prefect keeps a table as text."""
    if artifact.kind != "table":
        return artifact.data
    return json.dumps(artifact.data, ensure_ascii=False)


def artifact_key(*parts: str) -> str:
    """Parts as an artifact's key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-") or "run"
