"""How long credit takes: 256 rollouts of 16,000 tokens to datums, in groups of 8. Run: python benchmarks/credit.py"""

from __future__ import annotations

import argparse
import time
import tracemalloc

import numpy as np

from platoon.credit import CreditSettings, MemberRollout, credit_group
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interaction, Interactions, Trajectory, TrajectoryCollection, TrajectoryStep


def rollout(rng: np.random.Generator, tokens: int, turns: int, reward: float, *, by_reference: bool) -> MemberRollout:
    """One agent whose turns are half context, half completion; stored by reference or with full prompts."""
    interactions, last = Interactions(), None
    half = tokens // turns // 2
    for turn in range(turns):
        suffix, sampled = (rng.integers(0, 150_000, half, dtype=np.int32) for _ in range(2))
        if last is not None and not by_reference:
            suffix = np.concatenate((interactions.prompt(last), interactions[last].tokens_A, suffix))
        logprobs = -rng.random(half, dtype=np.float32)
        continues = last if by_reference else None
        last = f"call-{turn}"
        interactions.add(last, Interaction(suffix, sampled, logprobs, version=turn, continues=continues))
    steps = [TrajectoryStep({"action_misc": {"completion_id": call}}) for call in interactions]
    collection = TrajectoryCollection("c", {"root": Trajectory("root", steps=steps, reward=reward)})
    return MemberRollout(collection, interactions, Outcome("scored", {"reward": reward}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for by_reference in (True, False):
        members = [
            rollout(rng, options.tokens, options.turns, float(i % 2), by_reference=by_reference)
            for i in range(options.rollouts)
        ]
        tracemalloc.start()
        credit_group(members[:8], CreditSettings(), task_id="t")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        started = time.perf_counter()
        outputs = [credit_group(members[i : i + 8], CreditSettings(), task_id="t") for i in range(0, len(members), 8)]
        seconds = time.perf_counter() - started
        datums = sum(len(output.datums) for output in outputs)
        stored = "by reference" if by_reference else "with full prompts"
        print(
            f"{datums} datums from prompts stored {stored}: {seconds:.3f} s, peak {peak / 8 / 2**20:.1f} MiB a rollout"
        )


if __name__ == "__main__":
    main()
