"""Files that are present, compressed, missing or altered; and a small substitute for the hub."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
import types
from dataclasses import replace

import pytest

from glassgpt.evaluate.suites import choice, datasets
from glassgpt.evaluate.suites.cbt import read_questions
from glassgpt.evaluate.suites.lambada import read_passages
from glassgpt.evaluate.suites.suites import HARNESS, PAPER
from tests.evaluate import texts

REAL_HUB_ANSWERS = datasets.hub_is_reachable
SMALL = datasets.Dataset("small", ("a/small.txt", "small.txt"), None)


def test_a_file_is_found_by_any_of_its_names_and_packings(tmp_path) -> None:
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(b"one\r\n"))
    assert datasets.load(SMALL, tmp_path) == ("one\r\n", False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "small.txt.xz").write_bytes(lzma.compress(b"two"))
    assert datasets.load(SMALL, tmp_path) == ("two", False)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(datasets.Unavailable, match=r"has no a/small\.txt"):
        datasets.load(SMALL, tmp_path)
    with pytest.raises(datasets.Unavailable, match="not a folder"):
        datasets.load(SMALL, tmp_path / "nowhere")


def test_an_altered_file_is_refused_unless_asked_for(tmp_path) -> None:
    (tmp_path / "lambada_test.jsonl").write_text(texts.LAMBADA)
    with pytest.raises(datasets.Altered, match=r"altered: .* 4aa8d02cd17c7191\.\.\.\. .*--any-data"):
        datasets.load(datasets.LAMBADA, tmp_path)
    assert datasets.load(datasets.LAMBADA, tmp_path, check=False) == (texts.LAMBADA, True)


def test_a_damaged_packing_and_bytes_that_are_no_text(tmp_path) -> None:
    (tmp_path / "small.txt.xz").write_bytes(b"no xz")
    with pytest.raises(datasets.Altered, match="damaged"):
        datasets.load(SMALL, tmp_path)
    (tmp_path / "small.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(datasets.Altered, match="not UTF-8"):
        datasets.load(SMALL, tmp_path)


def test_only_the_end_of_enwik8_is_its_test_set(tmp_path) -> None:
    (tmp_path / "small.txt").write_text("abcBär", "utf-8")
    assert datasets.load(replace(SMALL, last_bytes=3), tmp_path)[0] == "är"
    assert datasets.load(replace(SMALL, last_bytes=2), tmp_path)[0] == "r"  # the cut goes through the ä


def test_every_published_file_beside_us_has_its_known_hash(shared) -> None:
    here = shared / "data" / "eval"
    found = 0
    for task in [*PAPER, *HARNESS]:
        try:
            _, altered = datasets.load(task.dataset, here)
        except datasets.Unavailable:
            continue
        assert not altered
        found += 1
    assert found == 11


# The hub.


def test_data_sets_of_the_hub_are_read_at_a_commit() -> None:
    """But two, of which none is known."""
    kept = [one for one in vars(datasets).values() if isinstance(one, datasets.Dataset)]
    paths = {one.hub.path for one in kept if one.hub is not None}
    assert paths - datasets.REVISIONS.keys() == {"cam-cst/cbt", "lighteval/winograd_wsc"}
    assert datasets.REVISIONS.keys() <= paths
    assert all(len(bytes.fromhex(commit)) == 20 for commit in datasets.REVISIONS.values())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict:
    """`datasets.load_dataset` with shelves of our own: (path, config, split) -> rows."""
    shelves: dict = {}

    def load_dataset(path, name=None, *, split, revision):
        assert revision == datasets.REVISIONS.get(path, "main")
        if (path, name, split) not in shelves:
            raise ConnectionError("Couldn't reach\nthe Hub")
        return shelves[path, name, split]

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset
    library.config = types.SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setattr(datasets, "hub_is_reachable", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", library)
    return shelves


def test_the_hubs_rows_are_the_published_file(hub, shared) -> None:
    here = shared / "data" / "eval"
    passages, _ = datasets.load(datasets.LAMBADA, here)
    rows = [json.loads(line) for line in passages.splitlines()]
    hub["EleutherAI/lambada_openai", "default", "test"] = rows
    assert datasets.load(datasets.LAMBADA, None) == (passages, False)
    text, _ = datasets.load(datasets.WIKITEXT_2_RAW, here)
    lines = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
    hub["Salesforce/wikitext", "wikitext-2-raw-v1", "test"] = [{"text": line} for line in lines]
    assert datasets.load(datasets.WIKITEXT_2_RAW, None) == (text, False)
    rows[7]["text"] += "."
    with pytest.raises(datasets.Altered):
        datasets.load(datasets.LAMBADA, None)


def test_the_hubs_questions_are_those_of_the_files(hub) -> None:
    hub["Rowan/hellaswag", None, "validation"] = [
        {
            "activity_label": "Baking",
            "ctx_a": "A woman stands in a kitchen.",
            "ctx_b": "she",
            "endings": json.loads(texts.HELLASWAG.splitlines()[0])["endings"],
            "label": "1",
        }
    ]
    hub["baber/piqa", None, "validation"] = [
        {
            "goal": "How do I open a jar?",
            "sol1": "Turn the lid.",
            "sol2": "Turn the jar into a lid.",
            "label": 0,
        }
    ]
    hub["allenai/ai2_arc", "ARC-Easy", "test"] = [
        {
            "question": "Which is hot?",
            "choices": {"text": ["ice", "fire", "a cold stone", "snow"], "label": ["1", "2", "3", "4"]},
            "answerKey": "2",
        }
    ]
    hub["allenai/winogrande", "winogrande_xl", "validation"] = [
        {
            "sentence": "Sarah lent Maria a coat as _ was cold.",
            "option1": "Sarah",
            "option2": "Maria",
            "answer": "2",
        }
    ]
    hub["lighteval/winograd_wsc", "wsc273", "test"] = [
        {
            "text": "The cup fell off the table since it shook.",
            "pronoun": "it",
            "pronoun_loc": 33,
            "options": ["The cup", "The table"],
            "label": 1,
        }
    ]
    for task in HARNESS:
        if isinstance(task, choice.Choice):
            from_hub = task.questions(datasets.load(task.dataset, None)[0])
            assert from_hub == task.questions(texts.FILES[task.dataset.files[0]])[:1], task.name


def test_the_hubs_cbt_rows(hub) -> None:
    text = texts.FILES["cbtest_CN_test_2500ex.txt"]
    rows = []
    for block in text.strip().split("\n\n"):
        *story, last = [line.split(" ", 1)[1] for line in block.split("\n")]
        question, answer, _, options = last.split("\t")
        rows.append(
            {"sentences": story, "question": question, "answer": answer, "options": options.split("|")}
        )
    hub["cam-cst/cbt", "CN", "test"] = rows
    assert read_questions(datasets.load(datasets.CBT_CN, None)[0]) == read_questions(text)


def test_a_hub_that_cannot_be_reached_is_asked_for_what_was_fetched_before(hub, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr(datasets, "hub_is_reachable", REAL_HUB_ANSWERS.__wrapped__)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    library, offline = sys.modules["datasets"], []

    def load_dataset(*_, **__):
        offline.append((library.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        raise ConnectionError("not fetched before")

    monkeypatch.setattr(library, "load_dataset", load_dataset)
    with pytest.raises(datasets.Unavailable):
        datasets.load(datasets.LAMBADA, None)
    assert offline == [(True, True)]
    assert not constants.HF_HUB_OFFLINE  # whoever loads a model afterwards may try again


def test_no_network_and_no_library_are_one_line_each(hub, monkeypatch) -> None:
    with pytest.raises(datasets.Unavailable, match=r"Couldn't reach the Hub\).*--data"):
        datasets.load(datasets.LAMBADA, None)
    with pytest.raises(datasets.Unavailable, match="not on the hub"):
        datasets.load(datasets.PTB, None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(datasets.Unavailable, match=r"glassgpt\[eval\]"):
        datasets.load(datasets.LAMBADA, None)


def test_a_line_ends_where_the_file_says_and_nowhere_else() -> None:
    odd = ["one\u2028two", "three\x85four\x0cfive", "six"]
    text = "".join(json.dumps({"text": passage}, ensure_ascii=False) + "\n" for passage in odd)
    assert list(read_passages(text)) == odd
    assert list(read_passages(text.replace("\n", "\r\n"))) == odd
    assert list(read_passages("")) == []
