"""From texts to shards: every format in, every mistake named, the same bits whatever happened on the way."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import text as text_files
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.train.data.prepare import prepare
from glassgpt.train.data.shard_writer import hash_document
from glassgpt.train.data.shards import Shards

from .test_shards import llmc

SRC = Path(__file__).resolve().parents[2] / "src"
BYTES = ByteTokenizer()
DOCUMENTS = [f"Story {n}. " + "The miller's cat — naïve — slept on. " * (n % 5) for n in range(40)]


def documents(folder: Path, split: str = "train", tokenizer: Tokenizer = BYTES) -> list[str]:
    shards = Shards.open(folder, split, tokenizer)
    cuts = np.split(shards.read(0, len(shards)), shards.document_starts[1:])
    assert all(cut[0] == tokenizer.eot_id for cut in cuts)
    return [tokenizer.decode(cut[1:].tolist()) for cut in cuts]


def everything(folder: Path) -> list[str]:
    """The documents of both splits; those of val first."""
    index = json.loads((folder / "shards.json").read_text())
    return [
        d for split in ("val", "train") if index["splits"][split]["tokens"] for d in documents(folder, split)
    ]


def bits(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts).encode()


# Every format in.


def write_parquet(path: Path, **columns: list[object]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def zstd(data: bytes) -> bytes:
    packer = pytest.importorskip("zstandard").ZstdCompressor()
    half = len(data) // 2
    return bytes(packer.compress(data[:half]) + packer.compress(data[half:]))  # two frames


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".txt", ".md"])
def test_texts_plain_and_packed(tmp_path: Path, suffix: str, packing: str) -> None:
    lines = "json" in suffix
    data = jsonl(DOCUMENTS) if lines else "\n".join(DOCUMENTS).encode()
    file = tmp_path / f"a{suffix}{packing}"
    file.write_bytes(PACKERS[packing](data))
    prepare([file], tmp_path / "out", BYTES, val_fraction=0)
    assert documents(tmp_path / "out") == (DOCUMENTS if lines else ["\n".join(DOCUMENTS)])


def test_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", text=list(DOCUMENTS), number=list(range(40)))
    prepare([tmp_path / "a.parquet"], tmp_path / "out", BYTES, val_fraction=0, unit_bytes=900)
    assert documents(tmp_path / "out") == DOCUMENTS
    assert len(Shards.open(tmp_path / "out").files) > 1


def test_token_files(tmp_path: Path) -> None:
    nanogpt = [id for text in DOCUMENTS for id in [*BYTES.encode(text), 256]]
    np.array(nanogpt, "<u2").tofile(tmp_path / "a.bin")
    llmc(tmp_path / "b.bin", [id for text in DOCUMENTS for id in [256, *BYTES.encode(text)]])
    for name in ("a.bin", "b.bin"):
        prepare([tmp_path / name], tmp_path / f"out-{name}", BYTES, val_fraction=0.2)
        assert sorted(everything(tmp_path / f"out-{name}")) == sorted(DOCUMENTS)
    one, other = (bits(tmp_path / f"out-{name}") for name in ("a.bin", "b.bin"))
    assert {n: d for n, d in one.items() if n != "shards.json"} == {
        n: d for n, d in other.items() if n != "shards.json"
    }


def test_folders_patterns_and_a_file_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "b.txt": "two",
        "in/a.md": "one",
        ".git/x.txt": "no",
        "in/c.py": "no",
        "d.bin": "no",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    prepare(["."], "one", BYTES, val_fraction=0)
    assert documents(Path("one")) == ["two", "one"]
    prepare(["in/*.md", "*.txt", "b.txt"], "two", BYTES, val_fraction=0)
    assert documents(Path("two")) == ["one", "two"]
    index = json.loads(Path("two/shards.json").read_text())
    assert index["sources"] == [{"name": "in/a.md", "bytes": 3}, {"name": "b.txt", "bytes": 3}]


def test_the_output_of_prepare_is_not_input(tmp_path: Path) -> None:
    """A BPE tokenizer's merges.txt in the output, or in what a kill left of it, is not the user's."""
    (tmp_path / "a.txt").write_text("the robot obeys the robber " * 9)
    bpe = Tokenizer.train([tmp_path / "a.txt"], vocab_size=270)
    bpe.save(tmp_path / "out.part")
    (tmp_path / "out.part" / "lock").touch()
    bpe.save(tmp_path / "earlier")
    (tmp_path / "earlier" / "shards.json").write_text("{}")
    for _ in range(2):
        index = prepare([tmp_path], tmp_path / "out", bpe, val_fraction=0, force=True)
        assert [Path(source["name"]).name for source in index["sources"]] == ["a.txt"]


def test_the_tokenizer_lies_beside_and_decides_the_width(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES)
    assert Tokenizer.load(tmp_path / "out").hash == BYTES.hash
    many = CharTokenizer(chr(n) for n in range(0x20, 0x20000) if not 0xD800 <= n < 0xE000)
    (tmp_path / "b.txt").write_text("z\U0001f642")
    prepare([tmp_path / "b.txt"], tmp_path / "wide", many)
    assert Shards.open(tmp_path / "wide").dtype == np.uint32
    assert documents(tmp_path / "wide", tokenizer=many) == ["z\U0001f642"]


def test_a_mark_of_byte_order_and_windows_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (tmp_path / "b.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "three"}\r\n\r\n{"text": ""}\r\n{"text": "four"}'
    )
    prepare([tmp_path / "a.txt", tmp_path / "b.jsonl"], tmp_path / "out", BYTES, val_fraction=0)
    assert documents(tmp_path / "out") == ["one\r\ntwo", "three", "four"]


# The split.


def test_the_split_depends_on_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(DOCUMENTS))
    (tmp_path / "b.jsonl").write_bytes(jsonl(DOCUMENTS[::-1]))
    for name in "ab":
        prepare([tmp_path / f"{name}.jsonl"], tmp_path / name, BYTES, val_fraction=0.3)
    held_out = documents(tmp_path / "a", "val")
    assert set(held_out) == set(documents(tmp_path / "b", "val"))
    assert held_out == [d for d in DOCUMENTS if hash_document(d.encode(), 0) < 0.3 * 2**64]
    assert 4 <= len(held_out) <= 20
    prepare([tmp_path / "a.jsonl"], tmp_path / "c", BYTES, val_fraction=0.3, seed=1)
    assert set(documents(tmp_path / "c", "val")) != set(held_out)


def test_the_val_fraction_is_met() -> None:
    assert np.mean([hash_document(str(n).encode(), 7) < 0.1 * 2**64 for n in range(10_000)]) == pytest.approx(
        0.1, abs=5 * 0.003
    )  # five deviations of sqrt(0.1 * 0.9 / 10,000)


def test_few_documents_still_give_a_validation_part(tmp_path: Path) -> None:
    """One of 40 at a share of a millionth: the one that drew the lowest lot, wherever it is."""
    (tmp_path / "a.jsonl").write_bytes(jsonl([*DOCUMENTS, *DOCUMENTS[::-1]]))
    for unit in (500, 1 << 20):
        out = tmp_path / f"out{unit}"
        prepare([tmp_path / "a.jsonl"], out, BYTES, val_fraction=1e-6, unit_bytes=unit)
        lowest = min(DOCUMENTS, key=lambda d: hash_document(d.encode(), 0))
        assert documents(out, "val") == [lowest, lowest]
        assert len(documents(out)) == 78


def test_chance_leaves_something_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(DOCUMENTS[:3]))
    (tmp_path / "b.jsonl").write_bytes(jsonl(DOCUMENTS[:1]))
    for unit in (10, 1 << 20):
        options = {"val_fraction": 1 - 1e-9, "unit_bytes": unit, "workers": 1, "force": True}
        prepare([tmp_path / "a.jsonl"], tmp_path / "three", BYTES, **options)
        assert documents(tmp_path / "three", "val") == [
            min(DOCUMENTS[:3], key=lambda d: hash_document(d.encode(), 0))
        ]
        assert len(documents(tmp_path / "three")) == 2
        prepare([tmp_path / "b.jsonl"], tmp_path / "one", BYTES, **options)
        assert documents(tmp_path / "one") == DOCUMENTS[:1]


def test_one_document_or_equal_ones_are_all_for_training(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(["same", "same"]))
    index = prepare([tmp_path / "a.jsonl"], tmp_path / "out", BYTES)
    assert index["splits"]["val"] == {"tokens": 0, "documents": 0, "files": []}
    with pytest.raises(SettingError, match="no tokens for 'val'"):
        Shards.open(tmp_path / "out", "val")


@pytest.fixture(scope="module")
def novel() -> str:
    draw = random.Random(5)
    words = ["the", "mill", "cat", "slept,", "it's", "naïve", "1984", "日本語", "x"]
    return "".join(
        draw.choice(words) + draw.choice([" "] * 12 + ["\n", "\n\n", "  ", ".\r\n\r\n"])
        for _ in range(90_000)
    )


@pytest.mark.parametrize("unit", [1 << 26, 150_000])
def test_a_long_text_is_divided_in_sections(tmp_path: Path, novel: str, unit: int) -> None:
    """One file, and still a validation part. Nothing of it is lost, and only real gaps are marked."""
    file = tmp_path / "novel.txt"
    file.write_bytes(novel.encode())
    prepare([file], tmp_path / "out", BYTES, val_fraction=0.2, unit_bytes=unit)
    train, val = documents(tmp_path / "out"), documents(tmp_path / "out", "val")
    fraction = sum(map(len, val)) / len(novel)
    assert 0.02 < fraction < 0.5
    # Put together by where each piece stands in the text.
    slots = sorted((novel.index(piece), piece) for piece in (*train, *val))
    assert "".join(piece for _, piece in slots) == novel
    ends = [at + len(piece) for at, piece in slots]
    cuts = [at for at, _ in slots[1:]]
    assert ends[:-1] == cuts


def test_sections_and_stretches_have_the_tokens_of_the_whole(tmp_path: Path, novel: str) -> None:
    file = tmp_path / "novel.txt"
    file.write_bytes(novel.encode())
    bpe = Tokenizer.train([file], vocab_size=400)
    prepare([file], tmp_path / "out", bpe, val_fraction=0, unit_bytes=150_000)
    shards = Shards.open(tmp_path / "out")
    ids = shards.read(0, len(shards))
    assert len(shards.document_starts) == -(-file.stat().st_size // 150_000)  # one for each unit
    assert ids[ids != bpe.eot_id].tolist() == bpe.encode(novel)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text("ab \n\r\u3000é\U0001f642", max_size=60), min_size=1, max_size=12).filter(any),
    st.integers(20, 400),
)
def test_any_texts_through_any_division(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], unit: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.jsonl").write_bytes(jsonl(texts))
    (folder / "b.txt").write_bytes("".join(["x", *texts]).encode())
    prepare([folder / "a.jsonl"], folder / "lines", BYTES, val_fraction=0.3, unit_bytes=unit, workers=1)
    assert sorted(everything(folder / "lines")) == sorted(filter(None, texts))
    prepare([folder / "b.txt"], folder / "text", BYTES, val_fraction=0, unit_bytes=unit, workers=1)
    assert "".join(documents(folder / "text")) == "x" + "".join(texts)


# Many workers, kills, memory.


def corpus(folder: Path) -> list[Path]:
    """About 400 kB in every text format, for a unit of 30 kB."""
    draw = random.Random(3)
    texts = [f"{n} " + " ".join(draw.choices("abcdefgh", k=draw.randrange(400))) for n in range(400)]
    (folder / "a.jsonl").write_bytes(jsonl(texts[:150]))
    (folder / "b.jsonl.xz").write_bytes(lzma.compress(jsonl(texts[150:300])))
    (folder / "c.txt").write_text("\n\n".join(texts[300:] * 2))
    for n in range(20):
        (folder / f"d{n}.md").write_text(texts[n] * 3)
    return [folder]


def test_any_number_of_workers_makes_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = corpus(tmp_path / "in")
    for workers in (1, 2):
        prepare(files, tmp_path / str(workers), BYTES, workers=workers, val_fraction=0.05, unit_bytes=30_000)
    assert bits(tmp_path / "1") == bits(tmp_path / "2")
    assert len(bits(tmp_path / "1")) > 20


PROGRAM = """
import os, signal, sys
from multiprocessing import parent_process
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.data.prepare import prepare

