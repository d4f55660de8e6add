"""Broken configurations by the thousand: each loads or gives a report, and none ends in a traceback.

    python benchmarks/mutated_configs.py [--count 10000] [--seed 0]

A training run and an evaluation with every key written out are mutated (values, names, the YAML text, overrides).
Prints how many loaded, how many were reported, and the first tracebacks. Exits 1 when there is one.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun, TrainRun, load
from platoon.config.records import to_yaml
from platoon.envs.named import NamedEnvironments

ENTRIES = [
    {"name": "near", "env": "platoon-number-search", "harness": {"platoon-react": 1}, "exclude_tasks": []},
    {"name": "far", "service": "harbor", "service_kwargs": {"task_dirs": ["/t"], "mounts": [{"source": "/m"}]}},
    {"name": "own", "service": "table", "service_kwargs": {"path": "/x.jsonl"}, "agents": {"verifier": {}}},
]
TEXTS = "|".join(("", " |x|null|none|1e5|1e999|-1|05|~|x.toml|a::b|a b|\0|\x85|é|$HOME|~nobody/x|a\0b", "x" * 300))
CONTAINERS: tuple[Any, ...] = ([], [[]], [{}], [None], ["x.toml"], {}, {"": 1}, {"x.toml": 1}, {"a": {"b": []}})
NUMBERS = (0, 1, -1, 2**70, 1.5, -0.0, 1e308, float("inf"), float("nan"), 10**400)
WRONG: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS.split("|"), *CONTAINERS)
CHARACTERS = "ab:-[]{}&*!|>'\"#%@`\n\t ,?<0\x85\u2028\ufeff"


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below a mapping or list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


def mutate(data: dict[str, Any], chance: random.Random) -> None:
    """Change one value, or one name, of the data in place."""
    *above, last = chance.choice(list(paths(data)))
    container: Any = data
    for key in above:
        container = container[key]
    what = chance.choice(("set", "set", "delete", "rename", "append"))
    if what == "set":
        container[last] = copy.deepcopy(chance.choice(WRONG))
    elif what == "delete":
        del container[last]
    elif what == "append" and isinstance(container[last], list):
        container[last].append(copy.deepcopy(chance.choice(WRONG)))
    elif isinstance(container, dict):
        container[chance.choice((f"{last}x", str(last)[1:], "hosted", "strategy"))] = container[last]


def overrides(data: dict[str, Any], chance: random.Random) -> list[str]:
    """Texts that may be overrides."""
    keys = [".".join(map(str, chance.choice(list(paths(data))))) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    values = ("{", "[1, 2]", "{a: b}", '"x"', "1e5", "null", "~", "!!python/x a", "&a *a", "", "grade", "true")
    return [f"{key}{chance.choice(('=', '+=', '.x=', '.0=', ''))}{chance.choice(values)}" for key in keys]


def attempt(root: dict[str, Any], path: Path, chance: random.Random) -> str:
    """What became of one mutated configuration: loaded, reported, or a traceback."""
    data = copy.deepcopy(root)
    for _ in range(chance.randint(0, 4)):
        if data:
            mutate(data, chance)
    text = to_yaml(data)
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(CHARACTERS) + text[at + chance.choice((0, 1)) :]
    path.write_text(text, encoding="utf-8")
    try:
        load(path, overrides(root, chance), resolver=NamedEnvironments())
    except ConfigError as error:
        unique = error.problems and len(set(error.problems)) == len(error.problems)
        return "reported" if unique else f"an empty or repeating report: {error}"
    except Exception:
        return traceback.format_exc()
    return "loaded"


def main() -> int:
    """Print the counts; 1 when a configuration ended in a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count, seed = options.count, options.seed
    chance, began, found = random.Random(seed), time.monotonic(), Counter[str]()
    train = TrainRun.model_validate({"train": {"model_name": "m", "renderer_name": "r"}}).model_dump(mode="json")
    evaluation = EvalRun.model_validate({"inference": {"model_name": "m"}}).model_dump(mode="json")
    roots = [{**data, "environments": ENTRIES} for data in (train, evaluation)]
    roots += [
        {key: copy.deepcopy(data[key]) for key in ("train", "inference", "environments") if key in data}
        for data in roots
    ]
    with tempfile.TemporaryDirectory() as directory:
        for root in roots:  # a root that does not load would make every mutation of it a report
            (Path(directory) / "run.yaml").write_text(to_yaml(root), encoding="utf-8")
            load(Path(directory) / "run.yaml", resolver=NamedEnvironments())
        for _ in range(count):
            found[attempt(chance.choice(roots), Path(directory) / "run.yaml", chance)] += 1
    faults = [text for text in found if text not in ("loaded", "reported")]
    for text in faults[:5]:
        print(text)
    print(
        f"{count} configurations (seed {seed}) in {time.monotonic() - began:.0f} s: loaded={found['loaded']} "
        f"reported={found['reported']} tracebacks={sum(found[text] for text in faults)}"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
