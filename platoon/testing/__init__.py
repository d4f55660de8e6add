"""What tests of harnesses, environments and runs are written with: a toy model, scripted policies, gateways, checks."""

from platoon.testing.admission import check_group_admission
from platoon.testing.episodes import EpisodeRun, run_episode
from platoon.testing.gateways import make_gateway
from platoon.testing.policy import (
    Completion,
    PolicyCall,
    ScriptedPolicy,
    ScriptExhaustedError,
    last_user_message,
    rules,
    tool_call,
)
from platoon.testing.samplers import check_task_sampler
from platoon.testing.toy import (
    TOY_EOS,
    TOY_MODEL_NAME,
    TOY_RENDERER_NAME,
    TOY_TOKENIZER_DIR,
    toy_renderer,
    toy_tokenizer,
)

__all__ = [
    "TOY_EOS",
    "TOY_MODEL_NAME",
    "TOY_RENDERER_NAME",
    "TOY_TOKENIZER_DIR",
    "Completion",
    "EpisodeRun",
    "PolicyCall",
    "ScriptExhaustedError",
    "ScriptedPolicy",
    "check_group_admission",
    "check_task_sampler",
    "last_user_message",
    "make_gateway",
    "rules",
    "run_episode",
    "tool_call",
    "toy_renderer",
    "toy_tokenizer",
]
