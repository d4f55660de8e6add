"""`platoon config show | validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import cyclopts

from platoon.cli.loading import load_config
from platoon.config import ConfigError, EnvironmentConfig, EvalRun, TrainRun
from platoon.config.effective import Phase, effective_settings, sets_anything
from platoon.config.records import to_yaml
from platoon.config.secrets import without_secrets
from platoon.config.warnings import load_warnings

Kind = Literal["auto", "train", "eval"]
app = cyclopts.App(name="config", help="Show and check configuration files.")


@app.command
def show(
    config: Path, /, *overrides: str, kind: Kind = "auto", defaults: bool = False, entry: str | None = None
) -> int:
    """Print a configuration after extends, overrides and named environments, as YAML without secrets.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    kind
        What the file is; auto looks at its sections.
    defaults
        Print every field with its value, the derived ones too.
    entry
        Print only what the groups of this entry really use, and where each setting comes from.
    """
    loaded = load_config(config, overrides, kind)
    entries = loaded.config.environments
    if entry is not None:
        found = [one for one in entries if one.label == entry]
        if not found:
            raise ConfigError(f"--entry {entry}: the entries are {', '.join(one.label for one in entries) or 'none'}")
        print("\n".join(entry_blocks(loaded.config, found[0])))
        return 0
    data = loaded.config.model_dump(mode="json") if defaults else loaded.data
    sys.stdout.write(to_yaml(without_secrets(data)))
    for one in entries:
        if sets_anything(one):
            print("\n".join(f"# {line}" for line in entry_blocks(loaded.config, one)))
    return 0


def entry_blocks(config: TrainRun | EvalRun, entry: EnvironmentConfig) -> list[str]:
    """The effective settings of an entry, a block a phase that the configuration runs."""
    blocks: list[tuple[str, Phase]] = [("training groups", "train")]
    if isinstance(config, EvalRun):
        blocks = [("platoon eval rollouts", "train" if config.split == "train" else "eval")]
    elif config.eval.every:
        blocks.append(("evaluation during training", "eval"))
    lines = []
    for title, phase in blocks:
        lines += [f"environments[{entry.label}]: {title}", *map(str, effective_settings(config, entry, phase))]
    return lines


@app.command
def validate(*files: str, kind: Kind = "auto", resolve: bool = True, tasks: bool = False) -> int:
    """Check configuration files: `ok` or `FAIL` for each, with every problem.

    Parameters
    ----------
    files
        Files, and overrides key=value that are applied to each of them.
    kind
        What the files are; auto looks at their sections.
    resolve
        Also look up packages, harnesses and services.
    tasks
        Also list the tasks that training (or the evaluation) would draw.
    """
    from platoon.cli.components import component_problems

    overrides = [item for item in files if "=" in item and not Path(item).is_file()]
    paths = [Path(item) for item in files if item not in overrides]
    if not paths:
        print("platoon: config validate needs at least one file", file=sys.stderr)
        return 64
    failed = False
    for path in paths:
        lines: list[str] = []
        try:
            loaded = load_config(path, overrides, kind)
            problems = component_problems(loaded) if resolve else []
            lines += [f"warning: {text}" for text in load_warnings(loaded.config)]
            if tasks and not problems:
                from platoon.cli.listed import list_tasks

                listed = list_tasks(loaded)
                problems = list(listed.problems)
                lines += [*(f"warning: {text}" for text in listed.warnings), *listed.lines]
        except ConfigError as error:
            problems = error.problems
        print(f"FAIL {path}" if problems else f"ok {path} ({loaded.kind})")
        for line in [*problems, *lines]:
            print("  " + line.replace("\n", "\n  "))
        failed = failed or bool(problems)
    return 78 if failed else 0
