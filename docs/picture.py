"""Draws picture.svg: the path of a text through the rooms, with the numbers of a real model.

    python docs/picture.py [MODEL] [-o docs/picture.svg]

Everything colored was recorded through taps: the strips are the first elements of each vector, the curves
the attention weights of one head, the bars the probabilities of the next token. Three blocks and an open one
are drawn; a label says how many are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glassgpt
from glassgpt.figures import svg
from glassgpt.figures.svg import MONO, SANS, circle, path, rect
from glassgpt.files import write_text_files

PROMPT = "The old house stood at the"
WIDTH, HEIGHT = 1200, 640
TOP, LANE = 186, 54  # the first token's height, and the distance to the next
INK, SOFT, TEAL, AMBER, ROSE = "#e6eefb", "#93a9c7", "#5fd4c4", "#ffbe5c", "#ff8fa3"

DESCRIPTION = (
    "Text is split into tokens; each becomes a vector that flows through a stack of glass blocks, one of "
    "them opened to show attention and MLP adding to the residual stream; the last vector is scored "
    "against the vocabulary, and the sampled token is appended to the text."
)
STYLE = (
    f"text{{font-family:{SANS};font-size:14px}}.mono{{font-family:{MONO};font-size:14px}}"
    f".id{{font-family:{MONO};font-size:11px}}.small{{font-size:13px}}.tap{{font-family:{MONO};"
    f"font-size:11.5px}}.room{{font-family:{MONO};font-size:18px;font-weight:600}}"
)
DEFINITIONS = (
    '<linearGradient id="night" x1="0" y1="0" x2="1" y2="1"><stop stop-color="#0e1a2e"/>'
    '<stop offset="1" stop-color="#1a2f4f"/></linearGradient><linearGradient id="glass" x1="0" y1="0" '
    'x2="1" y2="1"><stop stop-color="#fff" stop-opacity=".20"/><stop offset=".45" stop-color="#fff" '
    'stop-opacity=".05"/><stop offset="1" stop-color="#fff" stop-opacity=".13"/></linearGradient>'
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5.5" markerHeight="5.5" '
    f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{AMBER}"/></marker>'
)

OPEN = 2  # the block that is drawn opened, after all before it
PANES = [(372, 26), (410, 26), (452, 318), (834, 26)]  # left edge and width of: block 0, 1, OPEN, the last
GAP = (776, 828)  # where the streams pass through the blocks that are not drawn
KEYS, MIXED, MIDDLE, WIDE, END = 496, 586, 614, 674, 742  # along the opened block
FINAL, BARS = 884, 990


def text(x: float, y: float, words: str, kind: str = "", color: str = INK, anchor: str = "start") -> str:
    return svg.text(x, y, words, kind or None, anchor, fill=color)


def line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1.5, **more: Any) -> str:
    return path(f"M{x1} {y1}L{x2} {y2}", stroke=color, stroke_width=width, **more)


def strip(x: float, y: float, numbers: np.ndarray, cells: int = 12) -> str:
    """A vector's first elements: teal above zero, rose below, stronger where larger."""
    most = np.abs(numbers[:cells]).max()
    return "".join(
        rect(
            x + 6 * i, y - 9, 5, 18,
            rx=1, fill=TEAL if value > 0 else ROSE, opacity=round(0.12 + 0.88 * float(abs(value) / most), 2),
        )
        for i, value in enumerate(numbers[:cells])
    )  # fmt: skip


def plus(x: float, y: float, color: str) -> str:
    disc = circle(x, y, 7, fill="#13233c", stroke=color, stroke_width=1.5)
    return disc + path(f"M{x - 4} {y}h8M{x} {y - 4}v8", stroke=color, stroke_width=1.5)


def token_box(y: float, color: str, **more: Any) -> str:
    return rect(36, y - 16, 110, 32, rx=8, stroke=color, **more)


def room(x1: float, x2: float, name: str, purpose: str) -> str:
    middle = (x1 + x2) / 2
    return (
        path(f"M{x1} 108v-10h{x2 - x1}v10", stroke=SOFT, stroke_width=1.2, opacity=0.7)
        + text(middle, 64, name, "room", INK, "middle")
        + text(middle, 86, purpose, "small", SOFT, "middle")
    )


