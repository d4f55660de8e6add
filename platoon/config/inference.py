"""The `inference` section of an evaluation config: which policy, how many rollouts, where to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from platoon.config.base import Count, CountOrZero, Directory, NotNegative, Number, Positive, Section, Text
from platoon.config.problems import Problem
from platoon.config.rollout import RolloutConfig

_PER_REQUEST = "a hosted model takes base_url and api_key_env"


class PricingConfig(Section):
    """US dollars per million tokens."""

    input: NotNegative
    output: NotNegative
    cached_input: NotNegative | None = None
    cache_write: NotNegative | None = None


class HostedConfig(Section):
    """A model behind an OpenAI-compatible URL. The key is read from the variable that `api_key_env` names."""

    HINTS: ClassVar = dict.fromkeys(
        ("kind", "require_api_key", "headers", "headers_env", "extra_body", "drop_params"), _PER_REQUEST
    )

    base_url: Text = Field(repr=False)
    api_key_env: str | None = None
    timeout_s: Positive = 600.0
    max_retries: CountOrZero = 6
    max_concurrent_requests: Count | None = None
    pricing: PricingConfig | None = None

    def complete(self) -> Iterator[Problem]:
        if not _is_plain_url(self.base_url):
            text = (
                "must be an http or https URL of a host, without user, query, fragment (not shown: it may hold a key)"
            )
            yield Problem(("base_url",), text)
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            yield Problem(("api_key_env",), "must be the name of an environment variable (not shown: it may be a key)")


def _is_plain_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return bool(
            url.scheme in ("http", "https")
            and url.hostname
            and "@" not in url.netloc
            and url.query == url.fragment == ""
        )
    except ValueError:
        return False


class InferenceWorkflow(Section):
    """How many rollouts a task gets, how many run at once, what counts as success."""

    num_rollouts_per_task: Count = 1
    num_concurrent_workers: Count = 32
    success_threshold: Number = 1.0
    fail_fast: bool = False
    count_timeout_as_failure: bool = False
    use_subprocesses: bool = False
    subprocess_max_workers: Count | None = None
    rollout_config: RolloutConfig = RolloutConfig()

    def complete(self) -> Iterator[Problem]:
        limit = self.num_concurrent_workers
        if self.subprocess_max_workers is not None and self.subprocess_max_workers > limit:
            text = f"must be at most num_concurrent_workers ({limit}); got {self.subprocess_max_workers}"
            yield Problem(("subprocess_max_workers",), text, (("num_concurrent_workers",),))


_TINKER_KEYS = ("renderer_name", "model_path", "renderer_kwargs", "sample_timeout_seconds", "context_window_length")


class InferenceConfig(Section):
    """The policy under evaluation. Without `renderer_name` and `hosted` no policy is served."""

    HINTS: ClassVar = {"backend": "write hosted: {base_url: ..., api_key_env: ...} for a hosted model"}

    model_name: Text
    renderer_name: Text | None = None
    model_path: Text | None = None
    renderer_kwargs: dict[str, Any] = Field(default_factory=dict)
    sample_timeout_seconds: Positive | None = None
    context_window_length: Count | None = None
    output_dir: Directory | None = None
    workflow: InferenceWorkflow = InferenceWorkflow()
    resume: bool = True
    retry_errored: bool = True
    judges: bool = True
    hosted: HostedConfig | None = None

    def complete(self) -> Iterator[Problem]:
        if self.hosted is not None:
            for key in _TINKER_KEYS:
                if getattr(self, key):
                    yield Problem((key,), "is of a policy on the training service; hosted excludes it", (("hosted",),))
        path = self.model_path
        if path is not None and "://" in path and not path.startswith("tinker://"):
            text = f"must be a tinker:// path of sampler weights or the directory of a training run; got {path!r}"
            yield Problem(("model_path",), text)
        if not self.workflow.rollout_config.judges and self.judges:
            yield Problem(("workflow", "rollout_config", "judges"), "set inference.judges: false", (("judges",),))
