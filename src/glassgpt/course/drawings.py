"""The course's drawings: tables of numbers, bars, curves, tokens and flows. Each shows itself in a notebook,
light or dark, and says in words what it shows (its title and, for small ones, its numbers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from glassgpt.figures.figure import MAX_OPACITY, Figure
from glassgpt.figures.svg import CHAR_WIDTH, visible
from glassgpt.inspect.figures.display import Displayable

MARGIN, TOP = 16, 44
COLORS = ("#2f7fe0", "#e0702f", "#2e9e6b", "#a05fd0", "#c9a227", "#d0557f")
WIDTH = 660  # of a notebook's column


class Drawing(Displayable):
    """A figure with its alternative text."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def figure(self) -> Figure:
        return self._figure

    def __repr__(self) -> str:
        return f"[figure: {self._figure.title}]"


def start(title: str, width: float, height: float, words: str = "") -> Figure:
    """A figure with its title; screen readers also read `words`."""
    figure = Figure(width, height, f"{title}: {words}" if words else title)
    figure.text(MARGIN, 27, title, size=14, bold=True, room=width - 2 * MARGIN)
    return figure


def matrix(
    values: Sequence[Sequence[float]] | np.ndarray,
    *,
    title: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    digits: int = 2,
) -> Drawing:
    """A table of numbers, cool above zero and warm below; hidden ones (-inf, NaN) are empty. Large tables are
    drawn as pixels."""
    table = np.atleast_2d(np.asarray(values, float))
    n_rows, n_columns = table.shape
    finite = np.where(np.isfinite(table), table, 0.0)
    largest = max(float(np.abs(finite).max(initial=0.0)), 1e-9)
    names = [mark_space(name) for name in (rows if rows is not None else [""] * n_rows)]
    heads = [mark_space(name) for name in (columns if columns is not None else [])]
    left = MARGIN + max([8.0, *(len(name) * 12 * CHAR_WIDTH + 10 for name in names)])
    if n_rows * n_columns > 240:
        return pixels(finite / largest, table, title, left, names)
    texts = [[format_cell(value, digits) for value in row] for row in table]
    cell = max([30.0, *((len(text) + 1.5) * 11 * CHAR_WIDTH for row in texts for text in row)])
    cell = max([cell, *((len(head) + 1) * 11 * CHAR_WIDTH for head in heads)])
    top = TOP + (22 if heads else 0)
    words = describe(table, digits) if table.size <= 36 else f"{n_rows} rows, {n_columns} columns"
    width = max(left + n_columns * cell + MARGIN, len(title) * 14 * CHAR_WIDTH + 2 * MARGIN)
    figure = start(title, width, top + n_rows * 26 + MARGIN, words)
    for column, head in enumerate(heads):
        figure.text(left + (column + 0.5) * cell, top - 8, head, size=11, color="muted", anchor="middle")
    for row in range(n_rows):
        y = top + row * 26
        figure.text(left - 8, y + 17, names[row], color="muted", anchor="end")
        for column in range(n_columns):
            value, x = finite[row, column], left + column * cell
            color, shade = ("cool" if value >= 0 else "warm"), MAX_OPACITY * abs(value) / largest
            figure.rect(x + 1, y + 1, cell - 2, 24, "line", 0.3)
            figure.rect(x + 1, y + 1, cell - 2, 24, color, round(shade, 3))
            figure.text(x + cell / 2, y + 17, texts[row][column], size=11, anchor="middle")
    return Drawing(figure)


def pixels(shades: np.ndarray, table: np.ndarray, title: str, left: float, names: Sequence[str]) -> Drawing:
    n_rows, n_columns = shades.shape
    width = WIDTH - left - MARGIN
    height = max(16.0 * min(n_rows, 24), min(width * n_rows / n_columns, 320.0))
    figure = start(title, WIDTH, TOP + height + MARGIN, f"{n_rows} rows, {n_columns} columns of color")
    figure.grid(left, TOP, width, height, np.where(np.isfinite(table), shades, np.nan))
    if n_rows <= 24:
        for row, name in enumerate(names):
            y = TOP + (row + 0.5) * height / n_rows + 4
            figure.text(left - 8, y, name, color="muted", anchor="end")
    return Drawing(figure)


def bars(labels: Sequence[str], values: Sequence[float], *, title: str, digits: int = 3) -> Drawing:
    """A bar for each value, to the right; negative ones are warm."""
    numbers = [float(value) for value in values]
    names = [mark_space(label) for label in labels]
    largest = max([1e-12, *map(abs, numbers)])
    left = MARGIN + max([8.0, *(len(name) * 12 * CHAR_WIDTH + 12 for name in names)])
    room = WIDTH - left - MARGIN - 90
    words = ", ".join(f"{name} {number:,.{digits}f}" for name, number in zip(names, numbers, strict=True))
    figure = start(title, WIDTH, TOP + 24 * len(names) + MARGIN, words)
    for row, (name, number) in enumerate(zip(names, numbers, strict=True)):
        y, length = TOP + 24 * row, max(1.0, abs(number) / largest * room)
        figure.text(left - 8, y + 15, name, anchor="end")
        figure.rect(left, y + 2, length, 18, "cool" if number >= 0 else "warm", 0.75, radius=2)
        figure.text(left + length + 8, y + 15, f"{number:,.{digits}f}", size=11, color="muted")
    return Drawing(figure)


