"""Registering components of one's own by name: the functions of `platoon.extensions.registry`."""

from platoon.extensions.registry import (
    register_component,
    register_dataset_loader,
    register_reward_processor,
    register_rollout,
    register_task_loader,
    register_trainer_config,
    register_workflow,
    resolve_component,
)

__all__ = [
    "register_component",
    "register_dataset_loader",
    "register_reward_processor",
    "register_rollout",
    "register_task_loader",
    "register_trainer_config",
    "register_workflow",
    "resolve_component",
]
