"""A gateway over a scripted policy and the toy model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platoon.gateway import ModelGateway, Sampler
from platoon.render import Renderer, build_renderer
from platoon.testing.policy import Script, ScriptedPolicy
from platoon.testing.toy import TOY_MODEL_NAME, TOY_RENDERER_NAME


def make_gateway(
    policy: Sampler | Script,
    *,
    renderer: Renderer | str = TOY_RENDERER_NAME,
    renderer_kwargs: Mapping[str, Any] | None = None,
    model_name: str = TOY_MODEL_NAME,
    **settings: Any,
) -> ModelGateway:
    """`policy`: a sampler, or a script for one. `settings` go to `ModelGateway`."""
    sampler = policy if hasattr(policy, "sample") else ScriptedPolicy(policy)
    if isinstance(renderer, str):
        renderer = build_renderer(model_name, renderer, renderer_kwargs or {})
    return ModelGateway(sampler=sampler, renderer=renderer, model_name=model_name, **settings)
