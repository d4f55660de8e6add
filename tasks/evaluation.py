"""Opens the policy of an evaluation: joins the evaluation, which plays, with the service session, which samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from platoon.config import ConfigError, EvalRun
from platoon.eval.policy import Policy, WeightsSource
from platoon.train.policy import PolicySettings, open_policy


@asynccontextmanager
async def open_evaluated(config: EvalRun, source: WeightsSource, output: Path) -> AsyncIterator[Policy]:
    """The policy of `inference`. An embedded service keeps its state in the run that the weights come from, else in
    the evaluation's own directory. ConfigError as `open_policy`."""
    inference = config.inference
    if inference.renderer_name is None:
        raise ConfigError("inference.renderer_name: name the renderer of the policy, such as chat_template")
    settings = PolicySettings(
        model_name=inference.model_name,
        renderer_name=inference.renderer_name,
        renderer_kwargs=inference.renderer_kwargs,
        weights=source.path,
        context_window_length=inference.context_window_length,
        sample_timeout_seconds=inference.sample_timeout_seconds,
        tinker_base_url=config.tinker_base_url,
    )
    state = (source.run_dir or output) / "service"
    async with open_policy(settings, state, f"eval/{output.name}") as opened:
        yield Policy(opened.gateway, opened.server)
