"""A small line plot as SVG, for a page that must not need a plotting library.

Promise: text in, text out, the same for the same numbers. No dates, no interaction.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 26
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
TICKS = 4
MOST_POINTS = 300
LARGEST = 1e100


def line_plot(series: Mapping[str, Sequence[Point]], title: str) -> str:
    """SVG of each series' line over a common axis. Numbers that are not finite (or beyond any axis) are left out."""
    shown = {name: thinned([p for p in points if abs(p[1]) < LARGEST]) for name, points in series.items()}
    points = [point for of in shown.values() for point in of]
    x_low, x_high = _span([x for x, _ in points])
    y_low, y_high = _span([y for _, y in points])
    if y_low >= 0.0 and y_high <= 1.0:
        y_low, y_high = 0.0, 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> Point:
        across, up = (x - x_low) / (x_high - x_low), (y - y_low) / (y_high - y_low)
        return LEFT + across * width, TOP + (1.0 - up) * height

    body = [f'<text x="{LEFT}" y="14" font-weight="bold">{escape(title)}</text>']
    for tick in range(TICKS + 1):
        share = tick / TICKS
        x, y = x_low + share * (x_high - x_low), y_low + share * (y_high - y_low)
        across, up = place(x, y)
        body.append(f'<path d="M{LEFT} {up:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 5}" y="{up + 4:.1f}" text-anchor="end">{y:.3g}</text>')
        body.append(f'<text x="{across:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{x:.0f}</text>')
    for index, (name, of) in enumerate(shown.items()):
        colour = COLOURS[index % len(COLOURS)]
        placed = [place(*point) for point in of]
        if len(placed) == 1:
            body.append(f'<circle cx="{placed[0][0]:.1f}" cy="{placed[0][1]:.1f}" r="2.5" fill="{colour}"/>')
        elif placed:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
            body.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        at = WIDTH - RIGHT - 100 * (len(shown) - index)
        body.append(f'<text x="{at}" y="14" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>'
    )


def data_uri(svg: str) -> str:
    """The image as an address that a page can show without asking anyone."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` of them: means of neighbours, so that a long run's plot stays small."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return list(points)
    runs = [points[at : at + size] for at in range(0, len(points), size)]
    return [(run[-1][0], math.fsum(y for _, y in run) / len(run)) for run in runs]


def _span(values: Sequence[float]) -> Point:
    """Lowest and highest value, far enough apart to divide by their distance."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    least = max(abs(low), abs(high), 1.0) * 1e-9
    return (low, high) if high - low > least else (low - max(0.5, least), high + max(0.5, least))
