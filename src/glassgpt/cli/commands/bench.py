"""`glassgpt bench MODEL`: how fast the model is on this machine."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import TYPE_CHECKING, Annotated

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, Positional

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.evaluate.speed import Speed


def command(
    model: Annotated[
        Positional[str], Flag("a name (default, tiny, gpt2, owner/name), a folder or a file", "[MODEL]")
    ] = "default",
    *,
    device: Device = None,
    dtype: Dtype = None,
    transformers: Annotated[
        bool, Flag("also measure transformers with the same weights in float32, alternately")
    ] = False,
    llama_cpp: Annotated[
        bool, Flag("also measure llama.cpp with the same weights in Q8_0, alternately")
    ] = False,
    json: Annotated[bool, Flag("print a JSON object")] = False,
) -> int:
    """Measure tokens per second: one text, 16 texts at once, a prompt as long as the context. On a CPU the
    first is limited by memory, because each token reads every weight, the others by arithmetic; the table
    shows how much of what this machine can do is reached. Close other programs first."""
    from glassgpt.evaluate.speed import measure_speed

    gpt = load(model, device, dtype)
    peers = [name for name, on in (("transformers", transformers), ("llama.cpp", llama_cpp)) if on]
    found = measure_speed(gpt, peers=peers, progress=progress_bar.progress)
    backend = type(gpt.backend).__name__.removesuffix("Backend").lower()
    precision = str(getattr(gpt.backend, "dtype", "")).removeprefix("torch.")
    if json:
        speeds = [dataclasses.asdict(speed) for speed in found]
        about = {
            "model": model,
            "backend": backend,
            "dtype": precision,
            "tokens_per_s": found[0].tokens_per_s,
        }
        print(jsonlib.dumps({**about, "speeds": speeds}))
    else:
        terminal.show(make_table(found))
        terminal.note(f"{model}: {gpt.config.n_parameters:,} parameters in {precision}, {backend} backend")
    return 0


def make_table(found: list[Speed]) -> Table:
    table = terminal.table("what", ">tokens/s", ">from", ">to", ">of the limit", "which is set by")
    for speed in found:
        part = "" if speed.limit is None else f"{speed.tokens_per_s / speed.limit:.0%} of {speed.limit:,.0f}"
        low, high = speed.spread
        table.add_row(
            speed.name,
            f"{speed.tokens_per_s:,.0f}",
            f"{low:,.0f}",
            f"{high:,.0f}",
            part,
            speed.limited_by or "",
        )
    return table
