"""What one rollout cost, before and after its calls became datums."""

from __future__ import annotations

from platoon.rollout.trajectory import Interactions, TrajectoryCollection
from platoon.stats.schema import Workload


def recorded_workload(
    collection: TrajectoryCollection | None, interactions: Interactions, funnel: tuple[int, int, int] = (0, 0, 0)
) -> Workload:
    """Counts of a rollout. `funnel`: datums merged, allowed to train, kept after sampling."""
    trajectories = collection.trajectories.values() if collection is not None else ()
    return Workload(
        environment_steps=sum(len(t.steps) for t in trajectories),
        model_calls=len(interactions),
        input_tokens=sum(interactions.prompt_length(call_id) for call_id in interactions),
        output_tokens=sum(len(call.tokens_A) for call in interactions.values()),
        trajectories=len(trajectories),
        postmerge_datums=funnel[0],
        policy_eligible_datums=funnel[1],
        post_sampling_datums=funnel[2],
    )
