"""What a run directory is bound to: the model, the renderer, and the tasks held out from training.

`identity.json` is written by the first start. A resume that contradicts it would train on tasks it is evaluated on, or
go on with another model under the same name; it is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, TrainRun
from platoon.config.files import write_text
from platoon.train.environments import Environments, Played

log = logging.getLogger("platoon.train")
IDENTITY = "identity.json"
VERSION = 1


def run_identity(config: TrainRun, train: Environments, held_out: Environments | None) -> dict[str, Any]:
    """What this start would bind the run to."""
    environments = {}
    for label, played in train.played.items():
        hold_out = _hold_out(played)
        if hold_out is None:
            continue
        evaluated = _ids(held_out.played[label]) if held_out is not None and label in held_out.played else []
        digest = hashlib.sha256("\n".join(evaluated).encode()).hexdigest()
        environments[label] = {**hold_out, "eval": evaluated, "eval_digest": digest}
    return {
        "version": VERSION,
        "model": config.train.model_name,
        "renderer": config.train.renderer_name,
        "environments": environments,
    }


def bind_identity(run_dir: Path, identity: Mapping[str, Any], train: Environments, *, resuming: bool) -> list[str]:
    """Write the identity of a fresh run; for a resume, what of it contradicts the record (nothing: []).

    ConfigError for a record that cannot be read.
    """
    path = run_dir / IDENTITY
    if not resuming:
        _write(path, identity)
        return []
    if not path.exists():
        if identity["environments"]:
            labels = ", ".join(identity["environments"])
            return [f"environments {labels}: tasks are held out now, and this run began without holding any out"]
        _write(path, identity)
        return []
    return list(_problems(_read(path), identity, train))


def overlap_warnings(train: Environments, held_out: Environments | None) -> list[str]:
    """Entries whose evaluation plays tasks that they train on."""
    warnings = []
    for label, played in (held_out.played if held_out is not None else {}).items():
        both = len(set(_ids(played)) & set(_ids(train.played[label])))
        if both:
            warnings.append(f"environments[{label}]: evaluation plays {both} tasks that are also trained on")
    return warnings


def _problems(record: Mapping[str, Any], identity: Mapping[str, Any], train: Environments) -> list[str]:
    problems = [
        f"train.{key}_name: this run was begun with {record.get(key)!r}, and the config now has {identity[key]!r}; "
        "set it back, or use another stats.trial_name"
        for key in ("model", "renderer")
        if record.get(key) != identity[key]
    ]
    for label, before in (record.get("environments") or {}).items():
        held = set(before.get("held_out") or ())
        if label in train.played:
            trained = sorted(held & set(_ids(train.played[label])))
            if trained:
                problems.append(f"environments[{label}]: held-out tasks would now train: {_some(trained)}")
        now = identity["environments"].get(label)
        gone = sorted(held - set(now["held_out"])) if now is not None else sorted(held)
        if gone:
            log.info("environments[%s]: held-out tasks that the selection no longer has: %s", label, _some(gone))
    for label, now in identity["environments"].items():
        before = (record.get("environments") or {}).get(label) or {}
        added = sorted(set(now["held_out"]) - set(before.get("held_out") or ()))
        if added:
            text = "tasks are newly held out, and this run may have trained on them"
            problems.append(f"environments[{label}]: {text}: {_some(added)}")
    return problems


def _hold_out(played: Played) -> dict[str, Any] | None:
    """What the service says of its hold-out, for an entry that has one."""
    if not played.entry.service_kwargs.get("holdout"):
        return None
    ask = getattr(played.service, "hold_out_record", None)
    record = ask() if callable(ask) else None
    if record is None:
        return None
    return {"holdout": record["holdout"], "dataset": record["dataset"], "held_out": sorted(record["held_out"])}


def _ids(played: Played) -> list[str]:
    return sorted(row.task_id for row in played.listing.rows)


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; restore it, or use another stats.trial_name") from error
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ConfigError(f"{path} is not a record of version {VERSION}; it was written by another platoon")
    return record


def _write(path: Path, identity: Mapping[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_text(json.dumps({**identity, "written_at": now}, indent=1) + "\n", path)
