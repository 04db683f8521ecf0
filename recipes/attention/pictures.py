"""The pictures and tables of docs/attention.md, from results/: python recipes/attention/pictures.py

attention_masks.svg needs no results: it shows which outputs of an attention change when one token does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.model.attention import AttentionInputs
from glassgpt.model.variants.memory import read_segments
from glassgpt.train.report.chart import linear_ticks

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
COLOURS = ("#2b7bc4", "#b3541e", "#3a8f5c", "#8b5fbf", "#c2408b", "#8a7a1f")
STYLE = """text{font:12px system-ui,sans-serif;fill:#5d6675}.title{font-weight:600;fill:#1b1f27}
path{fill:none}.grid{stroke:#d5dae2}.line{stroke-width:1.8}.dashed{stroke-dasharray:2 4}
.error{stroke:#1b1f27;stroke-width:1.5}.back{fill:#fff}.unseen{fill:#e9ecf1}
@media(prefers-color-scheme:dark){text{fill:#a0a9b8}.title{fill:#eceff4}.grid{stroke:#343b47}
.error{stroke:#eceff4}.back{fill:#14171c}.unseen{fill:#262c36}}"""
CORPORA = {"chars": "characters", "bpe": "BPE tokens"}
Lines = Mapping[str, Sequence[tuple[float, float]]]


def svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{label}">'
    )
    back = '<rect class="back" width="100%" height="100%"/>'
    return f"{head}<style>{STYLE}</style>{back}{''.join(parts)}</svg>\n"


class Chart:
    """Lines over a common axis, at a place in the picture."""

    def __init__(self, x: float, y: float, width: float = 320, height: float = 220) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height

    def draw(
        self, title: str, lines: Lines, log: bool = False, marks: Sequence[float] = (), unit: str = "",
        dashed: Lines = MappingProxyType({}),
    ) -> list[str]:  # fmt: skip
        """`log` is of both axes, else the horizontal one has a place for each value; `marks` are labelled.
        `dashed` are predictions, in the colours of the lines."""
        values = [y for points in lines.values() for _, y in points]
        low, high = min(values), max(values)
        margin = 0.06 * (high - low)
        low, high = (low, max(high, 1.1 * low)) if log else (low - margin, high + margin)
        places = sorted({x for points in lines.values() for x, _ in points})

        def place(x: float, y: float) -> tuple[float, float]:
            if log:
                across = math.log(x / places[0]) / math.log(places[-1] / places[0])
                up = math.log(y / low) / math.log(high / low)
            else:
                across = places.index(x) / max(1, len(places) - 1)
                up = (y - low) / (high - low)
            return round(self.x + self.width * across, 1), round(self.y + self.height * (1 - up), 1)

        parts = [f'<text class="title" x="{self.x}" y="{self.y - 14}">{title}</text>']
        for tick in log_ticks(low, high) if log else linear_ticks(low, high):
            y = place(places[0], tick)[1]
            parts.append(f'<path class="grid" d="M{self.x} {y}h{self.width}"/>')
            parts.append(f'<text x="{self.x - 6}" y="{y + 4}" text-anchor="end">{tick:,g}</text>')
        for tick in marks or places:
            x = place(tick, high)[0]
            bottom = self.y + self.height + 16
            parts.append(f'<text x="{x}" y="{bottom}" text-anchor="middle">{tick:,g}</text>')
        parts.append(
            f'<text x="{self.x + self.width}" y="{self.y + self.height + 32}" text-anchor="end">{unit}</text>'
        )
        for points, colour in zip(lines.values(), COLOURS, strict=False):
            at = [place(*point) for point in points]
            parts.append(f'<path class="line" stroke="{colour}" d="{path_through(at)}"/>')
            if len(at) < 20:
                parts += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in at]
        for points, colour in zip(dashed.values(), COLOURS, strict=False):
            at = [place(*point) for point in points if point[1] >= low]
            if at:
                parts.append(f'<path class="line dashed" stroke="{colour}" d="{path_through(at)}"/>')
        return parts


def path_through(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them where these would be few."""
    steps = (1,) if high > 50 * low else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    return [step * 10.0**n for n in powers for step in steps if low <= step * 10.0**n <= high]


def key(x: float, y: float, names: Sequence[str]) -> list[str]:
    parts = []
    for row, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        parts.append(f'<circle cx="{x}" cy="{y + 18 * row - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 18 * row}">{name}</text>')
    return parts


# Who sees whom.


def seen_by(attn: Any, length: int) -> np.ndarray:
    """(length, length): whether the output at the row changes with the input at the column."""
    x = torch.randn(1, length, 32, generator=torch.Generator().manual_seed(1))
    plain = attn(x, AttentionInputs())[0]
    columns = []
    for j in range(length):
        changed = x.clone()
        changed[0, j] += 1
        columns.append((attn(changed, AttentionInputs())[0] != plain).any(dim=1))
    return torch.stack(columns, dim=1).numpy()


def seen_in_segments(model: GPT2, length: int, segment: int, memory: int) -> np.ndarray:
    def read(ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([x for _, x in read_segments(model, ids, segment, memory)], dim=1)[0]

    ids = torch.arange(length)[None]
    plain = read(ids)
    columns = []
    for j in range(length):
        changed = ids.clone()
        changed[0, j] = 60
        columns.append((read(changed) != plain).any(dim=1))
    return torch.stack(columns, dim=1).numpy()


@torch.no_grad()
def masks() -> str:
    length, cell = 18, 9
    torch.manual_seed(0)
    small = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_head": 2, "n_layer": 2}

    def model(**settings: Any) -> GPT2:
        made = GPT2(Config(**(small | settings))).eval()
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        return made

    panels = {
        "causal, relative": seen_by(model().h[1].attn, length),
        "memory: 6 tokens, segments of 6": seen_in_segments(
            model(attention="memory", memory_length=6, n_layer=1), length, 6, 6
        ),
        "local: blocks of 6": seen_by(model(attention="local", local_block=6).h[1].attn, length),
        "compressed: slots of 3": seen_by(model(attention="compressed").h[1].attn, length),
        "bidirectional": seen_by(model(attention="bidirectional", mask_token_id=63).h[1].attn, length),
    }
    parts = []
    for number, (title, seen) in enumerate(panels.items()):
        x, y = 10 + 260 * (number % 3), 28 + 220 * (number // 3)
        parts.append(f'<text class="title" x="{x}" y="{y - 8}">{title}</text>')
        for look, chosen in ((f'style="fill:{COLOURS[0]}"', seen), ('class="unseen"', ~seen)):
            path = "".join(f"M{x + cell * j} {y + cell * i}h8v8h-8z" for i, j in np.argwhere(chosen))
            parts.append(f'<path {look} d="{path}"/>')
    parts.append('<text x="530" y="300">row: a token</text>')
    parts.append('<text x="530" y="318">blue: what its output depends on</text>')
    return svg(740, 430, "What a token sees with each attention", parts)


# Results.


def memory(results: dict[str, Any]) -> str:
    parts = []
    for row, (name, title) in enumerate(CORPORA.items()):
        runs = results[name]
        y = 40 + 300 * row
        own = {"as trained": [(int(length), run["loss"]) for length, run in runs.items()]}
        parts += Chart(60, y, 240).draw(f"{title}: loss by memory", own, unit="memory, in training and test")
        read = {
            f"trained with {length}": [(int(n), loss) for n, loss in run["by_read_length"].items()]
            for length, run in runs.items()
        }
        parts += Chart(370, y, 260).draw(
            "the same models with other memories", read, unit="memory in the test"
        )
        places = {
            f"trained with {length}": list(enumerate(run["loss_by_place"], start=1))
            for length, run in runs.items()
            if run["loss_by_place"]
        }
        marks = [1, *range(16, results["segment"] + 1, 16)]
        parts += Chart(700, y, 240).draw(
            "loss by place in the segment", places, marks=marks, unit="place in the segment"
        )
        parts += key(960, y + 20, list(read))
    return svg(1080, 610, "Loss with memories of several lengths", parts)


def ways_to_fill(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What was measured of one corpus, by its name on the page."""
    return {
        "causal: guessed from what precedes": results["causal"]["guesses"],
        "causal: 20 guesses, rescored": results["causal"]["rescored"],
        "bidirectional: all blanks at once": results["bidirectional"]["together"],
        "bidirectional: one blank at a time": results["bidirectional"]["alone"],
    }


def blanks(results: dict[str, Any]) -> str:
    parts = []
    measured = [name for name in CORPORA if name in results]
    for number, corpus in enumerate(measured):
        top = 160 * number
        parts.append(
            f'<text class="title" x="10" y="{top + 20}">{CORPORA[corpus]}: blanks filled rightly</text>'
        )
        for row, (name, found) in enumerate(ways_to_fill(results[corpus]).items()):
            y, colour = top + 36 + 30 * row, COLOURS[0 if name.startswith("causal") else 1]
            width, error = 360 * found["accuracy"], 360 * found["stderr"]
            parts.append(f'<text x="10" y="{y + 14}">{name}</text>')
            parts.append(f'<rect x="240" y="{y}" width="{width:.1f}" height="20" fill="{colour}"/>')
            parts.append(f'<path class="error" d="M{240 + width - error:.1f} {y + 10}h{2 * error:.1f}"/>')
            label = f"{found['accuracy']:.1%} ± {found['stderr']:.1%}"
            parts.append(f'<text x="{250 + width + error:.1f}" y="{y + 14}">{label}</text>')
    return svg(720, 160 * len(measured), "Blanks filled rightly", parts)


KINDS = {"causal": "full", "local": "local", "compressed": "compressed"}


def long(results: dict[str, Any]) -> str:
    parts = []
    panels = (
        ("fused", "attention_ms", "one attention, fused: ms"),
        ("math", "attention_ms", "one attention, every score held: ms"),
        ("math", "attention_mib", "one attention, every score held: MiB"),
        ("fused", "model_ms", "five blocks, fused: ms"),
        ("math", "model_ms", "five blocks, every score held: ms"),
        ("math", "model_mib", "five blocks, every score held: MiB"),
    )
    for number, (backend, quantity, title) in enumerate(panels):
        measured = results[backend]
        lines = {kind: points(measured[kind], quantity) for kind in KINDS}
        one = backend == "math" and quantity.startswith("attention")  # what the prediction is of
        dashed = {kind: predict(measured, kind, quantity) for kind in KINDS} if one else {}
        x, y = 60 + 330 * (number % 3), 40 + 300 * (number // 3)
        lengths = sorted(x for x, _ in lines["causal"])
        marks = [*lengths[:-2:2], lengths[-1]] if len(lengths) > 2 else lengths
        parts += Chart(x, y, 250).draw(title, lines, log=True, unit="tokens", dashed=dashed, marks=marks)
    parts += key(1010, 60, list(KINDS.values()))
    parts.append('<text x="1006" y="130">dashed:</text><text x="1006" y="148">predicted</text>')
    return svg(1110, 610, "Time and memory of full, local and compressed attention", parts)


def points(measured: dict[str, Any], quantity: str) -> list[tuple[float, float]]:
    return [(int(T), max(1e-3, values[quantity])) for T, values in measured.items()]


def predict(measured: dict[str, Any], kind: str, quantity: str) -> list[tuple[float, float]]:
    """In proportion to the number of scores, from what full attention of the longest text took."""
    full = list(measured["causal"].values())[-1]
    each = full[quantity] / full["predicted_scores"]
    return [(int(T), each * values["predicted_scores"]) for T, values in measured[kind].items()]


def exponent(measured: dict[str, Any], quantity: str) -> float:
    """n of T^n: the slope between the longest text and the first at least a third as long."""
    lengths = [int(T) for T in measured]
    last = lengths[-1]
    first = next(T for T in lengths if last / T <= 3)
    there, here = (measured[str(T)][quantity] for T in (first, last))
    return math.log(max(here, 1e-3) / max(there, 1e-3)) / math.log(last / first)


# The tables of the page.


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def memory_table(results: dict[str, Any]) -> str:
    lengths = list(results["chars"])
    rows = []
    for name, title in CORPORA.items():
        runs = [results[name][length] for length in lengths]
        rows.append([f"{title}: loss", *(f"{run['loss']:.3f}" for run in runs)])
        rows.append([f"{title}: effective memory", *(str(run["effective_context"]) for run in runs)])
    return (
        f"Measured (`recipes/attention/memory.py`): segments of {results['segment']} tokens, and nothing "
        "differs but the memory, in training and in the test.\nThe effective memory is the shortest with "
        "which a model is within 0.005 nats of its best.\n\n"
        + table(["", *(f"memory {length}" for length in lengths)], rows)
        + "\n\n![Loss by memory length, by the memory in the test, and by the place in the segment]"
        "(attention_memory.svg)"
    )


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def long_table(results: dict[str, Any]) -> str:
    lengths = [int(T) for T in results["fused"]["causal"]]
    longest = str(lengths[-1])
    first = next(T for T in lengths if lengths[-1] / T <= 3)
    formulas = {"causal": "T²/2", "local": f"{results['block']} T/2", "compressed": "T²/6"}
    ratios, slopes = [], []
    for kind, name in KINDS.items():
        row, slope = [f"{name}, {formulas[kind]}"], [name, "1" if kind == "local" else "2"]
        for backend, quantity, unit in (
            ("math", "predicted_scores", ""), ("math", "attention_mib", "MiB"),
            ("math", "attention_ms", "ms"), ("fused", "attention_ms", "ms"),
        ):  # fmt: skip
            here, full = (results[backend][k][longest][quantity] for k in (kind, "causal"))
            row.append(f"{here:,.1f} {unit}, {share(here, full)}" if unit else share(here, full))
            if unit:
                slope.append(f"{exponent(results[backend][kind], quantity):.2f}")
        ratios.append(row)
        slopes.append(slope)
    held = ["memory, every score held", "time, every score held", "time, fused"]
    return (
        f"Measured on one {results['device']} (`recipes/attention/long.py`), forward and backward pass of "
        f"one attention of 8 heads of 64 over a text of {lengths[-1]:,} tokens:\n\n"
        + table(["scores of a head", "predicted", *held], ratios)
        + "\n\nHow that grows with the text: the measured exponent n of T^n from "
        f"{first:,} to {lengths[-1]:,} tokens.\n\n"
        + table(["", "predicted", *held], slopes)
        + "\n\n![Time and memory by the length of the text, both axes logarithmic](attention_long.svg)"
    )


def blanks_table(results: dict[str, Any]) -> str:
    rows, counts = [], []
    for corpus, title in CORPORA.items():
        if corpus not in results:
            continue
        found = results[corpus]
        counts.append(f"{found['causal']['guesses']['n']:,} {title}")
        for name, values in ways_to_fill(found).items():
            more = [f"{values['top_5']:.1%}", f"{values['loss']:.2f}"] if "loss" in values else ["", ""]
            rows.append([title, name, f"{values['accuracy']:.1%} ± {values['stderr']:.1%}", *more])
    return (
        "Measured (`recipes/attention/bidirectional.py`): two models of the same size, trained on the same "
        f"text for the same time, fill {' and '.join(counts)} in held-out windows of {results['context']}."
        "\n\n"
        + table(["", "", "right", "among the best five", "loss"], rows)
        + "\n\n![The same as bars](attention_bidirectional.svg)"
    )


def fill_page(page: Path, name: str, text: str) -> None:
    """Replace what stands between the comments <!-- name --> and <!-- /name -->."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, rest = page.read_text("utf-8").split(start)
    page.write_text(f"{before}{start}{text}\n{end}{rest.split(end)[1]}", "utf-8")


PAGE = {
    "memory": (memory, memory_table),
    "bidirectional": (blanks, blanks_table),
    "long": (long, long_table),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("-o", "--out", type=Path, default=DOCS, help="a folder with attention.md")
    given = parser.parse_args()
    (given.out / "attention_masks.svg").write_text(masks(), "utf-8")
    for name, (draw, describe) in PAGE.items():
        file = given.results / f"{name}.json"
        if file.is_file():
            results = json.loads(file.read_text("utf-8"))
            (given.out / f"attention_{name}.svg").write_text(draw(results), "utf-8")
            fill_page(given.out / "attention.md", name, describe(results))


if __name__ == "__main__":
    main()
