"""Opens an openreward environment: build, set up, ask for the prompt. What fails or is cancelled is closed again.

Environment code that runs on a thread cannot be stopped; a cancelled opening tears the environment down once it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from platoon.envs.contract import EnvSetupError
from platoon.envs.ors.lease import tear_down
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.refs import TaskRef
from platoon.envs.ors.threads import run_user_callable
from platoon.envs.teardown import in_background
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import import_string

T = TypeVar("T")


async def open_environment(cls: Any, ref: TaskRef, options: OrsOptions) -> tuple[Any, str]:
    """The set-up environment and its prompt. EnvSetupError `env_config` for a wrong task, else `env_setup`."""
    env: Any = None
    with Boundary("environment", quiet=True) as caught:
        spec = await cls.get_task(ref.split, ref.index)
        env = cls(task_spec=spec, secrets=dict(options.secrets or {}))
    if caught.error is not None:
        raise _setup_error(f"task {ref.task_id}: {caught.text}", caught.error)
    opening = _Opening(env, ref, options)
    await opening.run("setup", lambda: run_user_callable(env.setup))
    prompt = await opening.run("get_prompt", lambda: prompt_of(env, options))
    return env, prompt


class _Opening:
    def __init__(self, env: Any, ref: TaskRef, options: OrsOptions) -> None:
        self._env = env
        self._ref = ref
        self._timeout = options.close_timeout_s

    async def run(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one step of the opening; when it fails or its caller leaves, the environment is torn down after it."""
        step = asyncio.ensure_future(work())
        try:
            await asyncio.wait({step})
        except asyncio.CancelledError:
            in_background(self._after(step))
            raise
        with Boundary("environment", quiet=True) as caught:
            return step.result()
        await asyncio.shield(in_background(tear_down(self._env, self._timeout)))
        error = _setup_error(f"task {self._ref.task_id}: {what} raised {caught.text}", caught.error)
        if what == "get_prompt":
            error.failure_kind = "env_setup"
        raise error

    async def _after(self, step: asyncio.Future[Any]) -> None:
        await asyncio.wait({step})
        if not step.cancelled():
            step.exception()  # the rollout is gone; a failure of the step has no reader
        await tear_down(self._env, self._timeout)


def _setup_error(message: str, error: BaseException | None) -> EnvSetupError:
    wrong_task = isinstance(error, IndexError | KeyError | ValueError)
    made = EnvSetupError("env_config" if wrong_task else "env_setup", message)
    made.__cause__ = error
    return made


async def prompt_of(env: Any, options: OrsOptions) -> str:
    """The environment's prompt as text: blocks joined by newlines, images named, then the filter of the options."""
    blocks = await run_user_callable(env.get_prompt)
    if isinstance(blocks, str):
        blocks = [blocks]
    text = "\n".join(
        block
        if isinstance(block, str)
        else f"[image: {block.mimeType}]"
        if getattr(block, "type", None) == "image"
        else str(block.text)
        for block in blocks
    )
    rewrite = options.prompt_filter
    if rewrite is not None:
        text = (import_string(rewrite) if isinstance(rewrite, str) else rewrite)(text)
    return text
