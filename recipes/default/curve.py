"""Keep a downsampled log of each run beside the recipe, and draw their loss curves.

    python recipes/default/curve.py runs/default runs/tiny

Writes NAME.log.jsonl (every look at the held-out text, and about 1,500 other steps), NAME.environment.jsonl
(where the run was begun and resumed) and curve.svg.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from glassgpt.figures.axes import Axes, chart, format_number, legend
from glassgpt.figures.svg import path, text
from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG
from glassgpt.train.report.chart import downsample, smooth
from glassgpt.train.report.environment import ENVIRONMENT
from glassgpt.train.report.html import get_curve

HERE = Path(__file__).parent
KEPT = 1500  # records of a run's log
COLORS = ("#1b6ca8", "#b3541e")
STYLE = ".raw{opacity:.25}.smooth{stroke-width:1.6}.resumed{stroke:#888;stroke-dasharray:2 4}"


def keep(run: Path, out: Path) -> None:
    records = read_log(run / LOG)
    every = max(1, len(records) // KEPT)
    kept = [record for record in records if "val_loss" in record or record["step"] % every == 0]
    lines = [json.dumps({name: v for name, v in record.items() if name != "sample"}) for record in kept]
    (out / f"{run.name}.log.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    if (run / ENVIRONMENT).is_file():
        shutil.copy(run / ENVIRONMENT, out / f"{run.name}.environment.jsonl")


def drawing(runs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> str:
    """Loss over steps: of the training, its running mean, and of the held-out text as dots."""
    losses = [
        point[1]
        for records, _ in runs.values()
        for name in ("loss", "val_loss")
        for point in get_curve(records, name)
    ]
    low = 0.98 * min(losses)
    high = 1.9 * low  # the first steps, from 9.7 on, would press the rest flat
    steps = max(records[-1]["step"] for records, _ in runs.values())
    axes = Axes(48, 24, 720, 360, (0, steps), (low, high))
    parts = [*axes.grid(), *axes.below(format=format_number)]
    labels = {}
    for color, (name, (records, sessions)) in zip(COLORS, runs.items(), strict=False):
        loss, held_out = get_curve(records, "loss"), get_curve(records, "val_loss")
        for start in sessions:
            if start["step"]:
                line = f"M{axes.x(start['step'])} {axes.top}v{axes.height}"
                parts.append(path(line, kind="resumed", tip="resumed"))
        parts += axes.curve(downsample(loss), color, "raw")
        parts += axes.curve(downsample(smooth(loss)), color, "smooth")
        parts += axes.dots(held_out, color)
        step, value = held_out[-1]
        labels[f"{name}: held out {value:.3f} after {step:,} steps"] = color
    title = "loss (nats per token); line: training, dots: held out"
    parts += [*legend(428, 44, labels), text(8, 14, title), text(768, 420, "steps", anchor="end")]
    return chart(792, 428, parts, title, STYLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="none: only draw what was kept before")
    parser.add_argument("-o", "--out", type=Path, default=HERE)
    args = parser.parse_args()
    for run in args.runs:
        keep(run, args.out)
    runs = {}
    for log in sorted(args.out.glob("*.log.jsonl")):
        name = log.name.removesuffix(".log.jsonl")
        runs[name] = read_log(log), read_log(args.out / f"{name}.environment.jsonl")
    (args.out / "curve.svg").write_text(drawing(runs), "utf-8")


if __name__ == "__main__":
    main()
