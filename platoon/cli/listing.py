"""`platoon harness | program | env`: what an environment entry can name. Listing imports no extension."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import cyclopts

from platoon.cli.printing import JsonOutput, as_json, table
from platoon.config.problems import ConfigError

harness_app = cyclopts.App(name="harness", help="Harnesses that an environment entry can name.")
program_app = cyclopts.App(name="program", help="Programs: how an episode's agent runs and is graded.")
env_app = cyclopts.App(name="env", help="Environments that an entry can name.")
_SCHEMES = (
    "harbor",
    "table",
    "python://pkg.module:EnvClass",
    "ors+http://HOST:PORT[,...]/EnvName",
    "ors+http:///EnvName",
    "pkg.module:Class",
)


@harness_app.command(name="list")
def list_harnesses(*, json_output: JsonOutput = False) -> int:
    """List the harnesses: name, kind, distribution, source.

    Parameters
    ----------
    json_output
        Print a JSON list.
    """
    from platoon.harness.registry import list_harnesses as listed

    rows = [
        {"harness": row.ref, "kind": row.kind, "distribution": row.distribution, "source": row.source}
        for row in listed()
    ]
    return _print(rows, ("harness", "kind", "distribution", "source"), json_output)


@harness_app.command(name="show")
def show_harness(name: str, /) -> int:
    """Show a harness: where it is, how it runs, what its author says of it.

    Parameters
    ----------
    name
        name[@version] or module:function.
    """
    from platoon.harness.registry import get_harness

    found = get_harness(name)
    print(f"{found.ref} (function)")
    print(f"source: {found.source}")
    print(f"runtime: {found.runtime}")
    print(f"executes model code: {'yes' if found.executes_model_code else 'no'}")
    _docstring(found.fn)
    return 0


@program_app.command(name="list")
def list_programs(*, json_output: JsonOutput = False) -> int:
    """List the programs.

    Parameters
    ----------
    json_output
        Print a JSON list.
    """
    from platoon.cli.builtins import builtins
    from platoon.extensions.catalog import components

    rows = [
        {"program": row.name, "distribution": row.distribution, "source": row.value}
        for row in components(builtins(), "program")
    ]
    return _print(rows, ("program", "distribution", "source"), json_output)


@program_app.command(name="show")
def show_program(name: str, /) -> int:
    """Show a program: where it is and what its author says of it.

    Parameters
    ----------
    name
        name[@version] or module:function.
    """
    from platoon.extensions.names import source_of
    from platoon.rollout.programs import get_program

    found = get_program(name)
    print(name)
    print(f"source: {source_of(found, name)}")
    _docstring(found)
    return 0


@env_app.command(name="list")
def list_environments(config: Path | None = None, /, *overrides: str, json_output: JsonOutput = False) -> int:
    """List the named environments and the forms a service reference takes; with a configuration, its entries.

    Parameters
    ----------
    config
        A configuration file.
    overrides
        key=value or key+=item.
    json_output
        Print JSON.
    """
    from platoon.cli.builtins import builtins
    from platoon.envs.services import unbuilt_service
    from platoon.extensions.catalog import components

    heads = ("environment", "distribution", "status", "source")
    found = components(builtins(), "environment")
    named = [dict(zip(heads, (row.name, row.distribution, row.status, row.value), strict=True)) for row in found]
    entries = _entries(config, overrides) if config is not None else []
    if json_output:
        as_json({"services": list(_SCHEMES), "environments": named, "entries": entries})
        return 0
    print("services:")
    for scheme in _SCHEMES:
        print(f"  {scheme}" + (" (not built yet)" if unbuilt_service(scheme) else ""))
    print()
    _print(named, heads, False)
    if config is not None:
        print()
        _print(entries, ("name", "weight", "service", "harness", "program", "rollout"), False)
    return 0


def _entries(config: Path, overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    from platoon.cli.config import load_any

    return [
        {
            "name": entry.label,
            "weight": entry.weight,
            "service": entry.service or "-",
            "harness": entry.harness if isinstance(entry.harness, str) else ", ".join(entry.harness or ("-",)),
            "program": entry.program,
            "rollout": entry.rollout or ("harness_rollout" if entry.harness else "-"),
        }
        for entry in getattr(load_any(config, overrides, "auto", None).config, "environments", ())
    ]


@env_app.command(name="show")
def show_environment(name: str, /) -> int:
    """Show a named environment: the keys it lays below an entry's, and its default options of harnesses.

    Parameters
    ----------
    name
        name[@version] or module:attr.
    """
    from platoon.config.records import to_yaml
    from platoon.envs.named import environment_source, resolve_environment
    from platoon.extensions.provenance import provenance

    try:
        found = resolve_environment(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    source = environment_source(name)
    print(f"# {found.ref}")
    print(f"# source: {source}")
    print(f"# distribution: {provenance(source.partition(':')[0]).distribution or '-'}")
    if found.description:
        print(f"# {found.description}")
    defaults = {harness: dict(options) for harness, options in found.harness_defaults.items()}
    sys.stdout.write(to_yaml({"entry": found.entry(), "harness_defaults": defaults}))
    return 0


def _docstring(found: Any) -> None:
    text = inspect.getdoc(found)
    if text:
        print(f"\n{text}")


def _print(rows: list[dict[str, Any]], heads: tuple[str, ...], json_output: bool) -> int:
    if json_output:
        as_json(rows)
    else:
        table(heads, [[row[head] for head in heads] for row in rows])
    return 0