def attention(weights: np.ndarray, heights: list[float]) -> list[str]:
    """A curve from every key to every query, as thick as its attention weight."""
    parts = []
    for later, row in enumerate(weights):
        last = later == len(weights) - 1
        for earlier, weight in enumerate(row[: later + 1]):
            if weight < 0.02:
                continue
            y1, y2 = heights[earlier], heights[later] + 16
            color, opacity = (AMBER, 0.95) if last else (TEAL, 0.3)
            curve = f"M{KEYS} {y1}C{KEYS + 48} {y1} {MIXED - 60} {y2} {MIXED} {y2}"
            width = round(0.6 + 5 * float(weight), 1)
            parts.append(path(curve, stroke=color, stroke_width=width, opacity=opacity))
    return parts


def draw(model: str) -> str:
    gpt = glassgpt.load(model, device="cpu", dtype="float32")
    n_layer = gpt.config.n_layer
    if n_layer < len(PANES):
        raise SystemExit(f"{model} has {n_layer} blocks; choose a model with {len(PANES)} or more")
    panes = dict(zip((0, 1, OPEN, n_layer - 1), PANES, strict=True))
    ids = gpt.encode(PROMPT)
    seen: dict[str, np.ndarray] = {}

    def keep(name: str, x: torch.Tensor) -> torch.Tensor:
        seen[name] = x[0].numpy()
        return x

    with torch.no_grad():
        gpt.torch_model(torch.tensor([ids]), tap=keep)
    heads = seen[f"h.{OPEN}.attn.weights"]  # (H, T, T)
    # The head whose last token attends most to a word in the middle: many attend only to the first.
    head = int(np.argmax(heads[:, -1, 1:-1].max(axis=1)))
    heights = [TOP + LANE * i for i in range(len(ids))]
    bottom = heights[-1]

    out = [
        svg.element("desc", DESCRIPTION),
        svg.element("defs", DEFINITIONS),
        rect(0, 0, WIDTH, HEIGHT, rx=18, fill="url(#night)"),
        room(36, 222, "tokenizer/", "text → ids"),
        room(252, 960, "model/", "ids → logits"),
        room(990, 1164, "generate/", "logits → text"),
    ]

    # The residual streams lie behind the glass, the last token's in its own color.
    for y in heights:
        last = y == bottom
        out.append(line(206, y, 252, y, SOFT, 1.2, opacity=0.6))
        color, thickness, opacity = (AMBER, 2.4, None) if last else (TEAL, 1.6, 0.75)
        begin, end = GAP if n_layer > len(PANES) else (FINAL, FINAL)
        out.append(line(330, y, begin, y, color, thickness, opacity=opacity))
        if begin < end:
            out.append(line(begin, y, end, y, color, thickness, opacity=opacity, stroke_dasharray="2 5"))
        out.append(line(end, y, FINAL if last else 866, y, color, thickness, opacity=opacity))
    for left, width in panes.values():
        pane = f"M{left} {TOP - 40}l{width} -12v{bottom - TOP + 92}l{-width} 12z"
        out.append(path(pane, fill="url(#glass)", stroke="#fff", stroke_opacity=0.38, stroke_width=1.2))
    for block, (left, width) in panes.items():
        y = bottom + (96 if block == OPEN else 72)
        out.append(text(left + width / 2, y, f"h.{block}", "tap", INK, "middle"))
    if n_layer > len(PANES):
        middle = sum(GAP) / 2
        out.append(text(middle, TOP - 52, f"{n_layer - len(PANES)} more", "small", SOFT, "middle"))
        out.append(text(middle, TOP - 36, "blocks", "small", SOFT, "middle"))
        out.append(text(middle, bottom + 72, "…", "tap", INK, "middle"))

    # Inside the opened block: attention, then the MLP; each leaves the stream and adds to it.
    out += attention(heads[head], heights)
    for y in heights:
        color, opacity = (AMBER, None) if y == bottom else (TEAL, 0.75)
        around = (
            f"M{MIDDLE + 20} {y}Q{MIDDLE + 24} {y + 20} {WIDE - 22} {y + 20}M{WIDE + 22} {y + 20}"
            f"Q{END} {y + 20} {END} {y + 7}"
        )
        joined = f"M{MIXED} {y + 16}Q{MIDDLE} {y + 16} {MIDDLE} {y + 7}"
        mlp = f"M{WIDE - 22} {y + 20}l14 -10h16l14 10l-14 10h-16z"
        out.append(
            svg.element(
                "g",
                circle(KEYS, y, 3.5, fill=color)
                + path(joined, stroke=color, stroke_width=1.5)
                + plus(MIDDLE, y, color)
                + path(around, stroke=color, stroke_width=1.5)
                + path(mlp, stroke=color, stroke_width=1.5, fill=color, fill_opacity=0.16)
                + plus(END, y, color),
                opacity=opacity,
            )
        )
    labels = TOP - 26
    out.append(text((KEYS + MIXED) / 2, labels, "attention", "small", INK, "middle"))
    out.append(text(WIDE, labels, "MLP", "small", INK, "middle"))

    # Left: text, tokens, vectors.
    out.append(text(36, 140, f"“{PROMPT}”", "small", INK))
    for token, y, vector in zip(ids, heights, seen["embedding"], strict=True):
        word = gpt.decode([token]).replace(" ", "␣")
        color = AMBER if y == bottom else TEAL
        out.append(token_box(y, color, fill=color, fill_opacity=0.13, stroke_opacity=0.7))
        out.append(text(50, y + 5, word, "mono", INK))
        out.append(text(200, y + 4, str(token), "id", SOFT, "end"))
        out.append(strip(254, y, vector))
    out.append(text(290, TOP - 26, "wte + wpe", "tap", SOFT, "middle"))

    # Right: the last vector, what it is closest to, and the choice.
    out.append(strip(FINAL, bottom, seen["ln_f"][-1]))
    out.append(text(FINAL + 36, bottom - 20, "ln_f", "tap", SOFT, "middle"))
    choices = gpt.next(PROMPT, k=5)
    most = choices[0][1]
    first = bottom - 4 * 40
    fan = (
        f"M{FINAL + 74} {bottom}C{BARS - 6} {bottom} {FINAL + 66} {first + 80} {BARS - 14} {first + 80}"
        f"M{BARS - 8} {first - 16}q-6 0 -6 8V{bottom}q0 8 6 8"
    )
    out.append(path(fan, stroke=AMBER, stroke_width=1.6))
    out.append(text(BARS - 24, first + 66, "logits", "tap", SOFT, "end"))
    out.append(path(f"M872 {TOP - 8}q6 0 6 8V{bottom - LANE}q0 8 -6 8", stroke=SOFT, opacity=0.7))
    for i, words in enumerate(("residual", "streams,", "one for", "each token")):
        out.append(text(888, TOP + 1.5 * LANE + 18 * i, words, "small", SOFT))
    out.append(text(BARS, first - 34, "next token", "small", INK))
    for i, (word, chance) in enumerate(choices):
        y = first + 40 * i
        color, opacity = (AMBER, 1) if i == 0 else (SOFT, 0.55)
        out.append(text(BARS, y - 4, word.replace(" ", "␣"), "mono", color if i == 0 else INK))
        out.append(text(1164, y - 4, f"{100 * chance:.1f}%", "id", SOFT, "end"))
        out.append(rect(BARS, y + 3, 174 * chance / most, 6, rx=3, fill=color, opacity=opacity))
    # The sampled token is appended to the text.
    y = bottom + LANE
    back = (
        f"M1076 {bottom + 16}V{HEIGHT - 62}Q1076 {HEIGHT - 50} 1064 {HEIGHT - 50}H102Q91 {HEIGHT - 50} "
        f"91 {HEIGHT - 62}V{y + 20}"
    )
    dashes = {"stroke_dasharray": "3 6", "stroke_linecap": "round", "marker_end": "url(#tip)"}
    out.append(path(back, stroke=AMBER, stroke_width=1.6, **dashes))
    out.append(token_box(y, AMBER, stroke_opacity=0.8, stroke_dasharray="4 4"))
    out.append(text(50, y + 5, choices[0][0].replace(" ", "␣"), "mono", AMBER))

    # Taps, and where the numbers come from.
    caption = HEIGHT - 22
    out.append(text(36, caption, "weights/", "mono", INK))
    out.append(text(112, caption, "reads files, local or from the hub", "small", SOFT))
    out.append(text(400, caption, "inspect/", "mono", INK))
    out.append(text(476, caption, "looks inside: every step has a tap", "small", SOFT))
    out.append(text(770, caption, "cli/", "mono", INK))
    out.append(text(812, caption, "is the command line", "small", SOFT))
    taps = (KEYS, 8, "q k v"), (MIXED - 24, 24, "z"), (MIDDLE, 12, "resid_mid"), (WIDE, 34, "gelu")
    for x, below, name in (*taps, (END, 12, "resid_post")):
        out.append(line(x, bottom + below, x, bottom + 58, SOFT, 1, opacity=0.6, stroke_dasharray="2 3"))
        out.append(text(x, bottom + 72, name, "tap", SOFT, "middle"))
    label = "The path of a text through GlassGPT"
    return svg.document(WIDTH, HEIGHT, out, label, style=STYLE, fill="none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("picture.svg"))
    args = parser.parse_args()
    write_text_files(args.out.parent, {args.out.name: draw(args.model)})


if __name__ == "__main__":
    main()
