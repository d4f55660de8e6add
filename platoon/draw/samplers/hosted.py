"""A sampler class at work: its decisions numbered, its answers checked, its failures survived.

What it raises or answers wrongly is logged once a kind and replaced by a fallback draw that depends on the decision
alone. Promise: a decision that can draw something does.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from platoon.draw.order import decision_key
from platoon.draw.pool import TaskPool
from platoon.draw.registry import Component
from platoon.draw.samplers.contract import Draw, SamplerContext, SamplerSetup, Slot, TaskSampler
from platoon.draw.view import TaskStatsView
from platoon.extensions.boundary import Boundary
from platoon.stats.schema import GroupRecord

log = logging.getLogger("platoon.draw")
FALLBACK = "fallback"


@dataclass(frozen=True)
class Scene:
    """What a decision depends on. `closed`: labels at their limit; `largest`: most rollouts a group may have."""

    version: int = 0
    step: int = 0
    closed: frozenset[str | None] = frozenset()
    largest: int | None = None


OPEN = Scene()


class Refused(ValueError):
    """An answer that no draw can follow."""


class HostedSampler:
    """One instance for one pool: the run's rows, or an entry's. `decisions`: how many it has made."""

    def __init__(
        self, component: Component, options: Mapping[str, Any], setup: SamplerSetup, rows: Sequence[int], pool: TaskPool
    ) -> None:
        self.name = setup.name
        self.decisions = 0
        self.fell_back = False  # in the last decision
        self.setup = setup
        self._component = component
        self._options = component.parse(options)
        own_seed = getattr(self._options, "seed", None)
        if isinstance(self._options, Mapping):
            own_seed = self._options.get("seed")
        self._seed = setup.seed + (own_seed if isinstance(own_seed, int) and not isinstance(own_seed, bool) else 0)
        self._rows = tuple(rows)
        first: dict[str, int] = {}
        for row in rows:
            first.setdefault(pool[row].task_id, row)
        self._firsts = tuple(first.values())
        self._index = {task_id: index for index, task_id in enumerate(first)}
        self._pool = pool
        self._labels = tuple(dict.fromkeys(pool[row].label for row in self._firsts))
        codes = {label: code for code, label in enumerate(self._labels)}
        self._label_N = np.array([codes[pool[row].label] for row in self._firsts], np.int64)
        sizes = {label: info.group_size for label, info in setup.entries.items()}
        self._size_N = np.array([sizes.get(pool[row].entry or "", 1) for row in self._firsts], np.int64)
        self._largest = int(self._size_N.max())
        self.complaints: dict[str, str] = {}  # the first of each kind
        self._sampler = self._make()

    def _make(self) -> TaskSampler:
        sampler: TaskSampler = self._component.cls(self.setup, self._options)
        return sampler

    @property
    def adaptive(self) -> bool:
        return bool(self._component.cls.adaptive)

    @property
    def source(self) -> str:
        return self._component.source

    @property
    def hands_slots(self) -> bool:
        return bool(getattr(self._component.cls, "entry_slots", False))

    # -- decisions

    def decide(self, decision: int, scene: Scene, stats: TaskStatsView | None) -> tuple[int, Draw] | Slot | None:
        """The row and what is said of it, or a slot; None when nothing of the pool may start."""
        mask_N = self._eligible(scene)
        if mask_N is not None and not mask_N.any():
            return None
        key = decision_key(self._seed, self.name, decision)

        def eligible(task_id: str) -> bool:
            index = self._index.get(task_id)
            return index is not None and (mask_N is None or bool(mask_N[index]))

        context = SamplerContext(
            task_ids=self.setup.task_ids,
            entry=self.setup.entry,
            decision=decision,
            key=key,
            eligible=eligible,
            stats=stats if self.adaptive else None,
            step=scene.step,
            versions={"main": scene.version},
            eligible_N=mask_N,
        )
        answer: object = None
        self.fell_back = False
        with Boundary("sampler", quiet=True) as caught:
            answer = self._sampler.next(context)
        try:
            if caught.error is not None:
                self._complain("raised", f"raised {caught.text}")
            else:
                return self._checked(answer, eligible)
        except Refused as refusal:
            self._complain("none" if answer is None else "refused", str(refusal))
        self.fell_back = True
        return self._fallback(key, mask_N)

    def _eligible(self, scene: Scene) -> npt.NDArray[np.bool_] | None:
        """Over distinct ids; None when every one may start."""
        mask_N: npt.NDArray[np.bool_] | None = None
        if scene.closed and not scene.closed.isdisjoint(self._labels):
            open_L = np.array([label not in scene.closed for label in self._labels])
            mask_N = open_L[self._label_N]
        if scene.largest is not None and self._largest > scene.largest:
            fits_N = self._size_N <= scene.largest
            mask_N = fits_N if mask_N is None else mask_N & fits_N
        if mask_N is not None:
            mask_N.flags.writeable = False  # the sampler sees it, and the fallback uses it
        return mask_N

    def _checked(self, answer: object, eligible: Callable[[str], bool]) -> tuple[int, Draw] | Slot:
        if isinstance(answer, Slot):
            if not self.hands_slots or answer.entry not in self.setup.entries:
                raise Refused(f"gave a slot to {answer.entry!r}, which it may not")
            return answer
        draw = Draw(answer) if isinstance(answer, str) else answer
        if draw is None:
            raise Refused("drew nothing, though something may start")
        if not isinstance(draw, Draw):
            raise Refused(f"answered with a value of type {type(answer).__name__}")
        index = self._index.get(draw.task_id) if isinstance(draw.task_id, str) else None
        if index is None:
            raise Refused(f"drew {draw.task_id!r}, which is not a task of its pool")
        if self.adaptive and not eligible(draw.task_id):
            raise Refused(f"drew {draw.task_id!r}, which cannot start now")
        if not isinstance(draw.reason, str) or not 1 <= len(draw.reason) <= 64:
            raise Refused(f"gave the reason {draw.reason!r}; it needs 1 to 64 characters")
        if draw.score is not None:
            number = isinstance(draw.score, int | float) and not isinstance(draw.score, bool)
            if not number or not math.isfinite(draw.score):
                raise Refused(f"gave the score {draw.score!r}; it needs a finite number, or None")
        return self._firsts[index], draw

    def _fallback(self, key: int, mask_N: npt.NDArray[np.bool_] | None) -> tuple[int, Draw] | Slot:
        if self.hands_slots:
            return Slot(self._entry_by_weight(key))
        if not self.adaptive:
            row = self._rows[key % len(self._rows)]
        else:
            rows = self._firsts if mask_N is None else [self._firsts[index] for index in np.flatnonzero(mask_N)]
            row = rows[key % len(rows)]
        return row, Draw(self._pool[row].task_id, FALLBACK)

    def _entry_by_weight(self, key: int) -> str:
        entries = [(label, info.weight) for label, info in self.setup.entries.items() if info.task_ids]
        left = random.Random(key).random() * sum(weight for _, weight in entries)
        for label, weight in entries:
            left -= weight
            if left < 0:
                return label
        return entries[-1][0]

    # -- what it hears and tells

    def observe(self, record: GroupRecord) -> None:
        """Pass on a settled group of its pool, when it asks for them."""
        hear = getattr(self._sampler, "observe", None)
        if hear is None or not self.adaptive or record.task_id not in self._index:
            return
        with Boundary("sampler", quiet=True) as caught:
            hear(record)
        if caught.error is not None:
            self._complain("observe", f"observe raised {caught.text}")

    def metrics(self, stats: TaskStatsView | None) -> dict[str, float]:
        """Its own finite numbers."""
        tell = getattr(self._sampler, "metrics", None)
        if tell is None:
            return {}
        found: object = None
        with Boundary("sampler", quiet=True) as caught:
            found = tell(stats if self.adaptive else None)
            if not isinstance(found, Mapping):
                raise TypeError(f"metrics gave {type(found).__name__}, not a mapping")
        if caught.error is not None or not isinstance(found, Mapping):
            self._complain("metrics", f"metrics raised {caught.text}")
            return {}
        kept: dict[str, float] = {}
        for name, value in found.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not isinstance(name, str) or not number:
                self._complain("metrics", f"metric {name!r} is {value!r}, not a finite number")
            elif name in RESERVED_METRICS or name.startswith("draws/"):
                self._complain("reserved", f"metric {name!r} is one of platoon's own names; it is left out")
            else:
                kept[name] = float(value)
        return kept

    def record(self) -> dict[str, Any]:
        """What a saved dispatcher holds of it; without state when that is no JSON mapping."""
        record: dict[str, Any] = {"name": self.name, "class": self.source, "decisions": self.decisions}
        with Boundary("sampler", quiet=True) as caught:
            state = json.loads(json.dumps(self._sampler.state_dict(), allow_nan=False))  # a deep copy, too
            if not isinstance(state, dict):
                raise TypeError(f"state_dict gave {type(state).__name__}, not a mapping")
            record["state"] = state
        if caught.error is not None:
            self._complain("state", f"its state cannot be saved ({caught.text}); a resume starts it afresh")
        return record

    def load(self, record: Mapping[str, Any]) -> list[str]:
        """Take a saved record of this name and class; gives warnings. The instance is made anew when it refuses."""
        count = record.get("decisions")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return [f"saved sampler {self.name}: decisions is {count!r}, not a count; it starts afresh"]
        self.decisions = count
        with Boundary("sampler", quiet=True) as caught:
            self._sampler.load_state_dict(record.get("state", {}))
        if caught.error is None:
            return []
        self._sampler = self._make()
        return [f"saved sampler {self.name}: its state does not load ({caught.text}); it starts afresh"]

    def _complain(self, kind: str, text: str) -> None:
        level = logging.DEBUG if kind in self.complaints else logging.ERROR
        self.complaints.setdefault(kind, text)
        log.log(level, "sampler %s (%s): %s", self.name, self.source, text)


RESERVED_METRICS = frozenset(
    {
        "draws",
        "decision_ms",
        "decision_ms_max",
        "tokens",
        "skipped_slots",
        "predicted_informative",
        "informative_share",
    }
)
