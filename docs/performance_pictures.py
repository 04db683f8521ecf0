"""Draws cpu_scaling.svg: what a token takes on a CPU, beside what it has to read and to compute.

    python benchmarks/cpu_scaling.py -o docs/cpu_scaling.json
    python docs/performance_pictures.py [-o docs/cpu_scaling.svg]

Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from glassgpt.files import write_text_files
from glassgpt.inspect.svg import DARK, LIGHT

HERE = Path(__file__).parent
COLOURS = {"int8": "#2f7fe0", "int4": "#e0702f"}
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


def rules(colours: dict[str, str]) -> str:
    return (
        f"text{{fill:{colours['muted']}}}.strong{{fill:{colours['text']}}}"
        f".grid{{stroke:{colours['line']}}}.back{{fill:{colours['background']}}}"
    )


STYLE = (
    "text{font:12px system-ui,sans-serif}.strong{font-weight:600}path{fill:none}.line{stroke-width:2}"
    ".reading{stroke-dasharray:6 4;stroke-width:1.5}.computing{stroke-dasharray:1.5 3;stroke-width:1.5}"
    f"{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}"
)


def text(x: float, y: float, words: str, anchor: str = "start", strong: bool = False) -> str:
    kind = ' class="strong"' if strong else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def height_of(ms: float) -> float:
    return TOP + HEIGHT * (1 - math.log(ms / LOW) / math.log(HIGH / LOW))


def path(kind: str, colour: str, points: Sequence[tuple[float, float]]) -> str:
    where = "L".join(f"{x:.1f} {height_of(ms):.1f}" for x, ms in points)
    return f'<path class="{kind}" stroke="{colour}" d="M{where}"/>'


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.5 else f"{value:.1f}"


def chart(left: float, sweep: str, found: dict[str, Any]) -> list[str]:
    rows = found[sweep]
    measure = {"context": "context", "batch": "batch", "size": "parameters"}[sweep]
    smallest, largest = rows[0][measure], rows[-1][measure]

    def across(value: float) -> float:
        return left + WIDTH * math.log(value / smallest) / math.log(largest / smallest)

    title, about = SWEEPS[sweep]
    parts = [text(left, TOP - 34, title, strong=True), text(left, TOP - 16, about)]
    for ms in (0.1, 1.0, 10.0, 100.0):
        y = height_of(ms)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{WIDTH}"/>')
        if sweep == "context":
            parts.append(text(left - 8, y + 4, f"{ms:g} ms", "end"))
    for dtype, colour in COLOURS.items():
        own = [row for row in rows if row["dtype"] == dtype]
        places = [across(row[measure]) for row in own]
        reading = [1e3 * row["bytes"] / found["bandwidth"] for row in own]
        computing = [1e3 * row["operations"] / found["int8_peak"] for row in own]
        parts.append(path("reading", colour, list(zip(places, reading, strict=True))))
        if dtype == "int8":  # the same number of operations in both
            parts.append(path("computing", colour, list(zip(places, computing, strict=True))))
        parts.append(path("line", colour, [(x, row["ms"]) for x, row in zip(places, own, strict=True)]))
        parts += [
            f'<circle cx="{x:.1f}" cy="{height_of(row["ms"]):.1f}" r="3" fill="{colour}">'
            f"<title>{dtype}: {row['ms']:.3f} ms per token</title></circle>"
            for x, row in zip(places, own, strict=True)
        ]
    return parts + ticks(left, sweep, [row for row in rows if row["dtype"] == "int8"], across, measure)


def ticks(left: float, sweep: str, rows: list[dict[str, Any]], across: Any, measure: str) -> list[str]:
    """Below each place: what it is, and what int8 reads and computes there."""
    parts, taken = [], -100.0
    for row in rows:
        x = across(row[measure])
        last = row is rows[-1]
        if x - taken < 36 or (not last and across(rows[-1][measure]) - x < 36):
            continue
        taken = x
        name = NAMES[row["size"]] if sweep == "size" else f"{row[measure]:,}"
        for line, words in enumerate((name, short(row["bytes"] / 1e6), short(row["operations"] / 1e6))):
            parts.append(text(x, TOP + HEIGHT + 20 + 17 * line, words, "middle", strong=line == 0))
    if sweep == "context":
        for line, words in enumerate(("MB", "Mop")):
            parts.append(text(left - 24, TOP + HEIGHT + 37 + 17 * line, words, "end"))
    return parts


def key(y: float, found: dict[str, Any]) -> list[str]:
    """What the lines are."""
    items = [
        ("line", COLOURS["int8"], "int8, measured"),
        ("line", COLOURS["int4"], "int4, measured"),
        ("reading", "#888", f"reading the bytes at {found['bandwidth'] / 1e9:.0f} GB/s"),
        ("computing", "#888", f"the operations at {found['int8_peak'] / 1e12:.1f} Top/s"),
    ]
    parts, x = [], float(LEFT)
    for kind, colour, words in items:
        parts.append(f'<path class="{kind}" stroke="{colour}" d="M{x} {y - 4}h26"/>')
        parts.append(text(x + 32, y, words))
        x += 32 + 7.2 * len(words) + 26
    return parts


def draw(found: dict[str, Any]) -> str:
    width, height = LEFT + 3 * WIDTH + 2 * GAP + 40, TOP + HEIGHT + 96
    parts = [text(LEFT, 28, "Time per token", strong=True)]
    for number, sweep in enumerate(SWEEPS):
        parts += chart(LEFT + number * (WIDTH + GAP), sweep, found)
    parts += key(height - 14, found)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Milliseconds per token against context length, batch size and model size">'
        f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("cpu_scaling.svg"))
    given = parser.parse_args()
    found = json.loads((HERE / "cpu_scaling.json").read_text("utf-8"))
    write_text_files(given.out.parent, {given.out.name: draw(found)})


if __name__ == "__main__":
    main()
