"""The names users know: a run with everything on logs exactly these series, and no others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from platoon.credit import CreditSettings, GroupOutput, MemberRollout, credit_group
from platoon.draw.records import Draw
from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.render import build_renderer
from platoon.stats.tables import read_table
from platoon.stats.tracker import Tracker
from platoon.train.dispatch import Settled
from platoon.train.metrics import measured, record_settled, record_step
from platoon.train.scheduling import temperature_warnings
from platoon.train.step import StepWork
from tests.credit.rollouts import member
from tests.train.running import loaded, over_fakes, run_dir, to_the_end

RENDERER = build_renderer("platoon-tiny", "chat_template", {})
OUTCOMES = "outcome/{scored,invalid,error,timeout,cancelled,none} reward_key/reward reward_key_mismatch"
STATS = (
    "{task_reward,task_reward_valid,num_steps,num_input_tokens,num_output_tokens,num_tool_calls,"
    "num_recovered_tool_calls,num_unparsed_tool_calls,avg_input_tokens_per_step,avg_output_tokens_per_step,"
    "prefix_breaks,reward/{success,subagent_launched,subagent_succeeded},"
    "root_{success,subagent_launched,subagent_succeeded},task_reward_at_k_{mean,min,max},"
    "root_{success,subagent_launched,subagent_succeeded}_at_k_{mean,min,max}}/{avg,min,max,count}"
)
KINDS = "{informative,all_pass,all_fail,uniform_mixed}_groups"
WORKLOAD = (
    "{environment_steps,model_calls,input_tokens,output_tokens,tokens,trajectories,postmerge_datums,"
    "policy_eligible_datums,post_sampling_datums,policy_excluded_datums,sampling_dropped_datums,"
    "candidate_trainable_datums,candidate_non_trainable_datums}"
)
RETAINED = "total_task_{retained,workflow_trainable,workflow_non_trainable,filter_dropped}_datums"
COMPLETION = f"""
    rollout_completion/{STATS} rollout_completion/groups rollout_completion/rollout_time{{,__count}}
    {" ".join(f"rollout_completion/{name}" for name in OUTCOMES.split())}
    rollout_completion/failed_rollouts{{,__count}}
    credit/{{baseline/{{avg,spread}},root_advantage/abs_avg}}{{,__count}}
    error_filter/{{detected,suppressed_positive,retained_nonpositive}}_action_tokens{{,__count}}
    error_filter/emptied_datums{{,__count}}
    workload/{{rollout,task}}/count workload/{{rollout,task}}/total_{WORKLOAD}/{{avg,min,max,count}}
    workload/task/{{requested_rollouts,observed_rollouts,workflow_trainable_rollouts}}/{{avg,min,max,count}}
    workload/task/{RETAINED}/{{avg,min,max,count}}
