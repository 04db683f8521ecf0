"""`glassgpt eval`: what it prints and writes, and what it says to bad input."""

from __future__ import annotations

import json
import math

import pytest

from glassgpt.evaluate.suites.suites import SMOKE_DATA
from glassgpt.weights import load_checkpoint, save_checkpoint
from tests.evaluate import texts


def test_without_a_word_the_shipped_model_takes_the_smoke_suite(evaluate) -> None:
    code, out, _ = evaluate("--json")
    assert code == 0
    figures = json.loads(out)
    assert {"smoke-words.perplexity", "smoke-choice.acc", "smoke-text.bits_per_byte"} <= figures.keys()
    for figure in figures.values():
        assert figure.keys() == {"value", "stderr", "n", "protocol"}
        assert math.isfinite(figure["value"])
    assert figures.keys() <= set(evaluate()[1].split())


@pytest.mark.parametrize("suite", ["paper", "harness"])
def test_suites(evaluate, random_bytes, folder, suite) -> None:
    words = [random_bytes.folder, "--suite", suite, "--data", folder, "--any-data"]
    code, out, err = evaluate(*words)
    assert code == 0, err
    assert {"117M", "1542M"} <= set(out.splitlines()[0].split())
    figures = json.loads(evaluate(*words, "--json")[1])
    assert len(figures) == {"paper": 15 - 1, "harness": 2 + 2 + 3 + 2 + 1 + 2 + 1}[suite]
    code, out, err = evaluate(
        random_bytes.folder, "--suite", suite, "--data", folder, "--any-data", "--markdown", "--limit", "1"
    )
    assert "in the cache" in err
    head, rule, row = out.strip().splitlines()
    assert head.count("|") == rule.count("|") == row.count("|") == len(figures) + 2
    assert "first 1" in head


def test_an_unused_stride_is_reported(evaluate, random_bytes, folder) -> None:
    words = ["--suite", "wikitext,text8", "--data", folder, "--any-data", "--stride", "64"]
    code, out, err = evaluate(random_bytes.folder, *words)
    assert code == 0
    assert "wikitext: --stride is ignored: this task uses disjoint windows" in err
    assert "stride 64" in out


def test_missing_and_altered_files_and_unknown_tasks_do_not_stop_the_rest(
    evaluate, random_bytes, tmp_path
) -> None:
    (tmp_path / "lambada_test.jsonl").write_text(texts.LAMBADA)
    (tmp_path / "news.en.heldout-00000-of-00050").write_text(texts.ONE_BILLION)
    words = [random_bytes.folder, "--suite", "lambada,ptb,piqua,1bw", "--data", tmp_path]
    code, out, err = evaluate(*words)
    assert code == 1  # a file that is not what its name says
    assert "unknown suite or task 'piqua'. Did you mean 'piqa'?" in err
    assert "lambada: altered: the hash of lambada_test.jsonl" in err
    assert "ptb: not available: " in err
    assert json.loads(evaluate(*words, "--json")[1]).keys() == {"1bw.perplexity"}
    assert "1bw.perplexity" in out
    assert "not run: lambada, ptb" in out


def test_documents_that_are_empty_too_long_or_no_documents(evaluate, random_bytes, tmp_path) -> None:
    passages = texts.lines(
        {"text": ""}, {"text": "a " * 300 + "end"}, {"text": "word " + "x" * 250}, {"text": "one"}
    )
    (tmp_path / "lambada_test.jsonl").write_text(passages)
    questions = texts.PIQA + texts.lines({"query": "Question: what?", "choices": ["", "b"], "gold": 0})
    (tmp_path / "piqa.jsonl").write_text(questions.replace("close it", "close it " * 30))
    (tmp_path / "arc_easy.jsonl").write_text(texts.ARC + "no json\n")
    (tmp_path / "wikitext-2.test.tokens").write_text("")
    code, out, err = evaluate(
        random_bytes.folder, "--suite", "lambada,piqa,arc_easy,wikitext-2", "--data", tmp_path, "--any-data"
    )
    assert code == 1
    assert "lambada: 1 document skipped: no last word to predict (number 1)" in err
    assert "lambada: 2 documents truncated on the left to the context of 200 tokens (number 2, 3)" in err
    assert "piqa: 1 document truncated on the left to the context" in err
    assert "piqa: 1 document skipped: empty choice (number 3)" in err
    assert "arc_easy: line 3 is not a record of arc_easy: no json" in err
    assert "wikitext-2: the text is empty" in err
    assert "wikitext-2: not available: " in err  # its raw file
    assert "piqa.acc " in out


@pytest.mark.parametrize(
    "order", [("MODEL", "FILE", "--suite", "S"), ("MODEL", "--suite", "S", "--data", "FILE")]
)
def test_a_file_of_ones_own(evaluate, random_bytes, tmp_path, order) -> None:
    (tmp_path / "book.txt").write_text(texts.TEXT8 * 8)
    values = {"MODEL": str(random_bytes.folder), "FILE": str(tmp_path / "book.txt")}
    for suite, metric in (("perplexity", "book.token_perplexity"), ("bits-per-byte", "book.bits_per_byte")):
        words = [{**values, "S": suite}.get(word, word) for word in order]
        code, out, _ = evaluate(*words, "--stride", "64")
        assert code == 0
        assert metric in out
        assert "stride 64" in out


