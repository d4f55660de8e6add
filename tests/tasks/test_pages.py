"""The pages of a run: dashes for what is absent, one row a label, a plot of few points."""

from __future__ import annotations

import base64
import math
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tasks.pages import (
    LAST_STEPS,
    History,
    evaluation_page,
    evaluations_table,
    labels_table,
    markdown_table,
    report_page,
    steps_table,
)
from tasks.plot import MOST_POINTS, data_uri, line_plot, thinned

METRICS = {
    "train/batch/task_reward/avg": 0.25,
    "train/batch/groups_dequeued": 8.0,
    "train/batch/stale_groups": 2.0,
    "train/workload/batch/total_tokens": 1234.0,
    "train/tasks/coverage": 0.5,
    "train/tasks/pass_at_1": 0.3,
    "train/tasks/bands/mid": 7.0,
    "train/tasks/environment/hard/coverage": 0.1,
    "train/batch/environment/hard/task_reward/avg": 0.125,
    "timing/update": 1.5,
    "timing/batch_total": 4.25,
}


def test_a_steps_row_has_its_numbers_and_dashes_for_the_absent() -> None:
    history = History(10)
    history.step(3, METRICS)
    history.step(4, {})
    newest, older = steps_table(history)
    assert newest == {"step": "4", "reward": "-", "pass@1": "-", "pass@G": "-", "stale": "-", "tokens": "-"}
    assert older["reward"] == "0.250"
    assert older["pass@G"] == "-"
    assert older["stale"] == "25 %"
    assert older["tokens"] == "1234"
    assert (older["update s"], older["step s"]) == ("1.50", "4.25")


def test_only_the_newest_rows_are_kept_and_every_point() -> None:
    history = History(1000)
    for step in range(1, 501):
        history.step(step, METRICS)
    assert [row["step"] for row in steps_table(history)] == [str(step) for step in range(500, 500 - LAST_STEPS, -1)]
    assert len(history.plotted["reward"]) == 500


def test_labels_have_a_row_each_after_the_whole_pool() -> None:
    whole, hard = labels_table(METRICS)
    assert (whole["label"], whole["seen"], whole["pass@1"], whole["mid"]) == ("all", "50 %", "0.300", "7")
    assert (hard["label"], hard["seen"], hard["reward"], hard["mid"]) == ("hard", "10 %", "0.125", "-")


def test_the_page_holds_the_curve_and_the_evaluations() -> None:
    history = History(10)
    history.step(3, METRICS)
    history.evaluation({"step": 2, "task_reward": 0.5, "tasks": 30, "seconds": 1.0, "policy_version": 2})
    page = report_page(history, "exp/trial")
    assert page.startswith("# exp/trial\n\nStep 3 of 10.")
    assert "![learning curve](data:image/svg+xml;base64," in page
    assert "| hard |" in page
    assert evaluations_table(history.evaluations)[0]["reward"] == "0.500"
    assert "| 2 | 0.500 | 30 |" in page


def test_a_run_without_a_step_has_a_page() -> None:
    assert "Step 0 of 5" in report_page(History(5), "a/b")


def test_an_evaluations_summary_is_a_page() -> None:
    page = evaluation_page({"success_rate": 0.5, "tasks": 3, "pass_at_k": {"1": 0.5}}, "/out")
    assert "| success_rate | 0.5 |" in page
    assert "## pass_at_k" in page


def test_cells_cannot_break_the_table() -> None:
    assert markdown_table([{"a": "x|y\nz"}]).endswith("| x\\|y z |")


@given(st.lists(st.tuples(st.integers(0, 10_000).map(float), st.floats()), max_size=40))
def test_a_plot_is_xml_whatever_the_numbers(points: list[tuple[float, float]]) -> None:
    svg = line_plot({"<reward> & more": points, "none": []}, "a < b")
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "nan" not in svg
    assert base64.b64decode(data_uri(svg).partition(",")[2]).decode() == svg


@given(st.integers(1, 2000))
def test_a_long_line_is_thinned_and_keeps_its_end_and_mean(count: int) -> None:
    points = [(float(i), float(i % 7)) for i in range(count)]
    thin = thinned(points)
    assert len(thin) <= MOST_POINTS
    assert thin[-1][0] == points[-1][0]
    if count % math.ceil(count / MOST_POINTS) == 0:
        assert math.isclose(math.fsum(y for _, y in thin) / len(thin), math.fsum(y for _, y in points) / count)


def test_the_points_of_a_run_of_days_are_thinned() -> None:
    history = History(100_000)
    history.remember((step, "train/tasks/pass_at_1", 0.5) for step in range(1, 50_001))
    for step in range(50_001, 100_001):
        history.step(step, {"train/tasks/pass_at_1": step / 100_000})
    points = history.plotted["pass@1"]
    assert 2000 < len(points) <= 4096
    assert (points[0], points[-1]) == ((1.0, 0.5), (100_000.0, 1.0))
    assert points == sorted(points)
