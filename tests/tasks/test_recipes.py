"""The recipes of tasks in miniature: from made-up data to scores, every script of them."""

from __future__ import annotations

import json
import lzma
import runpy
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import glassgpt
from glassgpt.weights import save_checkpoint
from tests.tasks.conftest import ANIMALS, COLOURS, make_model

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
Script = Callable[..., None]
VERBS = {"sees": "voit", "eats": "mange", "likes": "aime", "hears": "entend", "finds": "trouve"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Script:
    """`run("translation/train.py", ...)` in this process: importing torch again takes longer."""

    def call(name: str, *args: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        monkeypatch.setattr(sys, "path", [str((RECIPES / name).parent), *sys.path])
        runpy.run_path(str(RECIPES / name), run_name="__main__")

    return call


@pytest.fixture
def base(tmp_path: Path) -> Path:
    model = make_model("tldr", n_positions=1024)
    model.task = None
    save_checkpoint(model, tmp_path / "base")
    return tmp_path / "base"


def compress(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode()))


def make_pairs(source: str, article: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Sentences of six words or more, so that some of them differ in one word only."""
    found = []
    for colour, animal, verb, other in product(COLOURS, ANIMALS, VERBS, ANIMALS):
        en = f"{article[0]} {colour} {animal} {verb} the {other} today."
        fr = (
            f"{article[1]} {ANIMALS[animal]} {COLOURS[colour]} {VERBS[verb]} le {ANIMALS[other]} aujourd'hui."
        )
        found.append((en, fr, source))
    return found


@pytest.mark.slow
def test_translation(run: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "prepared"
    pairs = make_pairs("tatoeba", ("The", "Le"))[:200] + make_pairs("multi30k", ("A", "Un"))[:100]
    compress(data / "en-fr.train.tsv.xz", ["\t".join(row) for row in pairs])
    for part, some in (("val", pairs[:3]), ("test_2016_flickr", pairs[3:8])):
        for side in (0, 1):
            file = data / f"multi30k.{part}.{('en', 'fr')[side]}"
            file.write_text("".join(row[side] + "\n" for row in some), "utf-8")
    run("translation/prepare.py", "tatoeba", data, "-o", out, "--held-out", 2)
    run("translation/prepare.py", "benchmark", data, "-o", out)
    held_out = [line.split("\t")[0] for line in (out / "tatoeba.test.tsv").read_text("utf-8").splitlines()]
    assert len(held_out) == 2
    few = ("--minutes", 5, "--max-steps", 8, "--tokens", 512, "--device", "cpu")
    run("translation/train.py", out, "tatoeba", "--shape", "1x32x2", "--out", tmp_path / "en-fr", *few)
    run(
        "translation/train.py",
        out,
        "benchmark",
        "--to",
        "fr",
        "--shape",
        "1x32x2",
        "--out",
        tmp_path / "b",
        *few,
    )
    run(
        "translation/encoder_decoder.py",
        out,
        "benchmark",
        "--shape",
        "1x32x2",
        "--out",
        tmp_path / "ed",
        *few,
    )
    for beams in ((), ("--beams", 2)):
        run("translation/translate.py", tmp_path / "en-fr/model", out / "tatoeba.test.tsv", "--out",
            tmp_path / "en-fr", "--device", "cpu", *beams)  # fmt: skip
    run("translation/score.py", tmp_path / "en-fr", out / "tatoeba.test.tsv")
    run("translation/score.py", tmp_path / "ed", out / "benchmark.test.tsv")
    scores = json.loads((tmp_path / "en-fr/scores.json").read_text())
    assert sorted(scores) == ["to-en.beam2", "to-en.greedy", "to-fr.beam2", "to-fr.greedy"]
    assert "tok:13a" in scores["to-fr.greedy"]["bleu_signature"]
    losses = [json.loads(line)["val_loss"] for line in (tmp_path / "ed/log.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
    (tmp_path / "card.md").write_text("# A card\n")
    packed = tmp_path / "packed"
    run("translation/pack.py", tmp_path / "en-fr/model", "-o", packed, "--card", tmp_path / "card.md")
    assert {file.name for file in packed.iterdir()} >= {"MODEL_CARD.md", "tokenizer.json", "task.toml"}
    gpt = glassgpt.load(packed)
    assert gpt.task is not None
    assert isinstance(gpt.translate(held_out[0], to="fr", max_new_tokens=3), str)
    capsys.readouterr()
    unseen = ("--sentences", RECIPES / "translation" / "everyday-unseen.tsv")
    for more in ((), unseen):
        run("translation/everyday.py", packed, "--beams", 1, *more)
        assert capsys.readouterr().out.count("\n| ") == 1 + 40
    curve, log = tmp_path / "curve.svg", tmp_path / "two.jsonl"
    log.write_text((tmp_path / "ed/log.jsonl").read_text() + (tmp_path / "b/log.jsonl").read_text())
    run("task_curves.py", curve, "loss & time", f"a,b={log}", f"c={tmp_path / 'en-fr/log.jsonl'}")
    assert curve.read_text("utf-8").count('class="curve"') == 3


def test_nothing_near_a_held_out_sentence_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    from translation.prepare import hold_out, near, words

    assert near(words("The red cat sees the dog.")) & near(words("The red cat sees a dog!"))
    assert near(words("The red cat sees the dog.")) & near(words("The cat sees the dog."))
    assert not near(words("The red cat sees the dog.")) & near(words("A red cat hears the dog."))
    pairs = [(en, fr) for en, fr, _ in make_pairs("tatoeba", ("The", "Le"))]
    held_out, rest = hold_out(pairs, 2)
    assert len(held_out) == 2
    assert 0 < len(rest) < len(pairs) - 2
    for en, fr in held_out:
        assert not any(near(words(en)) & near(words(a)) or near(words(fr)) & near(words(b)) for a, b in rest)


@pytest.mark.slow
def test_summarisation_and_sample_efficiency(run: Script, base: Path, tmp_path: Path) -> None:
    data, out, device = tmp_path / "data", tmp_path / "prepared", ("--device", "cpu")
    for name in ("aeslc", "wiki-lead", "scitldr"):
        records = []
        for i, (en, fr, _) in enumerate(make_pairs("x", ("The", "Le"))[:60]):
            split = "test" if i % 20 == 0 else "valid" if i % 20 == 1 else "train"
            records.append(json.dumps({"document": f"{en} {fr}\n\n{en}", "summary": en, "split": split}))
        compress(data / f"{name}.jsonl.xz", records)
    run("summarisation/prepare.py", data, "-o", out, "--model", base)
    short = ("--model", base, "--epochs", 0.3, "--tokens", 512, *device)
    run("summarisation/train.py", out, "aeslc", "--out", tmp_path / "subject", *short)
    run(
        "summarisation/train.py", out, "wiki", "--lora", "--out", tmp_path / "wiki", "--beam-limit", 1, *short
    )
    run("summarisation/train.py", out, "wiki", "--zero-shot", "--out", tmp_path / "wiki", *short)
    run("summarisation/score.py", tmp_path / "wiki", "wiki", out / "wiki.test.jsonl")
    scores = json.loads((tmp_path / "wiki/wiki.scores.json").read_text())
    assert list(scores) == [
        "beam4 (1)", "greedy (3)", "zero-shot (3)", "lead-3", "lead-1", "random-3", "best sentence"
    ]  # fmt: skip
    assert scores["best sentence"]["rougeL"] == 100  # the summary is one of the text's sentences
    test = out / "wiki.test.jsonl"
    run("summarisation/summarize.py", tmp_path / "wiki/adapter", test, "--out", tmp_path / "w", "--limit", 2)
    assert (tmp_path / "w/wiki.greedy.txt").read_text().count("\n") == 2
    gpt = glassgpt.load(tmp_path / "wiki/adapter")
    assert gpt.task is not None
    assert gpt.task.name == "summarize"
    few = ("--model", base, "--seeds", 1, "--fractions", 0.1, "--epochs", 1, *device)
    run("sample_efficiency/run.py", out, "summarisation", "--out", tmp_path / "e", "--texts", 2, *few)
    results = [json.loads(line) for line in (tmp_path / "e/summarisation.jsonl").read_text().splitlines()]
    assert [row["scratch"] for row in results] == [False, True]
    run("sample_efficiency/picture.py", tmp_path / "e", out / "aeslc.test.jsonl", "-o", tmp_path / "e")
    drawn = json.loads((tmp_path / "e/results.json").read_text())["summarisation"]
    assert list(drawn) == ["pre-trained, then tuned", "from scratch"]
    assert "from scratch" in (tmp_path / "e/summarisation.svg").read_text("utf-8")


@pytest.mark.slow
def test_classification_and_sample_efficiency(run: Script, base: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    data, out, device = tmp_path / "data", tmp_path / "prepared", ("--device", "cpu")
    for name, count in (("train", 120), ("dev", 20), ("test-labeled", 20)):
        rows = [f"a {('dull', 'fine')[i % 2]} film , number {i}\t{i % 2}" for i in range(count)]
        compress(data / f"sst2.{name}.tsv.xz", ["sentence\tlabel", *rows])
    run("classification/prepare.py", data, "-o", out, "--model", base)
    run("classification/bag_of_words.py", data)
    run("classification/train.py", out, "--model", base, "--lr", 1e-2, "--epochs", 4, "--batch-size", 16,
        "--save", "--out", tmp_path / "sst2", *device)  # fmt: skip
    result = json.loads((tmp_path / "sst2/results.jsonl").read_text())
    assert result["valid"] > 0.9
    found = glassgpt.load(tmp_path / "sst2/model").classify(
        ["a dull film, number 3", "a fine film, number 4"]
    )
    assert [one.label for one in found] == ["negative", "positive"]
    for _ in range(2):  # the second time there is nothing left to do
        run("sample_efficiency/run.py", out, "classification", "--out", tmp_path / "e", "--model", base,
            "--seeds", 1, "--fractions", 0.1, "--epochs", 1, *device)  # fmt: skip
    assert (tmp_path / "e/classification.jsonl").read_text().count("\n") == 2