"""
STARTS = (
    "start_limit/{starting_mean,waiting_mean,wait_seconds_p50,wait_seconds_p90,wait_seconds_max} "
    "start_limit/releases/{first_call,end,timer,cancelled}"
)
ALL = f"""
    train/{{step,epoch,total_datums_per_batch,update_weights_time,policy/version,optim/updates_total}}
    train/{{stale_rollouts,group_size_rejected,straggler_cancelled}}{{,__count}}
    progress/done_frac optim/lr time/{{elapsed_seconds,step}}
    timing/{{batch_total,collect,rollouts,datums,update,publish}}
    checkpoint/{{deleted,delete_failures,pruning,recovery_kept}}
    train/batch/{{groups,groups_dequeued,stale_groups,groups_without_stats,optimizer_updates,skipped_optimizer}}
    train/batch/{STATS} train/batch/rollout_time/{{avg,min,max,count}}
    {" ".join(f"train/batch/{{,<L>/}}{name}" for name in OUTCOMES.split())} train/batch/{{,<L>/}}{KINDS}
    train/batch/<L>/{{groups,stale_groups}} train/batch/<L>/{{task_reward,num_steps}}/{{avg,min,max,count}}
    train/batch/{{,<L>/}}{{skipped_rows,parked_rows}}
    train/batch/{{,<L>/}}censoring/{{mixed_groups,censored_share,slowest_pass_rate,others_pass_rate}}
    train/workload/batch/total_{WORKLOAD} train/workload/batch/{RETAINED}
    train/workload/batch/total_{{tasks,tasks_with_workload_metadata,requested_rollouts,observed_rollouts}}
    train/workload/batch/total_workflow_trainable_rollouts
    train/workload/training_batch/total_{{submitted_datums,attention_tokens,action_tokens,non_submitted_datums}}
    {" ".join(f"train/{name}" for name in COMPLETION.split())}
    train/subagent_sampling/{{,depth_0/}}{{eligible,retained}}_{{datums,attention_tokens,loss_tokens}}{{,__count}}
    train/credit/{{max_depth,depth0/{{datums,trajectories,weight}}}}{{,__count}}
    train/zero_advantage_filter/{{eligible,retained,filtered}}_{{datums,attention_tokens,loss_tokens}}{{,__count}}
    train/optim/{{kl_sample_train_v1,kl_sample_train_v2,entropy,clip_frac_{{low,high,total}}}}{{,__count}}
    train/optim/importance_weight_{{mean,std,min,max}}{{,__count}} train/optim/grad_norm{{,__count}}
    train/sampler/{{,environment/easy/,environment/plain/}}{{draws,decision_ms,decision_ms_max}}
    train/sampler/draws/{{order,explore,exploit}} train/sampler/environment/plain/draws/order
    train/sampler/environment/easy/draws/{{explore,exploit}}
    train/sampler/environment/easy/{{predicted_informative,informative_share,tokens,skipped_slots}}
    train/sampler/environment/easy/{{prior_share,eligible_share,cap_lifted,top10_share,evidence_age}}
    train/dispatch/blocked_share/{{permits,sampler,plan,labels,horizon}}
    train/tasks/{{,<L>/}}{{pass_at_1,pass_at_G,coverage,no_evidence,bands/{{zero,low,mid,high,solved}}}}
    train/admission/{{groups_admitted,counted,short,errors,draws_per_admitted}} train/admission/<L>/admitted
    train/admission/{{,<L>/}}{{rejected,rejected/uniform_pass,stale,failed,informative_rate}}
    rollout_client/rollouts_in_flight_{{mean,max,configured}} rollout_client/groups_in_flight_{{mean,max}}
    rollout_client/{{concurrency_achieved_fraction,permits_held_mean,window_seconds}}
    rollout_client/trainer_queue_{{wait_seconds_{{total,mean,max}},ready_fraction,dequeues}}
    rollout_client/agent_step_{{,tool_,model_,client_}}seconds_{{p50,p90}} rollout_client/agent_step_samples
    rollout_client/agent_step_{{tool,model,client}}_{{fraction,seconds_total}}
    rollout_client/{{agent_step_seconds_accounted_total,model_calls_per_rollout_mean}}
    rollout_client/dequeue_to_first_model_call_seconds_{{p50,p90}}
    rollout_client/{{cpu_percent,worker_cpu_percent,total_cpu_percent,cpu_cores_busy,cpu_saturation,rss_bytes,threads}}
    {" ".join(f"{phase}rollout_client/{name}" for phase in ("", "eval/") for name in STARTS.split())}
    {" ".join(f"eval/{name}" for name in COMPLETION.split())} eval/{{time,num_tasks,step,task_reward,policy_version}}
    eval/<L>/groups eval/<L>/{{task_reward,num_steps}}/{{avg,min,max,count}}
    {" ".join(f"eval/<L>/{name}" for name in OUTCOMES.split())}
"""
KINDS_OF_ITEMS = ("groups_admitted", "rejected", "stale", "failed")
# what this run has no occasion for: the next test makes it happen
NOT_HERE = """
    train/{stale_rollouts,group_size_rejected,rollout_completion/failed_rollouts}{,__count}
    eval/rollout_completion/failed_rollouts{,__count} train/optim/grad_norm{,__count}
"""


def spelt(patterns: str) -> Iterator[str]:
    """Every name that shell-like patterns mean; `<L>` is each label's place."""
    for pattern in patterns.replace("<L>", "environment/{easy,plain}").split():
        yield from braces(pattern)


def braces(pattern: str) -> Iterator[str]:
    innermost = re.search(r"\{([^{}]*)\}", pattern)
    if innermost is None:
        yield pattern
        return
    for choice in innermost[1].split(","):
        yield from braces(pattern[: innermost.start()] + choice + pattern[innermost.end() :])


def asked_word(text: str) -> str:
    return text.rpartition("Say ")[2].partition(".")[0]


def said(text: str) -> Sampled:
    tokens = [*RENDERER.encode(text), int(RENDERER.stop[0])]
    return Sampled(tokens, [-1.0] * len(tokens), "stop")


