"""`glassgpt translate TEXT --to fr`: translation with a decoder-only model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, default_model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.task_records import (
    BATCH,
    Beams,
    File,
    Json,
    finish,
    in_batches,
    make_problems,
    note_all,
    print_json,
    print_line,
    read_inputs,
)
from glassgpt.errors import short_repr
from glassgpt.tasks.records import TEXT_FIELD, Problems, Record, source_of

if TYPE_CHECKING:
    from glassgpt.tasks.translate import Translator


def command(
    text: Annotated[
        Positional[str | None], Flag("the text to translate; - reads stdin, one text per line", "[TEXT]")
    ] = None,
    *,
    to: Annotated[str, Flag("the language to translate into: fr or en", "LANGUAGE")],
    file: File = None,
    model: Annotated[
        str | None, Flag("a model made for translation", "MODEL", default="en-fr, if it is installed")
    ] = None,
    beams: Beams = None,
    whole_lines: Annotated[
        bool, Flag("do not cut lines into sentences: the model learned single sentences")
    ] = False,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> int:
    """Translate English into French or French into English, offline, sentence by sentence. The translation is
    streamed to stdout; remarks go to stderr. A file gives a line for each of its records."""
    from glassgpt.tasks.translate import Translator

    problems = make_problems()
    records = read_inputs(text, file, "translate --to fr")
    model = default_model("en-fr", "recipes/translation") if model is None else model
    gpt = load(model, device, dtype, 1 if beams is None else beams)
    decoding = {} if beams is None else {"beams": beams}
    translator = Translator(gpt, to, not whole_lines, **decoding)
    if text not in (None, "-") and file is None and not json and translator.settings.beams is None:
        stream = translator.stream(text)
        terminal.write_pieces(stream)
        note_all(stream.notes)
        return 0
    translators = {to: translator}
    one_by_one = file is None  # what is typed into a pipe is answered at once
    count = 0
    for some in in_batches(records, 1 if one_by_one else BATCH):
        count += len(some)
        with progress_bar.spinner(f"translating records {some[0].number} to {some[-1].number}"):
            results = translate_records(translators, some, to, problems)
        for values in results:
            if json:
                print_json(values)
            else:
                print_line(values.get("text", ""))
    return finish(problems, count, file)


def translate_records(
    translators: dict[str, Translator], records: list[Record], to: str, problems: Problems
) -> list[dict[str, Any]]:
    """A result for each record: a translation, or what is wrong with it. An empty line stays one."""
    directions = [direction.name for direction in translators[to].task.directions]
    results: dict[int, dict[str, Any]] = {}
    wanted: dict[str, list[tuple[int, str]]] = {}  # by language
    for record in records:
        if list(record.values) == [TEXT_FIELD] and record.values[TEXT_FIELD] == "":
            results[record.number] = {"record": record.number, "source": "", "text": ""}
            continue
        into = record.values.get("to", to)
        if into not in directions:
            problem = f"the language {short_repr(into)} is not one of {', '.join(directions)}"
            problems.skip(record.number, problem, "of an unknown language")
            results[record.number] = {"record": record.number, "error": problem}
            continue
        if into not in translators:
            translators[into] = translators[to].into(into)
        fields = (translators[into].encoder.direction.source, TEXT_FIELD, "source")
        source = source_of(record, fields, problems)
        if source is None:
            results[record.number] = {"record": record.number, "error": problems.last}
            continue
        wanted.setdefault(into, []).append((record.number, source))
    for into, items in wanted.items():
        translations = translators[into].translate([source for _, source in items])
        for (number, source), translation in zip(items, translations, strict=True):
            for remark in translation.notes:
                problems.note(number, remark, "doubtful")
            results[number] = {
                "record": number, "source": source, "to": into, "text": translation.text,
                "notes": translation.notes,
            }  # fmt: skip
    return [results[record.number] for record in records]
