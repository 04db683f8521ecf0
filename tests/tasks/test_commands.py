"""`translate`, `summarize` and `classify`: texts, files, stdin, JSON, bad records."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import glassgpt as package
from glassgpt.cli.task_records import print_json
from glassgpt.errors import SettingError
from glassgpt.tasks.classify import label_logprobs
from glassgpt.tasks.definition import load_task
from glassgpt.tasks.generate import make_encoder, run_task, stream_task
from glassgpt.tasks.translate import Sentence, Translator, plan, translate, translation_task
from tests.cli.conftest import Result
from tests.conftest import SHIPPED
from tests.tasks.conftest import Lines

Run = Callable[..., Result]
TEXT = "The red cat sleeps. The fox!"


@pytest.mark.slow
def test_a_text_is_translated_sentence_by_sentence(glassgpt: Run, translator: Path) -> None:
    gpt = package.load(translator)
    whole = gpt.translate(TEXT + "\n\nThe dog.", to="fr")
    parts = gpt.translate(["The red cat sleeps.", "The fox!", "The dog."], to="fr")
    assert whole == f"{parts[0]} {parts[1]}\n\n{parts[2]}"
    assert "".join(Translator(gpt, "fr").stream(TEXT)).split() == f"{parts[0]} {parts[1]}".split()
    streamed = glassgpt("translate", TEXT, "--to", "fr", "--model", translator)
    assert (streamed.code, streamed.err) == (0, "")
    assert streamed.out.split() == f"{parts[0]} {parts[1]}".split()


def test_a_long_text_without_capitals_is_translated_to_its_end(translator: Path) -> None:
    gpt = package.load(translator)
    encoder = make_encoder(gpt, translation_task(gpt, "fr"), "fr")
    short, long = "the cat sleeps. the fox!", "the cat sleeps. the fox; " * 20

    def sources(text: str, sentences: bool = True) -> list[list[str]]:
        lines: list[list[str]] = [[]]
        for part in plan(text, encoder, sentences):
            if isinstance(part, Sentence):
                lines[-1].append(part.source)
            elif part == "\n":
                lines.append([])
        return lines

    assert sources(short) == [[short]]
    assert sources(f"{long}\n\n{short}") == [["the cat sleeps.", "the fox;"] * 20, [], [short]]
    assert sources(long, sentences=False) == [[long.strip()]]
    (endless,) = sources("cat " * 200 + ". Dog.")
    assert len(endless) == 2  # the first of them is cut, and noted


def test_what_is_no_plain_sentence(translator: Path) -> None:
    gpt = package.load(translator)
    for kept in ("1,234.50", "https://a.example/b?c=1", "...", "🎉", "me@a.example"):
        assert gpt.translate(kept, to="fr") == kept
        assert "".join(Translator(gpt, "fr").stream(kept)) == kept
    plain, fox = gpt.translate(["The cat sleeps.", "The fox!"], to="fr")
    assert gpt.translate("THE CAT SLEEPS. The fox! 🦊\n42", to="fr") == f"{plain.upper()} {fox} 🦊\n42"
    streamed = "".join(Translator(gpt, "fr").stream("THE CAT SLEEPS. 🎉"))
    assert streamed.split() == f"{plain.upper()} 🎉".split()
    assert Sentence.of("NATO.") == Sentence("NATO.")  # one word in capitals may be a name


@pytest.mark.slow
def test_beams_and_json(glassgpt: Run, translator: Path) -> None:
    made = glassgpt("translate", TEXT, "--to", "en", "--model", translator, "--beams", "4", "--json")
    values = json.loads(made.out)
    expected = translate(package.load(translator), [TEXT], "en", beams=4)[0]
    assert (values["record"], values["to"], values["text"]) == (1, "en", expected.text)
    assert values["notes"] == ["the text looks like English, and French was expected (--to fr translates it)"]


@pytest.mark.slow
def test_bad_records_are_named_counted_and_the_rest_goes_on(
    glassgpt: Run, translator: Path, lines: Lines
) -> None:
    file = lines(
        "a.jsonl", '{"en": "The cat."}', '{"fr": "Le chat."}', "nothing", '{"en": " "}',
        '{"en": "The dog.", "to": ["de"]}', '{"en": "Der Hund ist nicht in dem Haus und er schläft."}',
        json.dumps({"en": "cat " * 200}), '{"fr": "Le chat.", "to": "en"}',
    )  # fmt: skip
    made = glassgpt("translate", "--file", file, "--to", "fr", "--model", translator, "--json")
    assert made.code == 0
    results = {row["record"]: row for row in map(json.loads, made.out.splitlines())}
    assert sorted(results) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [number for number, row in results.items() if "error" in row] == [2, 3, 4, 5]
    assert results[8]["to"] == "en"
    for said in (
        "record 2: has no field 'en'", "record 3: is not JSON", "record 4: en is empty; skipped",
        "record 5: the language ['de'] is not one of fr, en; skipped", "record 6: the text looks like German",
        "record 7: a sentence has", "4 of 8 records skipped, 2 noted",
    ):  # fmt: skip
        assert said in made.err, made.err


@pytest.mark.slow
def test_all_bad_is_an_error_and_empty_lines_stay(
    glassgpt: Run, translator: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        glassgpt("translate", "--file", lines("a.jsonl", "x", "y"), "--to", "fr", "--model", translator).code
        == 2
    )
    empty = glassgpt("translate", "--file", lines("b.jsonl"), "--to", "fr", "--model", translator)
    empty.is_one_line_error("b.jsonl has no records")
    stdin = io.TextIOWrapper(io.BytesIO(b"The cat.\n\nThe dog.\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    made = glassgpt("translate", "-", "--to", "fr", "--model", translator)
    assert made.code == 0
    gpt = package.load(translator)
    assert made.out.split("\n")[0].split() == gpt.translate("The cat.", to="fr").split()
    assert made.out.split("\n")[1] == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("translate", "Hi"), ("--to is missing",)),
        (("translate", "Hi", "--to", "de"), ("no direction 'de'", "'fr' or 'en'")),
        (("translate", "", "--to", "fr"), ("the text is empty",)),
        (("translate", "Hi", "--to", "fr", "--file", "x.txt"), ("both given",)),
        (("classify", "Hi"), ("was not tuned to classify", "--labels")),
        (("classify", "Hi", "--labels", "one"), ("leaves nothing to choose",)),
        (("classify", "Hi", "--labels", ","), ("at least two labels",)),
        (("classify", "Hi", "--labels", "a,b", "--format", "x"), ("{source} once",)),
        (("classify", "Hi", "--format", "{source} {target}"), ("needs labels",)),
        (("summarize",), ("FILE... is missing",)),
        (("classify", "Hi", "--labels", "a,b,a"), ("--labels a,b,a has a label twice",)),
        (("summarize", "none.txt"), ("none.txt does not exist",)),
        (("summarize", "It was a fine day."), ("is not a file", "glassgpt summarize -")),
    ],
)
def test_mistakes_are_one_line(
    glassgpt: Run, translator: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert glassgpt(*args, "--model", translator).is_one_line_error(*words)


def test_a_model_for_another_task_is_refused(glassgpt: Run, translator: Path, classifier: Path) -> None:
    assert glassgpt("translate", "Hi", "--to", "fr", "--model", SHIPPED).is_one_line_error(
        "is not a translation model"
    )
    with pytest.raises(SettingError, match="writes no summaries"):
        package.load(translator).summarize("Some text.")
    with pytest.raises(SettingError, match="text 2 is empty"):
        package.load(translator).translate(["a", ""], to="fr")


def test_json_is_json_where_stdout_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, written in {"utf-8": '{"text": "où"}\n', "ascii": '{"text": "o\\u00f9"}\n'}.items():
        raw = io.BytesIO()
        monkeypatch.setattr(
            sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
        )
        print_json({"text": "où"})
        assert raw.getvalue().decode(encoding) == written


def test_the_name_of_a_file_is_a_text_with_a_note(glassgpt: Run, tmp_path: Path) -> None:
    file = tmp_path / "review.txt"
    file.write_text("Dull.", "utf-8")
    made = glassgpt("classify", file, "--labels", "good,bad", "--model", SHIPPED)
    assert made.code == 0
    assert f"to read the file of that name: --file {file}" in made.err
    assert glassgpt("classify", "x" * 5000, "--labels", "good,bad", "--model", SHIPPED).code == 0


def test_an_empty_text_or_a_seed_for_nothing_is_an_error(glassgpt: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(" \n", "utf-8")
    assert glassgpt("summarize", file, "--model", SHIPPED).is_one_line_error("a.txt is empty")
    file.write_text("The sea was calm.", "utf-8")
    assert glassgpt("summarize", file, "--abstract", "--seed", "1").is_one_line_error(
        "--seed 1 would change nothing"
    )


@pytest.mark.slow
def test_a_summary_says_what_it_saw(glassgpt: Run, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("The sea was calm that day.\n" * 300, "utf-8")
    words = ("summarize", file, "--model", SHIPPED, "--zero-shot", "--seed", "1", "--max-new-tokens", "8")
    made = glassgpt(*words)
    assert made.code == 0
    assert made.out.strip()
    assert "tokens; the summary is of the first" in made.err
    again = glassgpt(*words, "--json")
    values = json.loads(again.out)
    assert values["text"] == made.out.strip()
    assert values["kept_tokens"] < values["source_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tldr", "summarize"])
def test_a_streamed_summary_is_the_whole_one(name: str) -> None:
    gpt, task = package.load("tiny"), load_task(name)
    settings = {"seed": 2, "beams": None, "max_new_tokens": 60}
    prompt = make_encoder(gpt, task).prompt("The sea was calm that day. We went home.")
    pieces = list(stream_task(gpt, task, prompt, task.settings(**settings)))
    (whole,) = run_task(gpt, task, ["The sea was calm that day. We went home."], **settings)
    assert "".join(pieces).split() == whole.text.split()
    assert len(pieces) > 20 or task.sentences is not None  # those come one at a time


@pytest.mark.slow
def test_beams_take_the_place_of_a_zero_shot_summary_s_sampling(glassgpt: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The sea was calm that day.\n", "utf-8")
    options = {"abstract": True, "beams": 2, "max_new_tokens": 4}
    made = package.load("tiny").summarize("The sea was calm that day.", **options)
    words = ("summarize", tmp_path / "a.txt", "--model", "tiny", "--abstract", "--beams", "2")
    assert glassgpt(*words, "--max-new-tokens", "4").out.split() == made.split()
    with pytest.raises(SettingError, match="top_k 2 has no meaning with beams"):
        package.load("tiny").summarize("The sea.", top_k=2, **options)


@pytest.mark.slow
def test_zero_shot_compares_log_probabilities(glassgpt: Run) -> None:
    gpt = package.load(SHIPPED)
    assert gpt.tokenizer is not None
    prompts = [gpt.encode("It was a fine day.\nThis is"), gpt.encode("\nThis is")]
    targets = [gpt.encode(" good"), gpt.encode(" very bad")]
    found = label_logprobs(gpt, prompts, targets)
    for i, prompt in enumerate(prompts):
        for j, target in enumerate(targets):
            logits = gpt.logits([[*prompt, *target]])[0].astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            wanted = sum(logprobs[len(prompt) - 1 + k, token] for k, token in enumerate(target))
            # float32 logits of about 20, summed over a vocabulary: 1e-5 of them is rounding
            assert found[i, j] == pytest.approx(wanted, abs=1e-4)
    made = glassgpt(
        "classify", "It was a fine day.", "--labels", "good,very bad", "--model", SHIPPED, "--json"
    )
    scores = found[0] - found[1]
    shares = np.exp(scores) / np.exp(scores).sum()
    assert json.loads(made.out)["probabilities"] == {
        "good": pytest.approx(shares[0], abs=1e-3), "very bad": pytest.approx(shares[1], abs=1e-3),
    }  # fmt: skip


def test_a_head_reads_the_extract_token(glassgpt: Run, classifier: Path, lines: Lines) -> None:
    import torch

    gpt = package.load(classifier)
    assert gpt.task is not None
    assert gpt.classifier is not None
    texts = ["Dull.", "The red cat sleeps, and the fox sleeps, too."]
    for text, found in zip(texts, gpt.classify(texts), strict=True):
        ids = gpt.encode("<|endoftext|>", True) + gpt.encode(text) + gpt.encode("<extract>", True)
        with torch.inference_mode():
            hidden = gpt.torch_model.hidden(torch.tensor([ids]))[0, -1].numpy()
        logits = gpt.classifier @ hidden
        shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        # Padding the batch changes the order of some float32 sums.
        assert list(found.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-5)
        assert found.label == gpt.task.labels[int(shares.argmax())]
    file = lines(
        "a.tsv", "sentence\tlabel", "Dull.\tnegative", "\tpositive", "The cat.\tmeh",
    )  # fmt: skip
    made = glassgpt("classify", "--file", file, "--model", classifier)
    assert made.code == 0
    for said in (
        "record 2: sentence is empty",
        "label 'meh' is not one of negative, positive",
        "accuracy ",
        "of 1 labeled",
    ):
        assert said in made.err
    assert made.out.count("\n") == 3


def test_without_shipped_weights_there_is_a_next_step(
    glassgpt: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.weights.registry.shipped_names", lambda: ["default"])
    monkeypatch.setattr("glassgpt.weights.shipped_names", lambda: ["default"])
    made = glassgpt("translate", "Hi", "--to", "fr")
    assert made.is_one_line_error("en-fr is not part of this installation", "recipes/translation", "--model")
