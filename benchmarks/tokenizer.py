"""How fast text becomes ids: ours, the readable way, tiktoken, Hugging Face's tokenizers, one thread each.

    python benchmarks/tokenizer.py [--megabytes 20] [--rounds 5] [--data ../shared]

All encode the same text with the same vocabulary: GPT-2's and the corpus where `--data` has them, else text
and a vocabulary made here. The contestants take turns, and every round brings new text: engines that remember
words start with empty caches and never see a text twice. Speed is that over all rounds, in seconds of CPU,
which other programs on the machine disturb least. All ids are compared. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # before the engines are imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
import tokenizers
from rich.console import Console
from rich.table import Table
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from glassgpt.tokenizer import BPETokenizer, Tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"
TIKTOKEN_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
MILLION = 1_000_000
SLOW_SHARE = 10  # Hugging Face's gets one tenth of each text, or the rest would wait for it

WORST = {
    "1 million a": "a" * MILLION,
    "1 million ^": "^" * MILLION,
    "1 million spaces": " " * MILLION,
    "1 million emoji": "🙂" * MILLION,
    "1 million random bytes": random.Random(0).randbytes(MILLION).decode("utf-8", "replace"),
    "1 million random letters": "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=MILLION)),
}


def corpus(data: Path, size: int) -> list[str]:
    """Documents of the corpus, half books, half encyclopedia, `size` bytes together."""
    documents: list[str] = []
    for name in ("books-01", "wiki-01"):
        left = size // 2
        with lzma.open(data / "data" / "corpus" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                documents.append(text.encode()[:left].decode("utf-8", "ignore"))
                left -= len(text.encode())
                if left <= 0:
                    break
    return documents


def generated(size: int) -> list[str]:
    """Documents of made-up words, which return as often as words do (Zipf's law), with marks and numbers."""
    rng = random.Random(0)
    syllables = [a + b + c for a in "bdfgklmnprstvw" for b in "aeiou" for c in ("", "n", "r", "s", "th")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(60_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    documents, done = [], 0
    while done < size:
        parts = rng.choices(words, weights, k=3000)
        for i in range(0, len(parts), 9):
            parts[i] = parts[i].capitalize()
            parts[i - 1] += rng.choice([".", ",", "?", "'s", f" {rng.randint(1, 3000)},", ".\n\n"])
        documents.append(" ".join(parts))
        done += len(documents[-1])
    return documents


def vocabulary_files(data: Path, documents: list[str], folder: Path) -> tuple[Path, Path, str]:
    """vocab and merges: GPT-2's if they are there, else learned from the text."""
    published = data / "gpt2-bpe"
    if published.is_dir():
        return published / "encoder.json", published / "vocab.bpe", "GPT-2's vocabulary"
    (folder / "text.txt").write_text("\n".join(documents[:500]), encoding="utf-8")
    Tokenizer.train(folder / "text.txt", 4096).save(folder)
    return folder / "vocab.json", folder / "merges.txt", "4,096 tokens learned from the text"


def split(documents: list[str], n: int) -> Iterator[list[str]]:
    """The documents in n groups of about the same size, long ones cut."""
    pieces = [text[i : i + 50_000] for text in documents for i in range(0, len(text), 50_000)]
    random.Random(0).shuffle(pieces)
    for i in range(n):
        yield pieces[i * len(pieces) // n : (i + 1) * len(pieces) // n]


def ready(tokenizer: BPETokenizer) -> BPETokenizer:
    """A tokenizer with its engine built and nothing remembered."""
    fresh = BPETokenizer(tokenizer.data, fast=True)
    fresh.encode("")
    return fresh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=SHARED)
    options = parser.parse_args()
    size = int(options.megabytes * 1e6)
    real = (options.data / "data" / "corpus" / "books-01.jsonl.xz").is_file()
    documents = corpus(options.data, size) if real else generated(size)
    with tempfile.TemporaryDirectory() as folder:
        vocab, merges, vocabulary = vocabulary_files(options.data, documents, Path(folder))
        loaded = Tokenizer.load(vocab)
        assert isinstance(loaded, BPETokenizer)
        ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(merges), encoder_json_file=str(vocab))
        face = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    face.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tik = tiktoken.Encoding("gpt2", pat_str=TIKTOKEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    start = time.process_time()
    ours = ready(loaded)
    build_seconds = time.process_time() - start
    ours_array, ours_batch = ready(loaded), ready(loaded)  # each with a memory of its own
    readable = BPETokenizer(loaded.data, fast=False)

    Encode = Callable[[str, list[str]], object]
    contestants: dict[str, Encode] = {
        "ours, encode": lambda text, _: ours.encode(text),
        "tiktoken, encode_ordinary": lambda text, _: tik.encode_ordinary(text),
        "ours, encode_array": lambda text, _: ours_array.encode_array(text),
        "tiktoken, encode_to_numpy": lambda text, _: tik.encode_to_numpy(text, disallowed_special=()),
        "ours, encode_batch": lambda _, texts: ours_batch.encode_batch(texts),
        "tiktoken, encode_ordinary_batch": lambda _, texts: tik.encode_ordinary_batch(texts, num_threads=1),
        "tokenizers, encode": lambda text, _: face.encode(text, add_special_tokens=False).ids,
        "readable": lambda text, _: readable.encode(text),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    sizes: dict[str, list[float]] = {name: [] for name in contestants}
    for texts in split(documents, options.rounds):
        full = "\n\n".join(texts)
        part = full[: len(full) // SLOW_SHARE]
        for name, encode in contestants.items():
            text = part if name.startswith("tokenizers") else full
            start = time.process_time()
            result = encode(text, texts)
            times[name].append(time.process_time() - start)
            sizes[name].append(sum(len(t.encode()) for t in (texts if "batch" in name else [text])) / 1e6)
            del result
        expected = tik.encode_ordinary(full)
        assert ours.encode(full) == readable.encode(full) == expected
        assert ours_array.encode_array(full).tolist() == expected
        assert ours.encode(part) == face.encode(part, add_special_tokens=False).ids

    worst: dict[str, float] = {}
    for name, case in WORST.items():
        fresh = ready(loaded)
        start = time.process_time()
        fresh.encode(case)
        worst[name] = time.process_time() - start

    speeds = {name: sum(sizes[name]) / sum(times[name]) for name in contestants}
    first = {name: sizes[name][0] / times[name][0] for name in contestants}
    last = {name: sizes[name][-1] / times[name][-1] for name in contestants}
    source = "books and encyclopedia" if real else "made-up words"
    megabytes = sum(sizes["ours, encode"])
    table = Table(title=f"{megabytes:.1f} MB of {source}, {vocabulary}, one thread")
    for column in ("", "MB/s", "first round", "last round", "x best tiktoken"):
        table.add_column(column, justify="left" if column == "" else "right")
    best_tiktoken = max(speed for name, speed in speeds.items() if name.startswith("tiktoken"))
    ratios = {name: speed / best_tiktoken for name, speed in speeds.items()}
    for name, speed in speeds.items():
        table.add_row(name, f"{speed:.1f}", f"{first[name]:.1f}", f"{last[name]:.1f}", f"{ratios[name]:.1f}")
    console = Console(stderr=True)
    console.print(table)
    cases = Table(title="the worst texts, through ours, encode")
    cases.add_column("")
    cases.add_column("seconds", justify="right")
    for name, seconds in worst.items():
        cases.add_row(name, f"{seconds:.2f}")
    console.print(cases)
    print(
        json.dumps(
            {
                "benchmark": "tokenizer",
                "megabytes": round(megabytes, 1),
                "text": source,
                "vocabulary": vocabulary,
                "rounds": options.rounds,
                "mb_per_s": {name: round(speed, 1) for name, speed in speeds.items()},
                "first_round_mb_per_s": {name: round(speed, 1) for name, speed in first.items()},
                "times_best_tiktoken": {name: round(ratio, 2) for name, ratio in ratios.items()},
                "worst_seconds": {name: round(seconds, 3) for name, seconds in worst.items()},
                "engine_build_seconds": round(build_seconds, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
