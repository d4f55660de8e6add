"""Outputs of kept groups as JSON, and the reader of the `.json.gz` files that platoon 0.4 kept.

Numbers that JSON lacks (NaN, infinity) are written as Python writes them, and read back.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from platoon.credit import Datum, GroupOutput
from platoon.stats.schema import RolloutStats, Workload, member_from_json, member_to_json

_COUNTS = ("requested_rollouts", "observed_rollouts", "trainable_rollouts", "task_retained_datums")
_OWN_SERIES = ("workload/", "rollout_completion/")


def output_to_json(output: GroupOutput) -> str:
    """Everything of an output but its datums."""
    return json.dumps(
        {
            "verdict": output.verdict,
            "members": [member_to_json(member) for member in output.members],
            "workload": asdict(output.workload),
            "rollout_workloads": [asdict(workload) for workload in output.rollout_workloads],
            **{name: getattr(output, name) for name in _COUNTS},
            "rollout_stats": {
                "values": {key: list(found) for key, found in output.rollout_stats.values.items()},
                "counts": dict(output.rollout_stats.counts),
            },
            "group_stats": dict(output.group_stats),
            "label": output.label,
            "entry": output.entry,
        }
    )


def output_from_json(text: str, datums: list[Datum]) -> GroupOutput:
    data = json.loads(text)
    return GroupOutput(
        datums=datums,
        group_stats=data["group_stats"],
        rollout_workloads=tuple(Workload(**workload) for workload in data["rollout_workloads"]),
        **_shared(data),
    )


def legacy_groups(path: Path) -> list[dict[str, Any]]:
    """The groups of a file of format 1. ValueError when it is not one."""
    with gzip.open(path, "rb") as file:
        data = json.load(file)
    if not isinstance(data, dict) or data.get("format") != 1 or not isinstance(data.get("groups"), list):
        raise ValueError("not a file of kept groups of format 1")
    return list(data["groups"])


def legacy_output(data: Mapping[str, Any]) -> GroupOutput | None:
    """An output of format 1; None for a failed group. ValueError for an unknown type."""
    kind = data["type"]
    if kind == "failed":
        return None
    if kind not in ("datums", "group"):
        raise ValueError(f"unknown type of kept output {kind!r}")
    datums = [_legacy_datum(datum) for datum in data["datums"]]
    if kind == "datums":
        return GroupOutput(datums, "unknown")
    scalars: dict[str, float] = {}
    series: dict[str, list[float]] = {}
    for method, values in data["group_stats"]:
        if method == "scalar":
            scalars |= {key: value for key, value in values.items() if not key.startswith(_OWN_SERIES)}
        elif method == "stat":
            series |= {key: value["values"] for key, value in values.items() if isinstance(value, dict)}
    return GroupOutput(datums, group_stats=scalars, rollout_workloads=_legacy_workloads(series), **_shared(data))


def _shared(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that both formats hold alike."""
    stats = data["rollout_stats"] or {"values": {}, "counts": {}}
    values = {key: tuple(found) for key, found in stats["values"].items()}
    return {
        "verdict": data["verdict"],
        "members": tuple(member_from_json(member) for member in data["members"]),
        "workload": Workload(**data["workload"]),
        **{name: int(data[name]) for name in _COUNTS},
        "rollout_stats": RolloutStats(values, stats["counts"]),
        "label": data["label"],
        "entry": data["entry"],
    }


def _legacy_workloads(series: Mapping[str, list[float]]) -> tuple[Workload, ...]:
    names = [f.name for f in fields(Workload)]
    columns = [series.get(f"workload/rollout/total_{name}", []) for name in names]
    return tuple(Workload(*(int(value) for value in row)) for row in zip(*columns, strict=True))


def _legacy_datum(data: Mapping[str, Any]) -> Datum:
    chunks = data["model_input"]["chunks"]
    unknown = {chunk["type"] for chunk in chunks} - {"encoded_text"}
    if unknown:
        raise ValueError(f"kept datum with chunks of type {', '.join(sorted(unknown))}; only encoded_text is read")
    inputs = {name: _legacy_tensor(tensor) for name, tensor in data["loss_fn_inputs"].items()}
    logprobs = inputs["logprobs"].astype(np.float32)
    errors = inputs.get("_platoon_error_action_mask")
    routing = inputs.get("routing_handle")
    return Datum(
        tokens_T=np.array([token for chunk in chunks for token in chunk["tokens"]], np.int32),
        targets_T=inputs["target_tokens"].astype(np.int32),
        logprobs_T=logprobs,
        advantages_T=inputs["advantages"].astype(np.float32),
        mask_T=inputs["mask"].astype(np.float32) if "mask" in inputs else np.ones_like(logprobs),
        version=int(inputs["checkpoint_version"][0]),
        depth=int(inputs["traj_depth"][0]) if "traj_depth" in inputs else 0,
        traj_start=float(inputs["traj_start"][0]) if "traj_start" in inputs else 0.0,
        errors_T=None if errors is None else errors.astype(np.bool_),
        routing_id=None if routing is None else int(routing[0]),
    )


def _legacy_tensor(tensor: Mapping[str, Any]) -> npt.NDArray[Any]:
    """`data` holds plain numbers; `f4` and `f8` little-endian floats in base64."""
    for name, dtype in (("f4", "<f4"), ("f8", "<f8")):
        if name in tensor:
            return np.frombuffer(base64.b64decode(tensor[name]), dtype)
    return np.array(tensor["data"], np.dtype(tensor["dtype"]))
