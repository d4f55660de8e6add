"""The command line: one module a group of commands, exit codes, one report for a bad configuration.

0 success, 1 failure at run time, 64 wrong use, 78 bad configuration. Starting it imports no training library; each
command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts
from rich.console import Console

import platoon
from platoon.cli import config, evaluate, listing, prepare, rollout, serve, tasks, train
from platoon.config.problems import ConfigError

USAGE, CONFIG, INTERRUPTED = 64, 78, 130

app = cyclopts.App(
    name="platoon",
    help="Train LLM agents with reinforcement learning.",
    version=platoon.__version__,
    result_action="return_value",
)
app.command(train.train)
app.command(evaluate.evaluate, name="eval")
app.command(prepare.prepare)
app.command(rollout.rollout)
app.command(serve.serve)
server = cyclopts.App(name="server", help="One local Prefect server for this user.")
for _name in ("start", "status", "stop"):
    server.command(f"platoon.cli.server:{_name}", name=_name)
app.command(server)
app.command(config.app)
app.command(tasks.app)
app.command(listing.harness_app)
app.command(listing.env_app)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. An unexpected error is raised, so that its traceback is seen."""
    try:
        result = app(list(argv), exit_on_error=False, print_error=True, error_console=Console(stderr=True))
    except cyclopts.CycloptsError:
        return USAGE
    except ConfigError as error:
        print(f"platoon: {error}", file=sys.stderr)
        return CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else 0
