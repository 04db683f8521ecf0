"""Draws cpu_scaling.svg: the time of a token on a CPU, with the bytes it reads and its operations.

    python benchmarks/cpu_scaling.py -o docs/cpu_scaling.json
    python docs/performance_pictures.py [-o docs/cpu_scaling.svg]

Colors follow the reader's light or dark setting.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassgpt.figures.axes import Axes, chart
from glassgpt.figures.svg import circle, path, text
from glassgpt.files import write_text_files

HERE = Path(__file__).parent
COLORS = {"int8": "#2f7fe0", "int4": "#e0702f"}
WIDTH, HEIGHT = 280, 250  # of one chart
LEFT, TOP, GAP = 66, 92, 48
LOW, HIGH = 0.03, 100.0  # milliseconds: all three charts have the same scale
SWEEPS = {
    "context": ("context length", "GPT-2 small, one text"),
    "batch": ("texts at once", "GPT-2 small, 64 tokens each"),
    "size": ("model size", "one text of 64 tokens"),
}
NAMES = {
    "tiny": "16M", "gpt2": "small", "gpt2-medium": "medium", "gpt2-large": "large", "gpt2-xl": "XL",
}  # fmt: skip


STYLE = (
    ".curve{stroke-width:2}"
    ".reading{stroke-dasharray:6 4;stroke-width:1.5}.computing{stroke-dasharray:1.5 3;stroke-width:1.5}"
)


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.5 else f"{value:.1f}"


def panel(left: float, sweep: str, measured: dict[str, Any]) -> list[str]:
    rows = measured[sweep]
    measure = {"context": "context", "batch": "batch", "size": "parameters"}[sweep]
    ends = rows[0][measure], rows[-1][measure]
    axes = Axes(left, TOP, WIDTH, HEIGHT, ends, (LOW, HIGH), (True, True))
    title, about = SWEEPS[sweep]
    parts = [text(left, TOP - 34, title, "title"), text(left, TOP - 16, about)]
    for ms in (0.1, 1.0, 10.0, 100.0):
        parts.append(path(f"M{left} {axes.y(ms)}h{WIDTH}", kind="grid"))
        if sweep == "context":
            parts.append(text(left - 8, axes.y(ms) + 4, f"{ms:g} ms", anchor="end"))
    for dtype, color in COLORS.items():
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        reading = [(row[measure], 1e3 * row["bytes"] / measured["bandwidth"]) for row in of_dtype]
        computing = [(row[measure], 1e3 * row["operations"] / measured["int8_peak"]) for row in of_dtype]
        parts += axes.curve(reading, color, "reading")
        if dtype == "int8":  # the same number of operations in both
            parts += axes.curve(computing, color, "computing")
        parts += axes.curve([(row[measure], row["ms"]) for row in of_dtype], color)
        for row in of_dtype:
            tip = f"{dtype}: {row['ms']:.3f} ms per token"
            parts.append(circle(axes.x(row[measure]), axes.y(row["ms"]), 3, fill=color, tip=tip))
    return parts + ticks(left, sweep, [row for row in rows if row["dtype"] == "int8"], axes, measure)


def ticks(left: float, sweep: str, rows: list[dict[str, Any]], axes: Axes, measure: str) -> list[str]:
    """Below each place: its value, and the bytes that int8 reads and the operations it computes there."""
    parts, taken = [], -100.0
    for row in rows:
        x = axes.x(row[measure])
        last = row is rows[-1]
        if x - taken < 36 or (not last and axes.x(rows[-1][measure]) - x < 36):
            continue
        taken = x
        name = NAMES[row["size"]] if sweep == "size" else f"{row[measure]:,}"
        for line, words in enumerate((name, short(row["bytes"] / 1e6), short(row["operations"] / 1e6))):
            parts.append(
                text(x, TOP + HEIGHT + 20 + 17 * line, words, "title" if line == 0 else None, "middle")
            )
    if sweep == "context":
        for line, words in enumerate(("MB", "Mop")):
            parts.append(text(left - 24, TOP + HEIGHT + 37 + 17 * line, words, anchor="end"))
    return parts


def key(y: float, measured: dict[str, Any]) -> list[str]:
    """What the lines are."""
    items = [
        ("curve", COLORS["int8"], "int8, measured"),
        ("curve", COLORS["int4"], "int4, measured"),
        ("reading", "#888", f"reading the bytes at {measured['bandwidth'] / 1e9:.0f} GB/s"),
        ("computing", "#888", f"the operations at {measured['int8_peak'] / 1e12:.1f} Top/s"),
    ]
    parts, x = [], float(LEFT)
    for kind, color, words in items:
        parts.append(path(f"M{x} {y - 4}h26", kind=kind, stroke=color))
        parts.append(text(x + 32, y, words))
        x += 32 + 7.2 * len(words) + 26
    return parts


def draw(measured: dict[str, Any]) -> str:
    width, height = LEFT + 3 * WIDTH + 2 * GAP + 40, TOP + HEIGHT + 96
    parts = [text(LEFT, 28, "Time per token", "title")]
    for number, sweep in enumerate(SWEEPS):
        parts += panel(LEFT + number * (WIDTH + GAP), sweep, measured)
    parts += key(height - 14, measured)
    label = "Milliseconds per token against context length, batch size and model size"
    return chart(width, height, parts, label, STYLE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("cpu_scaling.svg"))
    args = parser.parse_args()
    measured = json.loads((HERE / "cpu_scaling.json").read_text("utf-8"))
    write_text_files(args.out.parent, {args.out.name: draw(measured)})


if __name__ == "__main__":
    main()
