"""Measure a model: on held-out text, on text of another kind, and by the tasks that others publish.

    python recipes/default/evaluate.py texts --clean clean/ --shards shards/ --eval EVAL/ \\
        --reviews CORPUS/reviews-00.jsonl.xz -o texts/
    python recipes/default/evaluate.py measure default --texts texts/ --float half/default \\
        -o recipes/default/default.results.json

`texts` gathers what is measured on; EVAL holds LAMBADA and WikiText-2 as `glassgpt eval --data` wants them.
`measure` calls `glassgpt eval` and writes every figure with its rule; with --float also what int8 costs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from clean import QUOTES

from glassgpt.cli import main as glassgpt
from glassgpt.evaluate.suites.datasets import LAMBADA, find_file
from glassgpt.evaluate.suites.lambada import read_passages
from glassgpt.files.text import read_texts
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.shards import Shards

# As much as a laptop reads in minutes; the errors say whether it is enough.
BOOK = 150_000  # characters from the beginning of each held-out book
ARTICLES, REVIEWS, PASSAGES = 24, 150, 1000
HELD_OUT = ("held-out-books", "held-out-wiki")
TASKS = "lambada,lambada_openai,wikitext-2,wikitext"
# Two fifths of LAMBADA's passages have curly quotes, most of what these models learn from has straight ones.
STRAIGHT = "lambada-straight-quotes"

Figures = dict[str, dict[str, Any]]


def gather(clean: Path, shards: Path, published: Path, reviews: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    books = {text for file in sorted(clean.glob("books-*.jsonl*")) for text, _ in read_texts(file)}
    held_out = list(documents(shards))
    write_texts(out / "held-out-books.jsonl", (text[:BOOK] for text in held_out if text in books))
    articles = (text for text in held_out if text not in books)
    write_texts(out / "held-out-wiki.jsonl", islice(articles, ARTICLES))
    write_texts(out / "reviews.jsonl", (text for text, _ in islice(read_texts(reviews), REVIEWS)))
    for name in ("lambada_test.jsonl", "wikitext-2-raw.test", "wikitext-2.test.tokens"):
        for file in published.glob(f"{name}*"):
            shutil.copy(file, out)
    (out / STRAIGHT).mkdir(exist_ok=True)
    passages = read_passages(find_file(LAMBADA, published).decode())
    straight = (text.translate(QUOTES) for text in islice(passages, PASSAGES))
    write_texts(out / STRAIGHT / "lambada_test.jsonl", straight)


def documents(shards: Path) -> Iterator[str]:
    """The held-out documents, from their tokens: each begins with <|endoftext|>, which is no part of it."""
    tokens, tokenizer = Shards.open(shards, "val"), Tokenizer.load(shards)
    for start, stop in pairwise([*tokens.document_starts.tolist(), len(tokens)]):
        yield tokenizer.decode(tokens.read(start + 1, stop - start - 1).tolist())


def write_texts(file: Path, texts: Iterable[str]) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    file.write_text("".join(lines), "utf-8")
    print(f"{file}: {len(lines)} documents")


def measure(model: str, texts: Path, full: str | None, rest: list[str]) -> dict[str, Any]:
    """The figures of the model, and of the same in float where it is given."""
    found: Figures = {}
    for name in (*HELD_OUT, "reviews"):
        found |= figures(model, str(texts / f"{name}.jsonl"), "--suite", "bits-per-byte", *rest)
    found |= figures(model, "--suite", TASKS, "--data", str(texts), *rest)
    other = figures(model, "--suite", "lambada", "--data", str(texts / STRAIGHT), "--any-data", *rest)
    found |= {name.replace("lambada", STRAIGHT): figure for name, figure in other.items()}
    results: dict[str, Any] = {"packed": found}
    if full is not None:
        results["float"] = {}
        for name in HELD_OUT:
            results["float"] |= figures(full, str(texts / f"{name}.jsonl"), "--suite", "bits-per-byte", *rest)
        cost = loss(found) - loss(results["float"])
        results["int8"] = {
            "loss": loss(found),
            "float_loss": loss(results["float"]),
            "perplexity_cost_percent": 100 * math.expm1(cost),
        }
    return results


def figures(model: str, *words: str) -> Figures:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = glassgpt(["eval", model, *words, "--json"])
    if code != 0 and "--any-data" not in words:
        sys.exit(1)
    return json.loads(printed.getvalue())


def loss(found: Figures) -> float:
    """Nats per token of all held-out text."""
    parts = [found[f"{name}.token_perplexity"] for name in HELD_OUT]
    return sum(part["n"] * math.log(part["value"]) for part in parts) / sum(part["n"] for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    texts = steps.add_parser("texts")
    for name in ("--clean", "--shards", "--eval", "--reviews"):
        texts.add_argument(name, type=Path, required=True)
    texts.add_argument("-o", "--out", type=Path, required=True)
    measuring = steps.add_parser("measure", description="other flags go to glassgpt eval: --device, --limit")
    measuring.add_argument("model")
    measuring.add_argument("--texts", type=Path, required=True)
    measuring.add_argument("--float", dest="full", help="the same model before it was packed")
    measuring.add_argument("-o", "--out", type=Path, required=True)
    given, rest = parser.parse_known_args()
    if given.step == "texts":
        gather(given.clean, given.shards, given.eval, given.reviews, given.out)
    else:
        results = measure(given.model, given.texts, given.full, rest)
        given.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
