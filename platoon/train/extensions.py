"""What code adds to a training run beside its config."""

from __future__ import annotations

from dataclasses import dataclass, field

from platoon.credit import CreditPlugins
from platoon.train.transforms import BatchTransform


@dataclass(frozen=True)
class TrainingExtensions:
    """`batch_transforms` follow the config's depth strategy; `credit` is used where an entry names no processor."""

    batch_transforms: tuple[BatchTransform, ...] = ()
    credit: CreditPlugins = field(default_factory=CreditPlugins)