source, out, workers, most = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
changes = 0

def watch(event, arguments):
    # Python tells a hook of what is about to happen to files: just before change number `most` it is over.
    global changes
    if event in ("os.rename", "os.remove", "os.mkdir") and str(arguments[0]).startswith(out):
        changes += 1
        if changes == most:
            parent = parent_process()  # not getppid: that is another process once the parent has ended
            os.kill(os.getpid() if parent is None else parent.pid, signal.SIGKILL)  # workers end with it

sys.addaudithook(watch)
if __name__ == "__main__":
    prepare([source], out, ByteTokenizer(), workers=workers, val_fraction=1e-7, unit_bytes=30_000)
"""


def run_once(tmp_path: Path, out: Path, workers: int, most: int) -> int:
    """How it ended: killed before its change number `most`, in whichever of its processes that is."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path / "in", out, str(workers), str(most)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=1800, check=False
    ).returncode


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX's")
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_after_any_amount_of_work_it_resumes_to_the_same_bits(tmp_path: Path, workers: int) -> None:
    """Also with a validation part that is filled at the end, which does chunks a second time."""
    (tmp_path / "in").mkdir()
    corpus(tmp_path / "in")
    assert run_once(tmp_path, tmp_path / "whole", workers, 0) == 0
    expected = bits(tmp_path / "whole")
    part, out = tmp_path / "out.part", tmp_path / "out"
    kills = went_on = 0
    most = 5
    while not out.exists():
        ended = run_once(tmp_path, out, workers, most)
        assert ended in (0, -signal.SIGKILL)  # it never ends by itself with an error
        kills += ended != 0
        went_on += any(part.glob("done-*.json"))
        most = most * 8 // 5
    # One process alone removes two records of each unit at the end, more than the first three lives have
    # changes in all; how many more lives there are depends on which of the workers comes first.
    assert kills >= (5 if workers == 1 else 3)
    assert went_on >= (3 if workers == 1 else 1)
    assert bits(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("val_fraction", [1e-7, 0.3, 1 - 1e-9])
def test_stopped_before_and_after_every_change_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val_fraction: float
) -> None:
    """Every rename and every removal, those of the clean-up at the end among them, one after the other."""
    (tmp_path / "a.jsonl").write_bytes(jsonl([*DOCUMENTS[:6], DOCUMENTS[2]]))
    options = {"workers": 1, "val_fraction": val_fraction, "unit_bytes": 450}
    prepare([tmp_path / "a.jsonl"], tmp_path / "whole", BYTES, **options)
    expected = bits(tmp_path / "whole")
    real = {"replace": os.replace, "unlink": os.unlink}
    changes, stop_at = 0, -1

    def stopping(name: str) -> Callable[..., None]:
        def call(*args: object, **more: object) -> None:
            nonlocal changes
            changes += 1
            if changes == stop_at // 2 and stop_at % 2 == 0:
                raise KeyboardInterrupt
            try:
                real[name](*args, **more)
            finally:  # also after the removal of what is not there
                if changes == stop_at // 2:
                    raise KeyboardInterrupt

        return call

    stops = 0
    for stop_at in range(2, 1000):
        changes = 0
        out = tmp_path / f"out{stop_at}"
        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, stopping(name))
            try:
                prepare([tmp_path / "a.jsonl"], out, BYTES, **options)
                break
            except KeyboardInterrupt:
                stops += 1
        if not out.exists():
            prepare([tmp_path / "a.jsonl"], out, BYTES, **options)
        assert bits(out) == expected, stop_at
    assert stops >= 40  # the search did not end early: there are at least 20 changes, each stopped at twice


