"""Interfaces for samplers, admission rules and workflows of your own. They may change between releases.

Importing this module is cheap: it needs neither a training service nor a data set library.
"""

from platoon.draw.admission.contract import (
    Admission,
    AdmissionCheckContext,
    AdmissionRule,
    AdmissionSetup,
    GroupAdmission,
)
from platoon.draw.admission.rules import group_admission
from platoon.draw.samplers.contract import (
    Draw,
    Sampler,
    SamplerCheckContext,
    SamplerContext,
    SamplerSetup,
    Slot,
    TaskSampler,
)
from platoon.draw.samplers.registry import task_sampler
from platoon.draw.view import TaskStatsView
from platoon.rollout.lease import RolloutLease, rollout_lease
from platoon.stats.passk import informative_at, pass_at
from platoon.stats.schema import EntryInfo, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore
from platoon.stats.totals import GroupTotals, TaskStats

__all__ = [
    "Admission",
    "AdmissionCheckContext",
    "AdmissionRule",
    "AdmissionSetup",
    "Draw",
    "EntryInfo",
    "GroupAdmission",
    "GroupRecord",
    "GroupTotals",
    "MemberResult",
    "RolloutLease",
    "Sampler",
    "SamplerCheckContext",
    "SamplerContext",
    "SamplerSetup",
    "Slot",
    "TaskSampler",
    "TaskStats",
    "TaskStatsStore",
    "TaskStatsView",
    "group_admission",
    "informative_at",
    "pass_at",
    "rollout_lease",
    "task_sampler",
]
