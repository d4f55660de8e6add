"""What the service keeps in memory: sessions, models being trained, and samplers. Plain records and their bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from platoon.service.engine import TrainState, Weights
from platoon.service.order import SequenceGate

SILENT_SESSION_SECONDS = 3600.0


class NotFound(ValueError):
    """A model, sampler or session this server does not know (perhaps one of before its restart)."""


@dataclass
class Session:
    """One SDK client. It is over when nothing was heard of it for `SILENT_SESSION_SECONDS`."""

    session_id: str
    last_seen: float
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    clones: int = 0


@dataclass
class Model:
    """One model being trained. `state` belongs to the compute thread; `version` counts what changed it."""

    model_id: str
    session_id: str
    rank: int
    created: float
    last_request: float
    user_metadata: Mapping[str, str] | None = None
    state: TrainState | None = None
    version: int = 0
    gate: SequenceGate[Callable[[], None]] = field(default_factory=SequenceGate)

    def trained(self) -> TrainState:
        if self.state is None:
            raise ValueError(f"model {self.model_id} was not created or has been unloaded")
        return self.state


@dataclass
class Sampler:
    """A sampling session on the base model (`path` None, `snapshot` False), a checkpoint, or a snapshot in memory."""

    sampler_id: str
    session_id: str
    path: str | None = None
    snapshot: bool = False
    clones: int = 0


class Recent(OrderedDict[str, Weights]):
    """Weights by key, the `most` recently used of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def used(self, key: str) -> Weights | None:
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def put(self, key: str, weights: Weights) -> None:
        self[key] = weights
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)
