"""`glassgpt summarize FILE`: a summary of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.options import Positional, flag
from glassgpt.cli.task_records import (
    Beams,
    Json,
    check_file,
    finish,
    make_problems,
    print_json,
    print_line,
    read_whole,
)
from glassgpt.errors import SettingError, UserError, short_repr
from glassgpt.tasks.records import TABLES, TEXT_FIELD, Problems, kind_of, read_records, source_of
from glassgpt.weights import shipped_names

SHIPPED = "summarize"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glassgpt.gpt import GPT
    from glassgpt.tasks.definition import Task


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        flag(
            "text files, each of them one text; .jsonl, .tsv or .csv files of records; - for stdin",
            "FILE...",
            default="",
        ),
    ],
    *,
    model: Annotated[
        str | None,
        flag(
            "a model made for summaries, or any other (zero-shot)",
            "MODEL",
            default="summarize, if it is installed, else default",
        ),
    ] = None,
    zero_shot: Annotated[
        bool, flag("the GPT-2 paper's way: TL;DR: after the text, top-k 2, three sentences", default="")
    ] = False,
    beams: Beams = None,
    max_new_tokens: Annotated[
        int | None, flag("end after this many tokens", "N", default="as the task says")
    ] = None,
    seed: Annotated[int | None, flag("seed, for zero-shot summaries", "N", default="random")] = None,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> int:
    """Summarize texts, offline. Of a text that is longer than the model can read, it says which part the
    summary is of."""
    from glassgpt.tasks.summarize import summary_task

    if not files:
        raise SettingError("summarize: FILE... is missing. See glassgpt summarize --help")
    for name in files:
        if len(name.split()) > 2 and not Path(name).exists():  # a text, not a path
            raise UserError(
                f"{short_repr(name)} is no file. To summarize it: echo TEXT | glassgpt summarize -"
            )
        check_file(name)
    problems = make_problems()
    if model is None:
        model = SHIPPED if SHIPPED in shipped_names() else "default"
    gpt = load(model, device, dtype, 1 if beams is None else beams)
    task = summary_task(gpt, zero_shot)
    given = {"beams": beams, "max_new_tokens": max_new_tokens, "seed": seed}
    decoding = {name: value for name, value in given.items() if value is not None}
    if seed is not None and task.settings(**decoding).greedy:
        raise SettingError(
            f"--seed {seed} would change nothing: {model} takes the most probable token. Leave it out."
        )
    single = len(files) == 1 and not is_table(files[0])
    count = 0
    for name, number, text in read_texts(files, task, problems):
        count += 1
        if text is None:
            if json:
                print_json({"file": name, "record": number, "error": problems.last})
            continue
        if len(files) > 1 and not json:
            print(terminal.dim(f"--- {name} ---"))
        write_summary(gpt, task, text, decoding, {"file": name, "record": number}, json, single, problems)
    return finish(problems, count, ", ".join(files))


def is_table(name: str) -> bool:
    return kind_of(Path(name)) in (*TABLES, ".jsonl", ".ndjson")


def read_texts(
    files: tuple[str, ...], task: Task, problems: Problems
) -> Iterator[tuple[str, int, str | None]]:
    """Every text with the name of its file and its number there."""
    for name in files:
        if not is_table(name):
            text = read_whole(name)
            if not text.strip():
                problem = f"{'stdin' if name == '-' else name} is empty"
                if len(files) == 1:
                    raise UserError(f"{problem}. Give it a text to summarize.")
                problems.skip(1, problem, "empty")
            yield name, 1, text.strip() if text.strip() else None
            continue
        problems.file = name if len(files) > 1 else ""
        for record in read_records(Path(name)):
            fields = (task.direction().source, TEXT_FIELD, "document", "source")
            yield name, record.number, source_of(record, fields, problems)


def write_summary(
    gpt: GPT,
    task: Task,
    text: str,
    decoding: dict[str, Any],
    place: dict[str, Any],
    json: bool,
    single: bool,
    problems: Problems,
) -> None:
    """Print one summary, streamed where there is only one and nothing has to be chosen afterwards."""
    from glassgpt.tasks.encode import Prompt
    from glassgpt.tasks.generate import Output, make_encoder, run_task, stream_task
    from glassgpt.tasks.summarize import describe_cut

    settings = task.settings(**decoding)
    seen: Prompt | Output
    if single and not json and settings.beams is None:
        seen = make_encoder(gpt, task).prompt(text)
        terminal.write_pieces(stream_task(gpt, task, seen, settings))
    else:
        with terminal.spinner("summarizing"):
            (output,) = run_task(gpt, task, [text], **decoding)
        seen = output
        if json:
            print_json({
                **place, "text": output.text, "source_tokens": output.source_tokens,
                "kept_tokens": output.kept_tokens, "finish_reason": output.finish_reason, "seed": output.seed,
            })  # fmt: skip
        else:
            print_line(output.text)
    remark = describe_cut(task, seen)
    if remark is not None:
        if single:
            terminal.note(f"note: {remark}")
        else:
            problems.note(place["record"], remark, "cut")
