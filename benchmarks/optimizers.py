"""AdamW and Muon on the same data from the same seed: the held-out loss after the same number of steps.

    python benchmarks/optimizers.py --data SHARDS --out FOLDER [--lr 1e-3 3e-3] [--matrix-lr 0.02] -- FLAGS

FLAGS go to `glassgpt train` as they are, such as `--steps 600 --shape 4x192x6`. AdamW moves all weights at
each of the rates of --lr in turn; Muon moves the matrices of the blocks at each of --matrix-lr, and AdamW the
rest, at --rest-lr. Runs that lie in FOLDER already are not done again. FOLDER/curves.svg shows the best of
either. A table for people, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from glassgpt.figures.axes import Axes, chart, format_number
from glassgpt.figures.svg import text

COLORS = {"AdamW": "#d9822b", "Muon": "#2b7bd9"}  # told apart on light and on dark


@dataclass
class Run:
    name: str  # AdamW or Muon
    rate: float
    evals: list[tuple[int, float]]  # step and held-out loss
    cpu: float | None  # seconds; None if it was done before

    @property
    def loss(self) -> float:
        return self.evals[-1][1]


def carried_out(name: str, rate: float, flags: list[str], data: str, out: Path) -> Run:
    folder = out / f"{name.lower()}-{rate:g}"
    cpu = None
    if not (folder / "report.html").is_file():  # written when a run ends
        before = os.times()
        words = ["train", "--data", data, "--out", str(folder), *flags]
        subprocess.run([sys.executable, "-m", "glassgpt", *words], check=True, stdout=sys.stderr)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
    records = map(json.loads, (folder / "log.jsonl").read_text("utf-8").splitlines())
    return Run(name, rate, [(r["step"], r["val_loss"]) for r in records if "val_loss" in r], cpu)


def figure(runs: list[Run]) -> str:
    """The curves as SVG."""
    steps = max(run.evals[-1][0] for run in runs)
    losses = [loss for run in runs for _, loss in run.evals]
    axes = Axes(48, 16, 576, 268, (0, steps), (min(losses) - 0.05, max(losses) + 0.05))
    parts = [*axes.grid(), *axes.below(format=format_number), text(624, 316, "steps", anchor="end")]
    for row, run in enumerate(runs):
        color = COLORS[run.name]
        parts += [*axes.curve(run.evals, color), *axes.dots(run.evals, color)]
        label = f"{run.name}, rate {run.rate:g}: {run.loss:.3f}"
        parts.append(text(624, 30 + 18 * row, label, anchor="end", style=f"fill:{color}"))
    return chart(640, 320, parts, "Held-out loss (nats per token)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--matrix-lr", type=float, nargs="+", default=[0.02])
    parser.add_argument("--rest-lr", type=float, default=3e-3)
    parser.add_argument("flags", nargs="*")
    asked = parser.parse_args()
    wanted = [("AdamW", rate, ["--lr", str(rate)]) for rate in asked.lr]
    rest = ["--lr", str(asked.rest_lr)]
    wanted += [
        ("Muon", rate, [*rest, "--optimizer", "muon", "--matrix-lr", str(rate)]) for rate in asked.matrix_lr
    ]
    runs = [
        carried_out(name, rate, [*asked.flags, *flags], asked.data, asked.out) for name, rate, flags in wanted
    ]
    print(f"{'':8}{'rate':>8}" + "".join(f"{step:>8}" for step, _ in runs[0].evals) + "   CPU s")
    for run in runs:
        row = "".join(f"{loss:8.3f}" for _, loss in run.evals)
        print(f"{run.name:8}{run.rate:>8g}{row}" + ("" if run.cpu is None else f"{run.cpu:8.0f}"))
    best = [min((r for r in runs if r.name == name), key=lambda r: r.loss) for name in COLORS]
    (asked.out / "curves.svg").write_text(figure(best), "utf-8")
    print(json.dumps({r.name.lower(): {"rate": r.rate, "val_loss": r.loss} for r in best}))


if __name__ == "__main__":
    main()
