"""Step environments: `reset` gives the first observation, `step` answers an action with observation, reward and end.

`StepEpisode` plays one and adds up its rewards; `as_environment` makes an openreward class of it. What the
environment raises, or gives in another form, is a `StepEnvError`: the episode failed and has no reward. The SDK is
loaded by `as_environment` alone.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel

from platoon.envs.ors.sdk import load_sdk
from platoon.extensions.boundary import Boundary
from platoon.rollout.trajectory import Task


class StepEnv(Protocol):
    """An environment that is played by text. A method `close`, async or not, is called at the end if there is one."""

    async def reset(self, task: Task) -> str: ...

    async def step(self, action: str) -> tuple[str, float, bool]:
        """The next observation, this step's reward, and whether the episode is over."""
        ...


EnvFactory = Callable[[], StepEnv]


class StepEnvError(RuntimeError):
    """A step environment raised, or gave something else than the contract says."""


class Move(NamedTuple):
    observation: str
    reward: float
    done: bool


@dataclass
class StepEpisode:
    """One episode of one environment. `total` is the sum of its rewards so far."""

    env: Any = None
    total: float = 0.0
    done: bool = False

    async def start(self, factory: EnvFactory, task: Task) -> str:
        """The first observation. StepEnvError when the environment cannot be made or reset."""
        with _failures("the factory"):
            self.env = factory()
        with _failures(f"{type(self.env).__name__}.reset"):
            return _text(await self.env.reset(task))

    async def step(self, action: str) -> Move:
        """Take one action. StepEnvError when it raises, or gives no text, finite number and bool."""
        with _failures(f"{type(self.env).__name__}.step"):
            move = _move(await self.env.step(action))
        self.total += move.reward
        self.done = move.done
        return move

    async def close(self) -> None:
        """Close the environment, if it was made and can be closed. A failure is logged: what was measured stands."""
        close = getattr(self.env, "close", None)
        if close is not None:
            with Boundary("environment"):
                closing = close()
                if inspect.isawaitable(closing):
                    await closing


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Log what environment code raises and raise it as StepEnvError, so that it is told from the agent's failures."""
    with Boundary("environment") as caught:
        yield
    if caught.error is not None:
        raise StepEnvError(f"{what} raised {caught.text}") from caught.error


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"an observation must be text, not {observation!r}")
    return observation


def _move(given: Any) -> Move:
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise TypeError(f"step must give (observation, reward, done), not {given!r}")
    observation, reward, done = given
    if isinstance(reward, bool) or not isinstance(reward, Real) or not math.isfinite(reward):
        raise TypeError(f"a reward must be a finite number, not {reward!r}")
    return Move(_text(observation), float(reward), bool(done))


def as_environment(
    env_factory: EnvFactory, *, name: str, tasks: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> type:
    """An openreward class `name` with one tool `act(action)`, for `service: python://module:Name`.

    `env_factory` makes the step environment of each episode. `tasks`: split -> task specs; `goal`, `id` and
    `max_steps` of a spec become the task's, the rest its `misc`. Default: one task `0` in `train`. ImportError without
    the SDK, ValueError for a name or tasks that cannot be served.
    """
    if not name.isidentifier():
        raise ValueError(f"name={name!r} is no name of a class")
    listed = {"train": [{"id": "0"}]} if tasks is None else {split: [*specs] for split, specs in tasks.items()}
    wrong = [spec for specs in listed.values() for spec in specs if not isinstance(spec, Mapping)]
    if wrong or not listed:
        raise ValueError(f"tasks must map splits to lists of task specs (mappings); it has {wrong or 'no split'}")
    sdk = load_sdk()
    _StepEnvironment.act.__annotations__["return"] = sdk.ToolOutput  # the SDK knows a tool by what it returns
    sdk.tool(_StepEnvironment.act)
    made: type = type(sdk.Environment)(
        name,
        (_StepEnvironment, sdk.Environment),
        {
            "__doc__": inspect.getdoc(env_factory),
            "__module__": getattr(env_factory, "__module__", __name__),
            "factory": staticmethod(env_factory),
            "listed": listed,
        },
    )
    return made


class Action(BaseModel):
    action: str


class _StepEnvironment:
    """What `as_environment` puts before the SDK's `Environment`. The step environment is made on first use."""

    factory: ClassVar[Any]  # of `EnvFactory`, a static method
    listed: ClassVar[dict[str, list[Mapping[str, Any]]]]

    def __init__(self, task_spec: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets or {})  # type: ignore[call-arg]  # the SDK's Environment follows
        self._spec = task_spec
        self._episode = StepEpisode()
        self._prompt: str | None = None

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(cls.listed)

    @classmethod
    def list_tasks(cls, split: str) -> list[Mapping[str, Any]]:
        return cls.listed[split]

    async def get_prompt(self) -> list[Any]:
        if self._prompt is None:
            self._prompt = await self._episode.start(self.factory, _task(self._spec))
        return [load_sdk().TextBlock(text=self._prompt)]

    async def act(self, arguments: Action) -> Any:
        """Take one action. The result is what the environment answers."""
        if self._episode.done:
            return self._said("The episode is over.", 0.0)
        try:
            await self.get_prompt()
            move = await self._episode.step(arguments.action)
        except StepEnvError as error:  # ends the episode, with a grade that is none
            blocks, notes = [load_sdk().TextBlock(text=str(error))], {"invalid": True, "reason": str(error)}
            return load_sdk().ToolOutput(blocks=blocks, finished=True, metadata=notes)
        return self._said(move.observation, move.reward)

    def _said(self, text: str, reward: float) -> Any:
        sdk, episode = load_sdk(), self._episode
        return sdk.ToolOutput(
            blocks=[sdk.TextBlock(text=text)],
            reward=episode.total,
            finished=episode.done,
            metadata={"step_reward": reward, "return": episode.total},
        )

    def platoon_copy(self) -> Any:
        twin = type(self)(copy.deepcopy(self._spec))
        twin._episode, twin._prompt = copy.deepcopy(self._episode), self._prompt
        return twin

    async def teardown(self) -> None:
        await self._episode.close()


def _task(spec: Mapping[str, Any]) -> Task:
    rest = {key: value for key, value in spec.items() if key not in ("goal", "id", "max_steps", "misc")}
    task_id = None if spec.get("id") is None else str(spec["id"])
    return Task(spec.get("goal"), task_id, spec.get("max_steps"), {**spec.get("misc", {}), **rest})
