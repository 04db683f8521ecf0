"""The figures of inspect's results, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.figures.figure import MAX_OPACITY, Figure
from glassgpt.figures.svg import CHAR_WIDTH, visible
from glassgpt.inspect.traces.indexing import DIMS, Array

if TYPE_CHECKING:
    from glassgpt.inspect.attribution.attribute import DirectLogitAttribution, TokenAttribution
    from glassgpt.inspect.edits.intervene import Intervention
    from glassgpt.inspect.parameters.tally import Tally
    from glassgpt.inspect.traces.indexing import Heads
    from glassgpt.inspect.traces.trace import Trace

MARGIN = 16
TOKENS_PER_BAND = 12
MAX_TOKENS = 60  # five bands
CELL, ROW = 72, 22
PIXELS = 96  # on a side of an attention pattern; longer texts are max-pooled
CHIP = 26  # the height of a token in a line of text
WIDTH = 900
METHOD_NAMES = {
    "input_x_gradient": "input × gradient",
    "integrated_gradients": "integrated gradients",
    "attention_rollout": "attention rollout",
}


def add_heading(figure: Figure, title: str, subtitle: str = "") -> float:
    """Add the title and subtitle; returns the y below them."""
    figure.text(MARGIN, 30, title, size=15, bold=True, room=figure.width - 2 * MARGIN)
    if subtitle:
        figure.text(MARGIN, 50, subtitle, size=11, color="muted", room=figure.width - 2 * MARGIN)
    return 64 if subtitle else 44


def format_p(p: float) -> str:
    """A probability with enough digits: 12.3%, 0.05%, 3e-08."""
    return "–" if np.isnan(p) else f"{p:.1%}" if p >= 0.01 else f"{p:.2%}" if p >= 0.0001 else f"{p:.0e}"


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def plot_trace(trace: Trace) -> Figure:
    """The text colored by its loss, and below each token the logit lens."""
    n_tokens = min(len(trace), MAX_TOKENS)
    bands = [
        range(start, min(start + TOKENS_PER_BAND, n_tokens)) for start in range(0, n_tokens, TOKENS_PER_BAND)
    ]
    rows = trace.config.n_layer + 1
    side = 84
    figure = Figure(
        2 * MARGIN + side + min(TOKENS_PER_BAND, max(map(len, bands))) * CELL,
        0,
        f"trace of {plural(len(trace), 'token')}: token loss and logit lens",
    )
    figure.width = max(figure.width, 640)
    mean = float(np.nanmean(trace.token_loss.nats)) if len(trace) > 1 else float("nan")
    loss = "" if np.isnan(mean) else f", loss {mean:.2f} nats per token"
    y = add_heading(
        figure,
        f"{trace.name or 'trace'}: {plural(len(trace), 'token')}{loss}",
        "warm: high loss; below: each layer's top next token (logit lens), cool if likely",
    )
    lens, nats, p = trace.lens(), trace.token_loss.nats, trace.token_loss.p
    for band in bands:
        for column, t in enumerate(band):
            x = MARGIN + side + column * CELL
            level = 0.0 if np.isnan(nats[t]) else min(1.0, float(nats[t]) / 10)
            rank = "" if np.isnan(p[t]) else f", p {format_p(p[t])}, rank {int(trace.token_loss.rank[t]):,}"
            tip = f"{t}: {trace.texts[t]!r}, id {trace.tokens[t]}{rank}"
            figure.rect(x + 1, y, CELL - 2, ROW, "warm", MAX_OPACITY * level, tip)
            text = visible(trace.texts[t])
            figure.text(x + CELL / 2, y + 15, text, room=CELL - 4, anchor="middle", bold=True, tip=tip)
        figure.text(MARGIN, y + 15, f"{band[0]} to {band[-1]}" if len(band) > 1 else f"{band[0]}", size=11,
                      color="muted")  # fmt: skip
        y += ROW + 4
        for layer in reversed(range(rows)):
            name = "embedding" if layer == 0 else f"block {layer - 1}"
            figure.text(MARGIN, y + 15, name, size=11, color="muted")
            for column, t in enumerate(band):
                x = MARGIN + side + column * CELL
                chance = float(lens.p[layer, t])
                tip = f"{name}, after {trace.texts[t]!r}: {lens.texts[layer, t]!r} {format_p(chance)}"
                figure.rect(x + 1, y, CELL - 2, ROW - 2, "line", 0.35)
                figure.rect(x + 1, y, CELL - 2, ROW - 2, "cool", MAX_OPACITY * chance, tip)
                text = visible(str(lens.texts[layer, t]))
                figure.text(x + CELL / 2, y + 14, text, size=11, room=CELL - 6, anchor="middle", tip=tip)
            y += ROW
        y += 14
    if n_tokens < len(trace):
        figure.text(MARGIN, y + 6, f"and {len(trace) - n_tokens:,} more tokens", size=11, color="muted")
        y += 20
    figure.height = y
    return figure


def plot_heads(heads: Heads) -> Figure:
    """A small pattern for every head; one row per block."""
    config, T = heads.trace.config, len(heads.trace.tokens)
    size = 64 if config.n_head > 8 else 92
    figure = Figure(
        max(2 * MARGIN + 64 + config.n_head * (size + 8), 420),
        0,
        f"{heads.step} of every head, {plural(T, 'token')}",
    )
    is_attention = DIMS[heads.step].endswith("TT")
    rows = "rows: queries, columns: keys" if is_attention else "rows: tokens"
    y = (
        add_heading(figure, f"{heads.step}: {config.n_layer} layers of {plural(config.n_head, 'head')}", rows)
        + 12
    )
    for head in range(config.n_head):
        x = MARGIN + 64 + head * (size + 8) + size / 2
        figure.text(x, y - 2, str(head), size=11, color="muted", anchor="middle")
    y += 6
    for layer in range(config.n_layer):
        values = heads[layer]
        finite = np.abs(values[np.isfinite(values)])
        most = 1.0 if heads.step == "attn.weights" else float(finite.max(initial=1e-30))
        figure.text(MARGIN, y + size / 2 + 4, f"block {layer}", size=11, color="muted")
        for head in range(config.n_head):
            x = MARGIN + 64 + head * (size + 8)
            figure.rect(x, y, size, size, "line", 0.35)
            tip = f"block {layer}, head {head}"
            pattern = max_pool(values[head] / most)
            # The square root: among fifty tokens a weight of 2 % should be visible. Weights are cool, signed
            # numbers as in `signed`.
            tone = 1 if heads.step == "attn.weights" else -1
            figure.grid(x, y, size, size, tone * np.sign(pattern) * np.sqrt(np.abs(pattern)), tip)
        y += size + 8
    figure.height = y + 8
    return figure


def signed(value: float) -> str:
    """The color of a number above or below zero, as in the Explorer: warm above, cool below."""
    return "warm" if value >= 0 else "cool"


def max_pool(values: Array) -> Array:
    """At most PIXELS on a side: of each cell the value farthest from zero."""
    values = np.where(np.isfinite(values), values, 0)
    for axis in (0, 1):
        size = values.shape[axis]
        if size > PIXELS:
            edges = np.linspace(0, size, PIXELS + 1).astype(int)[:-1]
            high = np.maximum.reduceat(values, edges, axis=axis)
            low = np.minimum.reduceat(values, edges, axis=axis)
            values = np.where(high >= -low, high, low)
    return values


def add_tokens(
    figure: Figure,
    y: float,
    texts: Sequence[str],
    levels: Array,
    captions: Sequence[str],
    marked: int | None = None,
) -> float:
    """A text as lines of tokens, each colored by a level from -1 to 1, with a caption below.

    Returns the y below.
    """
    x = float(MARGIN)
    for t, text in enumerate(texts):
        label = visible(text)
        columns = sum(2 if ord(c) > 0x2E7F else 1 for c in label)
        width = 10 + CHAR_WIDTH * max(13 * columns, 10 * len(captions[t]))
        width = min(width, figure.width - 2 * MARGIN)
        if x + width > figure.width - MARGIN:
            x, y = float(MARGIN), y + CHIP + 18
        level = 0.0 if np.isnan(levels[t]) else float(levels[t])
        middle, tip = x + width / 2 - 1, f"{text!r}: {captions[t]}"
        figure.rect(x, y, width - 2, CHIP - 4, "line", 0.35)
        figure.rect(x, y, width - 2, CHIP - 4, signed(level), MAX_OPACITY * abs(level), tip)
        if t == marked:
            figure.rect(x, y + CHIP - 4, width - 2, 2, "text")
        figure.text(middle, y + 16, label, size=13, room=width - 4, anchor="middle", tip=tip)
        figure.text(middle, y + CHIP + 8, captions[t], size=10, color="muted", anchor="middle")
        x += width + 2
    return y + CHIP + 20


def plot_token_attribution(attribution: TokenAttribution) -> Figure:
    trace = attribution.trace
    target = trace.vocabulary.text(attribution.target)
    figure = Figure(WIDTH, 0, f"{METHOD_NAMES[attribution.method]} for {target!r}")
    subtitle = f"logit {attribution.logit:.3f}"
    if attribution.baseline is not None and attribution.convergence_delta is not None:
        subtitle += (
            f", baseline {attribution.baseline:.3f}, convergence delta {attribution.convergence_delta:.2%}"
        )
    y = add_heading(figure, f"{METHOD_NAMES[attribution.method]} for {visible(target)}",
                    f"{subtitle}; orange: raises the logit, blue: lowers it")  # fmt: skip
    most = max(float(np.abs(attribution.scores).max()), 1e-30)
    captions = [f"{score:+.3f}" for score in attribution.scores]
    figure.height = add_tokens(
        figure, y, trace.texts, attribution.scores / most, captions, attribution.position
    )
    return figure


def plot_direct_logit_attribution(found: DirectLogitAttribution) -> Figure:
    config = found.trace.config
    cell = 46
    columns = config.n_head + 2
    target = found.trace.vocabulary.text(found.target)
    figure = Figure(
        max(2 * MARGIN + 64 + columns * cell + 24, 560), 0, f"direct logit attribution of {target!r}"
    )
    y = add_heading(figure, f"direct logit attribution of {visible(target)}: {found.total:.3f}",
                f"the sum of all cells; the model's logit is {found.logit:.3f}") + 12  # fmt: skip
    values = np.concatenate(
        [found.heads, found.mlps[:, None], found.attn_bias[:, None]], axis=1
    )  # (L, H + 2)
    others = {"wte": found.wte, "wpe": found.wpe, "ln_f bias": found.ln_f_bias}
    most = max(float(np.abs(values).max()), *(abs(value) for value in others.values()), 1e-30)
    left = MARGIN + 64
    names = [*(str(head) for head in range(config.n_head)), "MLP", "bias"]
    xs = [left + column * cell + (0 if column < config.n_head else 12) for column in range(columns)]
    for x, name in zip(xs, names, strict=True):
        figure.text(x + cell / 2, y, name, size=11, color="muted", anchor="middle")
    y += 6

    def draw(x: float, y: float, value: float, tip: str) -> None:
        figure.rect(x + 1, y, cell - 2, ROW - 2, "line", 0.35)
        strength = MAX_OPACITY * abs(value) / most
        figure.rect(x + 1, y, cell - 2, ROW - 2, signed(value), strength, f"{tip}: {value:+.4f}")
        figure.text(x + cell / 2, y + 14, f"{value:+.2f}", size=11, anchor="middle")

    for layer in reversed(range(config.n_layer)):
        figure.text(MARGIN, y + 14, f"block {layer}", size=11, color="muted")
        for x, name, value in zip(xs, names, values[layer], strict=True):
            what = name if name in ("MLP", "bias") else f"head {name}"
            draw(x, y, float(value), f"block {layer}, {what}")
        y += ROW
    y += 10
    begin = float(MARGIN)
    for name, value in others.items():
        room = CHAR_WIDTH * 11 * len(name) + 8
        figure.text(begin, y + 14, name, size=11, color="muted")
        draw(begin + room, y, value, name)
        begin += room + cell + 20
    figure.height = y + ROW + 12
    return figure


def plot_intervention(done: Intervention) -> Figure:
    changes = done.top_changes(10)
    trace = done.before
    figure = Figure(WIDTH, 0, f"intervention with {plural(len(done.edits), 'edit')}: KL {done.kl:.4f} nats")
    edits = "; ".join(edit.describe() for edit in done.edits) or "no edits"
    y = add_heading(figure, edits, f"after {visible(trace.texts[done.position])}: KL {done.kl:.4g} nats; "
                "gray bar before, cool bar after")  # fmt: skip
    most = max([max(m.before, m.after) for m in changes], default=1.0)
    names, room = MARGIN + 150, WIDTH - 2 * MARGIN - 150 - 150
    for m in changes:
        figure.text(names - 8, y + 16, visible(m.text), size=13, anchor="end", room=140, bold=True)
        figure.rect(names, y + 3, max(1.0, room * m.before / most), 8, "muted", 0.7, f"before {m.before:.6f}")
        figure.rect(names, y + 12, max(1.0, room * m.after / most), 8, "cool", 1.0, f"after {m.after:.6f}")
        change = f"{format_p(m.before)} → {format_p(m.after)}"
        figure.text(WIDTH - MARGIN, y + 16, change, size=11, anchor="end")
        y += 26
    if not changes:
        figure.text(MARGIN, y + 16, "no probability changed", size=13, color="muted")
        y += 26
    y += 10
    figure.text(MARGIN, y + 8, "KL at each token (warm: large)", size=11, color="muted")
    kl = done.kl_per_token
    captions = [f"{value:.3f}" for value in kl]
    levels = kl / max(float(kl.max()), 1e-30) if kl.any() else np.zeros(len(kl))
    figure.height = add_tokens(figure, y + 18, trace.texts, levels, captions, done.position)
    return figure


def plot_tally(counted: Tally) -> Figure:
    """A bar for each kind of tensor. All blocks are alike, so the rows show one of them."""
    config = counted.config
    figure = Figure(WIDTH, 0, f"parameter tally: {counted.total:,}")
    blocks = plural(config.n_layer, "block")
    y = add_heading(
        figure,
        f"{counted.total:,} parameters",
        f"{blocks} of {counted.per_block:,}; {config.n_embd:,} wide, {plural(config.n_head, 'head')}, "
        f"{config.vocab_size:,} tokens, {config.n_positions:,} positions",
    )
    lines = [line for line in counted.lines if line.block in (None, 0)]
    counts = [line.count * (config.n_layer if line.block == 0 else 1) for line in lines]
    most = max(counts)
    bars, room = 560, WIDTH - MARGIN - 560 - 56
    for line, count in zip(lines, counts, strict=True):
        times = f"{config.n_layer} × " if line.block == 0 else ""
        shape = times + " × ".join(f"{n:,}" for n in line.shape)
        indent = 12 if line.block == 0 else 0
        figure.text(MARGIN + indent, y + 14, line.short, tip=line.meaning)
        figure.text(400, y + 14, shape, size=11, color="muted", anchor="end")
        figure.text(bars - 12, y + 14, f"{count:,}", anchor="end")
        figure.rect(bars, y + 4, max(1.0, room * count / most), 12, "cool", 0.8, f"{line.meaning}: {count:,}")
        figure.text(
            WIDTH - MARGIN, y + 14, f"{count / counted.total:.1%}", size=11, color="muted", anchor="end"
        )
        y += ROW
    if config.tie_word_embeddings:
        figure.text(MARGIN, y + 14, "lm_head", tip="the head is tied to wte")
        figure.text(400, y + 14, "tied to wte", size=11, color="muted", anchor="end")
        figure.text(bars - 12, y + 14, "0", anchor="end")
        y += ROW
    figure.height = y + 12
    return figure
