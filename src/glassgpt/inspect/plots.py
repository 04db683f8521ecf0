"""How each result of this room looks: one function for each, from numbers to a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.inspect.indexing import Array
from glassgpt.inspect.svg import CHARACTER, STRONGEST, Picture, visible
from glassgpt.inspect.taps import BLOCK_STEPS

if TYPE_CHECKING:
    from glassgpt.inspect.attribute import DirectLogit, TokenScores
    from glassgpt.inspect.indexing import Heads
    from glassgpt.inspect.intervene import Intervention
    from glassgpt.inspect.tally import Tally
    from glassgpt.inspect.trace import Trace

MARGIN = 16
ACROSS = 12  # columns of the tower in one band
MOST_SHOWN = 60  # tokens: five bands
CELL, ROW = 72, 22
PIXELS = 96  # on a side of a small pattern; longer texts are shown by the largest value in each square
CHIP = 26  # the height of a token in a line of text
WIDE = 900


def heading(picture: Picture, title: str, under: str = "") -> float:
    """The title, and the place below it."""
    picture.label(MARGIN, 30, title, size=15, bold=True, room=picture.width - 2 * MARGIN)
    if under:
        picture.label(MARGIN, 50, under, size=11, color="quiet", room=picture.width - 2 * MARGIN)
    return 64 if under else 44


def percent(p: float) -> str:
    """A probability so that its size is seen: 12.3%, 0.05%, 3e-08."""
    return "–" if np.isnan(p) else f"{p:.1%}" if p >= 0.01 else f"{p:.2%}" if p >= 0.0001 else f"{p:.0e}"


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def of_trace(trace: Trace) -> Picture:
    """The text coloured by surprise, and under each token what every layer would say next."""
    shown = min(len(trace), MOST_SHOWN)
    bands = [range(start, min(start + ACROSS, shown)) for start in range(0, shown, ACROSS)]
    rows = trace.config.n_layer + 1
    side = 84
    picture = Picture(
        2 * MARGIN + side + min(ACROSS, max(map(len, bands))) * CELL,
        0,
        f"trace of {plural(len(trace), 'token')}: surprise and logit lens",
    )
    picture.width = max(picture.width, 640)
    mean = float(np.nanmean(trace.surprise.nats)) if len(trace) > 1 else float("nan")
    said = "" if np.isnan(mean) else f", {mean:.2f} nats a token"
    y = heading(
        picture,
        f"{trace.name or 'trace'}: {plural(len(trace), 'token')}{said}",
        "warm: a surprising token; below it what each layer would say comes next, cool if surely",
    )
    lens, nats, p = trace.lens(), trace.surprise.nats, trace.surprise.p
    for band in bands:
        for column, t in enumerate(band):
            x = MARGIN + side + column * CELL
            level = 0.0 if np.isnan(nats[t]) else min(1.0, float(nats[t]) / 10)
            rank = "" if np.isnan(p[t]) else f", p {percent(p[t])}, rank {int(trace.surprise.rank[t]):,}"
            tip = f"{t}: {trace.texts[t]!r}, id {trace.tokens[t]}{rank}"
            picture.rect(x + 1, y, CELL - 2, ROW, "warm", STRONGEST * level, tip)
            text = visible(trace.texts[t])
            picture.label(x + CELL / 2, y + 15, text, room=CELL - 4, anchor="middle", bold=True, tip=tip)
        picture.label(MARGIN, y + 15, f"{band[0]} to {band[-1]}" if len(band) > 1 else f"{band[0]}", size=11,
                      color="quiet")  # fmt: skip
        y += ROW + 4
        for layer in reversed(range(rows)):
            name = "embedding" if layer == 0 else f"block {layer - 1}"
            picture.label(MARGIN, y + 15, name, size=11, color="quiet")
            for column, t in enumerate(band):
                x = MARGIN + side + column * CELL
                chance = float(lens.p[layer, t])
                tip = f"{name}, after {trace.texts[t]!r}: {lens.texts[layer, t]!r} {percent(chance)}"
                picture.rect(x + 1, y, CELL - 2, ROW - 2, "line", 0.35)
                picture.rect(x + 1, y, CELL - 2, ROW - 2, "cool", STRONGEST * chance, tip)
                text = visible(str(lens.texts[layer, t]))
                picture.label(x + CELL / 2, y + 14, text, size=11, room=CELL - 6, anchor="middle", tip=tip)
            y += ROW
        y += 14
    if shown < len(trace):
        picture.label(MARGIN, y + 6, f"and {len(trace) - shown:,} more tokens", size=11, color="quiet")
        y += 20
    picture.height = y
    return picture


def of_heads(view: Heads) -> Picture:
    """A small pattern for every head: rows are blocks."""
    config, T = view.trace.config, len(view.trace.tokens)
    size = 64 if config.n_head > 8 else 92
    picture = Picture(
        max(2 * MARGIN + 64 + config.n_head * (size + 8), 420),
        0,
        f"{view.step} of every head, {plural(T, 'token')}",
    )
    looks = BLOCK_STEPS[view.step].endswith("TT")
    rows = "a row is the token that looks, a column the one looked at" if looks else "a row is a token"
    y = (
        heading(picture, f"{view.step}: {config.n_layer} layers of {plural(config.n_head, 'head')}", rows)
        + 12
    )
    for head in range(config.n_head):
        x = MARGIN + 64 + head * (size + 8) + size / 2
        picture.label(x, y - 2, str(head), size=11, color="quiet", anchor="middle")
    y += 6
    for layer in range(config.n_layer):
        values = view[layer]
        finite = np.abs(values[np.isfinite(values)])
        most = 1.0 if view.step == "attn.weights" else float(finite.max(initial=1e-30))
        picture.label(MARGIN, y + size / 2 + 4, f"block {layer}", size=11, color="quiet")
        for head in range(config.n_head):
            x = MARGIN + 64 + head * (size + 8)
            picture.rect(x, y, size, size, "line", 0.35)
            tip = f"block {layer}, head {head}"
            pattern = coarse(values[head] / most)
            # The root: among fifty tokens a look of 2 % is worth seeing.
            picture.grid(x, y, size, size, np.sign(pattern) * np.sqrt(np.abs(pattern)), tip)
        y += size + 8
    picture.height = y + 8
    return picture


def coarse(values: Array) -> Array:
    """At most PIXELS on a side: of each square the value farthest from zero."""
    values = np.where(np.isfinite(values), values, 0)
    for axis in (0, 1):
        size = values.shape[axis]
        if size > PIXELS:
            edges = np.linspace(0, size, PIXELS + 1).astype(int)[:-1]
            high = np.maximum.reduceat(values, edges, axis=axis)
            low = np.minimum.reduceat(values, edges, axis=axis)
            values = np.where(high >= -low, high, low)
    return values


def chips(
    picture: Picture,
    y: float,
    texts: Sequence[str],
    levels: Array,
    numbers: Sequence[str],
    marked: int | None = None,
) -> float:
    """A text as tokens in lines, each coloured by a number from -1 to 1 and with a number below it.

    Returns the place below.
    """
    x = float(MARGIN)
    for t, text in enumerate(texts):
        shown = visible(text)
        letters = sum(2 if ord(c) > 0x2E7F else 1 for c in shown)
        width = 10 + CHARACTER * max(13 * letters, 10 * len(numbers[t]))
        width = min(width, picture.width - 2 * MARGIN)
        if x + width > picture.width - MARGIN:
            x, y = float(MARGIN), y + CHIP + 18
        level = 0.0 if np.isnan(levels[t]) else float(levels[t])
        middle, tip = x + width / 2 - 1, f"{text!r}: {numbers[t]}"
        picture.rect(x, y, width - 2, CHIP - 4, "line", 0.35)
        picture.rect(x, y, width - 2, CHIP - 4, "cool" if level >= 0 else "warm", STRONGEST * abs(level), tip)
        if t == marked:
            picture.rect(x, y + CHIP - 4, width - 2, 2, "ink")
        picture.label(middle, y + 16, shown, size=13, room=width - 4, anchor="middle", tip=tip)
        picture.label(middle, y + CHIP + 8, numbers[t], size=10, color="quiet", anchor="middle")
        x += width + 2
    return y + CHIP + 20


def of_token_scores(found: TokenScores) -> Picture:
    trace = found.trace
    target = trace.vocabulary.text(found.target)
    picture = Picture(WIDE, 0, f"{found.method} attribution of {target!r}")
    name = {
        "gradient": "gradient × input",
        "integrated": "integrated gradients",
        "rollout": "attention rollout",
    }
    under = f"logit {found.logit:.3f}"
    if found.baseline is not None and found.gap is not None:
        under += f", {found.baseline:.3f} with no token known; gap {found.gap:.2%} of the difference"
    y = heading(picture, f"{name[found.method]}: what {visible(target)} is owed to",
                f"{under}; cool speaks for it, warm against it")  # fmt: skip
    most = max(float(np.abs(found.scores).max()), 1e-30)
    numbers = [f"{score:+.3f}" for score in found.scores]
    picture.height = chips(picture, y, trace.texts, found.scores / most, numbers, found.position)
    return picture


def of_direct(found: DirectLogit) -> Picture:
    config = found.trace.config
    cell = 46
    columns = config.n_head + 2
    target = found.trace.vocabulary.text(found.target)
    picture = Picture(
        max(2 * MARGIN + 64 + columns * cell + 24, 560), 0, f"direct logit attribution of {target!r}"
    )
    y = heading(picture, f"direct logit attribution of {visible(target)}: {found.total:.3f}",
                f"the sum of all cells; the model's own logit is {found.logit:.3f}") + 12  # fmt: skip
    values = np.concatenate(
        [found.heads, found.mlps[:, None], found.attn_bias[:, None]], axis=1
    )  # (L, H + 2)
    around = {"token": found.token, "position": found.place, "ln_f bias": found.norm_bias}
    most = max(float(np.abs(values).max()), *(abs(value) for value in around.values()), 1e-30)
    left = MARGIN + 64
    names = [*(str(head) for head in range(config.n_head)), "MLP", "bias"]
    places = [left + column * cell + (0 if column < config.n_head else 12) for column in range(columns)]
    for x, name in zip(places, names, strict=True):
        picture.label(x + cell / 2, y, name, size=11, color="quiet", anchor="middle")
    y += 6

    def draw(x: float, y: float, value: float, tip: str) -> None:
        picture.rect(x + 1, y, cell - 2, ROW - 2, "line", 0.35)
        strength = STRONGEST * abs(value) / most
        picture.rect(
            x + 1, y, cell - 2, ROW - 2, "cool" if value >= 0 else "warm", strength, f"{tip}: {value:+.4f}"
        )
        picture.label(x + cell / 2, y + 14, f"{value:+.2f}", size=11, anchor="middle")

    for layer in reversed(range(config.n_layer)):
        picture.label(MARGIN, y + 14, f"block {layer}", size=11, color="quiet")
        for x, name, value in zip(places, names, values[layer], strict=True):
            what = name if name in ("MLP", "bias") else f"head {name}"
            draw(x, y, float(value), f"block {layer}, {what}")
        y += ROW
    y += 10
    begin = float(MARGIN)
    for name, value in around.items():
        room = CHARACTER * 11 * len(name) + 8
        picture.label(begin, y + 14, name, size=11, color="quiet")
        draw(begin + room, y, value, name)
        begin += room + cell + 20
    picture.height = y + ROW + 12
    return picture


def of_intervention(done: Intervention) -> Picture:
    moved = done.moved(10)
    trace = done.before
    picture = Picture(WIDE, 0, f"intervention with {plural(len(done.edits), 'edit')}: KL {done.kl:.4f} nats")
    edits = "; ".join(edit.describe() for edit in done.edits) or "nothing changed"
    y = heading(picture, edits, f"after {visible(trace.texts[done.position])}: KL {done.kl:.4g} nats; "
                "quiet bar before, cool bar after")  # fmt: skip
    most = max([max(m.before, m.after) for m in moved], default=1.0)
    names, room = MARGIN + 150, WIDE - 2 * MARGIN - 150 - 150
    for m in moved:
        picture.label(names - 8, y + 16, visible(m.text), size=13, anchor="end", room=140, bold=True)
        picture.rect(
            names, y + 3, max(1.0, room * m.before / most), 8, "quiet", 0.7, f"before {m.before:.6f}"
        )
        picture.rect(names, y + 12, max(1.0, room * m.after / most), 8, "cool", 1.0, f"after {m.after:.6f}")
        change = f"{percent(m.before)} → {percent(m.after)}"
        picture.label(WIDE - MARGIN, y + 16, change, size=11, anchor="end")
        y += 26
    if not moved:
        picture.label(MARGIN, y + 16, "no probability moved", size=13, color="quiet")
        y += 26
    y += 10
    picture.label(MARGIN, y + 8, "KL after each token (warm: moved far)", size=11, color="quiet")
    kl = done.kl_per_token
    numbers = [f"{value:.3f}" for value in kl]
    levels = -kl / max(float(kl.max()), 1e-30) if kl.any() else np.zeros(len(kl))
    picture.height = chips(picture, y + 18, trace.texts, levels, numbers, done.position)
    return picture


def of_tally(counted: Tally) -> Picture:
    """Each kind of tensor with a bar as long as its share; blocks are alike, so one row stands for all."""
    config = counted.config
    picture = Picture(WIDE, 0, f"parameter tally: {counted.total:,}")
    blocks = plural(config.n_layer, "block")
    y = heading(
        picture,
        f"{counted.total:,} parameters",
        f"{blocks} of {counted.per_block:,}; {config.n_embd:,} wide, {plural(config.n_head, 'head')}, "
        f"{config.vocab_size:,} tokens, {config.n_positions:,} positions",
    )
    lines = [line for line in counted.lines if line.block in (None, 0)]
    counts = [line.count * (config.n_layer if line.block == 0 else 1) for line in lines]
    most = max(counts)
    bars, room = 560, WIDE - MARGIN - 560 - 56
    for line, count in zip(lines, counts, strict=True):
        times = f"{config.n_layer} × " if line.block == 0 else ""
        shape = times + " × ".join(f"{n:,}" for n in line.shape)
        indent = 12 if line.block == 0 else 0
        picture.label(MARGIN + indent, y + 14, line.short, tip=line.meaning)
        picture.label(400, y + 14, shape, size=11, color="quiet", anchor="end")
        picture.label(bars - 12, y + 14, f"{count:,}", anchor="end")
        picture.rect(
            bars, y + 4, max(1.0, room * count / most), 12, "cool", 0.8, f"{line.meaning}: {count:,}"
        )
        picture.label(
            WIDE - MARGIN, y + 14, f"{count / counted.total:.1%}", size=11, color="quiet", anchor="end"
        )
        y += ROW
    if config.tie_word_embeddings:
        picture.label(MARGIN, y + 14, "lm_head", tip="the head is wte again")
        picture.label(400, y + 14, "wte again, transposed", size=11, color="quiet", anchor="end")
        picture.label(bars - 12, y + 14, "0", anchor="end")
        y += ROW
    picture.height = y + 12
    return picture
