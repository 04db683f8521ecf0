"""A performance as a picture: the piano roll, as SVG. Time runs to the right, pitch upwards; louder notes are
darker.

With `arcs` it is the Music Transformer's figure: lines from one event to those it attends to, a colour for
each head, as wide as their weight.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write
from glassgpt.music.performance import Performance
from glassgpt.music.render import run

NAMES = ("C", "C♯", "D", "D♯", "E", "F", "F♯", "G", "G♯", "A", "A♯", "B")
BLACK_KEYS = (1, 3, 6, 8, 10)
CONVERTERS = (
    ("rsvg-convert", "--width", "1920", "--output", "{out}", "{svg}"),
    ("inkscape", "--export-type=png", "--export-width=1920", "--export-filename={out}", "{svg}"),
    ("magick", "-density", "192", "{svg}", "png:{out}"),
)
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_BOTTOM, MARGIN_TOP = 44, 16, 26, 12
LEGEND = 14  # above the roll, if there are arcs
# Okabe and Ito's, and two.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")


@dataclass(frozen=True)
class Arc:
    """Attention from the event at one time and pitch to the event at another."""

    head: int
    from_seconds: float
    from_pitch: float
    to_seconds: float
    to_pitch: float
    weight: float  # 0 to 1


@dataclass(frozen=True)
class Axes:
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
    arcs: Sequence[Arc] = (),
    primer_seconds: float | None = None,
) -> str:
    """The piano roll as an SVG document. Notes before `primer_seconds` were given, not composed: grey."""
    above = MARGIN_TOP + (LEGEND if arcs else 0)
    axes = Axes(width, height, above, max(performance.seconds, 0.1), *pitch_range(performance))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *draw_grid(axes),
        *draw_notes(performance, primer_seconds, axes),
        *draw_arcs(arcs, axes),
        *draw_heads(arcs, axes),
        "</svg>\n",
    ]
    return "".join(parts)


def draw_grid(axes: Axes) -> Iterator[str]:
    """Black keys, octaves by name, seconds."""
    row = axes.row
    for pitch in range(axes.low, axes.high + 1):
        if pitch % 12 in BLACK_KEYS:
            yield (
                f'<rect x="{MARGIN_LEFT}" y="{axes.y(pitch):.1f}" width="{axes.inner_width}" '
                f'height="{row:.1f}" fill="#f3f3f3"/>'
            )
        if pitch % 12 == 0:
            yield (
                f'<text x="{MARGIN_LEFT - 6}" y="{axes.y(pitch) + row / 2 + 4:.1f}" text-anchor="end" '
                f'fill="#555">{NAMES[0]}{pitch // 12 - 1}</text>'
            )
    for time in tick_times(axes.seconds):
        x, bottom = axes.x(time), axes.above + axes.inner_height
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{axes.above}" y2="{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{axes.height - 8}" text-anchor="middle" fill="#555">{time:g} s</text>'
        )


def draw_notes(performance: Performance, primer_seconds: float | None, axes: Axes) -> Iterator[str]:
    row = axes.row
    for start, end, pitch, velocity in zip(
        performance.start, performance.end, performance.pitch, performance.velocity, strict=True
    ):
        given = primer_seconds is not None and start < primer_seconds
        yield (
            f'<rect x="{axes.x(start):.1f}" y="{axes.y(pitch) + row * 0.1:.1f}" '
            f'width="{max(1.0, axes.x(end) - axes.x(start)):.1f}" height="{max(1.0, row * 0.8):.1f}" '
            f'rx="{min(2.0, row / 4):.1f}" fill="{"#888" if given else "#1b6ca8"}" '
            f'fill-opacity="{0.3 + 0.7 * velocity / 127:.2f}"/>'
        )


def draw_arcs(arcs: Sequence[Arc], axes: Axes) -> Iterator[str]:
    for arc in arcs:
        x1, y1 = axes.x(arc.from_seconds), axes.y(arc.from_pitch) + axes.row / 2
        x2, y2 = axes.x(arc.to_seconds), axes.y(arc.to_pitch) + axes.row / 2
        peak = max(axes.above, min(y1, y2) - 12 - abs(x1 - x2) / 6)
        yield (
            f'<path d="M {x1:.1f} {y1:.1f} Q {(x1 + x2) / 2:.1f} {peak:.1f} {x2:.1f} {y2:.1f}" fill="none" '
            f'stroke="{COLOURS[arc.head % len(COLOURS)]}" stroke-width="{0.5 + 5 * arc.weight:.2f}" '
            f'stroke-opacity="0.75"/>'
        )


def draw_heads(arcs: Sequence[Arc], axes: Axes) -> Iterator[str]:
    """A dot where the arcs begin, and which colour is which head."""
    if arcs:
        yield (
            f'<circle cx="{axes.x(arcs[0].from_seconds):.1f}" '
            f'cy="{axes.y(arcs[0].from_pitch) + axes.row / 2:.1f}" r="4" fill="#000"/>'
        )
    for place, head in enumerate(sorted({arc.head for arc in arcs})):
        left, top = MARGIN_LEFT + 70 * place, 16
        yield (
            f'<line x1="{left}" x2="{left + 16}" y1="{top - 4}" y2="{top - 4}" stroke-width="3" '
            f'stroke="{COLOURS[head % len(COLOURS)]}"/>'
            f'<text x="{left + 20}" y="{top}" fill="#555">head {head}</text>'
        )


def pitch_range(performance: Performance) -> tuple[int, int]:
    """Whole octaves around all notes; the middle ones if there is none."""
    if len(performance) == 0:
        return 60, 83
    low, high = int(performance.pitch.min()), int(performance.pitch.max())
    return low // 12 * 12, high // 12 * 12 + 11


def tick_times(seconds: float) -> list[float]:
    """Round times, some ten of them."""
    step = next(s for s in (0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600) if seconds / s <= 12 or s == 3600)
    return [float(t) for t in np.arange(0, seconds + 1e-9, step)]


def find_converter(path: Path) -> tuple[str, ...] | None:
    """The program that turns an .svg into the wanted format; None if it is .svg itself."""
    if path.suffix not in (".svg", ".png"):
        raise SettingError(f"{path} must end in .svg or .png.")
    if path.suffix == ".svg":
        return None
    converter = next((c for c in CONVERTERS if shutil.which(c[0]) is not None), None)
    if converter is None:
        names = ", ".join(c[0] for c in CONVERTERS)
        raise UserError(f"{path} needs a converter, and none of {names} is installed. Write an .svg instead.")
    return converter


def write_roll(svg: str, path: str | Path) -> None:
    """Save the picture as .svg, or as .png through the first converter that is installed."""
    path = Path(path)
    converter = find_converter(path)
    with atomic_write(path) as part, tempfile.TemporaryDirectory() as folder:
        if converter is None:
            part.write_text(svg, "utf-8")
            return
        source = Path(folder) / "roll.svg"
        source.write_text(svg, "utf-8")
        run([word.format(out=part, svg=source) for word in converter])
