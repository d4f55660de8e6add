"""One training sequence: exact tokens with a logprob, an advantage and a loss mask for every target.

Arrays are read-only by convention: transforms return new datums, so that a group kept for a checkpoint never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from platoon.rollout.trajectory import Floats, Tokens

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Datum:
    """`tokens_T` is the model's input, `targets_T` the token to predict at each place.

    `logprobs_T` is what the sampler gave; `mask_T` is 1 on action targets and 0 elsewhere.
    `version`: oldest policy version that sampled in it. `depth`: 0 for the root agent.
    `traj_start` is 1 for the first kept datum with actions of its trajectory. `errors_T` marks targets of error
    completions, until the error filter has read it. Context places hold 0 in all three float arrays.
    """

    tokens_T: Tokens
    targets_T: Tokens
    logprobs_T: Floats
    advantages_T: Floats
    mask_T: Floats
    version: int
    depth: int = 0
    traj_start: float = 0.0
    errors_T: Flags | None = None
    routing_id: int | None = None
    policy: str = "main"

    @property
    def attention_tokens(self) -> int:
        """Tokens the model reads."""
        return len(self.tokens_T)

    @property
    def action_tokens(self) -> int:
        """Targets with a loss."""
        return int(np.count_nonzero(self.mask_T))

    @property
    def has_signal(self) -> bool:
        """True when some action target has an advantage other than exactly 0 (NaN counts as one)."""
        return bool(np.any((self.mask_T > 0) & (self.advantages_T != 0)))


def same_datum(left: Datum, right: Datum) -> bool:
    """Equal bit for bit, NaN included."""
    arrays = ("tokens_T", "targets_T", "logprobs_T", "advantages_T", "mask_T", "errors_T")
    scalars = ("version", "depth", "traj_start", "routing_id", "policy")
    return all(getattr(left, name) == getattr(right, name) for name in scalars) and all(
        _same_array(getattr(left, name), getattr(right, name)) for name in arrays
    )


def _same_array(left: npt.NDArray[np.generic] | None, right: npt.NDArray[np.generic] | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
