"""The recording model gateway and its HTTP server."""

from platoon.gateway.agents import AgentSession, CallRecord, OpenAgent
from platoon.gateway.errors import (
    AgentClosedError,
    AgentLimitError,
    CallKindRefusedError,
    ContextWindowExceededError,
    GatewayError,
    GatewayShutDownError,
    JudgesOffError,
    RequestError,
    UnknownAgentError,
)
from platoon.gateway.gateway import ModelGateway
from platoon.gateway.request import ChatRequest, RenderRequest
from platoon.gateway.response import ChatResponse, Usage
from platoon.gateway.sampling import Sampled, Sampler, SamplingOverrides, SamplingParams
from platoon.gateway.timeline import RolloutTimeline

__all__ = [
    "AgentClosedError",
    "AgentLimitError",
    "AgentSession",
    "CallKindRefusedError",
    "CallRecord",
    "ChatRequest",
    "ChatResponse",
    "ContextWindowExceededError",
    "GatewayError",
    "GatewayShutDownError",
    "JudgesOffError",
    "ModelGateway",
    "OpenAgent",
    "RenderRequest",
    "RequestError",
    "RolloutTimeline",
    "Sampled",
    "Sampler",
    "SamplingOverrides",
    "SamplingParams",
    "UnknownAgentError",
    "Usage",
]
