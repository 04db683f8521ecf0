"""Summaries: sentences of the text, ranked by the model, or what a model writes until it repeats itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import glassgpt as package
from glassgpt.backends.protocol import ScoreRequest
from glassgpt.errors import SettingError
from glassgpt.progress import Advance
from glassgpt.tasks import extract as module
from glassgpt.tasks.encode import Prompt
from glassgpt.tasks.extract import choose, extract, relevance_and_fluency
from glassgpt.tasks.sentences import split_sentences, unwrap, without_repetition
from glassgpt.tasks.summarize import stream_summary, summarize, summary_task
from tests.cli.conftest import Result
from tests.conftest import SHIPPED

Run = Callable[..., Result]

STORY = (
    "The harbor bridge will be closed to cars in spring. Engineers found cracks in four of its supports. "
    "The repair would cost fourteen million and take two years. "
    "Shop owners fear that they will lose customers. Buses will be sent over the motorway. "
    "A second vote in May decides about the repair."
)


@pytest.fixture(scope="module")
def gpt() -> package.GPT:
    return package.load(SHIPPED)


def test_an_extract_has_sentences_of_the_text_in_its_order(gpt: package.GPT) -> None:
    made = extract(gpt, STORY, 3)
    sentences = split_sentences(STORY)
    assert [sentences[quote.index] for quote in made.quotes] == [quote.text for quote in made.quotes]
    assert [quote.index for quote in made.quotes] == sorted({quote.index for quote in made.quotes})
    assert made.text == " ".join(quote.text for quote in made.quotes)
    assert made.notes == ["extract: 3 of the text's 6 sentences"]
    assert made == extract(gpt, STORY, 3)
    assert gpt.summarize(STORY, 3) == made.text
    assert gpt.summarize([STORY, "One. Two."], sentences=2)[1] == "One. Two."


def test_a_short_text_is_given_as_it_is_and_nothing_is_computed(
    gpt: package.GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rank", None)
    made = extract(gpt, "The parcel came on Monday. It was empty.", 3)
    assert made.text == "The parcel came on Monday. It was empty."
    assert made.notes == ["the text has 2 sentences: it is returned unchanged"]
    assert made.quotes[0].score is None


def test_the_only_sentence_among_headings_is_chosen_without_a_score(gpt: package.GPT) -> None:
    sentence = "The harbor bridge will be closed to cars in spring."
    made = extract(gpt, f"Alpha\n\nBeta\n\n{sentence}\n\nGamma", 1)
    assert [(quote.text, quote.score) for quote in made.quotes] == [(sentence, None)]


def test_relevance_is_what_a_sentence_adds_to_the_others_log_probability(gpt: package.GPT) -> None:
    ids = [gpt.encode(f" {one}") for one in split_sentences(STORY)][:4]
    assert gpt.tokenizer is not None
    eot = gpt.tokenizer.eot_id
    assert eot is not None

    def logprob(before: list[int], scored: list[int]) -> np.ndarray:
        request = ScoreRequest(np.array([eot, *before, *scored]), 1 + len(before))
        ((_, (scores,)),) = gpt.backend.score([[request]])
        return scores.logprobs

    found, fluency = relevance_and_fluency(gpt, ids, package.progress.no_progress)
    for i, one in enumerate(ids):
        others = [other[: module.PROBE_TOKENS] for j, other in enumerate(ids) if j != i]
        gains = [logprob(one, other).sum() - logprob([], other).sum() for other in others]
        # sums of 16 log-probabilities of some nats each, in float32, batched in another way
        assert found[i] == pytest.approx(np.mean(gains), abs=0.05)
        assert fluency[i] == pytest.approx(logprob([], one).mean(), abs=0.01)


def test_the_cost_of_a_long_text_is_bounded(gpt: package.GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    class Counter:
        def __init__(self, description: str, total: int | None = None, *, unit: str = "") -> None:
            counted.append(0 if total is None else total)

        def __enter__(self) -> Advance:
            return lambda n: counted.append(n)

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(module, "MAX_CANDIDATES", 8)
    text = " ".join(f"On day {i} the crew of the ship found a new island in the sea." for i in range(60))
    made = extract(gpt, text, 2, Counter)
    assert made.compared_sentences == 8
    assert made.notes[0].endswith("of the text's 60 sentences; 8, spread over the text, were compared")
    total, *steps = counted
    assert sum(steps) == total <= 8 * (module.CANDIDATE_TOKENS + module.PROBES * module.PROBE_TOKENS)


def test_of_fragments_fewer_are_compared(gpt: package.GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of very short sentences would take as long as a book: none of them is a real one."""
    monkeypatch.setattr(module, "MAX_FRAGMENTS", 6)
    made = extract(gpt, "Up. Oh! No? Ah. " * 20, 2)
    assert (made.source_sentences, made.compared_sentences) == (80, 6)
    assert made.notes[0].endswith("of the text's 80 sentences; 6, spread over the text, were compared")
    assert extract(gpt, f"{STORY} Oh! No?", 2).compared_sentences == len(split_sentences(STORY))


