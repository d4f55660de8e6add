"""The command line: one module a group of commands, exit codes, one report for a bad configuration.

0 success, 1 failure at run time, 64 wrong use, 78 bad configuration. Starting it imports no training library; each
command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal

import cyclopts
from rich.console import Console

import platoon
from platoon.cli import config, evaluate, extensions, listing, prepare, rollout, serve, tasks, train
from platoon.cli.absent import absent_apps
from platoon.config.problems import ConfigError

USAGE, CONFIG, INTERRUPTED, BROKEN_PIPE = 64, 78, 130, 141

app = cyclopts.App(
    name="platoon",
    help="Train LLM agents with reinforcement learning.",
    version=platoon.__version__,
    result_action="return_value",
    help_format="plaintext",  # the default, markdown, loads a parser and a highlighter: half of the time of --help
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
app.command(listing.program_app)
app.command(listing.env_app)
app.command(extensions.app)
for _absent in absent_apps():
    app.command(_absent)


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the completion script of a shell: `source <(platoon completion bash)`.

    Parameters
    ----------
    shell
        The shell that is to complete.
    """
    sys.stdout.write(app.generate_completion(prog_name="platoon", shell=shell))
    return 0


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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it leaves
        return BROKEN_PIPE
    return result if isinstance(result, int) else 0
