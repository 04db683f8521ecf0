"""`glassgpt atlas MODEL`: what every head and neuron does over a corpus."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import UserError
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.inspect.components.atlas import Atlas


def command(
    model: Annotated[
        Positional[str | None],
        Flag("a name (default, tiny, gpt2, owner/name), a folder or a file", "[MODEL]"),
    ] = None,
    *,
    out: Annotated[str, Flag("the folder of the atlas", "DIR", short="-o")],
    data: Annotated[
        str | None, Flag("a text file, or a folder of .txt, .jsonl and .parquet files", "DIR")
    ] = None,
    tokens: Annotated[int | None, Flag("stop after this many tokens", "N", default="all")] = None,
    length: Annotated[int, Flag("tokens that the model reads together", "N")] = 128,
    keep: Annotated[int, Flag("contexts of each neuron, pairs of each head", "N")] = 20,
    neuron: Annotated[str | None, Flag("print the page of a neuron: layer.neuron", "L.N")] = None,
    head: Annotated[str | None, Flag("print the page of a head: layer.head", "L.H")] = None,
    k: Annotated[int, Flag("lines of a page", "N", short="-k")] = 10,
    device: Device = None,
    dtype: Dtype = None,
    json: Annotated[bool, Flag("print a JSON object")] = False,
) -> int:
    """Read a corpus and note for every neuron the contexts in which it is most active, and for every head
    the pairs of tokens that it connects and the other heads of its layer do not. Ctrl-C loses at most a
    minute; the same command goes on. --neuron and --head print pages of an atlas."""
    check_whole("-k", k, 1)
    places = {
        name: parse_place(name, value)
        for name, value in (("neuron", neuron), ("head", head))
        if value is not None
    }
    if data is None and not places:
        raise UserError(
            f"nothing to do. Give texts to read, --data texts/, or a page to print: --neuron 0.0 -o {out}"
        )
    if data is not None:
        if not Path(data).exists():
            raise UserError(f"{data} does not exist. Check the path.")
        gpt = load("default" if model is None else model, device, dtype)
        from glassgpt.inspect.components.build_atlas import atlas as make_atlas

        atlas = make_atlas(
            gpt, Path(data), out, tokens=tokens, length=length, k=keep, progress=progress_bar.progress
        )
        terminal.note(f"{out}: {atlas!r}")
    else:
        from glassgpt.inspect.components.atlas import Atlas

        atlas = Atlas.load(out)
    for name, (layer, index) in places.items():
        print_page(atlas, name, layer, index, k, json)
    if json and not places:
        print(
            jsonlib.dumps(
                {"folder": out, "model": atlas.about.get("model"), "tokens": len(atlas.state.tokens)}
            )
        )
    return 0


def parse_place(name: str, value: str) -> tuple[int, int]:
    layer, _, index = value.partition(".")
    if not (layer.isascii() and layer.isdigit() and index.isascii() and index.isdigit()) or len(value) > 18:
        raise UserError(
            f"--{name} {value!r:.40} is not a place. Write the layer and the {name}: --{name} 3.1"
        )
    return int(layer), int(index)


def print_page(atlas: Atlas, name: str, layer: int, index: int, k: int, json: bool) -> None:
    page = atlas.neuron(layer, index) if name == "neuron" else atlas.head(layer, index)
    if json:
        print(jsonlib.dumps(asdict(page)))
        return
    lines = str(page).splitlines()
    first = 3 if name == "neuron" else 1  # lines above those of the contexts
    print(terminal.sanitize("\n".join(lines[: first + k])))
