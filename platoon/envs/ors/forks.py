"""Further leases of a live environment: another view of its state for a child's goal, or a copy of it.

Both are taken while nothing else runs in the environment.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from platoon.envs.ors.lease import Lease
from platoon.envs.ors.sdk import load_sdk
from platoon.envs.ors.threads import run_user_callable
from platoon.rollout.trajectory import Task


async def view_of(lease: Lease, task: Task | None) -> Lease:
    """The lease itself; or, for a task of its own and a class with `platoon_fork`, a view with its own goal and grade.

    TypeError when the hook gives no environment.
    """
    hook = getattr(lease.env, "platoon_fork", None)
    if task is None or hook is None:
        return lease
    spec = {**dict(lease.env.task_spec), "goal": task.goal}
    lease.hold()  # the hook's environment lives on the parent's state
    made: Lease | None = None
    try:
        env = await lease.run("exclusive", lambda: run_user_callable(hook, spec))
        if not hasattr(env, "get_prompt"):
            raise TypeError(f"platoon_fork of {type(lease.env).__name__} gave {type(env).__name__}, not an environment")
        made = Lease(env, lease.options, parent=lease)
    finally:
        if made is None:
            await lease.release()
    return made


async def copy_of(lease: Lease) -> Lease:
    """A lease on a copy of the environment and of its accounting.

    NotImplementedError for a class that overrides teardown without saying how it is copied: two environments would
    tear down the same resources.
    """
    async with lease.gate.hold("exclusive"):
        env = _copy(lease.env)
    made = Lease(env, lease.options)
    made.adopt(lease)
    return made


def _copy(env: Any) -> Any:
    own = getattr(env, "platoon_copy", None)
    if own is not None:
        return own()
    cls = type(env)
    if not hasattr(cls, "__deepcopy__") and cls.teardown is not load_sdk().Environment.teardown:
        raise NotImplementedError(
            f"{cls.__name__} overrides teardown, so a copy could close what the original uses; define platoon_copy"
        )
    memo: dict[int, Any] = {}
    for name in ("_tool_locks", "_exclusive_gate"):
        lock = getattr(env, name, None)
        if lock is not None:
            memo[id(lock)] = None  # the copy makes its own
    loop = asyncio.get_running_loop()
    memo[id(loop)] = loop
    return copy.deepcopy(env, memo)
