"""Draws the curves of docs/music.md: python recipes/music/chart.py results/*.json -o docs/music_curves.svg

The loss on held-out pieces over the minutes of training, a line for each result of train.py; the published
figures as dashed lines.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassgpt.train.report.chart import linear_ticks

WIDTH, HEIGHT, LEFT, TOP = 360, 260, 40, 30
COLOURS = {"causal": "#b3541e", "relative": "#1b6ca8"}
NAMES = {"causal": "plain", "relative": "relative"}
TITLES = {"maestro": "MAESTRO v3", "pop909": "POP909", "jsb": "JSB chorales"}
PUBLISHED = {"maestro": {"causal": 1.861, "relative": 1.835}, "jsb": {"causal": 0.417, "relative": 0.335}}
STYLE = "text{font:12px system-ui,sans-serif}path{fill:none}.grid{stroke:#8884}"


def draw_task(task: str, results: list[dict[str, Any]], left: int) -> list[str]:
    """One panel."""
    published = PUBLISHED.get(task, {})
    lines = {
        result["name"].split("-")[1]: [
            (r["seconds"] / 60, r["val_loss"]) for r in result["curve"] if "val_loss" in r and r["step"] > 1
        ]
        for result in results
    }
    values = [value for points in lines.values() for _, value in points]
    low = min([*values, *published.values()]) * 0.98
    high = min(max(values), low + 0.8)
    end = max(minute for points in lines.values() for minute, _ in points)

    def x(minute: float) -> float:
        return round(left + LEFT + (WIDTH - LEFT - 16) * minute / end, 1)

    def y(value: float) -> float:
        return round(TOP + HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low)), 1)

    parts = [f'<text x="{left + LEFT}" y="16" font-weight="bold">{TITLES[task]}</text>']
    for tick in linear_ticks(low, high):
        parts.append(f'<path class="grid" d="M{left + LEFT} {y(tick)}H{x(end)}"/>')
        parts.append(f'<text x="{left + LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for tick in linear_ticks(0, end):
        parts.append(f'<text x="{x(tick)}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{tick:g}</text>')
    for row, (attention, points) in enumerate(sorted(lines.items())):
        colour = COLOURS[attention]
        path = "L".join(f"{x(minute)} {y(value)}" for minute, value in points)
        parts.append(f'<path stroke="{colour}" stroke-width="1.8" d="M{path}"/>')
        best = min(value for _, value in points)
        parts.append(
            f'<text x="{left + WIDTH - 20}" y="{TOP + 14 + 16 * row}" text-anchor="end" fill="{colour}">'
            f"{NAMES[attention]}: {best:.3f}</text>"
        )
        if attention in published:
            at = y(published[attention])
            parts.append(
                f'<path stroke="{colour}" stroke-dasharray="3 4" d="M{left + LEFT} {at}H{x(end)}">'
                f"<title>published: {published[attention]}</title></path>"
            )
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    results = [json.loads(path.read_text()) for path in args.results]
    tasks = [task for task in TITLES if any(result["name"].startswith(task) for result in results)]
    parts = []
    for place, task in enumerate(tasks):
        mine = [result for result in results if result["name"].startswith(task)]
        parts += draw_task(task, mine, place * WIDTH)
    size = f'viewBox="0 0 {WIDTH * len(tasks)} {TOP + HEIGHT + 44}"'
    label = f'<text x="{LEFT}" y="{TOP + HEIGHT + 36}">minutes of training; dashed: published</text>'
    title = "<title>Loss on held-out music, nats per event</title>"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}'
    args.out.write_text(f"{svg}<style>{STYLE}</style>{''.join(parts)}{label}</svg>\n")


if __name__ == "__main__":
    main()
