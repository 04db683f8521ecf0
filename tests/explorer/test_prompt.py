"""Examples of each model, text mixed with special tokens, and MIDI files as prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.music.event_codec import PerformanceTokenizer
from glassgpt.music.midi import to_midi
from glassgpt.music.performance import Performance
from glassgpt.weights.registry import shipped_names
from tests.explorer.conftest import API, Client, refusal

MODELS = ["tiny", *(name for name in shipped_names() if name != "tiny")]
NOTES = Performance.from_notes([2.0, 2.5, 3.0], [2.5, 3.0, 3.5], [60, 64, 67], [80, 80, 80])


@pytest.fixture(scope="module")
def shipped() -> Client:
    return Client(make_app(glassgpt.load("tiny"), others=MODELS[1:]))


def number(name: str) -> int:
    return MODELS.index(name)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_opens_with_an_example_that_it_can_read(shipped: Client, name: str) -> None:
    found = shipped.get("/examples", model=number(name))
    assert len(found["examples"]) >= 2
    for example in found["examples"]:
        prompt = {"text": example["text"]} if example["ids"] is None else {"ids": example["ids"]}
        trace = shipped.post("/trace", model=number(name), **prompt)
        assert trace["tokens"], example["name"]
        assert "".join(word["text"] for word in trace["words"]) == trace["text"]


def test_translation_ends_with_its_token_and_goes_on_in_french(shipped: Client) -> None:
    model = number("en-fr")
    found = shipped.get("/examples", model=model)
    assert found["kind"] == "task"
    assert [one["name"] for one in found["inserts"]] == ["<|endoftext|>", "<to-en>", "<to-fr>"]
    ids = found["examples"][0]["ids"]
    trace = shipped.post("/trace", model=model, ids=ids)
    assert [token["text"] for token in trace["tokens"]] == ["I", " am", " a", " student", ".", "<to-fr>"]
    # Words around a special token keep their merges.
    assert len(trace["words"][3]["merges"]) > 1
    assert glassgpt.load("en-fr").generate(ids, temperature=0, max_new_tokens=20).text == "Je suis étudiant."


def test_typed_text_is_text_and_picked_tokens_are_tokens(shipped: Client) -> None:
    model, gpt = number("en-fr"), glassgpt.load("en-fr")
    token = gpt.tokenizer.special_tokens["<to-fr>"]
    typed = shipped.post("/tokenize", model=model, parts=["Hello<to-fr>"])["ids"]
    picked = shipped.post("/tokenize", model=model, parts=["Hello", [token]])["ids"]
    assert token not in typed
    assert picked == [*gpt.encode("Hello"), token]
    for parts in ([[10**6]], [[-1]], [3], ["a" * 20_001], "text", [["a"]]):
        answer = shipped.http.post(f"{API}/tokenize", json={"model": model, "parts": parts})
        assert refusal(answer)[0] == 422, parts


def test_a_midi_file_becomes_the_prompt(shipped: Client) -> None:
    model = number("music")
    answer = shipped.http.post(f"{API}/midi?model={model}", content=to_midi(NOTES)).json()
    expected = PerformanceTokenizer().encode(NOTES.crop(2.0, 3.5)).tolist()  # without the rest before it
    assert answer["ids"] == [388, *expected]
    assert answer["events"] == len(expected)
    assert answer["seconds"] == pytest.approx(1.5)
    trace = shipped.post("/trace", model=model, ids=answer["ids"])
    assert trace["tokens"][0]["text"] == " <|endoftext|>"
    long = to_midi(Performance.from_notes(range(500), range(1, 501), [60] * 500, [80] * 500))
    cut = shipped.http.post(f"{API}/midi?model={model}", content=long).json()
    assert len(cut["ids"]) == 161 < cut["events"]


@pytest.mark.parametrize(
    ("model", "data", "says"),
    [
        ("tiny", to_midi(NOTES), "not a model of music"),
        ("music", b"", "does not begin with MThd"),
        ("music", b"GIF89a" + bytes(100), "does not begin with MThd"),
        ("music", to_midi(NOTES)[:-9], "ends after the file"),
        ("music", to_midi(NOTES.choose(NOTES.pitch > 127)), "no notes"),
        ("music", b"MThd" + bytes(300_000), "larger than 256,000 bytes"),
    ],
    ids=["model", "empty", "picture", "cut", "silent", "large"],
)
def test_what_is_no_midi_file_is_refused(shipped: Client, model: str, data: bytes, says: str) -> None:
    answer = shipped.http.post(f"{API}/midi?model={number(model)}", content=data)
    assert says in refusal(answer)[1]


def test_the_rambling_example_is_the_end_of_text_alone(shipped: Client) -> None:
    found: list[Any] = shipped.get("/examples", model=0)["examples"]
    rambling = next(example for example in found if example["name"] == "Rambling")
    trace = shipped.trace(rambling["text"])
    assert [token["text"] for token in trace["tokens"]] == ["<|endoftext|>"]


def test_the_page_has_no_examples_of_its_own() -> None:
    page = Path(glassgpt.__file__).parent / "explorer/page"
    texts = [
        example["text"] for example in Client(make_app(glassgpt.load("tiny"))).get("/examples")["examples"]
    ]
    for file in page.rglob("*.js"):
        if file.name != "link.js":  # the text of an empty address
            assert not [text for text in texts if text and text in file.read_text("utf-8")], file
