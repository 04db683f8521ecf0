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
from glassgpt.figures.axes import Axes, chart, legend
from glassgpt.figures.svg import path, text

HERE = Path(__file__).parent
COLORS = {False: "#1b6ca8", True: "#b3541e"}
NAMES = {False: "pre-trained, then tuned", True: "from scratch"}

Result = tuple[float, float, float]  # fraction of the data, mean, standard deviation


def points(rows: list[dict[str, float]], key: str) -> dict[bool, list[Result]]:
    results: dict[bool, list[Result]] = {}
    for scratch in (False, True):
        for fraction in sorted({row["fraction"] for row in rows}):
            values = [r[key] for r in rows if r["fraction"] == fraction and r["scratch"] == scratch]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                results.setdefault(scratch, []).append((fraction, statistics.mean(values), spread))
    return results


def draw(curves: dict[bool, list[Result]], title: str, low: float) -> str:
    """A line for each kind of start, from `low` (what chance reaches) to the next multiple of ten."""
    tops = [mean + spread for line in curves.values() for _, mean, spread in line]
    high = max(round(low) + 10, 10 * math.ceil(max(tops) / 10))
    fractions = sorted({fraction for line in curves.values() for fraction, _, _ in line})
    last = max(1, len(fractions) - 1)
    axes = Axes(60, 40, 440, 260, (-0.1 * last, 1.1 * last), (low, high))
    parts = [text(8, 18, title), *axes.grid(range(round(low), high + 1, 10))]
    parts += axes.below(range(len(fractions)), lambda place: f"{100 * fractions[int(place)]:g} %")
    for scratch, line in curves.items():
        color = COLORS[scratch]
        means = [(fractions.index(fraction), mean) for fraction, mean, _ in line]
        parts += [*axes.curve(means, color), *axes.dots(means, color)]
        for (place, mean), (_, _, spread) in zip(means, line, strict=True):
            x, top, bottom = axes.x(place), axes.y(mean + spread), axes.y(mean - spread)
            parts.append(path(f"M{x - 5} {top}h10M{x} {top}V{bottom}M{x - 5} {bottom}h10", stroke=color))
    # More data never hurts much, so this corner is free.
    parts += legend(72, 60, {NAMES[scratch]: COLORS[scratch] for scratch in curves})
    return chart(520, 332, parts, title)


def read(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=HERE)
    args = parser.parse_args()
    results: dict[str, dict[str, list[Result]]] = {}
    labeled = [{**row, "accuracy": 100 * row["valid"]} for row in read(args.run / "classification.jsonl")]
    emails = read(args.run / "summarisation.jsonl")
    references = [json.loads(line)["summary"] for line in args.test.read_text("utf-8").splitlines()]
    for row in emails:
        texts = (args.run / str(row["file"])).read_text("utf-8").splitlines()
        row["rougeL"] = rouge(texts, references[: len(texts)], ("rougeL",))["rougeL"]
    for name, rows, key, title, low in (
        ("classification", labeled, "accuracy", "SST-2 dev accuracy (%) over the share of the data", 50.0),
        ("summarisation", emails, "rougeL", "email subjects, ROUGE-L over the share of the data", 0.0),
    ):  # fmt: skip
        if not rows:
            continue
        curves = points(rows, key)
        (args.out / f"{name}.svg").write_text(draw(curves, title, low), "utf-8")
        results[name] = {
            NAMES[scratch]: [(f, round(mean, 2), round(spread, 2)) for f, mean, spread in line]
            for scratch, line in curves.items()
        }
        for scratch, line in curves.items():
            shown = ", ".join(f"{100 * f:g} %: {mean:.1f} ± {spread:.1f}" for f, mean, spread in line)
            print(f"{name}, {NAMES[scratch]}: {shown}")
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
