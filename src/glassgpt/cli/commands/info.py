"""`glassgpt info MODEL`: what a model is made of."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.commands.convert import size_on_disk
from glassgpt.cli.parse import flag
from glassgpt.config import SIZES, Config
from glassgpt.errors import UserError
from glassgpt.files import read_text
from glassgpt.inspect.tally import ILLUSTRATED_TOTAL, Line, Tally, illustrated_count, tally

NAME_IN_THE_PAPER = {"gpt2": "117M", "gpt2-medium": "345M", "gpt2-large": "762M", "gpt2-xl": "1542M"}


@dataclass(frozen=True)
class Found:
    config: Config
    facts: dict[str, str] = field(default_factory=dict)  # about the files, where there are any
    card: str | None = None  # the model card that lies beside the weights
    attribution: Path | None = None  # the list of the texts it learned from


def command(
    model: Annotated[
        Positional[str], flag("a name (default, tiny, gpt2, owner/name), a folder or a file", "[MODEL]")
    ] = "default",
    *,
    every_block: Annotated[bool, flag("list the tensors of every block, not of one", default="")] = False,
    illustrated: Annotated[
        bool, flag("set The Illustrated GPT-2's own table beside ours (gpt2 only)", default="")
    ] = False,
    json: Annotated[bool, flag("one JSON object with every tensor", default="")] = False,
) -> int:
    """Count the parameters of a model, matrix by matrix, and what they cost in memory. No weights are fetched
    for it."""
    found = find(model)
    config = found.config
    counted = tally(config)
    if illustrated and counted != tally("gpt2"):
        raise UserError(
            f"--illustrated compares GPT-2 small, and {model} is another shape. "
            "Type: glassgpt info gpt2 --illustrated"
        )
    if json:
        print(jsonlib.dumps({"model": model, "config": config.to_dict(), **counted.to_dict(), **found.facts}))
        return 0
    terminal.show(heading(model, found))
    if illustrated:
        terminal.show(comparison(counted), difference(counted))
    else:
        terminal.show(matrices(counted, every_block), "", memory(counted))
        if found.card is not None:
            show_card(found.card.strip())
        if found.attribution is not None:
            print(f"\nWhose texts it learned from: {found.attribution}")
    return 0


def show_card(card: str) -> None:
    """The model card: set in type on a terminal, as it was written in a pipe."""
    if terminal.is_terminal(sys.stdout):
        from rich.markdown import Markdown

        terminal.show("", Markdown(card))
    else:
        sys.stdout.write("\n" + card + "\n")


def find(model: str) -> Found:
    """The config of a name or path, and what is known of its files. A published size needs none at all."""
    if model in SIZES and not Path(model).exists():
        return Found(Config.named(model))
    from glassgpt.weights import load_checkpoint, load_config
    from glassgpt.weights.checkpoint import storage_dtype
    from glassgpt.weights.hub import has_weights
    from glassgpt.weights.registry import contains_weights, resolve_model, shipped_names

    path, _ = resolve_model(
        model, ("config",)
    )  # of the hub no more than config.json: gigabytes need not come for this
    here = Path(model).expanduser().exists() or model in shipped_names()
    # A download that broke off may have left an index of shards in the hub's cache, but not all shards.
    complete = contains_weights(path) if here else has_weights(path)
    if not complete and (path / "config.json").is_file():
        which = "config.json alone, no weights" if here else "config.json alone, the weights were not fetched"
        return Found(load_config(path), facts={"files": which})
    checkpoint = load_checkpoint(path)
    facts = {"format": checkpoint.format, "stored as": storage_dtype(checkpoint.tensors, "wte.weight")}
    facts["on disk"] = terminal.size(size_on_disk(path))
    tokenizer = checkpoint.tokenizer
    facts["tokenizer"] = "none" if tokenizer is None else f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    card, attribution = path / "MODEL_CARD.md", path / "ATTRIBUTION.txt.gz"
    return Found(
        checkpoint.config,
        facts,
        read_text(card, limit=2**20) if card.is_file() else None,
        attribution if attribution.is_file() else None,
    )


def heading(model: str, found: Found) -> Text:
    config = found.config
    text = Text()
    text.append(model, style="title")
    blocks = "1 block" if config.n_layer == 1 else f"{config.n_layer} blocks"
    heads = (
        f"1 head of {config.d_head}" if config.n_head == 1 else f"{config.n_head} heads of {config.d_head}"
    )
    text.append(
        f": {blocks}, {config.n_embd:,} wide, {heads}, "
        f"{config.vocab_size:,} tokens, {config.n_positions:,} positions",
        style="quiet",
    )
    if model in NAME_IN_THE_PAPER:
        text.append(f"\n{NAME_IN_THE_PAPER[model]} in the paper", style="quiet")
    facts = ", ".join(f"{name}: {value}" for name, value in found.facts.items())
    text.append(f"\n{facts}\n" if facts else "\n", style="quiet")
    return text


def matrices(counted: Tally, every_block: bool) -> Table:
    """One row per tensor. The blocks are all alike, so one stands for all unless every one is asked for."""
    n_layer = counted.config.n_layer
    folded = n_layer > 1 and not every_block
    roomy = terminal.console().width >= 112
    columns = ["tensor", ">shape", *([">one block"] if folded else []), ">numbers", ">share", ""]
    made = terminal.table(*columns, *(["what it is"] if roomy else []))

    def row(name: Text, shape: str, each: int | None, count: int, meaning: str = "", style: str = "") -> None:
        share = count / counted.total
        cells: list[Text | str] = [name, Text(shape, style="quiet")]
        if folded:
            cells.append("" if each is None else f"{each:,}")
        cells += [Text(f"{count:,}", style=style), f"{share:.1%}", terminal.bar(share, 10)]
        made.add_row(*cells, *([Text(meaning, style="quiet")] if roomy else []))

    def tensor(line: Line) -> None:
        times = n_layer if folded and line.block is not None else 1
        name = Text(("  " if line.block is not None else "") + line.short)
        row(
            name,
            shape_of(line),
            line.count if line.block is not None else None,
            line.count * times,
            line.meaning,
        )

    lines = iter(counted.lines)
    for line in lines:
        if line.block is None:
            tensor(line)
        elif folded and line.block > 0:
            continue
        else:
            if line == counted.block(line.block)[0]:
                title = f"h.0 to h.{n_layer - 1}" if folded else f"h.{line.block}"
                row(
                    Text(title, style="accent"),
                    "",
                    counted.per_block,
                    counted.per_block * (n_layer if folded else 1),
                    f"{n_layer} blocks, all alike" if folded else "a block",
                    "accent",
                )
            tensor(line)
    if counted.config.tie_word_embeddings:
        row(Text("lm_head"), "", None, 0, "the head is wte again, transposed: nothing new to count")
    made.add_section()
    row(Text("all", style="total"), "", None, counted.total, style="total")
    return made


def shape_of(line: Line) -> str:
    return f" {terminal.times_sign()} ".join(f"{n:,}" for n in line.shape)


def memory(counted: Tally) -> Table:
    """What the weights and the cache take, in each number format."""
    positions = counted.config.n_positions
    made = terminal.table("memory", ">weights", ">cache per token", f">cache of {positions:,} tokens")
    for dtype in ("float32", "bfloat16", "int8"):
        # The cache keeps at least 16 bits a number: an int8 model computes its keys and values in floats.
        per_token = counted.cache_per_token("float32" if dtype == "float32" else "bfloat16")
        made.add_row(
            dtype,
            terminal.size(counted.memory(dtype)),
            terminal.size(per_token),
            terminal.size(per_token * positions),
        )
    return made


def comparison(counted: Tally) -> Table:
    """Our count beside the article's, one row per tensor that the article could have listed."""
    made = terminal.table("tensor", ">shape", ">published", ">the article", ">difference")

    def row(name: str, shape: str, ours: int, theirs: int, style: str = "") -> None:
        gap = "" if ours == theirs else f"{ours - theirs:,}"
        made.add_row(
            Text(name, style=style), Text(shape, style="quiet"), Text(f"{ours:,}", style=style),
            Text(f"{theirs:,}", style=style), Text(gap, style="pick"),
        )  # fmt: skip

    n_layer = counted.config.n_layer
    before = [line for line in counted.outside() if line.name.startswith("w")]
    for line in before:
        row(line.short, shape_of(line), line.count, illustrated_count(line))
    for line in counted.block(0):
        row("  " + line.short, shape_of(line), line.count, illustrated_count(line))
    theirs = sum(map(illustrated_count, counted.block(0)))
    row("one block", "", counted.per_block, theirs, "accent")
    row(f"{n_layer} blocks", "", n_layer * counted.per_block, n_layer * theirs, "accent")
    for line in counted.outside():
        if line not in before:
            row(line.short, shape_of(line), line.count, illustrated_count(line))
    row("all", "", counted.total, ILLUSTRATED_TOTAL, "total")
    return made


def difference(counted: Tally) -> Text:
    """Why the two totals differ, in numbers that add up."""
    blocks, inner, width = counted.config.n_layer, counted.config.d_mlp, counted.config.n_embd
    per_bias = inner - width
    ln_f = 2 * width
    assert blocks * per_bias + ln_f == counted.total - ILLUSTRATED_TOTAL
    short, full = f"{width:,}", f"{inner:,}"
    gap = counted.total - ILLUSTRATED_TOTAL
    return Text(
        f"\nThe article's total is {gap:,} short of the published tensors:\n"
        f"  {blocks * per_bias:>7,}  mlp.c_fc.bias is given {short} numbers; the layer is {full} wide,\n"
        f"           and so is its bias: {blocks} blocks * {per_bias:,}\n"
        f"  {ln_f:>7,}  ln_f, the norm after the last block, is left out: 2 * {width:,}\n"
        f"  {gap:>7,}  in all"
    )