def test_a_jsonl_is_scored_per_document(evaluate, random_bytes, tmp_path) -> None:
    """The sum of both is that of two separate files."""
    parts = (texts.TEXT8 * 3, texts.TEXT8[::-1] * 2)
    lines = "".join(json.dumps({"text": part}) + "\n" for part in (parts[0], "", parts[1]))
    (tmp_path / "both.jsonl").write_text(lines)
    bits = 0.0
    for part in parts:
        (tmp_path / "one.txt").write_text(part)
        words = [tmp_path / "one.txt", "--suite", "bits-per-byte", "--json"]
        code, out, _ = evaluate(random_bytes.folder, *words)
        assert code == 0
        bits += json.loads(out)["one.bits_per_byte"]["value"] * len(part)
    words = [tmp_path / "both.jsonl", "--suite", "bits-per-byte", "--json"]
    code, out, err = evaluate(random_bytes.folder, *words)
    assert (code, "1 document skipped" in err) == (0, True)
    figure = json.loads(out)["both.bits_per_byte"]
    assert figure["n"] == sum(map(len, parts))
    assert figure["value"] * figure["n"] == pytest.approx(bits)


def test_a_cache_that_cannot_be_written_is_noted_and_one_that_was_named_an_error(
    evaluate, random_bytes, tmp_path, monkeypatch
) -> None:
    (tmp_path / "text").write_text("A short text.")
    words = (random_bytes.folder, tmp_path / "text", "--suite", "bits-per-byte", "--json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "text"))
    code, out, err = evaluate(*words)
    assert code == 0, err
    assert json.loads(out)
    assert "note: the score cache" in err
    code, _, err = evaluate(*words, "--cache", tmp_path / "text")
    assert (code, err.count("\n")) == (2, 1)
    assert "Name another folder" in err


def test_mistakes_are_one_line(evaluate, random_bytes, tmp_path) -> None:
    for words, say in (
        (["--suite", "papers"], "Did you mean 'paper'?"),
        (["--limit", "0"], "--limit is 0"),
        (["--suite", "perplexity"], "is not a file"),
        (["--suite", "paper", "--data", str(tmp_path / "no")], "is not a folder"),
        (["b", "c"], "got 3 models"),
        (["--json", "--markdown"], "--json and --markdown exclude each other"),
        (["b", "--markdown"], "--markdown takes one model"),
        (["--suite", "ptb", "--data", str(tmp_path)], "no task could be run. ptb: not available"),
        (
            ["--suite", "lambada,piqa", "--stride", "64"],
            "--stride: no task of lambada,piqa takes a stride",
        ),
        (["--suite", "smoke-text", "--stride", "201"], "stride 201 is not from 1 to 200"),
    ):
        code, out, err = evaluate(random_bytes.folder, *words)
        assert code == 2, err
        assert out == ""
        assert say in err.splitlines()[-1]


def test_two_models(evaluate, random_bytes, random_words, tmp_path) -> None:
    """A model and the same rounded to bfloat16: close, and not the same."""
    save_checkpoint(load_checkpoint(random_words.folder), tmp_path / "coarse", dtype="bfloat16")
    (tmp_path / "long.txt").write_text((SMOKE_DATA / "text.txt").read_text("utf-8"), "utf-8")
    words = ["--suite", "perplexity", "--data", tmp_path / "long.txt", "--stride", "32"]
    code, out, _ = evaluate(random_words.folder, tmp_path / "coarse", *words)
    assert code == 0
    found = json.loads(evaluate(random_words.folder, tmp_path / "coarse", *words, "--json")[1])
    assert found["models"] == [str(random_words.folder), str(tmp_path / "coarse")]
    a, b = (found[one]["long.token_perplexity"]["value"] for one in "ab")
    assert found["difference"]["long.token_perplexity"]["value"] == pytest.approx(b - a)
    assert 0 < found["agreement"]["long.kl"]["value"] < 0.01
    assert 0.9 < found["agreement"]["long.same_top"]["value"] < 1
    assert "95% interval" in out
    assert f"A: {random_words.folder}, B: {tmp_path / 'coarse'}" in out
    code, out, err = evaluate(random_bytes.folder, random_words.folder)
    assert code == 0
    assert "the models tokenize text differently" in err
    assert "different units" in out


@pytest.mark.slow
def test_kl_and_agreement_are_those_of_the_definitions(shipped, random_bytes, tmp_path) -> None:
    import torch

    from glassgpt.backends.numpy import NumpyBackend
    from glassgpt.backends.torch.backend import TorchBackend
    from glassgpt.evaluate import Scorer
    from glassgpt.evaluate.compare import compare_distributions
    from glassgpt.evaluate.scoring.windows import rolling_windows

    checkpoint = load_checkpoint(random_bytes.folder)
    other = TorchBackend.load(checkpoint, device="cpu", dtype="bfloat16")
    a, b = Scorer(random_bytes.gpt.backend), Scorer(other)
    rows = list(rolling_windows(list(b"token by token" * 30), 200, 200, prefix=256))
    kl, same = compare_distributions("x", a, b, rows)
    divergence, equal, n = 0.0, 0, 0
    for row in rows:
        for i in range(row.first, len(row.ids)):
            ids = [row.ids[:i].tolist()]
            p, q = (
                torch.from_numpy(x.logits(ids)[0, -1]).double().log_softmax(-1)
                for x in (a.backend, b.backend)
            )
            divergence += float((p.exp() * (p - q)).sum())
            equal += int(p.argmax() == q.argmax())
            n += 1
    # bfloat16 products round differently for other numbers of rows.
    assert kl.value == pytest.approx(divergence / n, rel=0.05)
    assert same.value == pytest.approx(equal / n, abs=0.02)
    assert kl.n == n
    by_logits, _ = compare_distributions("x", Scorer(NumpyBackend.load(checkpoint)), b, rows)  # any backend
    assert by_logits.value == pytest.approx(divergence / n, rel=0.05)