def tokens(texts: Sequence[str], *, title: str, below: Sequence[object] | None = None) -> Drawing:
    """A text cut into its tokens, with something (their ids) below each."""
    figure = start(title, WIDTH, 0, " | ".join(map(visible, texts)))
    x, y = float(MARGIN), float(TOP)
    for number, token in enumerate(map(visible, texts)):
        under = "" if below is None else str(below[number])
        width = max(len(token) * 14, len(under) * 10, 10) * CHAR_WIDTH + 12
        if x + width > WIDTH - MARGIN:
            x, y = float(MARGIN), y + (48 if below is not None else 34)
        figure.rect(x, y, width, 26, COLORS[number % len(COLORS)], 0.28, radius=3)
        figure.text(x + width / 2, y + 18, token, size=14, anchor="middle")
        figure.text(x + width / 2, y + 39, under, size=10, color="muted", anchor="middle")
        x += width + 4
    figure.height = y + (48 if below is not None else 32) + MARGIN / 2
    return Drawing(figure)


def flow(steps: Sequence[tuple[str, str]], *, title: str, loop: str = "") -> Drawing:
    """Boxes from bottom to top, as a transformer is drawn: what each does, and its shape or number beside it.
    `loop` names what goes from the top back to the bottom."""
    box = max([180.0, *(len(name) * 13 * CHAR_WIDTH + 24 for name, _ in steps)])
    left = MARGIN + (60.0 if loop else 0.0)
    beside = max([0.0, *(len(words) * 11 * CHAR_WIDTH for _, words in steps)])
    width = max(left + box + 16 + beside + MARGIN, len(title) * 14 * CHAR_WIDTH + 2 * MARGIN)
    height = TOP + 46 * len(steps) + MARGIN
    words = "from bottom to top " + ", ".join(f"{name} ({note})" if note else name for name, note in steps)
    figure = start(title, width, height, words)
    for number, (name, note) in enumerate(steps):
        y = height - MARGIN - 46 * (number + 1) + 14
        figure.rect(left, y, box, 30, COLORS[number % len(COLORS)], 0.25, radius=5)
        figure.text(left + box / 2, y + 20, name, size=13, anchor="middle")
        figure.text(left + box + 16, y + 20, note, size=11, color="muted")
        if number < len(steps) - 1:
            figure.text(left + box / 2, y - 3, "↑", size=13, color="muted", anchor="middle")
    if loop:
        figure.rect(MARGIN + 8, TOP + 26, 2, height - TOP - MARGIN - 54, "muted")
        for y in (TOP + 26, height - MARGIN - 30):
            figure.rect(MARGIN + 8, y, left - MARGIN - 12, 2, "muted")
        figure.text(MARGIN + 14, TOP + 20, loop, size=10, color="muted")
    return Drawing(figure)


def curves(
    lines: Mapping[str, Sequence[float]], *, title: str, x: Sequence[float] | None = None, height: float = 240
) -> Drawing:
    """One or more curves over the same x, with their names."""
    series = {name: [float(value) for value in values] for name, values in lines.items()}
    flat = [value for values in series.values() for value in values if np.isfinite(value)]
    low, high = min(flat), max(flat)
    high = high if high > low else low + 1
    longest = max(map(len, series.values()))
    places = [float(i) for i in range(longest)] if x is None else [float(value) for value in x]
    span = places[-1] - places[0] or 1.0
    ends = ", ".join(f"{name} from {values[0]:.3g} to {values[-1]:.3g}" for name, values in series.items())
    figure = start(title, WIDTH, TOP + height + 40 + 18 * len(series), ends)
    left, width = 70.0, WIDTH - 70.0 - MARGIN
    for step in range(5):
        value = low + (high - low) * step / 4
        y = TOP + height * (1 - step / 4)
        figure.rect(left, y, width, 1, "line")
        figure.text(left - 8, y + 4, f"{value:.3g}", size=11, color="muted", anchor="end")
    for number, (name, values) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        points = [
            (left + (at - places[0]) / span * width, TOP + height * (1 - (value - low) / (high - low)))
            for at, value in zip(places, values, strict=False)
        ]
        for one, other in pairwise(points):
            line(figure, one, other, color)
        y = TOP + height + 42 + 18 * number
        figure.rect(left, y - 9, 12, 10, color)
        figure.text(left + 20, y, name, size=11)
    for at in (places[0], places[-1]):
        edge = left + (at - places[0]) / span * width
        figure.text(edge, TOP + height + 18, f"{at:g}", size=11, color="muted", anchor="middle")
    return Drawing(figure)


def line(figure: Figure, one: tuple[float, float], other: tuple[float, float], color: str) -> None:
    from glassgpt.figures.figure import Arc

    middle = ((one[0] + other[0]) / 2, (one[1] + other[1]) / 2)
    figure.marks.append(Arc(one, middle, other, color, 1.8))


def mark_space(label: str) -> str:
    """A token shows the space at its start; the spaces inside a label are just spaces."""
    inner = label.strip(" ")
    start, end = label.index(inner), len(label) - len(label.rstrip(" "))
    return visible(label[:start]) + inner + visible(" " * end) if inner else visible(label)


def format_cell(value: float, digits: int) -> str:
    return "" if not np.isfinite(value) else f"{value:,.{digits}f}"


def describe(table: np.ndarray, digits: int) -> str:
    rows = (" ".join(format_cell(value, digits) or "hidden" for value in row) for row in table)
    return " / ".join(rows)
