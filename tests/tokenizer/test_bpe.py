"""The readable BPE, its explanation, special tokens, and how it hands over to the fast engine."""

from __future__ import annotations

import pickle
import sys
import threading
import types
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.errors import SettingError, UserError
from glassgpt.tokenizer import BPETokenizer, Tokenizer
from glassgpt.tokenizer.bpe import FIRST_CHARACTERS, Pair, merge_pair, merge_with_heap
from glassgpt.tokenizer.pre_tokenizer import split_words
from glassgpt.tokenizer.trainer import vocabulary_from_merges

from .conftest import Peers, random_texts

LOW = vocabulary_from_merges([(b"l", b"o"), (b"lo", b"w"), (b"e", b"r"), (b" ", b"low"), (b" low", b"er")])


def test_explain_shows_every_merge() -> None:
    (word,) = BPETokenizer(LOW).explain(" lower")
    assert word.start == (b" ", b"l", b"o", b"w", b"e", b"r")
    assert [(merge.rank, merge.left, merge.right) for merge in word.merges] == [
        (0, b"l", b"o"),
        (1, b"lo", b"w"),
        (2, b"e", b"r"),
        (3, b" ", b"low"),
        (4, b" low", b"er"),
    ]
    assert word.merges[2].pieces == (b" ", b"low", b"er")
    assert word.merges[-1].pieces == (b" lower",)
    assert word.ids == (260,)


def test_explain_ends_in_the_ids_of_encode(trained: BPETokenizer) -> None:
    for text in random_texts(300, seed=5):
        words = trained.explain(text)
        assert [token_id for word in words for token_id in word.ids] == trained.encode(text)
        assert "".join(word.text for word in words) == text
        for word in words:
            for step in (word.start, *(merge.pieces for merge in word.merges)):
                assert b"".join(step).decode() == word.text


def _textbook(ids: list[int], joins: dict[Pair, tuple[int, int]]) -> list[int]:
    """Merge by merge over the whole list of ranks, in the order of learning: no search, no heap."""
    for pair, (_, made) in joins.items():
        ids = merge_pair(ids, pair, made)
    return ids


@settings(deadline=None)
@given(st.text(alphabet="ab", max_size=200), st.lists(st.tuples(st.integers(), st.integers()), max_size=12))
def test_heap_scan_and_textbook_agree(text: str, choices: list[tuple[int, int]]) -> None:
    """On two letters, where pairs overlap all the time (aaa), with random vocabularies."""
    tokens = [b"a", b"b"]
    pairs: list[tuple[bytes, bytes]] = []
    for left, right in choices:
        pair = (tokens[left % len(tokens)], tokens[right % len(tokens)])
        if pair[0] + pair[1] not in tokens:
            pairs.append(pair)
            tokens.append(pair[0] + pair[1])
    tokenizer = BPETokenizer(vocabulary_from_merges(pairs))
    joins = {
        pair: (rank, made)
        for rank, (pair, made) in enumerate(zip(tokenizer.data.merges, tokenizer.data.merged, strict=True))
    }
    byte_ids = tokenizer.data.byte_ids
    ids = [byte_ids[byte] for byte in text.encode()]
    expected = _textbook(ids, joins)
    assert merge_with_heap(ids, joins) == expected
    if text:
        (word,) = tokenizer.explain(text)
        assert list(word.ids) == expected


@settings(deadline=None, max_examples=300)
@given(text=st.text())
def test_round_trip(trained: BPETokenizer, text: str) -> None:
    assert (
        trained.decode(trained.encode(text)) == text.encode("utf-8", "replace").decode()
        or max(text) >= "\ud800"
    )


def test_end_of_text_is_ordinary_text_unless_allowed(trained_peers: Peers) -> None:
    text = "one<|endoftext|><|endoftext|> two"
    for tokenizer in (trained_peers.ours, trained_peers.readable):
        eot = tokenizer.eot_id
        assert eot == tokenizer.vocab_size - 1
        ordinary = tokenizer.encode(text)
        assert eot not in ordinary
        assert tokenizer.decode(ordinary) == text
        special = tokenizer.encode(text, allow_special=True)
        assert special == [*tokenizer.encode("one"), eot, eot, *tokenizer.encode(" two")]
        assert tokenizer.decode(special) == text
        assert tokenizer.encode_array(text, allow_special=True).tolist() == special
        assert tokenizer.encode_batch([text, "x"], allow_special=True) == [special, tokenizer.encode("x")]
    assert special == trained_peers.tiktoken.encode(text, allowed_special="all")


def test_encode_forms_agree(trained_peers: Peers) -> None:
    texts = random_texts(200, seed=6)
    for tokenizer in (trained_peers.ours, trained_peers.readable):
        batch = tokenizer.encode_batch(texts)
        assert batch == [tokenizer.encode(text) for text in texts]
        arrays = [tokenizer.encode_array(text) for text in texts]
        assert all(array.dtype == np.uint32 for array in arrays)
        assert [array.tolist() for array in arrays] == batch
        assert tokenizer.encode("") == []
        assert tokenizer.encode_array("").shape == (0,)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff b", "x\ud83d\ude42y", "\ude42\ud83d"])
def test_surrogates_as_tiktoken_does(trained_peers: Peers, text: str) -> None:
    expected = trained_peers.tiktoken.encode_ordinary(text)
    assert trained_peers.ours.encode(text) == trained_peers.readable.encode(text) == expected
    assert trained_peers.ours.encode_array(text).tolist() == expected


@pytest.mark.parametrize("value", [b"bytes", 3, None, ["a"]])
@pytest.mark.parametrize("method", ["encode", "encode_array", "explain", "encode_readable"])
def test_only_text_is_encoded(trained: BPETokenizer, method: str, value: object) -> None:
    with pytest.raises(UserError, match="must be a str"):
        getattr(trained, method)(value)


