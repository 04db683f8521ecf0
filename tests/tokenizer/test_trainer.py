"""The trainer learns what the textbook algorithm learns, from files of every kind, the same every time."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import SettingError, UserError
from glassgpt.progress import Advance
from glassgpt.tokenizer import BPETokenizer, Tokenizer, text_chunks, trainer
from glassgpt.tokenizer.bpe import merge_pair
from glassgpt.tokenizer.gpt2_files import visible_merges
from glassgpt.tokenizer.pre_tokenizer import bytes_in_id_order, split_words

from .conftest import MANY_SCRIPTS, english

STORY = (
    """The lower the river, the slower the boat; the slower the boat, the longer the river seems.
Banana bread, bananas and more bananas: a banana boat is no boat at all. Aaaaah, said aaaaa and aaa.
"""
    * 3
    + MANY_SCRIPTS
)


def textbook(words: Counter[str], n_merges: int, min_count: int) -> list[tuple[bytes, bytes]]:
    """Count every pair anew for every merge (Sennrich et al. 2016); of equals the smaller ids."""
    tokens = [bytes([byte]) for byte in bytes_in_id_order()]
    table = {word: [tokens.index(bytes([byte])) for byte in word.encode()] for word in words}
    learned = []
    for _ in range(n_merges):
        counts: Counter[tuple[int, int]] = Counter()
        for word, ids in table.items():
            # Overlapping pairs of a run count each: aaa holds (a, a) twice, as in Hugging Face's trainer.
            for pair in pairwise(ids):
                counts[pair] += words[word]
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < min_count:
            break
        learned.append((tokens[best[0]], tokens[best[1]]))
        tokens.append(tokens[best[0]] + tokens[best[1]])
        table = {word: merge_pair(ids, best, len(tokens) - 1) for word, ids in table.items()}
    return learned


@pytest.mark.parametrize("min_count", [1, 2, 5])
def test_equals_the_textbook(min_count: int) -> None:
    words = Counter(split_words(STORY))
    expected = textbook(words, 400, min_count)
    assert len(expected) > 50
    assert trainer.learn_merges(words, 400, min_count=min_count) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab c", min_size=1, max_size=12), st.integers(1, 4)), max_size=8))
def test_equals_the_textbook_where_pairs_overlap(table: list[tuple[str, int]]) -> None:
    words = Counter(dict(table))
    ours = trainer.learn_merges(words, 30, min_count=1)
    theirs = textbook(words, 30, min_count=1)
    # Two merges can spell one token: the textbook gives it a second id, we keep the first. Same up to there.
    spelled = [left + right for left, right in theirs]
    same = next((i for i, token in enumerate(spelled) if token in spelled[:i]), len(spelled))
    assert ours[:same] == theirs[:same]


def test_equals_hugging_faces_trainer(text_file: Path, trained: BPETokenizer) -> None:
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    teacher = tokenizers.trainers.BpeTrainer(
        vocab_size=1999, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    theirs.train_from_iterator([text_file.read_text(encoding="utf-8")], teacher)
    merges = [tuple(merge) for merge in json.loads(theirs.to_str())["model"]["merges"]]
    assert visible_merges(trained.data) == merges
    vocab = theirs.get_vocab()
    assert {
        token: i for token, i in json.loads(trained.files()["vocab.json"]).items() if i != trained.eot_id
    } == vocab


def test_the_layout_of_the_vocabulary(trained: BPETokenizer) -> None:
    assert trained.vocab_size == 2000
    assert trained.eot_id == 1999
    assert [trained.token_bytes(i) for i in (0, 220)] == [b"!", b" "]
    assert trained.token_bytes(256) == b"".join(trained.token_bytes(i) for i in trained.data.merges[0])


def test_trained_twice_is_the_same(text_file: Path, trained: BPETokenizer) -> None:
    assert Tokenizer.train([text_file], 2000).hash == trained.hash


def test_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text(english()[:100_000], encoding="utf-8")
    monkeypatch.setattr(text_chunks, "CHUNK", 10_000)
    assert Tokenizer.train(path, 400, workers=2).hash == Tokenizer.train(path, 400).hash


def test_every_kind_of_file(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_text(STORY, encoding="utf-8", newline="")
    expected = Tokenizer.train(plain, 400).hash
    line = json.dumps({"text": STORY, "id": 1}) + "\n\n"
    (tmp_path / "a.jsonl").write_text(line, encoding="utf-8")
    with lzma.open(tmp_path / "a.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(line)
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8", newline="") as file:
        file.write(STORY)
    names = ["a.jsonl", "a.jsonl.xz", "a.txt.gz"]
    with contextlib.suppress(ImportError):
        import zstandard

        (tmp_path / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(line.encode()))
        names.append("a.jsonl.zst")
    with contextlib.suppress(ImportError):
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": [STORY]}), tmp_path / "a.parquet")
        names.append("a.parquet")
    for name in names:
        assert Tokenizer.train(tmp_path / name, 400).hash == expected, name


def test_chunks_do_not_split_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text(english()[:200_000], encoding="utf-8", newline="")
    full = Counter(split_words(english()[:200_000]))
    monkeypatch.setattr(text_chunks, "CHUNK", 997)
    chunks = list(text_chunks.read_chunks([path]))
    assert len(chunks) > 200
    assert "".join(chunks) == english()[:200_000]
    assert sum((Counter(split_words(chunk)) for chunk in chunks), Counter()) == full


def test_documents_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "cd"}\n', encoding="utf-8")
    assert list(text_chunks.read_batches([path])) == [["ab", "cd"]]


def test_memory_is_bounded_by_forgetting_the_rarest_words(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(" ".join(f"x{'y' * (i % 50)}{i}" for i in range(5000)) + " often" * 100, encoding="utf-8")
    counts = trainer.count_words([path], max_words=500, max_bytes=None, workers=1)
    assert len(counts) <= 500
    assert counts[" often"] == 100


def test_a_word_without_end_is_counted_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a" * 3_000_000, encoding="utf-8")
    tokenizer = Tokenizer.train(path, 270)
    assert b"a" * 1024 in [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]


def test_max_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 10_000, encoding="utf-8")
    monkeypatch.setattr(text_chunks, "CHUNK", 1000)
    assert 3000 <= sum(map(len, text_chunks.read_chunks([path], max_bytes=3000))) <= 4000


def test_little_text_gives_a_small_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abab abab", encoding="utf-8")
    tokenizer = Tokenizer.train(path, 5000)
    assert 257 < tokenizer.vocab_size < 270
    assert tokenizer.eot_id == tokenizer.vocab_size - 1


@pytest.mark.parametrize("size", [0, 256, -1, "many"])
def test_a_vocabulary_too_small(size: object, text_file: Path) -> None:
    with pytest.raises(SettingError, match="vocab_size"):
        Tokenizer.train(text_file, size)  # type: ignore[arg-type]


def test_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        Tokenizer.train(tmp_path / "missing.txt", 300)
    with pytest.raises(SettingError, match="is a folder"):
        Tokenizer.train(tmp_path, 300)
    with pytest.raises(SettingError, match="at least one"):
        Tokenizer.train([], 300)
    wrong = {
        "latin.txt": (b"caf\xe9 ", "not UTF-8"),
        "a.jsonl": (b'{"text": "x"}\n{"title": "y"}\n', r"line 2 has no \"text\""),
        "b.jsonl": (b'{"text": "x"}\n\n{"text":\n', "line 3 is not JSON"),
        "c.jsonl": (b'{"text": 3}\n', "line 1.*int"),
        "d.txt.xz": (b"plain", "damaged"),
        "e.jsonl.zst": (b"plain", "damaged|zstandard"),
        "f.parquet": (b"PAR1", "damaged|pyarrow"),
        "e.txt.gz": (gzip.compress(b"text " * 100)[:-20], "damaged"),
    }
    for name, (content, message) in wrong.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message) as caught:
            Tokenizer.train(tmp_path / name, 300)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(SettingError, match="no text"):
        Tokenizer.train(tmp_path / "empty.txt", 300)


def test_progress_is_reported(text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: dict[str, list[int]] = {}

    def progress(
        description: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]:
        return nullcontext(done.setdefault(f"{description} {total} {unit}".strip(), []).append)

    tokenizer = Tokenizer.train(text_file, 400, progress=progress)
    assert list(done) == ["counting words None bytes", "learning merges 143"]
    assert sum(done["counting words None bytes"]) == len(text_file.read_text("utf-8"))
    assert sum(done["learning merges 143"]) == 100  # in steps of 50
    assert Tokenizer.train(text_file, 400).hash == tokenizer.hash
    assert capsys.readouterr() == ("", "")
