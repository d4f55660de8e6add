"""`platoon config show | validate`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import cyclopts

from platoon.cli.loading import load_config, report_deprecation
from platoon.cli.printing import JsonOutput, as_json
from platoon.config import ConfigError, EnvironmentConfig, EvalRun, Loaded, Section, TrainRun, add_project_path
from platoon.config.deprecations import without_unused
from platoon.config.effective import Phase, effective_settings, entry_settings, named_paths, not_applied, sets_anything
from platoon.config.partial import EnvironmentsOnly, Partial, kind_of, load_partial
from platoon.config.problems import show as shown_value
from platoon.config.records import to_yaml
from platoon.config.secrets import without_secrets
from platoon.config.warnings import load_warnings

Kind = Literal["auto", "train", "eval", "none"]
app = cyclopts.App(name="config", help="Show and check configuration files.")


@app.command
def show(
    config: Path,
    /,
    *overrides: str,
    kind: Kind = "auto",
    schema: str | None = None,
    defaults: bool = False,
    entry: str | None = None,
) -> int:
    """Print a configuration after extends, overrides and named environments, as YAML without secrets.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    kind
        What the file is; auto looks at its sections, none checks nothing.
    schema
        A config class of your own, module:Class, instead of a kind.
    defaults
        Print every field with its value, the derived ones too.
    entry
        Print only what the groups of this entry really use, and where each setting comes from.
    """
    loaded = load_any(config, overrides, kind, schema)
    for deprecation in loaded.deprecations:
        report_deprecation(deprecation)
    built = loaded.config
    entries = built.environments if isinstance(built, TrainRun | EvalRun) else ()
    if entry is not None:
        if not isinstance(loaded, Loaded):
            raise ConfigError(f"--entry {entry}: {config} is no training or evaluation config, so no run plays it")
        found = [one for one in entries if one.label == entry]
        if not found:
            raise ConfigError(f"--entry {entry}: the entries are {', '.join(one.label for one in entries) or 'none'}")
        print("\n".join(entry_blocks(loaded, found[0])))
        return 0
    data = loaded.data
    if defaults and built is not None:
        data = without_unused(built.model_dump(mode="json"), type(built))
    sys.stdout.write(to_yaml(without_secrets(data)))
    for one in entries:
        if isinstance(loaded, Loaded) and sets_anything(one):
            print("\n".join(f"# {line}" for line in entry_blocks(loaded, one)))
    return 0


def load_any(path: Path, overrides: tuple[str, ...] | list[str], kind: Kind, schema: str | None) -> Loaded | Partial:
    """A run, or whatever else the file is. Raises ConfigError."""
    from platoon.envs.named import NamedEnvironments

    add_project_path(path)
    if schema is not None:
        return load_partial(path, overrides, schema=schema_class(schema), resolver=NamedEnvironments())
    what = kind_of(path, overrides) if kind == "auto" else kind
    if what in ("train", "eval"):
        return load_config(path, overrides, "train" if what == "train" else "eval")
    partial = EnvironmentsOnly if what == "environments" else None
    return load_partial(path, overrides, schema=partial, resolver=NamedEnvironments())


def schema_class(reference: str) -> type[Section]:
    """The config class that --schema names. Raises ConfigError."""
    from platoon.extensions.boundary import Boundary
    from platoon.extensions.names import import_string

    found: object = None
    with Boundary("extension", quiet=True) as caught:
        found = import_string(reference)
    if caught.error is not None:
        raise ConfigError(f"--schema {reference}: {caught.text}")
    if not isinstance(found, type) or not issubclass(found, Section):
        raise ConfigError(f"--schema {reference}: it is no subclass of platoon.config.Section")
    return found


def entry_blocks(loaded: Loaded, entry: EnvironmentConfig) -> list[str]:
    """The effective settings of an entry, a block a phase that the configuration runs."""
    config = loaded.config
    index = next(at for at, one in enumerate(config.environments) if one is entry)
    named = named_paths(entry, index, loaded.places)
    blocks: list[tuple[str, Phase]] = [("training groups", "train")]
    if isinstance(config, EvalRun):
        blocks = [("platoon eval rollouts", "train" if config.split == "train" else "eval")]
    elif config.eval.every:
        blocks.append(("evaluation during training", "eval"))
    lines = []
    for title, phase in blocks:
        lines += [f"environments[{entry.label}]: {title}", *map(str, effective_settings(config, entry, phase, named))]
    if isinstance(config, EvalRun):
        lines += [f"not applied: {path}" for path in not_applied(config, entry)]
    return lines


@app.command
def validate(
    *files: str,
    kind: Kind = "auto",
    schema: str | None = None,
    resolve: bool = True,
    strict: bool = False,
    tasks: bool = False,
    json_output: JsonOutput = False,
) -> int:
    """Check configuration files: `ok` or `FAIL` for each, with every problem.

    Parameters
    ----------
    files
        Files, and overrides key=value that are applied to each of them.
    kind
        What the files are; auto looks at their sections, none checks only that they can be merged.
    schema
        A config class of your own, module:Class, instead of a kind.
    resolve
        Also look up packages, harnesses, services and what else the entries name.
    strict
        A deprecated key is a problem.
    tasks
        Also list the tasks that training (or the evaluation) would draw, and print the plan.
    json_output
        Print a JSON list with one object a file: file, ok, schema, problems, lines.
    """
    overrides = [item for item in files if "=" in item and not os.path.isfile(item)]
    paths = [Path(item) for item in files if item not in overrides]
    if not paths:
        print("platoon: config validate needs at least one file", file=sys.stderr)
        return 64
    results: list[tuple[Path, Checked]] = []
    for path in paths:
        try:
            checked = _check(load_any(path, overrides, kind, schema), resolve=resolve, strict=strict, tasks=tasks)
        except ConfigError as error:
            checked = Checked("", tuple(error.problems))
        results.append((path, checked))
        if not json_output:
            _print(path, checked)
    if json_output:
        rows = [{"file": str(path), "ok": not one.problems, **asdict(one)} for path, one in results]
        as_json(rows)
    return 78 if any(checked.problems for _, checked in results) else 0


def _print(path: Path, checked: Checked) -> None:
    print(f"FAIL {path}" if checked.problems else f"ok {path} ({checked.schema})")
    for line in [*checked.problems, *checked.lines]:
        print("  " + line.replace("\n", "\n  "))


@dataclass(frozen=True)
class Checked:
    """What `validate` prints of one file."""

    schema: str
    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def _check(loaded: Loaded | Partial, *, resolve: bool, strict: bool, tasks: bool) -> Checked:
    from platoon.cli.components import component_problems, entry_problems

    old = tuple(str(one) for one in loaded.deprecations)
    if isinstance(loaded, Partial):
        config = loaded.config
        problems = entry_problems(config.environments) if resolve and isinstance(config, EnvironmentsOnly) else []
        name = {EnvironmentsOnly: "environments", type(None): "no schema"}.get(type(config), type(config).__name__)
        lines = [*(() if strict else old), *(["no tasks are listed: it is no run's configuration"] if tasks else [])]
        return Checked(name, (*(old if strict else ()), *problems), tuple(lines))
    problems = component_problems(loaded) if resolve else []
    lines = [*([] if strict else old), *_summaries(loaded)]
    lines += [f"warning: {text}" for text in load_warnings(loaded.config)]
    if tasks and not problems:
        from platoon.cli.listed import list_tasks

        listed = list_tasks(loaded)
        problems = list(listed.problems)
        lines += [*(f"warning: {text}" for text in listed.warnings), *listed.lines]
    return Checked(loaded.kind, (*(old if strict else ()), *problems), tuple(lines))


def _summaries(loaded: Loaded) -> list[str]:
    """One line an entry whose settings differ from the run's."""
    if not isinstance(loaded.config, TrainRun):
        return []
    settings = entry_settings(loaded.config)
    lines = []
    for entry in loaded.config.environments:
        own = settings.get(entry.label, {})
        parts = [f"{path} {shown_value(value)}" for path, value in own.get("train", {}).items()]
        if "max_staleness" in own:
            parts.append(f"max_staleness {own['max_staleness']}")
        if entry.group_admission is not None:
            options = f" {shown_value(entry.group_admission_options)}" if entry.group_admission_options else ""
            parts.append(f"group_admission {entry.group_admission}{options}")
        evaluated = [f"{path} {shown_value(value)}" for path, value in own.get("eval", {}).items()]
        if evaluated and loaded.config.eval.every:
            parts.append(f"in evaluation: {', '.join(evaluated)}")
        if parts:
            lines.append(f"environments[{entry.label}]: {', '.join(parts)}")
    return lines
