"""Bad input: each record with its number, the rest goes on, a count at the end."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from glassgpt.cli.task_records import stdin_lines
from glassgpt.cli.text import read_stdin
from glassgpt.errors import FileFormatError
from glassgpt.files import text as text_files
from glassgpt.tasks.language import why_not
from glassgpt.tasks.records import SHOWN, Problems, read_records, split_lines
from glassgpt.tasks.sentences import complete_sentences, first_sentences, split_sentences
from glassgpt.tasks.translate import without_address
from tests.tasks.conftest import Lines


def collect(file: Path, *fields: str) -> tuple[list[tuple[int, list[str | None]]], list[str], Problems]:
    said: list[str] = []
    problems = Problems(said.append)
    found: list[tuple[int, list[str | None]]] = []
    for record in read_records(file):
        texts: list[str | None] = []
        while len(texts) < len(fields) and None not in texts:  # one problem of a record is enough
            texts.append(record.text(fields[len(texts)], problems))
        found.append((record.number, texts))
    return found, said, problems


def test_json_lines(lines: Lines) -> None:
    file = lines(
        "a.jsonl", '{"en": "One", "fr": " Un "}', "", "no json", "[1]", '{"en": "Two"}',
        '{"en": "", "fr": "x"}',
        '{"en": ["x"], "fr": "x"}', '{"en": 3, "fr": "trois"}',
    )  # fmt: skip
    found, said, problems = collect(file, "en", "fr")
    assert found[0] == (1, ["One", "Un"])
    assert found[-1] == (8, ["3", "trois"])
    assert said == [
        "record 3: is not JSON: 'no json'; skipped",
        "record 4: is [1], not a JSON object; skipped",
        "record 5: has no field 'fr' (it has 'en'); skipped",
        "record 6: en is empty; skipped",
        "record 7: en is ['x'], not a text; skipped",
    ]
    assert problems.summary(7) == (
        "5 of 7 records skipped, 0 noted: 1 not JSON, 1 not an object, 1 without a field, 1 empty, "
        "1 not a text"
    )


def test_tables_and_texts(lines: Lines) -> None:
    found, said, _ = collect(lines("a.tsv", "en\tfr", 'say "hi"\tdis', "alone"), "en", "fr")
    assert found == [(1, ['say "hi"', "dis"]), (2, [None])]
    assert said == ["record 2: has 1 columns, not the 2 of the head line; skipped"]
    found, _, _ = collect(lines("a.csv", "en,fr", '"a, b",c'), "en", "fr")
    assert found == [(1, ["a, b", "c"])]
    found, _, _ = collect(lines("a.txt", "first", "second"), "text")
    assert found == [(1, ["first"]), (2, ["second"])]


def test_a_million_lines_are_not_held_at_once() -> None:
    text = "\n" * 10**6 + ' {"text": "last"}\r\n\n{}'
    tracemalloc.start()
    try:
        found = [(number, value) for number, _, value in text_files.parse_json_lines(text)]
        count = sum(1 for _ in split_lines(text))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(10**6 + 1, {"text": "last"}), (10**6 + 3, {})]
    assert count == 10**6 + 3
    assert peak < 3 * len(text), f"{peak:,} bytes"  # two copies, one for each way to end a line


def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path) -> None:
    text = "a\u2028b\x0cc"  # a line separator and a form feed, within a text
    (tmp_path / "a.jsonl").write_text(json.dumps({"en": text}, ensure_ascii=False) + "\r\n", "utf-8")
    assert collect(tmp_path / "a.jsonl", "en")[0] == [(1, [text])]
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_text(f"en\r\n{text}\r\n\r\nlast", "utf-8")
        assert collect(tmp_path / name, "en")[:2] == ([(1, [text]), (3, ["last"])], [])
    (tmp_path / "a.txt").write_bytes(b"first\x0cpage\rsecond\n\nfourth\n")
    assert [number for number, _ in collect(tmp_path / "a.txt")[0]] == [1, 2, 3, 4]


def test_a_bad_row_of_a_table_is_one_record(lines: Lines) -> None:
    found, said, problems = collect(lines("a.csv", "en", "x" * 200_000, "cat"), "en")
    assert found == [(1, [None]), (2, ["cat"])]
    assert said[0].startswith("record 1: is not a row of a table (field larger")
    assert problems.skipped == 1
    assert collect(lines("a.tsv", "en", "x" * 200_000), "en")[0][0][1] == ["x" * 200_000]
    with pytest.raises(FileFormatError, match="names of its columns"):
        collect(lines("b.tsv", "en\ten", "a\tb"))


def test_half_a_character_is_no_text_and_files_are_named(lines: Lines) -> None:
    file = lines("a.jsonl", '{"en": "\\ud83d"}', '{"en": "\\ud83d\\ude00"}')
    found, said, _ = collect(file, "en")
    assert found == [(1, [None]), (2, ["\U0001f600"])]
    assert said == ["record 1: en has an unpaired surrogate; skipped"]
    heard: list[str] = []
    problems = Problems(heard.append, file="b.jsonl")
    problems.note(3, "is long", "cut")
    assert heard == ["b.jsonl, record 3: is long"]


def test_only_the_first_problems_are_shown_and_all_are_counted(lines: Lines) -> None:
    _, said, problems = collect(lines("a.jsonl", *["x"] * (SHOWN + 5)), "en")
    assert len(said) == SHOWN
    assert problems.summary(25) == f"25 of 25 records skipped, 0 noted: {SHOWN + 5} not JSON"
    assert Problems().summary(3) is None


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"en": "caf\xe9"}\n')
    with pytest.raises(FileFormatError, match=r"line 1 is not UTF-8.*iconv -f LATIN1 -t UTF-8 \S+a.jsonl"):
        collect(tmp_path / "a.jsonl")
    with pytest.raises(FileFormatError, match="No such file"):
        collect(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("mark", "encoding", "name"),
    [
        ("\ufeff", "utf-16-le", "UTF-16"),
        ("\ufeff", "utf-16-be", "UTF-16"),
        ("\ufeff", "utf-32-le", "UTF-32"),
        ("\ufeff", "utf-32-be", "UTF-32"),
        ("", "utf-16-le", "UTF-16LE"),
        ("", "utf-16-be", "UTF-16BE"),
    ],
)
def test_utf_16_is_named_with_the_command_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, encoding: str, name: str
) -> None:
    """As Windows saves "Unicode". Without a mark it may even be valid UTF-8, with a zero at each letter."""
    for suffix, text in ((".txt", "“Où?” asked Zoë.\nNobody knew.\n"), (".jsonl", '{"text": "He knew."}\n')):
        file = tmp_path / f"a{suffix}"
        file.write_bytes((mark + text).encode(encoding))
        message = re.escape(f"{file} is {name[:6]}, not UTF-8. Convert it: iconv -f {name} -t UTF-8 {file} >")
        with pytest.raises(FileFormatError, match=message):
            list(read_records(file))
        with pytest.raises(FileFormatError, match=message):
            list(text_files.read_texts(file))
        for read in (read_stdin, lambda: list(stdin_lines("classify"))):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
            with pytest.raises(FileFormatError, match=rf"stdin is {name[:6]}.* first: iconv -f {name} -t"):
                read()
    (tmp_path / "a.tsv").write_bytes((mark + "en\tfr\nyes\toui\n").encode(encoding))
    with pytest.raises(FileFormatError, match=f"is {name[:6]}"):
        list(read_records(tmp_path / "a.tsv"))


@pytest.mark.parametrize("text", ["", "a", "\0", "\0" * 20, "\ufeffyes", "a\0b", "ab\0" * 20, "é\0" * 20])
def test_what_is_not_utf_16(text: str) -> None:
    assert text_files.detect_utf16(text.encode()) is None


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
def test_a_file_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """As /dev/zero, or a few compressed kilobytes that are gigabytes; what fits exactly is read."""
    monkeypatch.setattr(text_files, "MAX_BYTES", 1 << 20)
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[compression]
    file = tmp_path / f"a.txt{compression}"
    file.write_bytes(pack(b"a" * (1 << 20)))
    assert len(text_files.read_bytes(file)) == 1 << 20
    file.write_bytes(pack(b"a" * (1 << 24)))
    with pytest.raises(FileFormatError, match=r"a\.txt.* more than 1 MiB of text.*Split it"):
        collect(file)


class Endless(io.BytesIO):
    """A stream of zeros; `given` counts them."""

    given = 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size > 0, "all of it is wanted"
        self.given += size
        return bytes(size)


def test_an_endless_stream_is_read_no_further_than_the_limit() -> None:
    zeros = Endless()
    with pytest.raises(FileFormatError, match="stdin has more than 256 MiB of text"):
        text_files.read_stream(zeros, "stdin")
    assert zeros.given <= text_files.MAX_BYTES + text_files.BLOCK


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device of Unix")
def test_devices_and_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_BYTES", 1 << 20)
    with pytest.raises(FileFormatError, match="/dev/zero has more than 1 MiB"):
        collect(Path("/dev/zero"))
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    found, _, _ = collect(Path(f"/dev/fd/{reader}"), "text")  # as `--file <(command)`
    os.close(reader)
    assert [values for _, values in found] == [["one"], ["two"]]


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("The cat is on the table.", "en", None),
        ("Le chat est sur la table et il dort.", "fr", None),
        ("Le chat est sur la table et il dort.", "en", "looks like French"),
        ("Der Hund ist nicht in dem Haus und er schläft.", "en", "looks like German"),
        ("Кошка сидит на столе.", "en", "not written in Latin letters"),
        ("Hello!", "fr", None),
        ("12:30", "en", None),
        ("The cat.", "xx", None),
    ],
)
def test_text_in_another_language_is_noticed(text: str, expected: str, words: str | None) -> None:
    found = why_not(text, expected)
    assert (found is None) if words is None else (found is not None and words in found)


def test_sentences() -> None:
    text = 'Mr. Smith went home. "Why?" he asked! J. R. came, too.\nA line without end\n\nOù est-il ? Ici.'
    assert split_sentences(text) == [
        "Mr. Smith went home.", '"Why?" he asked!', "J. R. came, too.", "A line without end", "Où est-il ?",
        "Ici.",
    ]  # fmt: skip
    assert first_sentences("One. Two. Three. Four.", 3) == "One. Two. Three."
    assert split_sentences("") == []
    assert split_sentences("one. two; three? J. four", loosely=True) == ["one.", "two;", "three?", "J. four"]
    for size in (1, 5, 400):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert list(complete_sentences(pieces)) == split_sentences(text)


LONG_WORDS = """
from glassgpt.tasks.sentences import split_sentences
from glassgpt.tasks.translate import Sentence
for word in ("a@", "a" * 10, "a@b.", "www.", "http:/"):
    Sentence.of(word * 1_000_000 + "@")
names = "J. " * 500_000 + "Smith"
assert split_sentences(names) == [names]
"""


@pytest.mark.slow
def test_megabytes_without_a_space_or_an_end_take_linear_time() -> None:
    """In a separate process: a quadratic search would take hours (a word of 4 kB once took 15 s)."""
    subprocess.run([sys.executable, "-c", LONG_WORDS], check=True, timeout=300)


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("me@a.example", ""), ("(me@a.example),", ""), ("@home", "@home"), ("a@b", "a@b"), ("a@b.", "a@b."),
        ("a@.b", "a@.b"), ("a@b.c", ""), ("see:https://a.example/b", "see:"), ("www.", "www."), ("www.a", ""),
        ("http://", "http://"), ("plain", "plain"), ("@a@b.c", ""),
    ],
)  # fmt: skip
def test_addresses_are_no_words(word: str, left: str) -> None:
    assert without_address(word) == left
    assert re.sub(r"(?:https?://|www\.)\S+|\S+@\S+\.\S+", "", word) == left  # the definition, but slow
