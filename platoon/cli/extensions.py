"""`platoon extensions list | show | check`: what other distributions bring."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any, Literal

import cyclopts

from platoon.cli.builtins import builtins, resolve
from platoon.cli.printing import JsonOutput, as_json, table
from platoon.config.problems import ConfigError, nearest

Kind = Literal["harness", "program", "environment", "reward_processor", "task_sampler", "group_admission"]
USED_IN = {
    "harness": "environments.*.harness",
    "program": "environments.*.program",
    "environment": "environments.*.env",
    "reward_processor": "environments.*.reward_processor",
    "task_sampler": "train.task_sampler, environments.*.task_sampler",
    "group_admission": "train.group_admission, environments.*.group_admission",
}
app = cyclopts.App(name="extensions", help="Components that installed distributions bring.")


@app.command(name="list")
def list_extensions(*, kind: Kind | None = None, json_output: JsonOutput = False) -> int:
    """List built-in and installed components; none is imported.

    Parameters
    ----------
    kind
        Only components of this kind.
    json_output
        Print a JSON list.
    """
    from platoon.extensions.catalog import components

    rows = components(builtins(), kind)
    if json_output:
        as_json([asdict(row) for row in rows])
        return 0
    shown = [(row.kind, row.name, row.distribution, row.version or "-", row.status, row.value) for row in rows]
    table(("kind", "name", "distribution", "version", "status", "source"), shown)
    return 0


@app.command
def show(name: str, /, *, kind: Kind | None = None, load: bool = False, json_output: JsonOutput = False) -> int:
    """Show a component by name.

    Parameters
    ----------
    name
        The component's name, without version.
    kind
        Its kind, where several kinds have the name.
    load
        Also import it, and say whether that works.
    json_output
        Print a JSON object.
    """
    from platoon.extensions.catalog import Component, components
    from platoon.extensions.entry_points import GROUPS, all_installed, distribution, load_point

    everything = components(builtins(), kind)
    found = [row for row in everything if row.name == name]
    if not found:
        close = nearest(name, {row.name for row in everything})
        raise ConfigError(f"no component is named {name!r}" + (f"; did you mean {close}?" if close else ""))

    def about(row: Component) -> dict[str, Any]:
        record = {**asdict(row), "entry_point": None, "used_in": USED_IN[row.kind], "registers": None, "error": None}
        if row.builtin:
            return record
        record["entry_point"] = {"group": GROUPS[row.kind], "name": row.name, "value": row.value}
        for point in all_installed(row.kind) if load else ():
            if (point.name, distribution(point)) == (row.name, row.distribution):
                try:
                    load_point(row.kind, point)
                    found = resolve(row.kind, row.name)
                    ref = found if isinstance(found, str) else getattr(found, "ref", None)
                    record["registers"] = ref or row.value
                except (ValueError, ConfigError) as error:
                    record["error"] = str(error)
        return record

    records = [about(row) for row in found]
    if json_output:
        as_json(records[0] if len(records) == 1 else records)
    else:
        for record in records:
            for key, value in record.items():
                if value not in (None, (), False):
                    print(f"{key}: {', '.join(value) if isinstance(value, list | tuple) else value}")
    return 78 if any(record["error"] for record in records) else 0


@app.command
def check(*distributions: str, load: bool = False) -> int:
    """Check installed extensions: names, requirements on platoon, and whether they can be imported; 78 on an error.

    Parameters
    ----------
    distributions
        Only these; without any, all.
    load
        Also import every component, and look it up as a run would.
    """
    from platoon.extensions.catalog import check as findings_of

    findings = findings_of(builtins(), distributions, load=load, resolve=resolve)
    for finding in findings:
        print(f"{finding.severity}: {finding.distribution}: {finding.message}")
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"{errors} errors, {len(findings) - errors} warnings", file=sys.stdout)
    return 78 if errors else 0
