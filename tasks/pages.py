"""What the UI shows of a training run, made from the metrics of its steps: tables, a page, a plot.

Pure text and numbers; `History` keeps what the pages need of each step and no more. A number that a step did not bring
is a dash, never a zero.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.plot import Point, data_uri, line_plot

LAST_STEPS = 20
MOST_LABELS = 20
MOST_POINTS = 4096
PLOTTED = {
    "reward": "train/batch/task_reward/avg",
    "pass@1": "train/tasks/pass_at_1",
    "pass@G": "train/tasks/pass_at_G",
}
KEYS = frozenset(PLOTTED.values())
BANDS = ("zero", "low", "mid", "high", "solved")
PHASES = ("rollouts", "collect", "update", "publish", "record", "batch_total")
POOL = "train/tasks/"
Metrics = Mapping[str, float]


def thin(points: list[Point]) -> None:
    """Drop every second point, first and last excepted, until the line has at most `MOST_POINTS`."""
    while len(points) > MOST_POINTS:
        del points[1:-1:2]


@dataclass
class History:
    """Steps of a run as its pages need them: the last rows in full, and the plotted numbers.

    Beyond `MOST_POINTS` every second point of the past is let go: a run of days costs no more than that.
    """

    end_step: int
    last: deque[tuple[int, Metrics]] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))
    plotted: dict[str, list[Point]] = field(default_factory=lambda: {name: [] for name in PLOTTED})
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)

    def step(self, step: int, metrics: Metrics) -> None:
        self.last.append((step, metrics))
        for name, key in PLOTTED.items():
            if key in metrics:
                self.plotted[name].append((float(step), metrics[key]))
                thin(self.plotted[name])

    def remember(self, rows: Iterable[tuple[int, str, float]]) -> None:
        """Plotted numbers of earlier starts: (step, key, value)."""
        names = {key: name for name, key in PLOTTED.items()}
        for step, key, value in rows:
            self.plotted[names[key]].append((float(step), value))
        for name, points in self.plotted.items():
            self.plotted[name] = sorted(points)
            thin(self.plotted[name])

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self.evaluations.append(row)

    @property
    def progress(self) -> float:
        """Percent of the run's steps."""
        return 100.0 * self.last[-1][0] / self.end_step if self.last and self.end_step else 0.0


def steps_table(history: History) -> list[dict[str, str]]:
    """The newest steps, newest first."""
    return [_row(step, metrics) for step, metrics in reversed(history.last)]


def _row(step: int, metrics: Metrics) -> dict[str, str]:
    row = {"step": str(step)}
    for name, key in PLOTTED.items():
        row[name] = number(metrics.get(key))
    row["stale"] = percent(_stale_share(metrics))
    row["tokens"] = number(metrics.get("train/workload/batch/total_tokens"), whole=True)
    for phase in PHASES:
        if (seconds := metrics.get(f"timing/{phase}")) is not None:
            row[f"{'step' if phase == 'batch_total' else phase} s"] = f"{seconds:.2f}"
    return row


def labels_table(metrics: Metrics) -> list[dict[str, str]]:
    """One row a label of the pool, the first `MOST_LABELS`, and one for the whole pool."""
    found = [_label_row("all", POOL, "train/batch/", metrics)]
    places = [key.removeprefix(POOL).removesuffix("/coverage") for key in metrics if key.endswith("/coverage")]
    labels = [place for place in places if f"{POOL}{place}/coverage" in metrics][:MOST_LABELS]
    return found + [
        _label_row(place.rpartition("/")[2], f"{POOL}{place}/", f"train/batch/{place}/", metrics) for place in labels
    ]


def _label_row(label: str, pool: str, batch: str, metrics: Metrics) -> dict[str, str]:
    return {
        "label": label,
        "seen": percent(metrics.get(f"{pool}coverage")),
        "reward": number(metrics.get(f"{batch}task_reward/avg")),
        "pass@1": number(metrics.get(f"{pool}pass_at_1")),
        "pass@G": number(metrics.get(f"{pool}pass_at_G")),
        **{band: number(metrics.get(f"{pool}bands/{band}"), whole=True) for band in BANDS},
    }


def evaluations_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Evaluations beside training, newest first."""
    return [
        {
            "step": str(row.get("step", "-")),
            "reward": number(row.get("task_reward")),
            "tasks": str(row.get("tasks", "-")),
            "policy version": str(row.get("policy_version", "-")),
            "seconds": number(row.get("seconds")),
        }
        for row in reversed(rows[-LAST_STEPS:])
    ]


def plot(history: History) -> str:
    """The learning curve as SVG."""
    held_out = [
        (float(row["step"]), float(row["task_reward"]))
        for row in history.evaluations
        if isinstance(row.get("step"), int) and isinstance(row.get("task_reward"), int | float)
    ]
    series = {name: points for name, points in history.plotted.items() if points}
    return line_plot({**series, **({"held out": held_out} if held_out else {})}, "Reward and pass rates by step")


def report_page(history: History, name: str) -> str:
    """The run's page in Markdown: the curve, pass rates by label with their bands, evaluations."""
    step, metrics = history.last[-1] if history.last else (0, {})
    parts = [
        f"# {name}",
        f"Step {step} of {history.end_step}.",
        f"![learning curve]({data_uri(plot(history))})",
        "## Tasks by label",
        "Bands count tasks by expected pass rate: zero ≤ 0.05 < low ≤ 0.2 < mid < 0.8 ≤ high < 0.95 ≤ solved.",
        markdown_table(labels_table(metrics)),
    ]
    if history.evaluations:
        parts += ["## Evaluations", markdown_table(evaluations_table(history.evaluations))]
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; its columns are the first row's."""
    if not rows:
        return "(none)"
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "-")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def evaluation_page(summary: Mapping[str, Any], output_dir: str) -> str:
    """The summary of an evaluation's report in Markdown."""
    rows = [
        {"measure": key, "value": f"{value:.4g}" if isinstance(value, float) else str(value)}
        for key, value in sorted(summary.items())
        if not isinstance(value, Mapping | list)
    ]
    nested = [(key, value) for key, value in sorted(summary.items()) if isinstance(value, Mapping) and value]
    parts = ["# Evaluation", f"Report and rollouts: `{output_dir}`", markdown_table(rows)]
    for key, value in nested:
        parts += [f"## {key}", markdown_table([{"measure": k, "value": str(v)} for k, v in value.items()])]
    return "\n\n".join(parts) + "\n"


def number(value: float | None, *, whole: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if whole else f"{value:.3f}"


def percent(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{100.0 * value:.0f} %"


def _stale_share(metrics: Metrics) -> float | None:
    groups = metrics.get("train/batch/groups_dequeued")
    stale = metrics.get("train/batch/stale_groups")
    return None if not groups or stale is None else stale / groups


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
