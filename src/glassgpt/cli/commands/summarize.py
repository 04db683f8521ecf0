"""`glassgpt summarize FILE`: a summary of a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, Positional
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
from glassgpt.ranges import check_whole
from glassgpt.tasks.extract import MAX_SENTENCES, SENTENCES
from glassgpt.tasks.records import TEXT_FIELD, Problems, is_table, read_records, source_of
from glassgpt.weights import shipped_names

SHIPPED = "summarize"
WARNING = "warning: a small model writes this: names, dates and facts may be invented (see its card)"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glassgpt.gpt import GPT
    from glassgpt.tasks.definition import Task


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        Flag(
            "text files, each of them one text; .jsonl, .tsv or .csv files of records; - for stdin", "FILE..."
        ),
    ],
    *,
    sentences: Annotated[int | None, Flag("quote this many sentences of the text", "N", default="3")] = None,
    abstract: Annotated[
        bool, Flag("let a small model write its own summary: it invents names, dates and facts")
    ] = False,
    model: Annotated[
        str | None,
        Flag(
            "the model that compares sentences; one tuned for summaries writes them",
            "MODEL",
            default="default; with --abstract summarize",
        ),
    ] = None,
    zero_shot: Annotated[
        bool, Flag("write the GPT-2 paper's way: TL;DR: after the text, top-k 2, three sentences")
    ] = False,
    beams: Beams = None,
    max_new_tokens: Annotated[
        int | None, Flag("end what is written after this many tokens", "N", default="as the task says")
    ] = None,
    seed: Annotated[int | None, Flag("seed, for zero-shot summaries", "N", default="random")] = None,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> int:
    """Summarize texts, offline, by sentences of their own: those that tell the model most about the rest.

    With --abstract, --zero-shot or a model tuned for summaries, a model writes. If a text is longer than it
    can read, a note says which part was summarized."""
    from glassgpt.tasks.summarize import check_summarizes, summary_task

    for name in files:
        if len(name.split()) > 2 and not Path(name).exists():  # a text, not a path
            raise UserError(
                f"{short_repr(name)} is not a file. To summarize it: echo TEXT | glassgpt summarize -"
            )
        check_file(name)
    problems = make_problems()
    decoding = given_options(beams=beams, max_new_tokens=max_new_tokens, seed=seed)
    if sentences is not None:
        check_whole("--sentences", sentences, 1, MAX_SENTENCES)
    if model is None:
        model = SHIPPED if abstract and SHIPPED in shipped_names() else "default"
    gpt = load(model, device, dtype, 1 if beams is None else beams)
    check_summarizes(gpt, zero_shot)
    writes = abstract or zero_shot or gpt.task is not None
    check_needs_a_writer(decoding, writes)
    task = summary_task(gpt, zero_shot, sentences) if writes else None
    if task is not None:
        if seed is not None and task.settings(**decoding).greedy:
            raise SettingError(
                f"--seed {seed} would change nothing: {model} takes the most probable token. Leave it out."
            )
        if abstract or zero_shot or model == SHIPPED:
            terminal.note(WARNING)
    single = len(files) == 1 and not is_table(Path(files[0]))
    count = 0
    for name, number, text in read_texts(files, task, problems):
        count += 1
        if text is None:
            if json:
                print_json({"file": name, "record": number, "error": problems.last})
            continue
        if len(files) > 1 and not json:
            print(terminal.dim(f"--- {name} ---"))
        place = {"file": name, "record": number}
        if task is None:
            write_extract(
                gpt, text, SENTENCES if sentences is None else sentences, place, json, single, problems
            )
        else:
            write_summary(gpt, task, text, decoding, place, json, single, problems)
    return finish(problems, count, ", ".join(files))


def given_options(**values: int | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def check_needs_a_writer(decoding: dict[str, Any], writes: bool) -> None:
    if decoding and not writes:
        name = f"--{next(iter(decoding)).replace('_', '-')}"
        raise SettingError(f"{name} is for summaries that a model writes. Add --abstract, or leave it out.")


def read_texts(
    files: tuple[str, ...], task: Task | None, problems: Problems
) -> Iterator[tuple[str, int, str | None]]:
    """Every text with the name of its file and its number there."""
    for name in files:
        if not is_table(Path(name)):
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
            own = () if task is None else (task.direction().source,)
            fields = (*own, TEXT_FIELD, "document", "source")
            yield name, record.number, source_of(record, fields, problems)


def write_extract(
    gpt: GPT, text: str, sentences: int, place: dict[str, Any], json: bool, single: bool, problems: Problems
) -> None:
    """Print sentences of a text: one per line, or all in the record's one line."""
    from glassgpt.tasks.extract import extract

    made = extract(gpt, text, sentences, progress_bar.progress)
    quotes = [dataclasses.asdict(quote) for quote in made.quotes]
    if json:
        print_json({
            **place, "mode": made.mode, "text": made.text, "sentences": quotes,
            "source_sentences": made.source_sentences, "source_tokens": made.source_tokens,
        })  # fmt: skip
    elif single:
        for quote in made.quotes:
            print_line(quote.text)
    else:
        print_line(made.text)
    if single:
        terminal.note(f"note: {made.notes[0]}")
    elif len(made.quotes) == made.source_sentences:
        problems.note(place["record"], made.notes[0], "given as they are")


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
    from glassgpt.tasks.generate import Output, make_encoder, run_task
    from glassgpt.tasks.sentences import without_repetition
    from glassgpt.tasks.summarize import describe_cut, stream_summary

    settings = task.settings(**decoding)
    seen: Prompt | Output
    if single and not json and settings.beams is None:
        seen = make_encoder(gpt, task).prompt(text)
        terminal.write_pieces(stream_summary(gpt, task, seen, settings))
    else:
        with progress_bar.spinner("summarizing"):
            (output,) = run_task(gpt, task, [text], **decoding)
        output = dataclasses.replace(output, text=without_repetition(output.text))
        seen = output
        if json:
            print_json({
                **place, "mode": output.mode, "text": output.text, "source_tokens": output.source_tokens,
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
