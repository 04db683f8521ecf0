"""`glassgpt info MODEL`: a model's parameters and the memory they take; without MODEL, the list of models."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text

from glassgpt.cli import terminal
from glassgpt.cli.commands.convert import size_on_disk
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.config import SIZES, Config
from glassgpt.errors import UserError
from glassgpt.files import read_text
from glassgpt.inspect.parameters.tally import ILLUSTRATED_TOTAL, Line, Tally, illustrated_count, tally

NAME_IN_PAPER = {"gpt2": "117M", "gpt2-medium": "345M", "gpt2-large": "762M", "gpt2-xl": "1542M"}


@dataclass(frozen=True)
class ModelInfo:
    config: Config
    facts: dict[str, str] = field(default_factory=dict)  # about the files, if any
    card: str | None = None  # the model card next to the weights
    attribution: Path | None = None  # the list of its training texts


def command(
    model: Annotated[
        Positional[str | None],
        Flag(
            "a name (default, tiny, gpt2, owner/name), a folder or a file",
            "[MODEL]",
            default="a list of the models",
        ),
    ] = None,
    *,
    every_block: Annotated[bool, Flag("list the tensors of every block instead of one")] = False,
    illustrated: Annotated[bool, Flag("compare with the table in The Illustrated GPT-2 (gpt2 only)")] = False,
    json: Annotated[bool, Flag("print one JSON object with every tensor")] = False,
) -> int:
    """Show a model's parameters, tensor by tensor, the memory they take, and its model card. No weights are
    downloaded."""
    if model is None:
        if not (every_block or illustrated or json):
            terminal.show(
                models(), "\nglassgpt info NAME shows a model's tensors, its memory and its model card."
            )
            return 0
        model = "default"
    found = find_model(model)
    config = found.config
    counted = tally(config)
    if illustrated and counted != tally("gpt2"):
        raise UserError(
            f"--illustrated is for GPT-2 small, and {model} has another shape. "
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
            print(f"\nSources of the training texts: {found.attribution}")
    return 0


def models() -> Table:
    """The shipped models and the published sizes, one row each."""
    from glassgpt.weights import load_config
    from glassgpt.weights.registry import resolve_model, shipped_names

    table = terminal.table("model", ">blocks", ">width", ">heads", ">tokens", ">parameters", "")
    shipped = [
        (name, load_config(resolve_model(name, ("config",))[0]), "shipped") for name in shipped_names()
    ]
    for name, config, where in [*shipped, *((name, Config.named(name), "on the hub") for name in SIZES)]:
        total = tally(config).total
        numbers = (config.n_layer, config.n_embd, config.n_head, config.vocab_size, total)
        table.add_row(name, *(f"{number:,}" for number in numbers), Text(where, style="quiet"))
    return table


def show_card(card: str) -> None:
    """The model card: rendered on a terminal, as Markdown in a pipe."""
    if terminal.is_terminal(sys.stdout):
        from rich.markdown import Markdown

        terminal.show("", Markdown(card))
    else:
        sys.stdout.write("\n" + card + "\n")


def find_model(model: str) -> ModelInfo:
    """The config of a name or path, and facts about its files. A published size needs no files."""
    if model in SIZES and not Path(model).exists():
        return ModelInfo(Config.named(model))
    from glassgpt.weights import load_checkpoint, load_config
    from glassgpt.weights.checkpoint import storage_dtype
    from glassgpt.weights.hub import has_weights
    from glassgpt.weights.registry import contains_weights, resolve_model, shipped_names

    path, _ = resolve_model(model, ("config",))  # only config.json from the hub, not gigabytes of weights
    here = Path(model).expanduser().exists() or model in shipped_names()
    # An interrupted download may have left an index of shards in the hub's cache, but not all shards.
    complete = contains_weights(path) if here else has_weights(path)
    if not complete and (path / "config.json").is_file():
        which = "config.json only, no weights" if here else "config.json only, weights not downloaded"
        return ModelInfo(load_config(path), facts={"files": which})
    checkpoint = load_checkpoint(path)
    facts = {"format": checkpoint.format, "stored as": storage_dtype(checkpoint.tensors, "wte.weight")}
    facts["on disk"] = terminal.size(size_on_disk(path))
    tokenizer = checkpoint.tokenizer
    facts["tokenizer"] = "none" if tokenizer is None else f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    card, attribution = path / "MODEL_CARD.md", path / "ATTRIBUTION.txt.gz"
    return ModelInfo(
        checkpoint.config,
        facts,
        read_text(card, limit=2**20) if card.is_file() else None,
        attribution if attribution.is_file() else None,
    )


def heading(model: str, found: ModelInfo) -> Text:
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
    if model in NAME_IN_PAPER:
        text.append(f"\n{NAME_IN_PAPER[model]} in the paper", style="quiet")
    facts = ", ".join(f"{name}: {value}" for name, value in found.facts.items())
    text.append(f"\n{facts}\n" if facts else "\n", style="quiet")
    return text


def matrices(counted: Tally, every_block: bool) -> Table:
    """One row per tensor. The blocks are alike, so one is shown for all unless --every-block is given."""
    n_layer = counted.config.n_layer
    folded = n_layer > 1 and not every_block
    wide = terminal.console().width >= 112
    columns = ["tensor", ">shape", *([">one block"] if folded else []), ">parameters", ">fraction", ""]
    table = terminal.table(*columns, *(["description"] if wide else []))

    def row(name: Text, shape: str, each: int | None, count: int, meaning: str = "", style: str = "") -> None:
        fraction = count / counted.total
        cells: list[Text | str] = [name, Text(shape, style="quiet")]
        if folded:
            cells.append("" if each is None else f"{each:,}")
        cells += [Text(f"{count:,}", style=style), f"{fraction:.1%}", terminal.bar(fraction, 10)]
        table.add_row(*cells, *([Text(meaning, style="quiet")] if wide else []))

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
                    f"{n_layer} identical blocks" if folded else "a block",
                    "accent",
                )
            tensor(line)
    if counted.config.tie_word_embeddings:
        row(Text("lm_head"), "", None, 0, "tied to wte: no parameters of its own")
    table.add_section()
    row(Text("total", style="total"), "", None, counted.total, style="total")
    return table


def shape_of(line: Line) -> str:
    return f" {terminal.times_sign()} ".join(f"{n:,}" for n in line.shape)


def memory(counted: Tally) -> Table:
    """The memory of the weights and the KV cache in each dtype."""
    positions = counted.config.n_positions
    table = terminal.table("memory", ">weights", ">KV cache per token", f">KV cache of {positions:,} tokens")
    for dtype in ("float32", "bfloat16", "int8"):
        # The cache has at least 16 bits per value: an int8 model computes its keys and values in floats.
        per_token = counted.cache_per_token("float32" if dtype == "float32" else "bfloat16")
        table.add_row(
            dtype,
            terminal.size(counted.memory(dtype)),
            terminal.size(per_token),
            terminal.size(per_token * positions),
        )
    return table


def comparison(counted: Tally) -> Table:
    """The published counts next to the article's, one row per tensor."""
    table = terminal.table("tensor", ">shape", ">published", ">the article", ">difference")

    def row(name: str, shape: str, ours: int, theirs: int, style: str = "") -> None:
        gap = "" if ours == theirs else f"{ours - theirs:,}"
        table.add_row(
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
    row("total", "", counted.total, ILLUSTRATED_TOTAL, "total")
    return table


def difference(counted: Tally) -> Text:
    """Why the two totals differ."""
    blocks, inner, width = counted.config.n_layer, counted.config.d_mlp, counted.config.n_embd
    per_bias = inner - width
    ln_f = 2 * width
    assert blocks * per_bias + ln_f == counted.total - ILLUSTRATED_TOTAL
    short, full = f"{width:,}", f"{inner:,}"
    gap = counted.total - ILLUSTRATED_TOTAL
    return Text(
        f"\nThe article's total is {gap:,} less than that of the published tensors:\n"
        f"  {blocks * per_bias:>7,}  mlp.c_fc.bias is listed with {short} values, but has {full}:\n"
        f"           {blocks} blocks * {per_bias:,}\n"
        f"  {ln_f:>7,}  ln_f, the final LayerNorm, is missing: 2 * {width:,}\n"
        f"  {gap:>7,}  in total"
    )
