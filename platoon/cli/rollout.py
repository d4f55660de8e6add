"""`platoon rollout`: play one task once and show what happened."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from platoon.cli.loading import check_key, load_config, log_to_stderr, refuse_unisolated, told_to_prepare, warn
from platoon.cli.prepare import prepared
from platoon.cli.printing import JsonOutput, as_json


def rollout(
    config: Path,
    /,
    *overrides: str,
    task: str,
    split: str | None = None,
    output_dir: Path | None = None,
    model: str | None = None,
    model_path: str | None = None,
    renderer: str | None = None,
    json_output: JsonOutput = False,
    prepare: bool = False,
) -> int:
    """Play one task with the policy of a configuration; 1 when the rollout has no valid score.

    Parameters
    ----------
    config
        The configuration file of a training run or an evaluation.
    overrides
        key=value or key+=item.
    task
        The task's id or name; in a mixture ENTRY::ID.
    split
        train plays with training's settings, any other with evaluation's.
    output_dir
        Where the records go; without it a new directory below runs/adhoc.
    model
        Another model than the configuration's.
    model_path
        A tinker:// path of sampler weights, or the directory of a training run.
    renderer
        Another renderer than the configuration's.
    json_output
        Print a summary as JSON instead of a tree.
    prepare
        First fetch and build what the configuration needs, as `platoon prepare` does.
    """
    from platoon.cli.single import Asked, play
    from platoon.cli.single_shown import summary, tree

    loaded = load_config(config, overrides)
    warn(loaded)
    log_to_stderr()
    refuse_unisolated(loaded)
    check_key(loaded)
    if prepare and (failed := prepared(loaded)) != 0:
        return failed
    asked = Asked(task, split, output_dir, model, model_path, renderer)
    with told_to_prepare(config, overrides):
        episode, directory = asyncio.run(play(loaded, asked, sys.argv[1:]))
    shown = summary(episode, task)
    if json_output:
        as_json(shown)
    else:
        print(tree(shown))
    print(f"platoon: records in {directory}", file=sys.stderr)
    return 0 if episode.outcome.status == "scored" else 1
