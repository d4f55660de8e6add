"""Prefix merging: equals a slow reference on lists, however the record stores its prompts."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.credit.convert import CallMarks, merge_calls, trajectory_calls
from platoon.credit.sampling import SubagentSampling
from platoon.rollout.trajectory import Interactions
from tests.credit.rollouts import interaction, step


@dataclass
class Row:
    """One token of the reference: id, logprob, mask, error."""

    token: int
    logprob: float
    mask: float
    error: bool


def reference(
    calls: list[tuple[list[int], list[int], list[float]]], errors: set[int], messages: set[int]
) -> list[list[Row]]:
    """The rule as plain lists: extend while the merged tokens are a prefix of the next prompt, else start over."""
    found: list[list[Row]] = []
    rows: list[Row] = []
    for index, (prompt, tokens, logprobs) in enumerate(calls):
        merged = [row.token for row in rows]
        if prompt[: len(merged)] != merged:
            found.append(rows)
            rows, merged = [], []
        rows += [Row(token, 0.0, 0.0, False) for token in prompt[len(merged) :]]
        trains = 0.0 if index in messages else 1.0
        rows += [Row(t, lp, trains, index in errors) for t, lp in zip(tokens, logprobs, strict=True)]
    return [*found, rows]


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Interactions, list[str], set[int], set[int]]:
    """Calls that continue any earlier call, restart, or repeat a prompt in full instead of by reference."""
    interactions, ids = Interactions(), list[str]()
    for index in range(draw(st.integers(1, 6))):
        sampled = draw(st.lists(st.integers(0, 2), max_size=3)) if index else draw(tokens)
        suffix = draw(tokens) if index == 0 else draw(st.lists(st.integers(0, 2), max_size=3))
        parent = draw(st.sampled_from([None, *ids])) if draw(st.booleans()) else (ids[-1] if ids else None)
        call_id = f"c{index}"
        if parent is not None and draw(st.booleans()):
            full = np.concatenate((interactions.prompt(parent), interactions[parent].tokens_A)).tolist()
            suffix, parent = full + suffix, None
        elif parent is None:
            suffix = [*suffix, 1]
        interactions.add(call_id, interaction(suffix, sampled, version=draw(st.integers(0, 3)), continues=parent))
        ids.append(call_id)
    picks = st.sets(st.integers(0, len(ids) - 1))
    return interactions, ids, draw(picks), draw(picks)


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_merging_equals_the_reference(made: tuple[Interactions, list[str], set[int], set[int]]) -> None:
    interactions, ids, errors, messages = made
    marks = CallMarks(frozenset(ids[i] for i in errors), frozenset(ids[i] for i in messages), track_errors=True)
    merged = merge_calls(ids, interactions, marks, depth=2, reward=0.3)
    calls = [
        (interactions.prompt(i).tolist(), interactions[i].tokens_A.tolist(), interactions[i].logprobs_A.tolist())
        for i in ids
    ]
    every = reference(calls, errors, messages)
    assert merged.prefix_breaks == len(every) - 1
    expected = [rows for rows in every if len(rows) >= 2]
    assert len(merged.datums) == len(expected)
    for datum, rows in zip(merged.datums, expected, strict=True):
        assert datum.tokens_T.tolist() == [row.token for row in rows[:-1]]
        assert datum.targets_T.tolist() == [row.token for row in rows[1:]]
        assert datum.logprobs_T.tolist() == [row.logprob for row in rows[1:]]
        assert datum.mask_T.tolist() == [row.mask for row in rows[1:]]
        assert datum.errors_T is not None
        assert datum.errors_T.tolist() == [row.error for row in rows[1:]]
        assert datum.advantages_T.tolist() == [float(np.float32(0.3)) * row.mask for row in rows[1:]]
        assert datum.depth == 2
        arrays = (datum.logprobs_T, datum.mask_T, datum.advantages_T)
        assert all(a.dtype == np.float32 for a in arrays)
        assert datum.tokens_T.dtype == datum.targets_T.dtype == np.int32


def test_a_conversation_continued_from_the_record_is_one_datum() -> None:
    interactions = Interactions()
    interactions.add("a", interaction([1, 2], [3], version=4, routing_id=7))
    interactions.add("b", interaction([4], [5, 6], version=5, continues="a"))
    merged = merge_calls(["a", "b"], interactions, CallMarks(), depth=0, reward=1.0)
    (datum,) = merged.datums
    assert datum.tokens_T.tolist() == [1, 2, 3, 4, 5]
    assert datum.mask_T.tolist() == [0, 1, 0, 1, 1]
    assert datum.version == 4
    assert datum.routing_id is None
    assert datum.errors_T is None


def test_a_history_that_is_rendered_anew_breaks_the_prefix() -> None:
    interactions = Interactions()
    for turn in range(6):
        interactions.add(f"c{turn}", interaction([1] * (turn + 1), [2, 3]))
    merged = merge_calls(list(interactions), interactions, CallMarks(), depth=0, reward=1.0)
    assert len(merged.datums) == 6
    assert merged.prefix_breaks == 5


def test_calls_are_distinct_recorded_and_not_excluded() -> None:
    interactions = Interactions()
    for key in ("a", "b", "c"):
        interactions.add(key, interaction([1], [2]))
    steps = [step("a"), step("a"), step(None), step("b", exclude_from_training=True), step("lost"), step("c")]
    assert trajectory_calls(steps, interactions) == ["a", "c"]


def test_subagent_sampling_golden() -> None:
    sampling = SubagentSampling(0.5, 3)
    kept = [sampling.keeps("t1", "tr", 1, index) for index in range(8)]
    assert kept == [False, True, False, True, True, True, True, False]
    assert all(sampling.keeps("t1", "tr", 0, index) for index in range(8))
    assert not any(SubagentSampling(0.0).keeps("t1", "tr", 1, index) for index in range(8))


def test_subagent_sampling_reads_every_part_of_its_key() -> None:
    def fraction(*key: object) -> float:
        digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    sampling = SubagentSampling(0.25, 9)
    for task, tree, depth, index in [("t", "x", 1, 0), ("t", "x", 2, 0), ("u", "x", 1, 0), ("t", "y", 1, 5)]:
        assert sampling.keeps(task, tree, depth, index) == (fraction(9, task, tree, depth, index) < 0.25)


def test_a_long_conversation_is_kept_once() -> None:
    interactions, turns, pieces = Interactions(), 200, 50
    tracemalloc.start()
    for turn in range(turns):
        suffix, sampled = [1] * pieces, [2] * pieces
        interactions.add(f"c{turn}", interaction(suffix, sampled, continues=f"c{turn - 1}" if turn else None))
    recorded = tracemalloc.get_traced_memory()[0]
    merged = merge_calls(list(interactions), interactions, CallMarks(), depth=0, reward=1.0)
    made = tracemalloc.get_traced_memory()[0] - recorded
    tracemalloc.stop()
    (datum,) = merged.datums
    tokens = turns * pieces * 2 - 1
    assert len(datum.tokens_T) == tokens
    assert recorded < 3 * 12 * tokens
    assert made < 2 * 16 * tokens