async def test_a_run_with_everything_on_logs_every_name(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        """Right and wrong in turn; always right about the first task."""
        word = asked_word(RENDERER.decode(list(prompt)))
        calls[word] += 1
        return said("Zoe" if calls[word] % 2 and word != "Ada" else word)

    entry = {"service": "saying:Saying", "harness": "platoon-react", "reward_processor": "platoon-delegation"}
    settings = {
        "environments": [{"name": "easy", "task_sampler": "pass_rate", **entry}, {"name": "plain", **entry}],
        "train__rollout_group_limits": {"easy": 1},
        "train__group_admission": "informative",
        "train__max_staleness": 1,
        "train__loss_fn": "cispo",
        "train__max_starting_rollouts": 4,
        "train__max_training_steps": 8,
        "train__workflow_config__straggler_timeout_seconds": 60,
        "train__workflow_config__depth_level_weighting": True,
        "train__workflow_config__subagent_datum_keep_probability": 0.5,
        "checkpoint__keep_recovery": 2,
        "eval__every": 3,
        "eval__workflow_config__filter_errors": True,
    }
    async with over_fakes(tmp_path, reply, **settings) as (run, _):
        await to_the_end(run)
    table = read_table(run_dir(tmp_path), "metrics")
    logged = set(table["key"])
    wanted = set(spelt(ALL))
    assert sorted(logged - wanted) == []
    assert sorted(wanted - logged - set(spelt(NOT_HERE))) == []
    assert set(spelt(NOT_HERE)) <= wanted
    by_key = {str(key): frame["value"].to_list() for (key,), frame in table.group_by("key", maintain_order=True)}
    assert by_key["train/step"] == [float(step) for step in range(1, 9)]
    assert by_key["progress/done_frac"] == [step / 8 for step in range(1, 9)]
    assert by_key["train/epoch"] == [step // 8 for step in range(1, 9)], "24 tasks are eight batches of three"
    assert sum(by_key["time/step"]) == pytest.approx(by_key["time/elapsed_seconds"][-1])
    updates = [1.0 - skipped for skipped in by_key["train/batch/skipped_optimizer"]]
    assert by_key["train/optim/updates_total"] == [sum(updates[:step]) for step in range(1, 9)]
    assert by_key["train/policy/version"] == by_key["train/optim/updates_total"]
    for total, parts in {
        "train/batch/groups": ["train/batch/environment/easy/groups", "train/batch/environment/plain/groups"],
        "train/batch/groups_dequeued": [f"train/admission/{kind}" for kind in KINDS_OF_ITEMS],
    }.items():
        assert by_key[total] == [sum(step) for step in zip(*(by_key[part] for part in parts), strict=True)], total


def test_series_of_updates_and_of_groups_that_failed_or_went_stale() -> None:
    def settled(seq: int, *members: MemberRollout) -> Settled[GroupOutput]:
        draw = Draw(1, seq, seq, "t", 0, None, None, 2, "auto")
        crediting = CreditSettings(min_successful_group_size=2)
        output = credit_group(members, crediting, task_id="t") if members else None
        return Settled(draw, output, None if members else "no", 1.0)

    cut = replace(member(1.0), collection=None, disposition="straggler_killed")
    work = StepWork(0.0, [settled(0), settled(1, member(1.0), cut), settled(2, member(1.0), member(0.0))])
    work.fates = {(1, 0): "failed", (1, 1): "consumed", (1, 2): "stale"}
    work.note({"optim/grad_norm": 1.0})
    work.note({"optim/grad_norm": 2.0})
    tracker = Tracker("train")
    for one in work.groups:
        record_settled(tracker, one, lambda draw: True)
    at_once = tracker.export_and_clear()
    record_step(tracker, work)
    found = {**at_once, **tracker.export_and_clear()}
    for key, mean, count in [
        ("train/rollout_completion/failed_rollouts", 1.0, 1),
        ("train/stale_rollouts", 1.0, 1),
        ("train/group_size_rejected", 1.0, 1),
        ("train/straggler_cancelled", 0.5, 2),
        ("train/optim/grad_norm", 1.5, 2),
    ]:
        assert (found[key], found[f"{key}__count"]) == (mean, count), key
    assert found["train/rollout_completion/groups"] == 2
    assert len(at_once) == 4, "failed groups and cut members count when they settle"
    record_settled(tracker, work.groups[1], lambda draw: False)
    assert tracker.export_and_clear() == {}


@pytest.mark.parametrize(("drift", "warned"), [(0.141, 0), (0.142, 1)])
async def test_sampler_and_trainer_that_disagree_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, drift: float, warned: int
) -> None:
    """The bound is 0.01 for half the mean square of sampled minus trained logprobs."""
    words = iter(range(10**6))

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        return said("Zoe" if next(words) % 2 else asked_word(RENDERER.decode(list(prompt))))

    async with over_fakes(tmp_path, reply, train__max_training_steps=2, eval__every=0) as (run, session):
        session.drift = drift
        await to_the_end(run)
    assert caplog.text.count("the service's sampler and its trainer disagree about the same weights") == warned
    table = read_table(run_dir(tmp_path), "metrics")
    values = dict(table.filter(table["step"] == 2).select("key", "value").iter_rows())
    assert values["train/optim/kl_sample_train_v1"] == pytest.approx(drift, rel=1e-5)
    assert values["train/optim/kl_sample_train_v2"] == pytest.approx(drift**2 / 2, rel=1e-5)


@pytest.mark.parametrize(("temperature", "warned"), [(None, False), (1.0, False), (0.7, True)])
def test_another_temperature_than_the_trainers_is_warned_of(
    tmp_path: Path, temperature: float | None, warned: bool
) -> None:
    key = "train__workflow_config__rollout_config__inference_params__temperature"
    warnings = temperature_warnings(loaded(tmp_path, **{key: temperature}).train_config)
    assert ["temperature 0.7" in warning for warning in warnings] == [True] * warned


def test_a_block_of_metrics_that_raises_costs_neither_the_step_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, float]:
        raise ZeroDivisionError("no groups")

    assert measured(lambda: {"a": 1.0}, broken, lambda: {"b": 2.0}) == {"a": 1.0, "b": 2.0}
    assert "the metrics raised ZeroDivisionError: no groups" in caplog.text
