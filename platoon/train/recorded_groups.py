"""What statistics keep of a settled group."""

from __future__ import annotations

from platoon.credit import GroupOutput
from platoon.stats.schema import GroupRecord
from platoon.train.dispatch import Settled


def group_record(settled: Settled[GroupOutput], column: str) -> GroupRecord:
    """What statistics keep of a settled group; a failed one has no members."""
    draw, output = settled.draw, settled.output
    return GroupRecord(
        start=draw.start,
        seq=draw.seq,
        task_id=draw.task_id,
        entry=draw.entry,
        labels={} if draw.label is None else {column: draw.label},
        group_size=draw.group_size,
        sampler=draw.sampler,
        reason=draw.reason,
        score=draw.score,
        position=draw.position,
        drawn_at={"main": draw.version},
        members=() if output is None else output.members,
        verdict="failed" if output is None else output.verdict,
    )