def test_finished_shards_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgpt.train.data import shard_writer as module

    (tmp_path / "in").mkdir()
    files = corpus(tmp_path / "in")
    options = {"workers": 1, "val_fraction": 0.05, "unit_bytes": 30_000}
    prepare(files, tmp_path / "whole", BYTES, **options)
    written: list[tuple[int, int]] = []
    write = module.write_shard

    def counting(task: module.PrepareConfig, number: int, chunk: int, *rest: object) -> None:
        if len(written) == 8:
            raise KeyboardInterrupt
        written.append((number, chunk))
        write(task, number, chunk, *rest)

    monkeypatch.setattr(module, "write_shard", counting)
    with pytest.raises(KeyboardInterrupt):
        prepare(files, tmp_path / "out", BYTES, **options)
    first = list(written)
    written.clear()
    monkeypatch.setattr(module, "write_shard", lambda *a: (written.append(a[1:3]), write(*a)))
    prepare(files, tmp_path / "out", BYTES, **options)
    assert len(first) == 8
    assert not set(first) & set(written)
    assert bits(tmp_path / "out") == bits(tmp_path / "whole")


def test_a_changed_file_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgpt.train.data import prepare as module

    (tmp_path / "a.jsonl").write_bytes(jsonl(DOCUMENTS))

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_fill_splits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare([tmp_path / "a.jsonl"], tmp_path / "out", BYTES, val_fraction=0)
    assert (tmp_path / "out.part").is_dir()
    (tmp_path / "a.jsonl").write_bytes(jsonl(["another"]))
    prepare([tmp_path / "a.jsonl"], tmp_path / "out", BYTES, val_fraction=0)
    assert documents(tmp_path / "out") == ["another"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("suffix", [".txt", ".jsonl.gz"])
def test_memory_is_bounded(tmp_path: Path, suffix: str) -> None:
    """60 MB in less than 30 MB more than 6 MB need, with chunks of 4 MB: it cannot have been read whole."""
    program = """
import re, sys
from pathlib import Path
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.data.prepare import prepare
prepare([sys.argv[1]], sys.argv[2], ByteTokenizer(), workers=1, unit_bytes=4 << 20)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])  # not ru_maxrss: that
# is never less than what the parent had when it started us
"""
    peaks = []
    for megabytes in (6, 60):
        file = tmp_path / f"{megabytes}{suffix}"
        line = "It was a long text, and nobody knew who had begun it or why. " * 30 + "\n"
        text = line * (megabytes * 1_000_000 // len(line))
        file.write_bytes(gzip.compress(jsonl(text.splitlines()), 1) if "json" in suffix else text.encode())
        done = subprocess.run(
            [sys.executable, "-c", program, file, tmp_path / f"out{megabytes}"],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) // 1024)
    assert peaks[1] < peaks[0] + 30, peaks


# Mistakes.


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), r"a\.txt\.gz contains no text"),
        ("a.jsonl", b"\n\n", r"a\.jsonl contains no text"),
        ("a.txt", b"one\ntwo \xff three", r"a\.txt, line 2 is not UTF-8 \(byte 0xff"),
        ("a.txt", b"one\ntwo \xe2\x82", r"a\.txt, line 2 is not UTF-8 \(byte 0xe2"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}', r"a\.jsonl, line 2 is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": oops}\n', r"a\.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}', r"a\.jsonl, line 2 has no \"text\" field"),
        ("a.jsonl", b'["x"]', r"a\.jsonl, line 1 has no \"text\""),
        ("a.jsonl", b'{"text": 5}', r"a\.jsonl, line 1 has \"text\" of type int"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1 is not JSON"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", r"a\.jsonl, line 1 is not JSON"),
        ("a.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], r"a\.txt\.gz is damaged"),
        ("a.txt.gz", b"text", r"a\.txt\.gz is damaged"),
        ("a.txt.xz", lzma.compress(b"text" * 99)[:-9], r"a\.txt\.xz is damaged"),
        ("a.txt.xz", b"text", r"a\.txt\.xz is damaged"),
        ("a.bin", np.array([5, 300], "<u2").tobytes(), r"token 1 is 300, but the vocabulary has 257"),
        ("a.bin", b"123", "not a whole number"),
        ("a.pdf", b"x", r"a\.pdf is not of a known file type"),
        ("a.bin.gz", b"x", r"a\.bin\.gz is not of a known file type"),
        ("gone.txt", None, r"gone\.txt does not exist"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes | None, message: str
) -> None:
    (tmp_path / "good.txt").write_text("good")
    if data is not None:
        (tmp_path / name).write_bytes(data)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises((FileFormatError, SettingError), match=message):
        prepare(
            [tmp_path / "good.txt", tmp_path / name], tmp_path / "out", BYTES, unit_bytes=100_000, workers=1
        )
    assert sorted(os.listdir(tmp_path)) == before


def test_bad_zst_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.txt.zst").write_bytes(zstd(b"text" * 99)[:-5])
    write_parquet(tmp_path / "b.parquet", words=["x"])
    write_parquet(tmp_path / "c.parquet", text=["x"] * 9 + [None])
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    for name, message in {
        "a.txt.zst": "is damaged",
        "b.parquet": 'no column "text"; its columns are words',
        "c.parquet": "row 10 has no text",
        "d.parquet": "is damaged",
    }.items():
        with pytest.raises(FileFormatError, match=message):
            prepare([tmp_path / name], tmp_path / "out", BYTES)
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize(("name", "module"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"pip install {module}"):
        prepare([tmp_path / name], tmp_path / "out", BYTES)


def test_the_line_is_right_deep_in_a_long_file(tmp_path: Path) -> None:
    """The file is read in stretches; lines are counted from its beginning all the same."""
    lines = jsonl([f"text {n}" for n in range(100)]).splitlines(keepends=True)
    lines[87] = b"{}\n"
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(FileFormatError, match=r"a\.jsonl, line 88 has no \"text\""):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out", BYTES, unit_bytes=300, workers=1)
    words = [b"word\n"] * 1000
    words[777] = b"w\xe9rd\n"
    (tmp_path / "a.txt").write_bytes(b"".join(words))
    with pytest.raises(FileFormatError, match=r"a\.txt, line 778 is not UTF-8"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES, unit_bytes=300, workers=1)


def test_a_mistake_found_by_a_worker(tmp_path: Path) -> None:
    for n in range(4):
        (tmp_path / f"{n}.jsonl").write_bytes(jsonl(DOCUMENTS) if n != 2 else b"{}")
    with pytest.raises(FileFormatError, match=r"2\.jsonl, line 1 has no \"text\""):
        prepare([tmp_path], tmp_path / "out", BYTES, unit_bytes=2000, workers=2)
    assert not (tmp_path / "out.part").exists()


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST_LINE", 5000)
    monkeypatch.setattr(text_files, "BLOCK", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + b"x" * 9000)
    with pytest.raises(FileFormatError, match="line 2 is longer than"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out", BYTES)


def test_what_is_there_stays_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES)
    before = bits(tmp_path / "out")
    (tmp_path / "a.txt").write_text("two")
    with pytest.raises(SettingError, match="--force"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES)
    assert bits(tmp_path / "out") == before
    prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES, force=True)
    assert documents(tmp_path / "out") == ["two"]
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("precious")
    with pytest.raises(SettingError, match="was not made by prepare"):
        prepare([tmp_path / "a.txt"], tmp_path / "mine", BYTES, force=True)


def test_settings_out_of_range(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    for options, message in [
        ({"val_fraction": 1.0}, "--val-fraction is 1.0"),
        ({"val_fraction": -0.1}, "--val-fraction is -0.1"),
        ({"val_fraction": float("nan")}, "--val-fraction is nan"),
        ({"workers": 0}, "--workers is 0"),
    ]:
        with pytest.raises(SettingError, match=message):
            prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES, **options)
    with pytest.raises(SettingError, match="no files"):
        prepare([], tmp_path / "out", BYTES)


@pytest.mark.skipif(os.name == "nt", reason="flock is POSIX's")
def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "out.part").mkdir()
    with open(tmp_path / "out.part" / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SettingError, match="another glassgpt prepare is running"):
            prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES)
    prepare([tmp_path / "a.txt"], tmp_path / "out", BYTES)


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
from glassgpt.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX's")
def test_a_full_disk(tmp_path: Path) -> None:
    """No file of the program may grow beyond 8 KiB: what a full disk does, without a disk."""
    BYTES.save(tmp_path / "bytes")
    (tmp_path / "a.txt").write_text("word " * 5000)
    words = ["prepare", tmp_path / "a.txt", "-o", tmp_path / "out", "--tokenizer", tmp_path / "bytes"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words],
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert "disk is full" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "bytes"]


