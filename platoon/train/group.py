"""One group: its members' rollouts under the draw's lease, then their credit.

The place where rollouts, leases and credit meet. A member that fails keeps its outcome; only a failure of credit itself
(a reward processor that raises) fails the group.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from platoon.config import StragglerPolicy, TrainRun, WorkflowConfig
from platoon.credit import (
    CompletionHooks,
    CreditPlugins,
    CreditSettings,
    GroupOutput,
    MemberRollout,
    credit_group,
)
from platoon.credit.processors import get_reward_processor
from platoon.draw.pool import PoolRow
from platoon.gateway import ModelGateway
from platoon.gateway.server import GatewayServer
from platoon.hooks import hooks
from platoon.rollout.episode import Episode, EpisodeRequest, run_episode
from platoon.rollout.group import run_group
from platoon.rollout.lease import RolloutLease
from platoon.train.environments import Environments
from platoon.train.starts import StartSlot, no_limit


@dataclass(frozen=True)
class Played:
    """A group that was played: its credit, and the rollouts behind it."""

    output: GroupOutput
    episodes: Sequence[Episode]


class GroupRolloutWorkflow:
    """Plays groups of one phase."""

    applies_entry_settings = True
    gives_verdicts = True
    runs_rollouts_on_lease = True

    def __init__(
        self,
        config: TrainRun,
        environments: Environments,
        gateway: ModelGateway,
        server: GatewayServer | None,
        plugins: CreditPlugins | None = None,
        starts: Callable[[], AbstractAsyncContextManager[StartSlot]] = no_limit,
    ) -> None:
        self.config = config
        self.environments = environments
        self.gateway = gateway
        self._server = server
        self._starts = starts
        plugins = with_hooks(plugins or CreditPlugins())
        self._plugins = {
            label: replace(plugins, processor=get_reward_processor(one.entry.reward_processor))
            if one.entry.reward_processor is not None
            else plugins
            for label, one in environments.played.items()
        }

    async def play(self, row: PoolRow, lease: RolloutLease, *, seed_scope: str, group_size: int) -> Played:
        """Roll out and credit one group. `seed_scope` names the draw; each member's calls are seeded below it."""
        played = self.environments.entry_of(row.entry)
        raw_id = played.raw_id(row.task_id, mixture=self.environments.mixture)
        route = self.environments.route(row.entry, raw_id)
        settings = played.settings

        async def member(index: int) -> Episode:
            async with self._starts() as slot:
                request = EpisodeRequest(
                    task_id=raw_id,
                    route=route,
                    config=settings.rollout_config,
                    rollout_id=f"{slug(raw_id)}-r{index}-{secrets.token_hex(4)}",
                    seed_scope=f"{seed_scope}/{index}",
                    on_first_call=slot.first_call,
                )
                return await run_episode(request, self.gateway, self._server)

        episodes = await run_group(member, group_size, lease, straggler_policy(settings, row.label))
        output = credit_group(
            [MemberRollout(e.collection, e.interactions, e.outcome, e.disposition, e.seconds) for e in episodes],
            CreditSettings.from_workflow(settings),
            task_id=row.task_id,
            label=row.label,
            entry=row.entry,
            plugins=self._plugins[played.entry.label],
        )
        return Played(output, episodes)


def straggler_policy(settings: WorkflowConfig, label: str | None) -> StragglerPolicy | None:
    """The label's own policy, else the entry's; None when members are never cut."""
    own = settings.straggler_policies.get(label) if label is not None else None
    if own is not None:
        return own if own.timeout_seconds is not None else None
    if settings.straggler_timeout_seconds is None:
        return None
    return StragglerPolicy(timeout_seconds=settings.straggler_timeout_seconds, quorum=settings.straggler_quorum)


def with_hooks(plugins: CreditPlugins) -> CreditPlugins:
    """The plugins with the completion hooks that packages registered, after their own."""
    own = plugins.hooks
    errors = (*own.errors, *hooks("trajectory.error_completion_ids"))
    messages = (*own.message_only, *hooks("trajectory.message_completion_ids"))
    return replace(plugins, hooks=CompletionHooks(errors, messages))


def slug(task_id: str) -> str:
    """A task id as part of a file name: at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", task_id).strip("-")[-80:] or "task"
