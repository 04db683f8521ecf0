"""`glassgpt convert SRC DST`: conversion between file formats, with a report on every tensor."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import waiting_for
from glassgpt.cli.parser.options import Flag, Positional

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.weights import Report


def command(
    src: Annotated[Positional[str], Flag("the model: a name, a folder or a file", "SRC")],
    dst: Annotated[
        Positional[str], Flag("a folder (hf), or a file whose suffix determines the format", "DST")
    ],
    *,
    format: Annotated[
        Literal["auto", "hf", "gguf", "openai", "nanogpt", "llmc", "packed"],
        Flag("format to write; auto: by the suffix of DST, else packed for int8 and int4, hf otherwise"),
    ] = "auto",
    dtype: Annotated[
        str | None,
        Flag(
            "float32, float16, bfloat16; int8 or int4 (packed, gguf); q8_0, q4_0 or q4_k (gguf)",
            "NAME",
            default="that of SRC",
        ),
    ] = None,
    force: Annotated[bool, Flag("replace DST if it exists")] = False,
    modelfile: Annotated[
        bool, Flag("with a .gguf file: also write a Modelfile for Ollama beside it")
    ] = False,
    json: Annotated[bool, Flag("print one JSON object with all tensors")] = False,
) -> int:
    """Convert a model between formats. The written file is read back and compared, tensor by tensor. DST
    is written atomically: it appears only when it is complete."""
    from glassgpt.weights import convert

    began = time.perf_counter()
    with waiting_for(src, f"{src} -> {dst}"):
        report = convert(
            src,
            dst,
            None if format == "auto" else format,
            dtype,
            force=force,
            modelfile=modelfile,
            progress=progress_bar.progress,
        )
    seconds = time.perf_counter() - began
    if json:
        made = {
            **dataclasses.asdict(report),
            "max_abs_error": report.max_abs_error,
            "seconds": round(seconds, 3),
        }
        print(jsonlib.dumps(made))
        return 0
    terminal.show(tensors(report))
    for note in report.notes:
        terminal.note(f"note: {note}")
    terminal.note(summary(report, seconds))
    return 0


def tensors(report: Report) -> Table:
    from rich.text import Text

    times = terminal.times_sign()
    noted = any(tensor.note for tensor in report)
    made = terminal.table("tensor", ">shape", "from", "to", ">largest error", *(["note"] if noted else []))
    for tensor in report:
        exact = tensor.max_abs_error == 0
        made.add_row(
            tensor.name,
            Text(f" {times} ".join(f"{n:,}" for n in tensor.shape), style="quiet"),
            tensor.source_dtype,
            tensor.target_dtype,
            Text("exact" if exact else f"{tensor.max_abs_error:.2e}", style="good" if exact else "pick"),
            *([Text(tensor.note, style="quiet")] if noted else []),
        )
    return made


def summary(report: Report, seconds: float) -> str:
    exact = sum(tensor.max_abs_error == 0 for tensor in report)
    n = len(report.tensors)
    if exact == n:
        kept = f"{n} tensors, all values equal"
    else:
        kept = f"{exact} of {n} tensors exact, largest error {report.max_abs_error:.2e}"
    formats = f"{report.source_format} -> {report.target_format}"
    written = f"{report.target}: {terminal.size(size_on_disk(Path(report.target)))}"
    return f"{formats}: {kept}. {written}, {seconds:.1f} s"


def size_on_disk(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
