"""A vocabulary trained in the test, and the two engines of others to hold ours against."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from glassgpt.tokenizer import BPETokenizer, Tokenizer

# tiktoken's own way of writing GPT-2's pattern.
TIKTOKEN_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

# Ours, so that the vocabulary has merges outside ASCII too.
MANY_SCRIPTS = """
Der Fuchs läuft über die große Straße, während die Mädchen schöne Äpfel für übermorgen pflücken.
La forêt était très sombre, et l'élève rêvait déjà d'un été près de la mer à l'île d'Oléron.
Лиса бежит через дорогу, а девочка несёт домой свежий хлеб и молоко из деревенской лавки.
狐が道を渡り、少女は新しいパンと牛乳を家に持って帰ります。今日は天気がいいですね。
여우가 길을 건너고 소녀는 새 빵과 우유를 집으로 가져갑니다. 오늘은 날씨가 좋습니다.
الثعلب يعبر الطريق والفتاة تحمل الخبز والحليب إلى البيت في يوم جميل من أيام الربيع.
लोमड़ी सड़क पार करती है और लड़की घर पर ताज़ी रोटी और दूध लाती है।
🙂🙂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ½ ²³ Ⅷ ١٢٣ ∑∫√ «quoted» “curly” … — –
"""


def english() -> str:
    """Some 600 kB of English prose and code that every Python brings along: its language reference."""
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


@dataclass
class Peers:
    """The same vocabulary in ours (readable and fast), in tiktoken and in Hugging Face's tokenizers."""

    ours: BPETokenizer
    readable: BPETokenizer
    tiktoken: tiktoken.Encoding
    hugging_face: tokenizers.Tokenizer

    def encoders(self) -> dict[str, Callable[[str], list[int]]]:
        return {
            "tiktoken": self.tiktoken.encode_ordinary,
            "tokenizers": lambda text: self.hugging_face.encode(text, add_special_tokens=False).ids,
        }


def make_peers(folder: Path, vocab_name: str, merges_name: str) -> Peers:
    """Both peers read the files by their own code, not by ours."""
    vocab, merges = str(folder / vocab_name), str(folder / merges_name)
    loaded = Tokenizer.load(vocab)
    assert isinstance(loaded, BPETokenizer)
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=merges, encoder_json_file=vocab)
    encoding = tiktoken.Encoding(
        "test", pat_str=TIKTOKEN_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)}
    )
    face = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    face.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Peers(BPETokenizer(loaded.data, fast=True), BPETokenizer(loaded.data, fast=False), encoding, face)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(english() + MANY_SCRIPTS * 20, encoding="utf-8", newline="")
    return path


@pytest.fixture(scope="session")
def trained(text_file: Path) -> BPETokenizer:
    tokenizer = Tokenizer.train(text_file, 2000)
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


@pytest.fixture(scope="session")
def trained_folder(trained: BPETokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    trained.save(folder)
    return folder


@pytest.fixture(scope="session")
def trained_peers(trained_folder: Path) -> Peers:
    return make_peers(trained_folder, "vocab.json", "merges.txt")


@pytest.fixture(scope="session")
def gpt2_peers(shared: Path) -> Peers:
    return make_peers(shared / "gpt2-bpe", "encoder.json", "vocab.bpe")


PIECES: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: "".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(1, 9))),
    lambda rng: rng.choice(
        ["The", "robot", "must", "obey", "orders", "naïve", "Straße", "привет", "日本", "한국어"]
    ),
    lambda rng: rng.choice(["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "’s", "''", "'"]),
    lambda rng: "".join(
        rng.choices(
            " \t\n\r\v\f\u00a0\u2003\u3000\u1680\u0085\u2028\x1c\x1f\u180e\u200b", k=rng.randint(1, 5)
        )
    ),
    lambda rng: " " * rng.randint(1, 6),
    lambda rng: "".join(rng.choices("0123456789٣४½²Ⅷ〇", k=rng.randint(1, 6))),
    lambda rng: "".join(rng.choices('!?.,;:-_()[]{}#$%&*+/<=>@\\^`|~"', k=rng.randint(1, 4))),
    lambda rng: rng.choice(
        ["🙂", "👍🏽", "👩‍👩‍👧", "🇩🇪", "🏳️‍🌈", "e\u0301", "\ufeff", "\u202e", "\x00", "\x7f", "\ufffd"]
    ),
    lambda rng: rng.choice(["<|endoftext|>", "<|endoftext", "|>"]),
    lambda rng: _any_character(rng, 0x80, 0x3000),
    lambda rng: _any_character(rng, 0x3000, 0x10000),
    lambda rng: _any_character(rng, 0x10000, 0x20000),
    lambda rng: _any_character(rng, 0x20000, 0x110000),
)


def _any_character(rng: random.Random, start: int, stop: int) -> str:
    """Any code points at all, also those that no standard has assigned; no surrogates, which are no text."""
    codes = (rng.randrange(start, stop) for _ in range(rng.randint(1, 3)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def random_texts(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join([rng.choice(PIECES)(rng) for _ in range(rng.randint(0, 10))]) for _ in range(n)]
