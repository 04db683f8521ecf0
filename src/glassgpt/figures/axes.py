"""Charts of curves: ticks, a scale on each side, curves, legends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassgpt.figures.svg import Point, circle, document, light_and_dark, path, rect, text, through

Format = Callable[[float], str]
plain: Format = "{:,g}".format

# CSS of a chart that follows the reader's light or dark setting.
STYLE = (
    "text{font:12px system-ui,sans-serif}path{fill:none}.title{font-weight:600}.curve{stroke-width:1.8}"
    + light_and_dark("text{fill:$muted}.title{fill:$text}.grid{stroke:$line}.back{fill:$background}")
)


def chart(width: float, height: float, parts: Iterable[str], label: str, style: str = "") -> str:
    """A drawing in STYLE, on the reader's background."""
    back = rect(0, 0, width, height, kind="back")
    return document(width, height, [back, *parts], label, style=STYLE + style)


@dataclass(frozen=True)
class Axes:
    """A rectangle of a drawing, and the values at its edges."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log: tuple[bool, bool] = (False, False)  # of x and y

    def x(self, value: float) -> float:
        return round(self.left + self.width * fraction(value, self.x_range, self.log[0]), 2)

    def y(self, value: float) -> float:
        """Values beyond the range are drawn at its edge."""
        return round(self.top + self.height * (1 - fraction(value, self.y_range, self.log[1])), 2)

    def grid(self, ticks: Iterable[float] | None = None, format: Format = plain) -> Iterator[str]:
        """A line and a label at each value of y."""
        for tick in linear_ticks(*self.y_range) if ticks is None else ticks:
            yield path(f"M{self.left} {self.y(tick)}h{self.width}", kind="grid")
            yield text(self.left - 6, self.y(tick) + 4, format(tick), anchor="end")

    def below(self, ticks: Iterable[float] | None = None, format: Format = plain) -> Iterator[str]:
        """A label at each value of x."""
        for tick in linear_ticks(*self.x_range) if ticks is None else ticks:
            yield text(self.x(tick), self.top + self.height + 18, format(tick), anchor="middle")

    def places(self, points: Iterable[Point]) -> list[Point]:
        return [(self.x(x), self.y(y)) for x, y in points]

    def curve(self, points: Sequence[Point], color: str, kind: str = "curve", **more: Any) -> Iterator[str]:
        if points:
            yield path(through(self.places(points)), kind=kind, stroke=color, **more)

    def dots(self, points: Iterable[Point], color: str, radius: float = 3) -> Iterator[str]:
        for x, y in self.places(points):
            yield circle(x, y, radius, fill=color)


def fraction(value: float, bounds: tuple[float, float], log: bool) -> float:
    low, high = bounds
    value = min(max(value, low), high)
    if log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def legend(x: float, y: float, colors: Mapping[str, str]) -> Iterator[str]:
    """A dot and a name for each curve, one below the other."""
    for row, (name, color) in enumerate(colors.items()):
        yield circle(x, y + 18 * row - 4, 4, fill=color)
        yield text(x + 10, y + 18 * row, name)


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in the range: steps of 1, 2 or 5 times a power of ten."""
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * n for n in (1, 2, 5, 10) if (high - low) / (size * n) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten; linear ticks if the range has too few of them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [n * 10.0**e for e in exponents for n in (1, 2, 5) if low <= n * 10.0**e <= high]
    if len(ticks) > 7:
        ticks = [10.0**e for e in exponents if low <= 10.0**e <= high]
    return ticks if len(ticks) > 2 else linear_ticks(low, high)


def format_number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
