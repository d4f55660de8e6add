"""From recorded calls to datums: prefix merging along each trajectory.

A call whose prompt starts with everything the datum holds extends it; any other prompt starts a new datum. Tokens are
taken from the record, never rendered again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from platoon.credit.datum import Datum
from platoon.rollout.trajectory import Floats, Interactions, Tokens, TrajectoryStep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallMarks:
    """Call ids that do not train as usual. `track_errors`: give every datum its error channel."""

    errors: frozenset[str] = frozenset()
    message_only: frozenset[str] = frozenset()
    track_errors: bool = False


@dataclass(frozen=True)
class Merged:
    """A trajectory's datums before credit, and the calls they come from (distinct, in step order)."""

    datums: list[Datum]
    calls: list[str]
    prefix_breaks: int


@dataclass
class _Run:
    """Calls that merge into one datum: context and completion pieces in turn. The lists run in parallel."""

    contexts: list[Tokens] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


def step_call(step: TrajectoryStep) -> str | None:
    """The id of the model call that a step names, if any."""
    action = step.misc.get("action_misc")
    found = action.get("completion_id") if isinstance(action, dict) else None
    return found if isinstance(found, str) else None


def trajectory_calls(steps: Iterable[TrajectoryStep], interactions: Interactions) -> list[str]:
    """Distinct calls that train, in step order. A call without a record is left out with a warning."""
    found: dict[str, None] = {}
    for step in steps:
        call_id = step_call(step)
        if call_id is None or call_id in found or step.misc.get("exclude_from_training"):
            continue
        if call_id not in interactions:
            log.warning("no recorded tokens for model call %s: its step does not train", call_id)
            continue
        found[call_id] = None
    return list(found)


def extension(interactions: Interactions, last: str, call_id: str) -> Tokens | None:
    """What `call_id`'s prompt holds after `last`'s prompt and completion; None when it does not start with them."""
    call = interactions[call_id]
    if call.continues == last:
        return call.suffix_S
    held = interactions.prompt_length(last) + len(interactions[last].tokens_A)
    if interactions.prompt_length(call_id) < held:
        return None
    prompt = interactions.prompt(call_id)
    if not _continues(interactions, call_id, last):
        merged = np.concatenate((interactions.prompt(last), interactions[last].tokens_A))
        if not np.array_equal(prompt[:held], merged):
            return None
    return prompt[held:]


def _continues(interactions: Interactions, call_id: str, ancestor: str) -> bool:
    key = interactions[call_id].continues
    while key is not None and key != ancestor:
        key = interactions[key].continues
    return key is not None


def merge_calls(
    calls: Sequence[str], interactions: Interactions, marks: CallMarks, *, depth: int, reward: float
) -> Merged:
    """Merge a trajectory's calls into datums whose action targets hold `reward` as their advantage."""
    runs: list[_Run] = []
    for call_id in calls:
        delta = extension(interactions, runs[-1].calls[-1], call_id) if runs else None
        if delta is None:
            runs.append(_Run())
            delta = interactions.prompt(call_id)
        runs[-1].contexts.append(delta)
        runs[-1].calls.append(call_id)
    datums = [_datum(run, interactions, marks, depth, reward) for run in runs]
    return Merged([d for d in datums if d is not None], list(calls), max(0, len(runs) - 1))


def _datum(run: _Run, interactions: Interactions, marks: CallMarks, depth: int, reward: float) -> Datum | None:
    calls = [interactions[call_id] for call_id in run.calls]
    pieces: list[Tokens] = []
    for context, call in zip(run.contexts, calls, strict=True):
        pieces += (context, call.tokens_A)
    sequence = np.concatenate(pieces).astype(np.int32, copy=False)
    if len(sequence) < 2:
        log.warning("model call %s recorded fewer than two tokens: nothing to predict", run.calls[-1])
        return None
    logprobs: Floats = np.zeros(len(sequence), np.float32)
    mask: Floats = np.zeros(len(sequence), np.float32)
    errors = np.zeros(len(sequence), np.bool_) if marks.track_errors else None
    end = 0
    for context, call, call_id in zip(run.contexts, calls, run.calls, strict=True):
        start = end + len(context)
        end = start + len(call.tokens_A)
        logprobs[start:end] = call.logprobs_A
        mask[start:end] = 0.0 if call_id in marks.message_only else 1.0
        if errors is not None:
            errors[start:end] = call_id in marks.errors
    return Datum(
        tokens_T=sequence[:-1],
        targets_T=sequence[1:],
        logprobs_T=logprobs[1:],
        advantages_T=np.where(mask[1:] > 0, np.float32(reward), np.float32(0)).astype(np.float32, copy=False),
        mask_T=mask[1:],
        version=min(call.version for call in calls),
        depth=depth,
        errors_T=None if errors is None else errors[1:],
        routing_id=calls[-1].routing_id,
        policy=calls[-1].policy,
    )
