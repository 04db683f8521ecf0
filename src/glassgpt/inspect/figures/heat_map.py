"""The heat map of an array with named axes: rows by columns, above zero warm and below zero cool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glassgpt.figures.figure import MAX_OPACITY, Figure
from glassgpt.figures.svg import visible
from glassgpt.inspect.figures.plots import MARGIN, add_heading, max_pool, plural, signed

if TYPE_CHECKING:
    from glassgpt.inspect.batches.named_array import NamedArray

MAX_CELLS = 2_000  # each with its tooltip; a larger map is a picture of pixels
MAX_COLUMNS = 200
WITH_NUMBERS = 16  # columns that leave room for a number in each cell
WIDTH = 900
SIDE = 96  # of the names of rows


def plot_heat_map(array: NamedArray) -> Figure:
    """The last axis is that of the columns; all others are rows. An axis of prompts is averaged."""
    subtitle = "orange: above zero, blue: below; "
    if "prompt" in array.dims and len(array.dims) > 2 and len(array.labels["prompt"]) > 1:
        subtitle += f"the mean of {plural(len(array.labels['prompt']), 'prompt')}; "
    if "prompt" in array.dims and len(array.dims) > 2:
        array = array.mean("prompt")
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    if array.values.ndim == 1 and array.shape[0] > 1:
        rows, columns = array.labels[array.dims[0]], (array.name,)
        values = array.values[:, None]
    else:
        columns = array.labels[array.dims[-1]] if array.dims else (array.name,)
        values = array.values.reshape(-1, len(columns))
        rows = row_labels(array)
    most = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    subtitle += f"the strongest is {most:.4g}"
    if len(array.dims) > 1:
        subtitle = f"rows: {', '.join(array.dims[:-1])}; columns: {array.dims[-1]}; {subtitle}"
    shown = values / max(most, 1e-30)
    figure = Figure(WIDTH, 0, f"{array.name}: {plural(len(rows), 'row')}, {plural(len(columns), 'column')}")
    y = add_heading(figure, array.name, subtitle) + 12
    if values.size > MAX_CELLS or len(columns) > MAX_COLUMNS:
        height = min(600.0, max(120.0, 8.0 * len(rows)))
        figure.rect(MARGIN + SIDE, y, WIDTH - 2 * MARGIN - SIDE, height, "line", 0.35)
        figure.grid(
            MARGIN + SIDE, y, WIDTH - 2 * MARGIN - SIDE, height, -max_pool(np.nan_to_num(shown)), array.name
        )
        figure.text(MARGIN, y + 12, rows[0], size=11, color="muted", room=SIDE - 6)
        figure.text(MARGIN, y + height - 2, rows[-1], size=11, color="muted", room=SIDE - 6)
        figure.text(MARGIN + SIDE, y + height + 14, f"{columns[0]} to {columns[-1]}", size=11, color="muted")
        figure.height = y + height + 28
        return figure
    cell = min(64.0, (WIDTH - 2 * MARGIN - SIDE) / len(columns))
    numbers = len(columns) <= WITH_NUMBERS
    every = max(1, round(30 / cell))  # columns with a name
    for column, label in enumerate(columns):
        if column % every == 0:
            figure.text(
                MARGIN + SIDE + (column + 0.5) * cell, y, show_spaces(label), size=10, color="muted",
                anchor="middle", room=every * cell - 2, tip=label,
            )  # fmt: skip
    y += 6
    for row, label in enumerate(rows):
        figure.text(MARGIN, y + 13, show_spaces(label), size=11, color="muted", room=SIDE - 6, tip=label)
        for column, level in enumerate(shown[row]):
            x, value = MARGIN + SIDE + column * cell, values[row, column]
            if np.isnan(value):
                continue
            tip = f"{label}, {columns[column]}: {value:+.4f}"
            figure.rect(x + 0.5, y, cell - 1, 18, "line", 0.35)
            figure.rect(x + 0.5, y, cell - 1, 18, signed(level), MAX_OPACITY * abs(float(level)), tip)
            if numbers:
                figure.text(
                    x + cell / 2, y + 13, f"{value:+.2f}", size=10, anchor="middle", room=cell, tip=tip
                )
        y += 19
    figure.height = y + 12
    return figure


def row_labels(array: NamedArray) -> tuple[str, ...]:
    """The labels of all axes but the last, one for each combination."""
    labels: list[str] = [""]
    for dim in array.dims[:-1]:
        labels = [
            f"{before}.{each}" if before else f"{each}" for before in labels for each in array.labels[dim]
        ]
    if len(array.dims) == 2:
        return tuple(f"{array.dims[0]} {label}" if label.isdigit() else label for label in labels)
    return tuple(labels)


def show_spaces(label: str) -> str:
    """The text of a token has visible spaces; a name such as `layer 0` stays as it is."""
    return visible(label) if label != label.strip() or not label else label
