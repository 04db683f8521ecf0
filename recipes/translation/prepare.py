"""The pairs of the translation recipes: held-out sentences, the vocabulary, the examples.

    python recipes/translation/prepare.py tatoeba SHARED/translation -o prepared/
    python recipes/translation/prepare.py benchmark SHARED/translation -o prepared/

`tatoeba` is what the shipped model learns from: Tatoeba alone, less 2,000 pairs to test with, less everything
near them. `benchmark` adds Multi30k, whose own test set is used. Both write ARRAYS.npz (the examples as token
ids, both directions), a folder with the vocabulary, and the held-out pairs as a .tsv.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import save_arrays

from glassgpt.tasks.definition import load_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tasks.translate import clean
from glassgpt.tasks.vocabulary import add_tokens
from glassgpt.tokenizer.trainer import train_on
from glassgpt.train.data.task_batches import TaskBatches

HELD_OUT = 2000
NEAR = 5  # words: a sentence of so many that differs in one word from a held-out one is not trained on
VOCABULARY, CONTEXT = 8000, 256
VALIDATION = 1000

Pair = tuple[str, str]


def read_pairs(folder: Path, sources: tuple[str, ...]) -> list[Pair]:
    text = lzma.decompress((folder / "en-fr.train.tsv.xz").read_bytes()).decode("utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    pairs = [(clean(row[0]), clean(row[1])) for row in rows if row[2] in sources]
    return list(dict.fromkeys(pairs))


def words(text: str) -> tuple[str, ...]:
    """A sentence without case, accents and punctuation: what two sentences are compared by."""
    plain = unicodedata.normalize("NFD", text.lower())
    return tuple(re.findall(r"[a-z0-9]+", "".join(c for c in plain if not unicodedata.combining(c))))


def near(sentence: tuple[str, ...]) -> set[tuple[str, ...]]:
    """What sentences share that are equal, or differ by one word: the sentence, and it without one word."""
    if len(sentence) < NEAR:
        return {sentence}
    return {sentence, *(sentence[:i] + sentence[i + 1 :] for i in range(len(sentence)))}


def hold_out(pairs: list[Pair], count: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Pairs to test with, and those to train on, none of them near a sentence of the former.

    Tatoeba has many translations of one sentence. A pair is held out only if neither of its sentences occurs
    in another pair, so that little is lost to training.
    """
    keys = [(words(en), words(fr)) for en, fr in pairs]
    seen = [Counter(key[side] for key in keys) for side in (0, 1)]
    alone = [i for i, (en, fr) in enumerate(keys) if seen[0][en] == seen[1][fr] == 1 and len(en) >= 3]
    chosen = set(random.Random(seed).sample(alone, count))
    marks = [set().union(*(near(keys[i][side]) for i in chosen)) for side in (0, 1)]
    rest = [
        pairs[i] for i in range(len(pairs))
        if i not in chosen and not any(near(keys[i][side]) & marks[side] for side in (0, 1))
    ]  # fmt: skip
    return [pairs[i] for i in sorted(chosen)], rest


def encode(pairs: list[Pair], tokenizer: object) -> TaskBatches:
    """Both directions of all pairs that fit."""
    task = load_task("en-fr")
    examples = []
    for to, swap in (("fr", False), ("en", True)):
        encoder = Encoder(task, tokenizer, CONTEXT, to)  # type: ignore[arg-type]
        for en, fr in pairs:
            examples.append(encoder.example(*((fr, en) if swap else (en, fr))))
    return TaskBatches.from_examples(examples)


def write(name: str, train: list[Pair], valid: list[Pair], test: list[Pair], out: Path) -> None:
    tokenizer = add_tokens(
        train_on((text for pair in train for text in pair), VOCABULARY - 2), load_task("en-fr").tokens
    )
    tokenizer.save(out / f"{name}-vocabulary")
    sets = {"train": encode(train, tokenizer), "valid": encode(valid, tokenizer)}
    save_arrays(out / f"{name}.npz", sets)
    lines = "".join(f"{en}\t{fr}\n" for en, fr in test)
    (out / f"{name}.test.tsv").write_text(lines, "utf-8")
    tokens = {key: len(value.flat) for key, value in sets.items()}
    print(
        f"{name}: {len(train):,} pairs, {len(test):,} to test, vocabulary {tokenizer.vocab_size:,}, "
        f"tokens {tokens}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("tatoeba", "benchmark"))
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "tatoeba":
        pairs = read_pairs(given.data, ("tatoeba",))
        held_out, train = hold_out(pairs, given.held_out + given.held_out // 2)
        random.Random(1).shuffle(held_out)
        near_them = len(pairs) - len(held_out) - len(train)
        print(f"{len(pairs):,} pairs, {len(held_out):,} held out, {near_them:,} near them")
        write("tatoeba", train, held_out[given.held_out :], held_out[: given.held_out], given.out)
        return
    train = read_pairs(given.data, ("tatoeba", "multi30k"))
    flickr = read_pairs(given.data, ("multi30k",))
    sets = []
    for part in ("val", "test_2016_flickr"):
        lines = (
            (given.data / f"multi30k.{part}.{side}").read_text("utf-8").splitlines() for side in ("en", "fr")
        )
        sets.append([(clean(en), clean(fr)) for en, fr in zip(*lines, strict=True)])
    held = {text for part in sets for pair in part for text in pair}
    train = [pair for pair in train + flickr if not held & set(pair)]  # Multi30k twice: it is what is tested
    write("benchmark", train, sets[0], sets[1], given.out)


if __name__ == "__main__":
    main()