@pytest.mark.parametrize("bad", [-1, 2000, 10**9, 1.5, "a", None])
def test_ids_out_of_range_are_named(trained: BPETokenizer, bad: object) -> None:
    with pytest.raises(SettingError, match=repr(bad).replace(".", r"\.")):
        trained.decode([1, 2, bad])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="0 to 1999"):
        trained.token_bytes(bad)  # type: ignore[arg-type]


def test_ids_may_come_from_an_array(trained: BPETokenizer) -> None:
    ids = trained.encode("numbers of any kind: int64, int32")
    for dtype in (np.int64, np.int32, np.uint16):
        assert trained.decode(np.array(ids, dtype=dtype)) == "numbers of any kind: int64, int32"
    assert trained.token_bytes(np.array(ids)[0]) == trained.token_bytes(ids[0])
    assert trained.decode(iter(ids)) == trained.decode(ids)


def test_added_tokens_are_found_in_every_text() -> None:
    from dataclasses import replace

    data = replace(LOW, tokens=(*LOW.tokens, b"<mask>"), added={"<mask>": len(LOW.tokens)})
    for fast in (True, False):
        tokenizer = BPETokenizer(data, fast=fast)
        expected = [*tokenizer.encode("low"), len(LOW.tokens), *tokenizer.encode(" lower")]
        assert tokenizer.encode("low<mask> lower") == expected


# The engine behind it.


def test_the_engine_is_built_when_there_is_text_enough(trained: BPETokenizer) -> None:
    pytest.importorskip("fastokens", reason="no fast engine on this machine")
    tokenizer = BPETokenizer(trained.data)
    tokenizer.encode("a short prompt")
    assert tokenizer._engine is None
    text = "long text " * FIRST_CHARACTERS
    assert tokenizer.encode(text) == tokenizer.encode_readable(text)
    assert tokenizer._engine is not None


def test_without_the_engine_the_readable_way_serves(
    trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)  # import raises ImportError
    tokenizer = BPETokenizer(trained.data, fast=True)
    for text in random_texts(50, seed=7):
        assert tokenizer.encode(text) == trained.encode_readable(text)
        assert tokenizer.encode_array(text).tolist() == trained.encode_readable(text)
    assert tokenizer._engine is None


@pytest.mark.parametrize("behaviour", ["disagrees", "fails"])
def test_an_engine_that_is_wrong_is_not_used(
    trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    class Wrong:
        @staticmethod
        def from_json_str(json: str) -> Wrong:
            if behaviour == "fails":
                raise RuntimeError("cannot read this")
            return Wrong()

        def encode(self, text: str) -> types.SimpleNamespace:
            return types.SimpleNamespace(ids=[0, 1, 2])

    monkeypatch.setitem(sys.modules, "fastokens", types.SimpleNamespace(Tokenizer=Wrong))
    tokenizer = BPETokenizer(trained.data, fast=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tokenizer.encode("some text") == trained.encode_readable("some text")
    # Others come of what other tests left open, if it is collected here.
    ours = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert [behaviour in message for message in ours] == [True]


def test_the_cache_of_words_is_bounded(trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.tokenizer.bpe.CACHED_WORDS", 100)
    tokenizer = BPETokenizer(trained.data, fast=False)
    text = " ".join(f"word{'x' * i}" for i in range(1000))
    assert tokenizer.encode(text) == trained.encode_readable(text)
    assert len(tokenizer._cache) <= 100


def test_from_many_threads(trained_peers: Peers) -> None:
    texts = random_texts(300, seed=8)
    expected = trained_peers.ours.encode_batch(texts)
    results: list[list[list[int]]] = []
    for tokenizer in (
        BPETokenizer(trained_peers.ours.data, fast=True),
        BPETokenizer(trained_peers.ours.data),
    ):
        threads = [
            threading.Thread(target=lambda t=tokenizer: results.append(t.encode_batch(texts)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [expected] * 8


def test_it_travels_to_other_processes(trained: BPETokenizer) -> None:
    tokenizer = BPETokenizer(trained.data, fast=True)
    tokenizer.encode("build the engine")
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.hash == tokenizer.hash
    assert again.encode("the same ids") == tokenizer.encode("the same ids")


def test_hash_tells_vocabularies_apart(trained: BPETokenizer) -> None:
    assert len(trained.hash) == 64
    assert trained.hash == BPETokenizer(trained.data).hash
    other = vocabulary_from_merges([(b"o", b"l"), (b"l", b"o")])
    swapped = vocabulary_from_merges([(b"l", b"o"), (b"o", b"l")])
    assert len({trained.hash, BPETokenizer(other).hash, BPETokenizer(swapped).hash}) == 3


def test_words_are_the_borders_of_tokens(trained: BPETokenizer) -> None:
    text = "no token reaches from one word into the next"
    assert trained.encode(text) == [i for word in split_words(text) for i in trained.encode(word)]
    assert isinstance(trained, Tokenizer)


def test_a_special_token_added_above_the_vocabulary_is_no_part_of_texts(tmp_path):
    """Many GPT-2s on the hub got a padding token, while their embeddings stayed as they were."""
    from glassgpt.tokenizer.trainer import train

    (tmp_path / "text.txt").write_text("round and round the ragged rock the ragged rascal ran\n" * 20)
    tokenizer = train(tmp_path / "text.txt", 270)
    assert tokenizer.text_size <= tokenizer.vocab_size - 1
    assert max(tokenizer.encode("round and round, ragged \U0001f600 rock")) < tokenizer.text_size
