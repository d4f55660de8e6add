"""Configuration: models, loading with one report, layers, records of a run.

Imports neither torch, tinker nor prefect, and no other room.
"""

from platoon.config.arguments import load_config
from platoon.config.base import DeprecatedKey, Section, given
from platoon.config.deprecations import PlatoonDeprecationWarning
from platoon.config.entries import (
    AgentsConfig,
    EnvironmentConfig,
    EvalOverrides,
    OnHarnessExit,
    VerifierConfig,
    entry_label,
)
from platoon.config.inference import HostedConfig, InferenceConfig, InferenceWorkflow, PricingConfig
from platoon.config.layers import lay, rollout_settings
from platoon.config.load import Loaded, Resolver, add_project_path, load
from platoon.config.partial import Partial, load_partial
from platoon.config.problems import ConfigError, Problem
from platoon.config.records import update_run_lock, write_run_record
from platoon.config.rollout import InferenceParams, RolloutConfig, StragglerPolicy, WorkflowConfig
from platoon.config.run_lock import RunLock
from platoon.config.runs import (
    EvalRun,
    PlatoonEvalConfig,
    PlatoonTinkerRLTrainerConfig,
    TrainRun,
    run_directory,
    workflow_settings,
)
from platoon.config.site import Site
from platoon.config.training import (
    AdamParams,
    CheckpointConfig,
    EvalConfig,
    RefillConfig,
    StatsConfig,
    TrainConfig,
    WandbConfig,
    WatchdogConfig,
)

resolve_config = load

__all__ = [
    "AdamParams",
    "AgentsConfig",
    "CheckpointConfig",
    "ConfigError",
    "DeprecatedKey",
    "EnvironmentConfig",
    "EvalConfig",
    "EvalOverrides",
    "EvalRun",
    "HostedConfig",
    "InferenceConfig",
    "InferenceParams",
    "InferenceWorkflow",
    "Loaded",
    "OnHarnessExit",
    "Partial",
    "PlatoonDeprecationWarning",
    "PlatoonEvalConfig",
    "PlatoonTinkerRLTrainerConfig",
    "PricingConfig",
    "Problem",
    "RefillConfig",
    "Resolver",
    "RolloutConfig",
    "RunLock",
    "Section",
    "Site",
    "StatsConfig",
    "StragglerPolicy",
    "TrainConfig",
    "TrainRun",
    "VerifierConfig",
    "WandbConfig",
    "WatchdogConfig",
    "WorkflowConfig",
    "add_project_path",
    "entry_label",
    "given",
    "lay",
    "load",
    "load_config",
    "load_partial",
    "resolve_config",
    "rollout_settings",
    "run_directory",
    "update_run_lock",
    "workflow_settings",
    "write_run_record",
]
