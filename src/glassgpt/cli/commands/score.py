"""`glassgpt score FILE`: the surprisal of every token, word or sentence, as a table."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.task_records import check_file, read_whole
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.inspect.surprisal.scored_text import ScoredSpan, SurprisalText

BATCH = 64  # texts that are computed together
COLUMNS = ("text", "number", "span", "start", "end", "bits", "token_bits", "entropy", "rank", "tokens")
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
Unit = Literal["token", "word", "sentence"]
Texts = list[tuple[str, list[str] | None]]  # and their words, where the file says what they are


def command(
    file: Annotated[
        Positional[str],
        Flag("a text file (one text), or a .jsonl file of texts or lists of words; - reads stdin", "FILE"),
    ],
    *,
    by: Annotated[Unit, Flag("a row for each of these")] = "word",
    lines: Annotated[bool, Flag("every line of FILE is a text of its own")] = False,
    format: Annotated[Literal["tsv", "jsonl"], Flag("a table that R and pandas read, or JSON lines")] = "tsv",
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    context: Annotated[
        int | None, Flag("tokens that the model sees at most", "N", default="the model's")
    ] = None,
    stride: Annotated[
        int | None,
        Flag("tokens by which its window moves on in a longer text", "N", default="half the context"),
    ] = None,
    bos: Annotated[bool, Flag("an end-of-text token before each text predicts its first token")] = True,
) -> int:
    """Measure how surprising each word of a text is: surprisal, entropy and rank, in a table. A word's bits
    say that it ends where it does; token_bits is the plain sum of its tokens. A .jsonl record has a "text",
    or "words" that are joined by spaces."""
    check_file(file)
    texts = read_texts(file, lines)
    gpt = load(model, device, dtype)
    from glassgpt.inspect.surprisal.scored_text import score_texts

    if format == "tsv":
        print("\t".join(COLUMNS))
    total, tokens = 0.0, 0
    for first in range(0, len(texts), BATCH):
        some = texts[first : first + BATCH]
        scored = score_texts(
            gpt,
            [text for text, _ in some],
            bos=bos,
            context=context,
            stride=stride,
            progress=progress_bar.progress,
        )
        for number, (text, (_, words)) in enumerate(zip(scored, some, strict=True), start=first):
            for index, span in enumerate(spans_of(text, by, words)):
                write_row(number, index, span, format)
            total += text.bits
            tokens += len(text.ids)
    sys.stdout.flush()
    terminal.note(
        f"{len(texts)} {'text' if len(texts) == 1 else 'texts'}, {tokens:,} tokens, {total:,.1f} bits"
    )
    return 0


def read_texts(file: str, lines: bool) -> Texts:
    """The texts of a file; of a .jsonl record a "text", or the "words"."""
    from glassgpt.files.text import lines_with_text

    whole = read_whole(file) if file == "-" or not _is_json_lines(file) else ""
    if file != "-" and _is_json_lines(file):
        return list(read_records(Path(file)))
    if lines:
        texts: Texts = [(line, None) for _, line in lines_with_text(whole)]
    else:
        texts = [(whole.removesuffix("\n"), None)] if whole.strip() else []
    if not texts:
        raise UserError(f"{'stdin' if file == '-' else file} has no text. Give a file with some.")
    return texts


def _is_json_lines(file: str) -> bool:
    from glassgpt.files.text import detect_kind

    return detect_kind(Path(file))[0] == "jsonl"


def read_records(path: Path) -> Iterator[tuple[str, list[str] | None]]:
    from glassgpt.files.text import parse_json_lines, read_bytes

    number = 0
    for number, _, value in parse_json_lines(read_bytes(path).decode("utf-8", "replace")):
        if isinstance(value, dict) and isinstance(value.get("text"), str) and value["text"].strip():
            yield value["text"], None
            continue
        words = value.get("words") if isinstance(value, dict) else None
        if (
            not isinstance(words, list)
            or not words
            or not all(isinstance(word, str) and word.strip() for word in words)
        ):
            raise UserError(
                f'{path}, line {number}: neither a text nor words. Write {{"text": "..."}} or '
                '{"words": ["The", "dog"]}.'
            )
        yield " ".join(words), words
    if number == 0:
        raise UserError(f"{path} has no records. Give a file with some.")


def spans_of(text: SurprisalText, by: Unit, words: list[str] | None) -> list[ScoredSpan]:
    if by == "token":
        return text.tokens
    if by == "word" and words is None:
        return text.words
    if words is None or by == "sentence":
        from glassgpt.tasks.sentences import split_sentences

        words = split_sentences(text.text)
    spans, end = [], 0
    for word in words:
        start = text.text.index(word, end)
        end = start + len(word)
        spans.append((start, end))
    return text.over(spans)


def write_row(number: int, index: int, span: ScoredSpan, format: str) -> None:
    values: dict[str, Any] = {"text": number, "number": index, "span": span.text, **asdict(span)}
    values["text"] = number
    if format == "jsonl":
        numbers = {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in values.items()
        }
        print(jsonlib.dumps({column: numbers[column] for column in COLUMNS}))
        return
    print("\t".join(_cell(values[column]) for column in COLUMNS))


def _cell(value: object) -> str:
    if isinstance(value, str):
        return terminal.sanitize(value.translate(ESCAPES))
    if isinstance(value, float):
        return "NA" if math.isnan(value) else f"{value:.6f}"
    return str(value)
