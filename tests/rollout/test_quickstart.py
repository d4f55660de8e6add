from __future__ import annotations

from pathlib import Path

from platoon.config import add_project_path, load
from platoon.envs.listing import list_rows
from platoon.envs.named import NamedEnvironments
from platoon.rollout.episode import EpisodeRequest, new_rollout_id, run_episode
from platoon.rollout.route import build_route
from platoon.testing import ScriptedPolicy, make_gateway, tool_call

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "local.yaml"


async def test_the_quickstart_plays_its_game() -> None:
    loaded = load(CONFIG, kind="train", resolver=NamedEnvironments())
    add_project_path(loaded)
    entry = loaded.config.environments[0]
    route = build_route(entry, "train")
    train = {row.task_id for row in await list_rows(entry, "train", route.service)}
    held_out = {row.task_id for row in await list_rows(entry, "eval", route.service)}
    assert (len(train), len(held_out)) == (90, 10)
    names = await route.service.list_task_names("train")  # type: ignore[attr-defined]
    task_id = next(task for task, name in names.items() if name == "number-62")

    policy = ScriptedPolicy(["Hm.", tool_call("guess", number=50), tool_call("guess", number=62)])
    config = entry.workflow_config.rollout_config
    request = EpisodeRequest(task_id, route, config, new_rollout_id(task_id))
    episode = await run_episode(request, make_gateway(policy))
    assert episode.outcome.reward == 1.0
    assert "Call the tool guess" in policy.prompts[1]
    assert "Higher." in policy.prompts[2]
    assert episode.collection is not None
    assert episode.collection.root.finish_message == "Correct!"
