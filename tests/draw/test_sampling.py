"""Pools, the choice of a sampler, and going on after a position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config import ConfigError
from platoon.draw.pool import TaskPool, build_pool, label_text
from platoon.draw.samplers.checks import check_sampling
from platoon.draw.samplers.sampling import Pick, Sampling, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings, epoch_size


@dataclass(frozen=True)
class Listed:
    task_id: str
    columns: Mapping[str, str] = field(default_factory=dict)


def pool_of(**sizes: int) -> TaskPool:
    return build_pool({entry: [Listed(str(i)) for i in range(size)] for entry, size in sizes.items()})


def run_settings(
    *labels: str, sampler: str = "auto", batch_size: int = 4, own: str | None = None, ordered: bool = False
) -> SamplingSettings:
    entries = tuple(EntrySampling(label, task_sampler=own) for label in labels)
    return SamplingSettings(batch_size, entries, task_sampler=sampler, listing_ordered=ordered)


def test_a_mixture_qualifies_ids_and_unites_columns() -> None:
    pool = build_pool({"easy": [Listed("0", {"level": "1"})], "hard": [Listed("0", {"topic": "sets"})]})
    assert [row.task_id for row in pool.rows] == ["easy::0", "hard::0"]
    assert pool[0].columns == {"level": "1", "topic": None, "_platoon_environment": "easy"}
    assert [row.label for row in pool.rows] == ["easy", "hard"]


def test_a_single_environment_keeps_its_rows_and_has_no_label() -> None:
    pool = build_pool({"default": [Listed("7", {"level": "1"}), Listed("7")]})
    assert (pool[0].task_id, pool[0].label, pool[0].columns) == ("7", None, {"level": "1"})
    assert (pool.repeated_ids, pool.first) == (1, {"7": 0})


def test_labels_come_from_the_named_column() -> None:
    pool = build_pool({"default": [Listed("a", {"level": "1"}), Listed("b", {"level": ""})]}, "level")
    assert [row.label for row in pool.rows] == ["1", None]
    values = (True, False, 3, 0.5, "x", "", None, [1])
    assert [label_text(value) for value in values] == ["true", "false", "3", "0.5", "x", None, None, None]


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="no environment lists a task"):
        TaskPool([])


@pytest.mark.parametrize(
    ("run", "tasks", "size", "kind"),
    [
        (run_settings("a"), 10, 8, "OrderedRows"),
        (run_settings("a", own="uniform"), 10, 8, "OrderedRows"),
        (run_settings("a", sampler="uniform"), 10, 12, "OrderedRows"),
        (run_settings("a", sampler="weighted"), 10, 12, "FairSlots"),
        (run_settings("a", "b"), 10, 12, "FairSlots"),
        (run_settings("a", "b", sampler="uniform"), 12, 12, "OrderedRows"),
        (run_settings("a", ordered=True), 10, 8, "OrderedRows"),
        (run_settings("a", own="pass_rate"), 10, 12, "FairSlots"),
        (run_settings("a", sampler="pass_rate"), 10, 12, "HostedSampler"),
        (run_settings("a", "b", sampler="tests.draw.own_samplers:Alternate"), 10, 12, "HostedSampler"),
    ],
)
def test_which_sampler_draws(run: SamplingSettings, tasks: int, size: int, kind: str) -> None:
    labels = [entry.label for entry in run.entries]
    pool = pool_of(**{label: tasks // len(labels) for label in labels})
    assert type(build_sampling(run, pool).run).__name__ == kind
    assert epoch_size(run, tasks) == size


def test_the_listing_is_drawn_in_order_when_it_is_marked_so() -> None:
    sampling = build_sampling(run_settings("a", ordered=True), pool_of(a=10))
    assert [row_of(sampling, position) for position in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_unknown_samplers_and_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"train\.task_sampler: 'magic' is not known"):
        check_sampling(run_settings("a", sampler="magic"))
    with pytest.raises(ConfigError, match=r"environments\[a\]\.task_sampler: 'pas_rate' .* did you mean 'pass_rate'"):
        check_sampling(run_settings("a", own="pas_rate"))
    options = SamplingSettings(2, (EntrySampling("a"),), task_sampler_options={"seed": 3})
    with pytest.raises(ConfigError, match=r"train\.task_sampler_options: .* takes no options"):
        check_sampling(options)


def row_of(sampling: Sampling, position: int) -> int:
    taken = sampling.take(position)
    assert isinstance(taken, Pick)
    return taken.row_index


def sampling_of(weighted: bool) -> Sampling:
    return build_sampling(run_settings("a", "b", sampler="weighted" if weighted else "uniform"), pool_of(a=5, b=3))


@given(st.booleans(), st.integers(0, 40))
@settings(max_examples=40)
def test_a_position_or_a_saved_state_reproduces_the_rest(weighted: bool, position: int) -> None:
    straight = sampling_of(weighted)
    for earlier in range(position):
        straight.take(earlier)
    saved = json.loads(json.dumps(straight.state()))
    rest = [straight.take(later) for later in range(position, position + 20)]
    from_position, from_state = sampling_of(weighted), sampling_of(weighted)
    from_position.seek(position)
    from_state.load_state(saved, position)
    assert [from_position.take(later) for later in range(position, position + 20)] == rest
    assert from_state.state() == saved
    assert [from_state.take(later) for later in range(position, position + 20)] == rest


def test_an_entrys_saved_count_outlives_a_change_of_weights() -> None:
    saved = build_sampling(run_settings("a", "b"), pool_of(a=5, b=3))
    for position in range(8):
        saved.take(position)
    entries = (EntrySampling("a", 1.0), EntrySampling("b", 9.0))
    changed = build_sampling(SamplingSettings(4, entries), pool_of(a=5, b=3))
    changed.load_state(saved.state(), 8)
    counts = {label: record["decisions"] for label, record in changed.state()["entries"].items()}
    assert counts == {"a": 5, "b": 3}
