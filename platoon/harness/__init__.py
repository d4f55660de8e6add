"""Harnesses: the loops that play a task. The package itself is the decorator: `@pt.harness("my-agent")`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from platoon.harness.registry import FunctionHarness, HarnessFn, Runtime, get_harness, harness, list_harnesses

__all__ = ["FunctionHarness", "get_harness", "list_harnesses"]


class _Decorator(ModuleType):
    def __call__(
        self, name: str, *, version: str = "1", runtime: Runtime = "inline", executes_model_code: bool = False
    ) -> Callable[[HarnessFn], HarnessFn]:
        return harness(name, version=version, runtime=runtime, executes_model_code=executes_model_code)


sys.modules[__name__].__class__ = _Decorator
