"""`platoon harness list` and `platoon env list`: what can be named. Nothing but platoon's own code is imported."""

from __future__ import annotations

from collections.abc import Sequence

import cyclopts

harness_app = cyclopts.App(name="harness", help="Harnesses that an environment entry can name.")
env_app = cyclopts.App(name="env", help="Environments that an entry can name.")
_SCHEMES = (
    "python://pkg.module:EnvClass",
    "ors+http://HOST:PORT[,...]/EnvName",
    "ors+http:///EnvName",
    "pkg.module:Class",
)


@harness_app.command(name="list")
def list_harnesses() -> int:
    """List the harnesses: name, kind, distribution, source."""
    from platoon.harness.registry import list_harnesses as listed

    rows = [(row.ref, row.kind, row.distribution, row.source) for row in listed()]
    _table(("harness", "kind", "distribution", "source"), rows)
    return 0


@env_app.command(name="list")
def list_environments() -> int:
    """List the named environments and the forms a service reference takes."""
    from platoon.envs.named import list_environments as listed

    _table(("environment", "source"), listed())
    print("\nservices:")
    for scheme in _SCHEMES:
        print(f"  {scheme}")
    return 0


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [tuple(heads), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