def test_sentences_that_say_the_same_are_quoted_once(gpt: package.GPT) -> None:
    sentences = [
        "The bridge is closed today.",
        "Today, the bridge is closed!",
        "Ships wait outside the port.",
    ]
    assert choose(sentences, np.array([3.0, 2.0, 1.0]), 2) == [0, 2]
    made = extract(gpt, "The bridge will be closed for two years. " * 9 + "Ships have to wait outside it.", 2)
    assert [quote.text[:10] for quote in made.quotes] == ["The bridge", "Ships have"]


def test_headings_tables_and_code_are_not_quoted(gpt: package.GPT) -> None:
    text = "# A long heading of the text about many things\n\n```\nrun this. And that. Or this.\n```\n\n"
    text += f"{STORY}\n\n"
    text += "| a row of a table | with some more words | in it. |\n"
    quotes = extract(gpt, text, 5).quotes
    assert {quote.text for quote in quotes} <= set(split_sentences(STORY))


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        (
            "heating in our second floor offices has\nfailed today, so please all work at home\nnow.\n\nBye",
            "heating in our second floor offices has failed today, so please all work at home now.\n\nBye",
        ),
        ("A title\nThe first sentence of a text that is far longer.", None),
        ("- an item of a list that is as long as it gets\n- another one of them", None),
        ("Roses are red\nViolets are blue", None),
    ],
)
def test_wrapped_lines_are_joined_and_others_are_not(text: str, joined: str | None) -> None:
    assert unwrap(text) == (text if joined is None else joined)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("The sea was calm. We went home.", "The sea was calm. We went home."),
        ("Benno Benno Benno Benno Benno", "Benno …"),
        ("Power: Week's Report - Week's Report", "Power: Week's Report …"),
        ("It was very, very cold.", "It was very, very cold."),
        (
            "The pressure of a liquid is low. It is known that the pressure of a liquid is low.",
            "The pressure of a liquid is low.",
        ),
        ("It is a tea made from herbs, which is a tea made from it.", "It is a tea made from herbs, which …"),
    ],
)  # fmt: skip
def test_a_text_ends_where_it_begins_to_repeat_itself(text: str, kept: str) -> None:
    assert without_repetition(text) == kept


def test_what_a_model_writes_is_streamed_without_repetition(
    gpt: package.GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = ["The sea ", "was calm. ", "It is said ", "that the sea ", "was calm. It is said that it was."]
    monkeypatch.setattr(import_module("glassgpt.tasks.summarize"), "stream_task", lambda *args: iter(pieces))
    task = summary_task(gpt, zero_shot=True)
    written = list(stream_summary(gpt, task, Prompt([1], 1, 1), task.settings()))
    assert "".join(written) == without_repetition("".join(pieces)) == "The sea was calm."


def test_settings_of_writing_need_a_writer(gpt: package.GPT) -> None:
    with pytest.raises(SettingError, match=r"beams is for summaries that a model writes. Add abstract=True"):
        gpt.summarize(STORY, beams=2)
    with pytest.raises(SettingError, match="sentences is 0"):
        gpt.summarize(STORY, 0)


def test_the_command_quotes_and_says_so(glassgpt: Run, gpt: package.GPT, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(STORY, "utf-8")
    made = glassgpt("summarize", file, "--model", SHIPPED, "--sentences", "2")
    assert (made.code, made.out.splitlines()) == (0, [quote.text for quote in extract(gpt, STORY, 2).quotes])
    assert "note: extract: 2 of the text's 6 sentences" in made.err
    values = json.loads(glassgpt("summarize", file, "--model", SHIPPED, "--json").out)
    assert values["mode"] == "extract"
    assert [quote["index"] for quote in values["sentences"]] == [
        q.index for q in extract(gpt, STORY, 3).quotes
    ]
    wrong = glassgpt("summarize", file, "--model", SHIPPED, "--beams", "2")
    assert wrong.is_one_line_error("--beams is for summaries that a model writes. Add --abstract")
    assert glassgpt("summarize", file, "--sentences", "0").is_one_line_error("--sentences is 0")


@pytest.mark.slow
def test_the_adapter_writes_behind_a_warning(glassgpt: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(STORY, "utf-8")
    made = glassgpt("summarize", file, "--abstract", "--max-new-tokens", "20", "--json")
    assert "warning: a small model writes this" in made.err
    assert json.loads(made.out)["mode"] == "abstract"
    (written,) = summarize(package.load("summarize"), [STORY], max_new_tokens=20)
    assert written.text == json.loads(made.out)["text"]
