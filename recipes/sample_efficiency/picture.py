"""Draw the results of `run.py`: the mean over the seeds at each size of the data, with its spread.

    python recipes/sample_efficiency/picture.py runs/efficiency SHARED_TEST/aeslc.test.jsonl

Writes classification.svg and summarisation.svg beside this file, and the figures as results.json. The
summaries are scored by ROUGE-L.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

from glassgpt.evaluate.generated import rouge

HERE = Path(__file__).parent
LEFT, TOP, WIDTH, HEIGHT = 60, 40, 440, 260
COLOURS = {False: "#1b6ca8", True: "#b3541e"}
NAMES = {False: "pre-trained, then tuned", True: "from scratch"}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#555}path{fill:none}.grid{stroke:#8884}.line{stroke-width:1.8}"
)

Point = tuple[float, float, float]  # fraction of the data, mean, standard deviation


def points(rows: list[dict[str, float]], key: str) -> dict[bool, list[Point]]:
    found: dict[bool, list[Point]] = {}
    for scratch in (False, True):
        for fraction in sorted({row["fraction"] for row in rows}):
            values = [r[key] for r in rows if r["fraction"] == fraction and r["scratch"] == scratch]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                found.setdefault(scratch, []).append((fraction, statistics.mean(values), spread))
    return found


def draw(curves: dict[bool, list[Point]], title: str, low: float) -> str:
    """A line for each kind of start, from `low` (what chance reaches) to the next multiple of ten."""
    tops = [mean + spread for line in curves.values() for _, mean, spread in line]
    high = max(round(low) + 10, 10 * math.ceil(max(tops) / 10))
    fractions = sorted({fraction for line in curves.values() for fraction, _, _ in line})

    def place(fraction: float, value: float) -> tuple[float, float]:
        x = LEFT + WIDTH * (0.08 + 0.84 * fractions.index(fraction) / max(1, len(fractions) - 1))
        return round(x, 1), round(TOP + HEIGHT * (high - value) / (high - low), 1)

    parts = [f'<text x="8" y="18">{title}</text>']
    for value in range(round(low), high + 1, 10):
        y = place(fractions[0], value)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y}h{WIDTH}"/><text x="8" y="{y + 4}">{value}</text>')
    for fraction in fractions:
        parts.append(
            f'<text x="{place(fraction, low)[0] - 14}" y="{TOP + HEIGHT + 20}">{100 * fraction:g} %</text>'
        )
    for scratch, line in curves.items():
        colour = COLOURS[scratch]
        path = "L".join("{} {}".format(*place(fraction, mean)) for fraction, mean, _ in line)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
        for fraction, mean, spread in line:
            (x, y), top, bottom = place(fraction, mean), place(fraction, mean + spread)[1], 0.0
            bottom = place(fraction, mean - spread)[1]
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
                f'<path stroke="{colour}" d="M{x - 5} {top}h10M{x} {top}V{bottom}M{x - 5} {bottom}h10"/>'
            )
        x, y = LEFT + 12, TOP + 16 + 20 * scratch  # more data never hurts much, so this corner is free
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/><text x="{x + 10}" y="{y + 4}">')
        parts.append(f"{NAMES[scratch]}</text>")
    size = f'viewBox="0 0 {LEFT + WIDTH + 20} {TOP + HEIGHT + 32}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def read(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=HERE)
    given = parser.parse_args()
    results: dict[str, dict[str, list[Point]]] = {}
    labelled = [{**row, "accuracy": 100 * row["valid"]} for row in read(given.run / "classification.jsonl")]
    emails = read(given.run / "summarisation.jsonl")
    references = [json.loads(line)["summary"] for line in given.test.read_text("utf-8").splitlines()]
    for row in emails:
        texts = (given.run / str(row["file"])).read_text("utf-8").splitlines()
        row["rougeL"] = rouge(texts, references[: len(texts)], ("rougeL",))["rougeL"]
    for name, rows, key, title, low in (
        ("classification", labelled, "accuracy", "SST-2 dev accuracy (%) over the share of the data", 50.0),
        ("summarisation", emails, "rougeL", "email subjects, ROUGE-L over the share of the data", 0.0),
    ):  # fmt: skip
        if not rows:
            continue
        curves = points(rows, key)
        (given.out / f"{name}.svg").write_text(draw(curves, title, low), "utf-8")
        results[name] = {
            NAMES[scratch]: [(f, round(mean, 2), round(spread, 2)) for f, mean, spread in line]
            for scratch, line in curves.items()
        }
        for scratch, line in curves.items():
            shown = ", ".join(f"{100 * f:g} %: {mean:.1f} ± {spread:.1f}" for f, mean, spread in line)
            print(f"{name}, {NAMES[scratch]}: {shown}")
    (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
