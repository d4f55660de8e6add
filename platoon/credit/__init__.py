"""Credit: rewards over the agent tree become datums of exact tokens with advantages."""

from platoon.credit.baselines import group_baselines
from platoon.credit.datum import Datum, same_datum
from platoon.credit.group import CreditPlugins, CreditSettings, GroupOutput, credit_group
from platoon.credit.rollout import CompletionHooks, MemberRollout, RewardProcessor

__all__ = [
    "CompletionHooks",
    "CreditPlugins",
    "CreditSettings",
    "Datum",
    "GroupOutput",
    "MemberRollout",
    "RewardProcessor",
    "credit_group",
    "group_baselines",
    "same_datum",
]
