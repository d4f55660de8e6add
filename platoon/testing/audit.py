"""Proving from a run directory that every position of its order was used exactly once.

Read along the line of checkpoints: what a start did after the checkpoint that the next one resumed from does not count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platoon.stats.jsonl import read_jsonl

Key = tuple[int, int]


@dataclass
class Audit:
    """What became of each position, in order, and the draws still open; no `problems` when each was used once."""

    fates: dict[int, str] = field(default_factory=dict)
    open: dict[int, Key] = field(default_factory=dict)
    starts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.fates.values())


def audit_run(run_dir: Path) -> Audit:
    """Replay `tasks/events.jsonl` along the line of checkpoints."""
    events = read_jsonl(run_dir / "tasks" / "events.jsonl").rows
    saved = {
        (row["name"], (row.get("dispatch") or {}).get("start"))
        for row in read_jsonl(run_dir / "checkpoints.jsonl").rows
    }
    audit = Audit()
    draws: dict[Key, int] = {}
    for event in line_of(events, saved):
        if event["event"] == "start":
            audit.starts += 1
        elif event["event"] == "draw":
            _draw(audit, draws, event)
        elif event["event"] == "slot_skipped":
            if event["position"] in audit.fates or event["position"] in audit.open:
                audit.problems.append(f"position {event['position']} was skipped, but it was drawn before")
            audit.fates[event["position"]] = "slot_skipped"
        elif event["event"] == "fate":
            _fate(audit, draws, event)
    return audit


def line_of(events: list[dict[str, Any]], saved: set[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """The events that count, in order."""
    line: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "start" and line:
            line = line[: _resumed(line, event, saved)]
        line.append(event)
    return line


def _resumed(line: list[dict[str, Any]], start: dict[str, Any], saved: set[tuple[str, int | None]]) -> int:
    """How much of the line the checkpoint holds that this start resumed from; 0 when it began anew.

    A log of platoon 0.4 has no saves: all of it counts, which is right for a checkpoint made at the end of its start.
    """
    for index in range(len(line) - 1, -1, -1):
        event = line[index]
        if (
            event["event"] == "save"
            and event["checkpoint"] == start["checkpoint"]
            and (event["checkpoint"], event["start"]) in saved
        ):
            return index + 1
    without_saves = not any(event["event"] == "save" for event in line)
    return len(line) if without_saves and start["checkpoint"] in {name for name, _ in saved} else 0


def _draw(audit: Audit, draws: dict[Key, int], event: dict[str, Any]) -> None:
    key, position = (event["start"], event["seq"]), event["position"]
    old = tuple(event["reissues"]) if event.get("reissues") else None
    if old is not None and draws.pop(old, None) != position:
        audit.problems.append(f"draw {key} reissues {old}, which was not open at position {position}")
    if old is None and (
        position in audit.open or audit.fates.get(position, "lost") != "lost"
    ):  # a lost one used nothing
        audit.problems.append(f"position {position} was drawn again by {key}")
    draws[key] = position
    audit.open[position] = key


def _fate(audit: Audit, draws: dict[Key, int], event: dict[str, Any]) -> None:
    key = (event["start"], event["seq"])
    position = draws.pop(key, None)
    if position is None:
        audit.problems.append(f"draw {key} got the fate {event['fate']}, but it was not open")
        return
    audit.fates[position] = event["fate"]
    audit.open.pop(position, None)
