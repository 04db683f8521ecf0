"""The pictures and tables of docs/attention.md, from results/: python recipes/attention/pictures.py

attention_masks.svg needs no results: it shows which outputs of an attention change when one token does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from segments import read_segments

from glassgpt.config import Config
from glassgpt.figures.axes import Axes, chart, legend, linear_ticks, log_ticks
from glassgpt.figures.svg import Point, light_and_dark, path, rect, text
from glassgpt.model import GPT2
from glassgpt.model.attention import AttentionInputs

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
COLORS = ("#2b7bc4", "#b3541e", "#3a8f5c", "#8b5fbf", "#c2408b", "#8a7a1f")
STYLE = ".dashed{stroke-dasharray:2 4}" + light_and_dark(
    ".error{stroke:$text;stroke-width:1.5}.unseen{fill:$line;opacity:.5}"
)
CORPORA = {"chars": "characters", "bpe": "BPE tokens"}
Lines = Mapping[str, Sequence[Point]]


def draw_lines(
    x: float, y: float, width: float, title: str, lines: Lines, log: bool = False,
    marks: Sequence[float] = (), unit: str = "", dashed: Lines = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """Lines over a common axis, at a place in the picture. `log` is of both axes, else the horizontal one has
    a place for each value; `marks` are labeled. `dashed` are predictions, in the colors of the lines."""
    values = [value for points in lines.values() for _, value in points]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low)
    places = sorted({place for points in lines.values() for place, _ in points})
    if log:
        low, high = low, max(high, 1.1 * low)
        axes = Axes(x, y, width, 220, (places[0], places[-1]), (low, high), (True, True))
        ticks = log_ticks(low, high)
    else:
        axes = Axes(x, y, width, 220, (0, max(1, len(places) - 1)), (low - margin, high + margin))
        ticks = linear_ticks(*axes.y_range)

    def across(points: Sequence[Point]) -> list[Point]:
        return [(at if log else places.index(at), value) for at, value in points]

    parts = [text(x, y - 14, title, "title"), *axes.grid(ticks)]
    labels = across([(tick, 0.0) for tick in marks or places])
    for (at, _), tick in zip(labels, marks or places, strict=True):
        parts.append(text(axes.x(at), y + 236, f"{tick:,g}", anchor="middle"))
    parts.append(text(x + width, y + 252, unit, anchor="end"))
    for points, color in zip(lines.values(), COLORS, strict=False):
        parts += axes.curve(across(points), color)
        if len(points) < 20:
            parts += axes.dots(across(points), color, 2.5)
    for points, color in zip(dashed.values(), COLORS, strict=False):
        parts += axes.curve([point for point in across(points) if point[1] >= low], color, "curve dashed")
    return parts


def key(x: float, y: float, names: Sequence[str]) -> Iterator[str]:
    return legend(x, y, dict(zip(names, COLORS, strict=False)))


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
        parts.append(text(x, y - 8, title, "title"))
        for look, chosen in (({"style": f"fill:{COLORS[0]}"}, seen), ({"kind": "unseen"}, ~seen)):
            squares = "".join(f"M{x + cell * j} {y + cell * i}h8v8h-8z" for i, j in np.argwhere(chosen))
            parts.append(path(squares, **look))
    parts.append(text(530, 300, "row: a token"))
    parts.append(text(530, 318, "blue: what its output depends on"))
    return chart(740, 430, parts, "What a token sees with each attention", STYLE)


# Results.


def memory(results: dict[str, Any]) -> str:
    parts = []
    for row, (name, title) in enumerate(CORPORA.items()):
        runs = results[name]
        y = 40 + 300 * row
        own = {"as trained": [(int(length), run["loss"]) for length, run in runs.items()]}
        parts += draw_lines(60, y, 240, f"{title}: loss by memory", own, unit="memory, in training and test")
        read = {
            f"trained with {length}": [(int(n), loss) for n, loss in run["by_read_length"].items()]
            for length, run in runs.items()
        }
        parts += draw_lines(
            370, y, 260, "the same models with other memories", read, unit="memory in the test"
        )
        places = {
            f"trained with {length}": list(enumerate(run["loss_by_place"], start=1))
            for length, run in runs.items()
            if run["loss_by_place"]
        }
        marks = [1, *range(16, results["segment"] + 1, 16)]
        parts += draw_lines(
            700, y, 240, "loss by place in the segment", places, marks=marks, unit="place in the segment"
        )
        parts += key(960, y + 20, list(read))
    return chart(1080, 610, parts, "Loss with memories of several lengths", STYLE)


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
        parts.append(text(10, top + 20, f"{CORPORA[corpus]}: blanks filled rightly", "title"))
        for row, (name, result) in enumerate(ways_to_fill(results[corpus]).items()):
            y, color = top + 36 + 30 * row, COLORS[0 if name.startswith("causal") else 1]
            width, error = 360 * result["accuracy"], 360 * result["stderr"]
            parts += [
                text(10, y + 14, name),
                rect(240, y, width, 20, fill=color),
                path(f"M{240 + width - error:.1f} {y + 10}h{2 * error:.1f}", kind="error"),
                text(250 + width + error, y + 14, f"{result['accuracy']:.1%} ± {result['stderr']:.1%}"),
            ]
    return chart(720, 160 * len(measured), parts, "Blanks filled rightly", STYLE)


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
        parts += draw_lines(x, y, 250, title, lines, log=True, unit="tokens", dashed=dashed, marks=marks)
    parts += key(1010, 60, list(KINDS.values()))
    parts += [text(1006, 130, "dashed:"), text(1006, 148, "predicted")]
    return chart(1110, 610, parts, "Time and memory of full, local and compressed attention", STYLE)


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
    """Replace the text between the comments <!-- name --> and <!-- /name -->."""
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
    args = parser.parse_args()
    (args.out / "attention_masks.svg").write_text(masks(), "utf-8")
    for name, (draw, describe) in PAGE.items():
        file = args.results / f"{name}.json"
        if file.is_file():
            results = json.loads(file.read_text("utf-8"))
            (args.out / f"attention_{name}.svg").write_text(draw(results), "utf-8")
            fill_page(args.out / "attention.md", name, describe(results))


if __name__ == "__main__":
    main()
