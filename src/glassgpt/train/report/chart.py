"""Curves as HTML: the lines are SVG that stretches with the page, the words are text that does not."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

POINTS = 400  # a longer curve is drawn as the lowest and the highest of each stretch of it

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[Point]
    look: str  # a class in report.css: raw, smooth, dots
    form: Callable[[float], str] = "{:.3f}".format


@dataclass(frozen=True)
class Chart:
    title: str
    curves: Sequence[Curve]
    steps: int  # the x axis reaches from 0 to here
    marks: Sequence[tuple[int, str]] = ()  # steps at which something happened, and what
    scales: Sequence[str] = field(default=("linear",))  # with two of them the reader may choose

    def to_html(self, number: int) -> str:
        """`number` tells this chart from the others of the page."""
        head = f"<h2>{html.escape(self.title)}</h2>"
        keys = "".join(f'<span class="key {c.look}">{html.escape(c.name)}</span>' for c in self.curves)
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
        low, high = self.span(scale)
        ticks = log_ticks(low, high) if scale == "log" else linear_ticks(low, high)

        def y(value: float) -> float:
            if scale == "log":
                low_, high_, value = math.log(low), math.log(high), math.log(max(value, low))
            else:
                low_, high_ = low, high
            return round(100 - 100 * (min(max(value, low_), high_) - low_) / (high_ - low_), 2)

        def x(step: float) -> float:
            return round(100 * step / max(1, self.steps), 2)

        lines = "".join(f'<path class="grid" d="M0 {y(tick)}H100"/>' for tick in ticks)
        lines += "".join(f'<path class="mark" d="M{x(step)} 0V100"/>' for step, _ in self.marks)
        for curve in self.curves:
            places = [(x(a), y(b)) for a, b in thinned(curve.points)]
            if not places:
                continue
            path = "M" + "L".join(f"{a} {b}" for a, b in places)
            lines += f'<path class="{curve.look}" d="{path}"/>'
            if curve.look == "dots":  # a line of no length with round ends is a dot, however it is stretched
                dots = "".join(f"M{a} {b}h0" for a, b in places)
                lines += f'<path class="dot" d="{dots}"/>'
        sides = "".join(f'<span style="top:{y(tick)}%">{number_form(tick)}</span>' for tick in ticks)
        below = "".join(
            f'<span style="left:{x(tick)}%">{number_form(tick)}</span>'
            for tick in linear_ticks(0, max(1, self.steps))
        )
        told = "".join(
            f'<span style="left:{x(step)}%" title="{html.escape(what)}">{html.escape(what)}</span>'
            for step, what in self.marks
        )
        return (
            f'<div class="plot {scale}"><div class="sides">{sides}</div>'
            '<div class="area">'
            f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
            f'aria-label="{html.escape(self.title)}">{lines}</svg>'
            f'<div class="marks">{told}</div><i class="cross"></i></div>'
            f'<div class="below">{below}</div></div>'
        )

    def values(self) -> str:
        """For the pointer: what to say at a step. The curves' own words, so that the script knows no form."""
        said = {
            c.name: [[step, c.form(value)] for step, value in thinned(c.points)]
            for c in self.curves
            if c.points
        }
        return html.escape(json.dumps(said, separators=(",", ":")))

    def span(self, scale: str) -> tuple[float, float]:
        """The lowest and the highest value to draw."""
        values = [value for curve in self.curves for _, value in curve.points if math.isfinite(value)]
        if scale == "log":
            values = [value for value in values if value > 0]
        if not values:
            return (1.0, 10.0) if scale == "log" else (0.0, 1.0)
        low, high = min(values), max(values)
        if scale == "log":
            return low / 1.03, high * 1.03
        room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
        return (max(0.0, low - room) if low >= 0 else low - room), high + room


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most about so many points: of each stretch the lowest and the highest, in their order."""
    points = [point for point in points if math.isfinite(point[1])]
    if len(points) <= most:
        return points
    kept: list[Point] = []
    stretches = most // 2
    for i in range(stretches):
        part = points[len(points) * i // stretches : len(points) * (i + 1) // stretches]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def smoothed(points: Sequence[Point]) -> list[Point]:
    """The mean around each point: of a fiftieth of the run, of less near its ends, where it moves quickly."""
    points = [point for point in points if math.isfinite(point[1])]
    sums = [0.0, *accumulate(value for _, value in points)]
    smooth = []
    for i, (step, _) in enumerate(points):
        side = min(len(points) // 100 + 2, i // 4, len(points) - 1 - i)
        smooth.append((step, (sums[i + side + 1] - sums[i - side]) / (2 * side + 1)))
    return smooth


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within the span: steps of 1, 2 or 5 times a power of ten."""
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * n for n in (1, 2, 5, 10) if (high - low) / (size * n) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 and their tens; linear ones where less than that lies in the span."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [n * 10.0**e for e in exponents for n in (1, 2, 5) if low <= n * 10.0**e <= high]
    if len(ticks) > 7:
        ticks = [10.0**e for e in exponents if low <= 10.0**e <= high]
    return ticks if len(ticks) > 2 else linear_ticks(low, high)


def number_form(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
