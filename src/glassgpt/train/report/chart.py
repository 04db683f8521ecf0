"""Line charts as HTML: the lines are SVG that scales with the page, the labels are text that does not."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from glassgpt.figures.axes import Axes, format_number, linear_ticks, log_ticks
from glassgpt.figures.svg import Point, element, path, through

MAX_POINTS = 400  # a longer curve is drawn as the minimum and maximum of each interval


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[Point]
    style: str  # a class in report.css: raw, smooth, dots
    format: Callable[[float], str] = "{:.3f}".format


@dataclass(frozen=True)
class Chart:
    title: str
    curves: Sequence[Curve]
    steps: int  # the x axis ends here
    marks: Sequence[tuple[int, str]] = ()  # steps with a label
    scales: Sequence[str] = field(default=("linear",))  # with two of them the reader can switch

    def to_html(self, number: int) -> str:
        """`number` identifies the chart on the page."""
        head = f"<h2>{html.escape(self.title)}</h2>"
        keys = "".join(f'<span class="key {c.style}">{html.escape(c.name)}</span>' for c in self.curves)
        choice = ""
        if len(self.scales) > 1:
            choice = "".join(
                f'<label><input type="radio" name="scale{number}" class="{scale}"'
                f"{' checked' if i == 0 else ''}>{scale}</label>"
                for i, scale in enumerate(self.scales)
            )
        plots = "".join(self.plot(scale) for scale in self.scales)
        return (
            f'<figure class="chart" data-values="{self.values()}" data-steps="{self.steps}">'
            f'<figcaption>{head}<div class="keys">{keys}</div>'
            f'<div class="choice">{choice}</div></figcaption>{plots}<output></output></figure>'
        )

    def plot(self, scale: str) -> str:
        low, high = self.value_range(scale)
        ticks = log_ticks(low, high) if scale == "log" else linear_ticks(low, high)

        axes = Axes(0, 0, 100, 100, (0, max(1, self.steps)), (low, high), (False, scale == "log"))
        lines = [path(f"M0 {axes.y(tick)}H100", kind="grid") for tick in ticks]
        lines += [path(f"M{axes.x(step)} 0V100", kind="mark") for step, _ in self.marks]
        for curve in self.curves:
            places = axes.places(downsample(curve.points))
            if not places:
                continue
            lines.append(path(through(places), kind=curve.style))
            if curve.style == "dots":  # a line of no length with round ends is a dot at any scale
                lines.append(path("".join(f"M{x} {y}h0" for x, y in places), kind="dot"))
        y_labels = "".join(
            f'<span style="top:{axes.y(tick)}%">{format_number(tick)}</span>' for tick in ticks
        )
        x_labels = "".join(
            f'<span style="left:{axes.x(tick)}%">{format_number(tick)}</span>'
            for tick in linear_ticks(0, max(1, self.steps))
        )
        mark_labels = "".join(
            f'<span style="left:{axes.x(step)}%" title="{html.escape(label)}">{html.escape(label)}</span>'
            for step, label in self.marks
        )
        drawing = element(
            "svg", "".join(lines), viewBox="0 0 100 100", preserveAspectRatio="none", role="img",
            aria_label=self.title,
        )  # fmt: skip
        return (
            f'<div class="plot {scale}"><div class="sides">{y_labels}</div>'
            f'<div class="area">{drawing}'
            f'<div class="marks">{mark_labels}</div><i class="cross"></i></div>'
            f'<div class="below">{x_labels}</div></div>'
        )

    def values(self) -> str:
        """The formatted values for the tooltip, so that the script does not have to format them."""
        values = {
            c.name: [[step, c.format(value)] for step, value in downsample(c.points)]
            for c in self.curves
            if c.points
        }
        return html.escape(json.dumps(values, separators=(",", ":")))

    def value_range(self, scale: str) -> tuple[float, float]:
        """The range of the y axis."""
        values = [value for curve in self.curves for _, value in curve.points if math.isfinite(value)]
        if scale == "log":
            values = [value for value in values if value > 0]
        if not values:
            return (1.0, 10.0) if scale == "log" else (0.0, 1.0)
        low, high = min(values), max(values)
        if scale == "log":
            return low / 1.03, high * 1.03
        margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
        return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def downsample(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """About `limit` points at most: the minimum and maximum of each interval, in order."""
    points = [point for point in points if math.isfinite(point[1])]
    if len(points) <= limit:
        return points
    kept: list[Point] = []
    intervals = limit // 2
    for i in range(intervals):
        part = points[len(points) * i // intervals : len(points) * (i + 1) // intervals]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def smooth(points: Sequence[Point]) -> list[Point]:
    """A centered moving average over 2% of the run, over less near its ends, where the curve is steep."""
    points = [point for point in points if math.isfinite(point[1])]
    sums = [0.0, *accumulate(value for _, value in points)]
    means = []
    for i, (step, _) in enumerate(points):
        side = min(len(points) // 100 + 2, i // 4, len(points) - 1 - i)
        means.append((step, (sums[i + side + 1] - sums[i - side]) / (2 * side + 1)))
    return means
