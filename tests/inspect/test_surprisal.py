"""Surprisal of tokens, words and other spans, against the trace and against an enumeration of all words."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.inspect.surprisal.distributions import sliding_windows
from glassgpt.tokenizer import Tokenizer

from .conftest import random_model

TEXT = (
    "The old house stood at the foot of the hill.\n\nDéjà vu, said  the dog\t(he was old): it's 12 o'clock."
)


class ToyTokenizer(Tokenizer):
    """Five tokens, of which two begin a word."""

    kind = "toy"
    eot_id = 4
    pieces = (b" a", b" b", b"a", b"b", b"")

    @property
    def vocab_size(self) -> int:
        return 5

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            piece = text[:2] if text[0] == " " else text[0]
            ids.append(self.pieces.index(piece.encode()))
            text = text[len(piece) :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def files(self) -> dict[str, str]:
        return {}

    def vocabulary(self) -> object:
        return [piece.decode() for piece in self.pieces]


@pytest.fixture(scope="module")
def toy() -> GPT:
    model = random_model(Config(vocab_size=5, n_positions=16, n_embd=16, n_layer=2, n_head=2), noise=0.5)
    assert isinstance(model.backend, TorchBackend)
    return GPT(model.backend, ToyTokenizer(), "toy")


def word_bits(gpt: GPT, before: str, word: str) -> float:
    """Of the last word of a text."""
    return float(gpt.score(f"{before} {word}" if before else word)[0].words[-1].bits)


@pytest.mark.parametrize("before", ["", "a", "ab ba", "b aab"])
def test_the_probabilities_of_all_words_sum_to_one(toy: GPT, before: str) -> None:
    """Words of up to N letters, all longer ones (which begin with N letters and go on), and the end."""
    longest = 4
    total = 0.0
    for length in range(1, longest + 1):
        for letters in itertools.product("ab", repeat=length):
            word = "".join(letters)
            probability = 2 ** -word_bits(toy, before, word)
            total += probability
            if length == longest:  # and all longer words that begin with these letters
                total += begins_so(toy, before, word) - probability
    ids = [4, *toy.encode(before)]
    p = np.exp(log_softmax(toy.logits([ids])[0, -1]))
    if before:
        total += p[4] / (p[0] + p[1] + p[4])  # no word at all: the text ends
    assert total == pytest.approx(1, abs=1e-5)


def begins_so(gpt: GPT, before: str, word: str) -> float:
    """The probability that a word begins with these letters."""
    text = f"{before} {word}" if before else word
    ids, first = [4, *gpt.encode(text)], 1 + len(gpt.encode(before))
    logits = gpt.logits([ids])[0]
    log_p = [log_softmax(row) for row in logits]
    tokens = sum(log_p[i - 1][ids[i]] for i in range(first, len(ids)))
    p = np.exp(log_p[first - 1])
    return float(np.exp(tokens) / (p[[0, 1, 4]].sum() if before else p[[2, 3]].sum()))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return np.asarray(wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max())


def test_tokens_are_those_of_the_trace(shipped: GPT) -> None:
    assert shipped.tokenizer is not None
    eot = shipped.tokenizer.eot_id
    assert eot is not None
    scored = shipped.score(TEXT)[0]
    loss = shipped.trace([eot, *scored.ids]).token_loss
    np.testing.assert_allclose([span.bits * math.log(2) for span in scored.tokens], loss.nats[1:], atol=2e-5)
    np.testing.assert_allclose(
        [span.entropy * math.log(2) for span in scored.tokens], loss.entropy[1:], atol=2e-4
    )
    assert [span.rank for span in scored.tokens] == loss.rank[1:].astype(int).tolist()
    assert scored.bits == pytest.approx(sum(span.bits for span in scored.tokens))
    assert "".join(span.text for span in scored.tokens if span.start < span.end)
    bare = shipped.score(TEXT, bos=False)[0]
    assert math.isnan(bare.tokens[0].bits)
    assert bare.tokens[0].rank == 0
    plain = shipped.trace(scored.ids).token_loss
    np.testing.assert_allclose(
        [span.bits * math.log(2) for span in bare.tokens[1:]], plain.nats[1:], atol=2e-5
    )


def test_spans_are_characters_of_the_text(shipped: GPT) -> None:
    scored = shipped.score(TEXT)[0]
    assert [span.text for span in scored.words] == TEXT.split()
    for span in [*scored.words, *scored.tokens]:
        assert TEXT[span.start : span.end] == span.text
    assert sum(span.tokens for span in scored.words) == len(scored.ids)
    assert sum(span.token_bits for span in scored.words) == pytest.approx(scored.bits)


def test_corrections_of_neighbors_cancel(shipped: GPT) -> None:
    """A text is as surprising word by word as in one piece: what ends a word begins the next."""
    scored = shipped.score("The old house stood at the foot of the hill")[0]
    whole = scored.over([(0, len(scored.text))])[0]
    assert sum(span.bits for span in scored.words) == pytest.approx(whole.bits)
    halves = scored.over([(0, 9), (10, len(scored.text))])
    assert sum(span.bits for span in halves) == pytest.approx(whole.bits)
    parts = scored.over([(0, 2), (2, 3), (4, 7)])  # within a word only its tokens count
    assert parts[1].tokens == 0
    assert parts[2].bits == pytest.approx(scored.words[1].bits)


def test_a_window_slides_over_a_long_text(toy: GPT) -> None:
    text = " ".join(["ab", "a", "bba", "b"] * 6)
    ids = [4, *toy.encode(text)]
    scored = toy.score(text, context=8, stride=3)[0]
    for place, span in enumerate(scored.tokens, start=1):
        end = 8 if place <= 8 else 8 + 3 * -(-(place - 8) // 3)  # of the window that predicts it
        begin = max(0, min(end, len(ids)) - 8)
        logits = toy.logits([ids[begin:place]])[0, -1]
        assert span.bits == pytest.approx(-log_softmax(logits)[ids[place]] / math.log(2), abs=1e-5)


def test_windows_cover_every_position_once() -> None:
    for n, length, stride in itertools.product((1, 7, 8, 9, 30), (4, 8), (1, 3, 4)):
        seen: list[int] = []
        for window in sliding_windows(0, list(range(n)), length, stride):
            assert window.ids == list(range(window.begin, window.begin + len(window.ids)))
            assert len(window.ids) <= length
            seen += window.ids[window.first :]
            assert window.first >= length - stride or window.begin == 0
        assert seen == list(range(n))


def test_texts_together_are_those_alone(toy: GPT) -> None:
    texts = ["ab a", "b", "bba aab b"]
    for together, text in zip(toy.score(texts), texts, strict=True):
        alone = toy.score(text)[0]
        for one, other in zip(together.words, alone.words, strict=True):
            assert one.bits == pytest.approx(other.bits, abs=1e-5)
    rows = toy.score(texts).to_pandas("token")
    assert list(rows["text_number"]) == [0] * 3 + [1] + [2] * 7
    assert rows["bits"].sum() == pytest.approx(sum(text.bits for text in toy.score(texts)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["ab", ""]}, "text 1 is empty"),
        ({"texts": "ab", "context": 99}, "context"),
        ({"texts": "ab", "stride": 17}, "stride"),
    ],
)
def test_wrong_arguments_are_refused(toy: GPT, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        toy.score(**arguments)


def test_spans_out_of_order_are_refused(toy: GPT) -> None:
    with pytest.raises(SettingError, match=r"the span \(1, 3\) is not in order"):
        toy.score("ab a")[0].over([(0, 2), (1, 3)])


def test_the_command_writes_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = tmp_path / "story.txt"
    story.write_text("The old house stood.\nIt was\tlate.\n", "utf-8")
    assert main(["score", str(story), "--model", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[:6] == ["text", "number", "span", "start", "end", "bits"]
    assert [line.split("\t")[2] for line in lines[1:]] == [
        "The",
        "old",
        "house",
        "stood.",
        "It",
        "was",
        "late.",
    ]
    assert (
        main(["score", str(story), "--model", "tiny", "--lines", "--by", "sentence", "--format", "jsonl"])
        == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["text"], row["span"]) for row in rows] == [(0, "The old house stood."), (1, "It was\tlate.")]
    records = tmp_path / "records.jsonl"
    records.write_text('{"words": ["The", "dog", "did", "n\'t"]}\n{"text": "It was late."}\n', "utf-8")
    assert main(["score", str(records), "--model", "tiny", "--no-bos"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[2] for line in lines[1:]] == ["The", "dog", "did", "n't", "It", "was", "late."]
    assert lines[1].split("\t")[5] == "NA"
    assert main(["score", str(story), "--model", "tiny", "--by", "token"]) == 0
    assert "\\t" in capsys.readouterr().out  # a tab in a token does not break the table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no records"),
        ("{}\n", "line 1: neither a text"),
        ('{"words": ["a", 3]}\n', "line 1: neither"),
    ],
)
def test_wrong_records_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(content, "utf-8")
    assert main(["score", str(path), "--model", "tiny"]) != 0
    assert message in capsys.readouterr().err
