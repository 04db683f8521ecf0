"""A performance as a picture: the piano roll. Time runs to the right, pitch upwards; louder notes are
darker.

With `arcs` it is the Music Transformer's figure: lines from one event to those it attends to, a color for
each head, as wide as their weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.figures.figure import Arc, Dot, Figure, Mark, Rect, Text
from glassgpt.music.performance import Performance

GRAY = "#555555"
BLACK_KEYS = (1, 3, 6, 8, 10)
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_BOTTOM, MARGIN_TOP = 44, 16, 26, 12
LEGEND = 14  # above the roll, if there are arcs
# Okabe and Ito's, and two.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")


@dataclass(frozen=True)
class AttentionArc:
    """Attention from the event at one time and pitch to the event at another."""

    head: int
    from_seconds: float
    from_pitch: float
    to_seconds: float
    to_pitch: float
    weight: float  # 0 to 1


@dataclass(frozen=True)
class Roll:
    """Where times and pitches are in the picture."""

    width: int
    height: int
    above: int  # where the roll begins, below the legend
    seconds: float
    low: int
    high: int

    @property
    def inner_width(self) -> int:
        return self.width - MARGIN_LEFT - MARGIN_RIGHT

    @property
    def inner_height(self) -> int:
        return self.height - self.above - MARGIN_BOTTOM

    @property
    def row(self) -> float:
        """The height of one pitch."""
        return self.inner_height / (self.high - self.low + 1)

    def x(self, time: float) -> float:
        return MARGIN_LEFT + time / self.seconds * self.inner_width

    def y(self, pitch: float) -> float:
        """The upper edge of a pitch."""
        return self.above + (self.high - pitch) * self.row


def draw_roll(
    performance: Performance,
    title: str = "piano roll",
    width: int = 960,
    height: int = 300,
    arcs: Sequence[AttentionArc] = (),
    primer_seconds: float | None = None,
) -> Figure:
    """The piano roll. Notes before `primer_seconds` were given, not composed: gray."""
    above = MARGIN_TOP + (LEGEND if arcs else 0)
    roll = Roll(width, height, above, max(performance.seconds, 0.1), *pitch_range(performance))
    marks: list[Mark] = [
        *draw_grid(roll), *draw_notes(performance, primer_seconds, roll), *draw_arcs(arcs, roll),
        *draw_heads(arcs, roll),
    ]  # fmt: skip
    return Figure(width, height, title, marks, background="#ffffff")


def draw_grid(roll: Roll) -> Iterator[Mark]:
    """Black keys, octaves by name, seconds."""
    for pitch in range(roll.low, roll.high + 1):
        if pitch % 12 in BLACK_KEYS:
            yield Rect(MARGIN_LEFT, roll.y(pitch), roll.inner_width, roll.row, "#f3f3f3")
        if pitch % 12 == 0:
            y = roll.y(pitch) + roll.row / 2 + 4
            yield Text(MARGIN_LEFT - 6, y, f"C{pitch // 12 - 1}", 11, GRAY, "end")
    for time in tick_times(roll.seconds):
        yield Rect(roll.x(time) - 0.5, roll.above, 1, roll.inner_height, "#dddddd")
        yield Text(roll.x(time), roll.height - 8, f"{time:g} s", 11, GRAY, "middle")


def draw_notes(performance: Performance, primer_seconds: float | None, roll: Roll) -> Iterator[Mark]:
    row = roll.row
    for start, end, pitch, velocity in zip(
        performance.start, performance.end, performance.pitch, performance.velocity, strict=True
    ):
        is_primer = primer_seconds is not None and start < primer_seconds
        yield Rect(
            roll.x(start), roll.y(pitch) + row * 0.1, max(1.0, roll.x(end) - roll.x(start)),
            max(1.0, row * 0.8), "#888888" if is_primer else "#1b6ca8", 0.3 + 0.7 * float(velocity) / 127,
            radius=min(2.0, row / 4),
        )  # fmt: skip


def draw_arcs(arcs: Sequence[AttentionArc], roll: Roll) -> Iterator[Mark]:
    for arc in arcs:
        x1, y1 = roll.x(arc.from_seconds), roll.y(arc.from_pitch) + roll.row / 2
        x2, y2 = roll.x(arc.to_seconds), roll.y(arc.to_pitch) + roll.row / 2
        peak = max(roll.above, min(y1, y2) - 12 - abs(x1 - x2) / 6)
        color = COLORS[arc.head % len(COLORS)]
        yield Arc((x1, y1), ((x1 + x2) / 2, peak), (x2, y2), color, 0.5 + 5 * arc.weight, 0.75)


def draw_heads(arcs: Sequence[AttentionArc], roll: Roll) -> Iterator[Mark]:
    """A dot where the arcs begin, and which color is which head."""
    if arcs:
        y = roll.y(arcs[0].from_pitch) + roll.row / 2
        yield Dot(roll.x(arcs[0].from_seconds), y, 4, "#000000")
    for place, head in enumerate(sorted({arc.head for arc in arcs})):
        left, top = MARGIN_LEFT + 70 * place, 16
        yield Rect(left, top - 5.5, 16, 3, COLORS[head % len(COLORS)])
        yield Text(left + 20, top, f"head {head}", 11, GRAY)


def pitch_range(performance: Performance) -> tuple[int, int]:
    """Whole octaves around all notes; the middle ones if there is none."""
    if len(performance) == 0:
        return 60, 83
    low, high = int(performance.pitch.min()), int(performance.pitch.max())
    return low // 12 * 12, high // 12 * 12 + 11


def tick_times(seconds: float) -> list[float]:
    """About ten round times."""
    step = next(s for s in (0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600) if seconds / s <= 12 or s == 3600)
    return [float(t) for t in np.arange(0, seconds + 1e-9, step)]
