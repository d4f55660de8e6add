"""How long the group table takes to one Parquet file: a million rows in parts. Run: python benchmarks/export.py"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from platoon.stats.export_groups import export_groups
from platoon.stats.tables import GROUPS

Ints = npt.NDArray[np.int64]


def words(rng: np.random.Generator, choices: list[str], rows: int) -> pa.Array:
    picks = pa.array(rng.integers(0, len(choices), rows, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(picks, pa.array(choices)).cast(pa.string())


def lists(kind: pa.ListType, fields: dict[str, pa.Array], rows: int, length: int) -> pa.Array:
    """`rows` lists of `length` structs; `fields` hold rows * length values each."""
    structs = pa.StructArray.from_arrays([fields[f.name] for f in kind.value_type], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * length), structs)


def members(rng: np.random.Generator, drawn_at: Ints, size: int) -> pa.Array:
    kind = GROUPS.schema.field("members").type
    count = len(drawn_at) * size
    reward, version = pa.array(rng.integers(0, 2, count).astype(float)), pa.array(np.repeat(drawn_at, size))
    versions = {"policy": words(rng, ["main"], count), "oldest": version, "newest": version}
    fields = {
        "reward": reward,
        "scored": reward,
        "valid": pa.array(np.ones(count, np.bool_)),
        "outcome": words(rng, ["scored"], count),
        "disposition": words(rng, ["completed"], count),
        "reward_key": words(rng, ["reward"], count),
        "steps": pa.array(rng.integers(1, 20, count)),
        "output_tokens": pa.array(rng.integers(1, 2000, count)),
        "seconds": pa.array(rng.random(count) * 100),
        "versions": lists(kind.value_type.field("versions").type, versions, count, 1),
        "flag": pa.array(np.zeros(count, np.bool_)),
    }
    return lists(kind, fields, len(drawn_at), size)


def part(first: int, rows: int, size: int) -> pa.Table:
    """Groups `first` to `first + rows` of 20,000 tasks, 64 groups a policy version."""
    rng = np.random.default_rng(first)
    numbers = np.arange(first, first + rows)
    labels = {"column": words(rng, ["level"], rows), "label": words(rng, ["easy", "hard"], rows)}
    columns = {
        "start": pa.array(np.ones(rows, np.int32)),
        "seq": pa.array(numbers),
        "intake": pa.array(numbers),
        "task_id": words(rng, [f"train:{i}" for i in range(20_000)], rows),
        "entry": words(rng, ["default"], rows),
        "labels": lists(GROUPS.schema.field("labels").type, labels, rows, 1),
        "harness": words(rng, ["codeact"], rows),
        "group_size": pa.array(np.full(rows, size, np.int32)),
        "sampler": words(rng, ["auto"], rows),
        "reason": words(rng, ["order"], rows),
        "score": pa.array(rng.random(rows)),
        "position": pa.array(numbers),
        "policy": words(rng, ["main"], rows),
        "drawn_at": pa.array(numbers // 64),
        "members": members(rng, numbers // 64, size),
        "verdict": words(rng, ["trained", "uniform"], rows),
    }
    return pa.table([columns[f.name] for f in GROUPS.schema], schema=GROUPS.schema)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=20)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8], help="members a group, one measurement each")
    options = parser.parse_args()
    rows = options.rows // options.parts
    for size in options.members:
        with tempfile.TemporaryDirectory() as made:
            run_dir = Path(made)
            (run_dir / GROUPS.directory).mkdir(parents=True)
            for index in range(options.parts):
                table = part(index * rows, rows, size).replace_schema_metadata(GROUPS.metadata([]))
                pq.write_table(
                    table, run_dir / GROUPS.directory / f"part-s1-{index + 1:06d}.parquet", compression="zstd"
                )
            started, used = time.perf_counter(), time.process_time()
            export_groups(run_dir, "parquet", run_dir / "groups.parquet")
            seconds, used = time.perf_counter() - started, time.process_time() - used
            written = pq.read_metadata(run_dir / "groups.parquet").num_rows
            megabytes = (run_dir / "groups.parquet").stat().st_size / 1e6
        print(f"{written:,} groups of {size} to Parquet: {seconds:.2f} s ({used:.2f} s CPU), {megabytes:.0f} MB")


if __name__ == "__main__":
    main()
