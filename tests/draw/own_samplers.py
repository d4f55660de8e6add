"""Samplers as users write them, good and bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from platoon.experimental import Draw, GroupRecord, Sampler, SamplerContext, SamplerSetup, Slot, task_sampler


@dataclass(frozen=True)
class StrideOptions:
    stride: int = 1
    seed: int = 0


@task_sampler("stride", options=StrideOptions)
class Stride(Sampler):
    """Every n-th task, statically."""

    def next(self, ctx: SamplerContext) -> str:
        step = ctx.decision * int(self.options.stride)
        return ctx.task_ids[step % len(ctx.task_ids)]


class Alternate(Sampler):
    """Slots by turns."""

    entry_slots = True

    def next(self, ctx: SamplerContext) -> Slot:
        names = list(self.setup.entries)
        return Slot(names[ctx.decision % len(names)])


class Listener(Sampler):
    """Adaptive, with a state: the tasks heard of, then at random among the eligible."""

    adaptive = True

    def __init__(self, setup: SamplerSetup, options: Any) -> None:
        super().__init__(setup, options)
        self.heard: list[str] = []

    def next(self, ctx: SamplerContext) -> Draw | None:
        found = [task for task in dict.fromkeys(ctx.task_ids) if ctx.eligible(task)]
        return Draw(ctx.rng.choice(found), "heard" if self.heard else "new", 0.5) if found else None

    def observe(self, record: GroupRecord) -> None:
        self.heard.append(record.task_id)

    def state_dict(self) -> Mapping[str, Any]:
        return {"heard": self.heard}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.heard = list(state["heard"])

    def metrics(self, stats: object) -> Mapping[str, float]:
        kept = ["draws", "decision_ms", "decision_ms_max", "tokens", "skipped_slots", "draws/heard"]
        kept += ["predicted_informative", "informative_share"]
        return {"heard": float(len(self.heard)), "odd": float("nan"), **dict.fromkeys(kept, 1.0)}


class SlotsLate(Alternate):
    adaptive = True


class Stumbling(Listener):
    """Fails at every third decision."""

    def next(self, ctx: SamplerContext) -> Draw | None:
        if ctx.decision % 3 == 1:
            raise RuntimeError("stumbled")
        return super().next(ctx)


class StumblingSlots(Alternate):
    """Fails at every fourth decision."""

    def next(self, ctx: SamplerContext) -> Slot:
        if ctx.decision % 4 == 2:
            raise RuntimeError("stumbled")
        return super().next(ctx)


class Answers(Sampler):
    """Gives the class's `answer`, or raises it."""

    adaptive = True
    answer: object = None

    def next(self, ctx: SamplerContext) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class StaticAnswers(Answers):
    adaptive = False


class Unsaveable(Listener):
    def state_dict(self) -> Mapping[str, Any]:
        return {"at": float("nan")}


class Forgetful(Sampler):
    async def next(self, ctx: SamplerContext) -> str:  # type: ignore[override]
        return ctx.task_ids[0]


class Undecided:
    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[0]
