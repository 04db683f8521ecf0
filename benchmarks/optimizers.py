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

from glassgpt.train.report.chart import format_number, linear_ticks

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 16, 36
COLOURS = {"AdamW": "#d9822b", "Muon": "#2b7bd9"}  # told apart on light and on dark


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
    """The curves as SVG; grey words and lines, so that it can lie on light and on dark."""
    steps = max(run.evals[-1][0] for run in runs)
    losses = [loss for run in runs for _, loss in run.evals]
    low, high = min(losses) - 0.05, max(losses) + 0.05

    def place(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / steps
        return round(x, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low), 1)

    parts = []
    for tick in linear_ticks(low, high):
        x, y = place(0, tick)
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#8884"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{format_number(tick)}</text>')
    for tick in linear_ticks(0, steps):
        x, y = place(tick, low)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{format_number(tick)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">steps</text>')
    for row, run in enumerate(runs):
        colour = COLOURS[run.name]
        slots = [place(*point) for point in run.evals]
        path = "M" + "L".join(f"{x} {y}" for x, y in slots)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in slots]
        words = f'<text x="{WIDTH - RIGHT}" y="{TOP + 14 + 18 * row}" text-anchor="end" fill="{colour}">'
        parts.append(f"{words}{run.name}, rate {run.rate:g}: {run.loss:.3f}</text>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" '
        f'font-family="sans-serif" fill="#888"><title>Held-out loss (nats a token)</title>'
        f"{''.join(parts)}</svg>\n"
    )


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
    best = [min((r for r in runs if r.name == name), key=lambda r: r.loss) for name in COLOURS]
    (asked.out / "curves.svg").write_text(figure(best), "utf-8")
    print(json.dumps({r.name.lower(): {"rate": r.rate, "val_loss": r.loss} for r in best}))


if __name__ == "__main__":
    main()
