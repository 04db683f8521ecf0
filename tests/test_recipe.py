"""The recipe of the shipped models in miniature: from a few made-up texts to a packed model."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import glassgpt
from glassgpt.train.checkpoint.run_folder import LOG
from tests.evaluate import texts

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "default"
MODEL = {
    "shape": "2x32x2", "context": 64, "dropout": 0.0, "steps": 80, "batch_size": 8, "lr": 0.01,
    "optimizer": "muon", "warmup_steps": 5, "schedule": "wsd", "precision": "float32", "compile": False,
    "seed": 1, "eval_every": 40, "eval_batches": 1, "save_every": 40,
}  # fmt: skip
OPENING = """CHAPTER I

\u201cWell,\u201d said _he_ to the sailor, who had been waiting since early that morning,
and went.

"It's late."

"""
OPENED = '"Well," said he to the sailor, who had been waiting since early that morning, and went.'
LATE = {'"It\'s late."', "\u201cIt\u2019s late.\u201d"}
TWICE = "This paragraph is in two of the articles, word for word, and long enough to be no accident at all."


def make_text(draw: random.Random, sentences: int) -> str:
    who, did = ("the miller", "a sailor", "the old queen", "my aunt"), ("sold", "found", "lost", "painted")
    what, where = ("a boat", "the letter", "two horses"), ("by the river", "in the town", "at night")
    said = (" ".join(map(draw.choice, (who, did, what, where))).capitalize() + "." for _ in range(sentences))
    return " ".join(said)


def write(file: Path, documents: list[dict[str, str]]) -> None:
    with lzma.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(document) + "\n" for document in documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    books = [
        {
            "text": OPENING + make_text(draw, 90),
            "title": f"Tale {n}", "author": "A. Writer", "year": "1890", "source": "books",
        }
        for n in range(30)
    ]  # fmt: skip
    articles = [
        {
            "text": f"Thing {n}\n\n{make_text(draw, 20)}\nHistory.\nEarly years.\nSo formula_1 holds.\n"
            f"{make_text(draw, 20)}\n{TWICE if n < 2 else ''}\nReferences.\n",
            "title": f"Thing {n}", "source": "wiki",
        }
        for n in range(60)
    ]  # fmt: skip
    write(folder / "books-00.jsonl.xz", books)
    write(folder / "wiki-00.jsonl.xz", articles)
    write(folder / "reviews-00.jsonl.xz", [{"text": make_text(draw, 5), "source": "reviews"}])
    return folder


@pytest.mark.slow
def test_recipe_from_text_to_packed_model(corpus: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)
    }  # fmt: skip
    config = {"vocab_size": 400, "vocabulary_from": ["books-00", "wiki-00"], "models": {"mini": MODEL}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    published = texts.write_all(tmp_path)

    def step(*words: str | Path) -> str:
        command = [
            sys.executable,
            *(["-m", "glassgpt"] if words[0] in ("prepare", "convert") else []),
            *map(str, words),
        ]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    sources = sorted(corpus.glob("[bw]*.jsonl.xz"))
    step(RECIPE / "clean.py", *sources, "-o", "clean")
    with gzip.open(tmp_path / "clean" / "books-00.jsonl.gz", "rt") as lines:
        books = [json.loads(line)["text"].split("\n\n") for line in lines]
    assert books[0][:2] == ["CHAPTER I", OPENED]
    assert {paragraph for book in books for paragraph in book if "late" in paragraph} == LATE
    with gzip.open(tmp_path / "clean" / "wiki-00.jsonl.gz", "rt") as lines:
        articles = [json.loads(line)["text"] for line in lines]
    assert [TWICE in text for text in articles][:2] == [True, False]
    assert re.fullmatch(r"= Thing 9 =\n\n.+\n\n== History ==\n\n=== Early years ===\n\n.+", articles[9])

    make = [RECIPE / "make.py", "--config", "config.json"]
    step(*make, "tokenizer", "clean", "-o", "tokenizer")
    step(
        "prepare",
        "clean",
        "-o",
        "shards",
        "--tokenizer",
        "tokenizer",
        "--val-fraction",
        "0.1",
        "--workers",
        "1",
    )
    training = [*make, "train", "mini", "--data", "shards", "--out", "runs/mini", "--device", "cpu"]
    step(*training)
    step(*training)  # once more: it finds itself done
    losses = [
        json.loads(line)["loss"] for line in (tmp_path / "runs" / "mini" / LOG).read_text().splitlines()
    ]
    assert len(losses) == 80
    assert losses[-1] < 0.6 * losses[0]

    step("convert", "runs/mini", "half/mini.safetensors", "--dtype", "float16")
    step(RECIPE / "carry.py", "cut", "half/mini.safetensors", "-o", "pieces")
    (tmp_path / "text").mkdir()
    listed = {
        "first_books": "Tale 7 / A. Writer",
        "first_encyclopedia": "Thing 59",
        "frus": "volume: A letter",
    }
    for name, title in listed.items():
        (tmp_path / "text" / f"{name}.jsonl").write_text(json.dumps({"title": title, "text": "x"}) + "\n")
    step(RECIPE / "attribution.py", "text", "-o", "ATTRIBUTION.txt.gz")
    given = ["--name", "mini", "--shards", "shards", "--windows", "4", "--attribution", "ATTRIBUTION.txt.gz"]
    assert "packing costs" in step(RECIPE / "pack.py", "pieces", *given, "-o", "data")
    shipped = tmp_path / "data" / "mini"
    attribution = gzip.decompress((shipped / "ATTRIBUTION.txt.gz").read_bytes()).decode()
    assert "\nTale 7 / A. Writer\n" in attribution
    assert "\nThing 59\n" in attribution
    assert "https://github.com/HistoryAtState/frus@d3dff150. public domain" in attribution

    measured = ["--clean", "clean", "--shards", "shards", "--eval", published]
    step(
        RECIPE / "evaluate.py", "texts", *measured, "--reviews", corpus / "reviews-00.jsonl.xz", "-o", "texts"
    )
    kinds = {name: (tmp_path / "texts" / f"held-out-{name}.jsonl").read_text() for name in ("books", "wiki")}
    assert all("CHAPTER I" in line for line in kinds["books"].splitlines())
    assert "CHAPTER I" not in kinds["wiki"]
    measure = ["measure", shipped, "--texts", "texts", "--float", "runs/mini", "-o", "mini.results.json"]
    step(RECIPE / "evaluate.py", *measure, "--any-data", "--limit", "2")
    results = json.loads((tmp_path / "mini.results.json").read_text())
    assert abs(results["int8"]["perplexity_cost_percent"]) < 0.5
    assert results["packed"]["held-out-books.bits_per_byte"]["value"] < 1.5

    step(RECIPE / "curve.py", "runs/mini", "-o", ".")
    assert "mini: held out" in (tmp_path / "curve.svg").read_text()
    pair = ["--target", shipped, "--draft", shipped, "--prompts", "2"]
    step(RECIPE / "draft.py", "--texts", "texts", *pair, "-o", "draft.txt")
    shutil.copy(RECIPE / "tiny.card.md", tmp_path / "mini.card.md")
    step(RECIPE / "card.py", "mini", "--recipe", ".", "--data", "data")
    card = (shipped / "MODEL_CARD.md").read_text()
    assert card.count("\nseed ") == 10
    assert "{" not in card.split("## Ten samples")[0]
    assert card.count("100.0% of the proposals") == 2  # it agrees with itself
    assert glassgpt.load(shipped, device="cpu").generate("The miller", max_new_tokens=20, seed=1).text