# The command.


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from glassgpt.cli import main

    BYTES.save(tmp_path / "bytes")
    (tmp_path / "a.jsonl").write_bytes(jsonl(DOCUMENTS))
    words = [
        "prepare",
        str(tmp_path / "a.jsonl"),
        "--tokenizer",
        str(tmp_path / "bytes"),
        "--val-fraction",
        "0.2",
    ]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["split", "train", "val"]
    assert "vocabulary 257 (uint16)" in err
    assert sorted(everything(tmp_path / "out")) == sorted(DOCUMENTS)
    assert main([*words, "-o", str(tmp_path / "two"), "--json", "--workers", "1"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["splits"]["train"]["documents"] + report["splits"]["val"]["documents"] == 40
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "--force" in capfd.readouterr().err
    assert main(["prepare", "-o", str(tmp_path / "three")]) == 2
    assert "missing" in capfd.readouterr().err


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    BYTES.save(tmp_path / "bytes")
    (tmp_path / "a.txt").write_text("one")
    program = """
import sys
from glassgpt.cli import main
code = main(sys.argv[1:])
sys.exit(code if "torch" not in sys.modules else "torch was imported")
"""
    words = ["prepare", tmp_path / "a.txt", "-o", tmp_path / "out", "--tokenizer", tmp_path / "bytes"]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, "-c", program, *words], env=env, check=True, capture_output=True)
