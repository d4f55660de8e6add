"""What a model call can fail with. `kind` decides its HTTP status in every dialect."""

from __future__ import annotations

from typing import Literal

ErrorKind = Literal[
    "authentication", "permission", "agent_closed", "context_length", "invalid_request", "timeout", "server"
]


class GatewayError(Exception):
    kind: ErrorKind = "server"


class ContextWindowExceededError(GatewayError):
    """The prompt fills the context window. Nothing was sampled."""

    kind = "context_length"

    def __init__(self, prompt_tokens: int, context_window: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_window} tokens. "
            f"However, your messages resulted in {prompt_tokens} tokens. Please reduce the length of the messages."
        )
        self.prompt_tokens = prompt_tokens
        self.context_window = context_window


class JudgesOffError(GatewayError):
    kind = "permission"


class UnknownAgentError(GatewayError):
    kind = "authentication"


class AgentClosedError(GatewayError):
    kind = "agent_closed"


class GatewayShutDownError(GatewayError):
    kind = "agent_closed"


class AgentLimitError(GatewayError, ValueError):
    kind = "invalid_request"


class CallKindRefusedError(GatewayError, ValueError):
    kind = "permission"


class RequestError(GatewayError, ValueError):
    """A request that cannot be honoured. `param` names its field."""

    kind = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def error_kind(error: BaseException) -> ErrorKind:
    if isinstance(error, GatewayError):
        return error.kind
    if isinstance(error, TimeoutError):
        return "timeout"
    return "invalid_request" if isinstance(error, ValueError) else "server"
