"""`glassgpt tokens`: ids, bytes and merges."""

from __future__ import annotations

import itertools
import json

import pytest

from glassgpt.tokenizer import Tokenizer

from .conftest import run_program


def test_one_line_per_token(glassgpt, vocabulary):
    answer = glassgpt("tokens", "the robot\u2019s\nrobe", "--model", vocabulary)
    ids = Tokenizer.load(vocabulary).encode("the robot\u2019s\nrobe")
    rows = [row.split() for row in answer.out.splitlines()[1:]]
    assert [int(row[1]) for row in rows] == ids
    assert rows[0][-1] == "the"
    assert "␣robot" in answer.out
    assert "↵" in answer.out
    assert f"{len(ids)} tokens for 18 bytes of 16 characters" in answer.err


def test_ids_only(glassgpt, vocabulary):
    out = glassgpt("tokens", "the robot", "--model", vocabulary, "--ids").out
    assert [int(word) for word in out.split()] == Tokenizer.load(vocabulary).encode("the robot")


def test_merges_from_bytes_to_tokens(glassgpt, vocabulary):
    out = glassgpt("tokens", " robot", "--model", vocabulary, "--merges").out
    lines = out.splitlines()
    assert lines[0].split()[0] == "␣|r|o|b|o|t"
    assert lines[0].endswith("6 bytes")
    for before, after in itertools.pairwise(lines):
        if after.startswith("ids"):
            break
        assert after.split()[0].count("|") < before.split()[0].count("|")
        assert after.split()[0].replace("|", "") == "␣robot"
        assert "merge" in after
    found = json.loads(glassgpt("tokens", " robot", "--model", vocabulary, "--merges", "--json").out)
    (word,) = found["words"]
    assert word["start"] == [f"{byte:02x}" for byte in b" robot"]
    assert bytes.fromhex("".join(word["merges"][-1]["pieces"])) == b" robot"
    assert word["ids"] == found["ids"]


def test_json_and_special_text(glassgpt, vocabulary):
    plain = json.loads(glassgpt("tokens", "<|endoftext|>", "--model", vocabulary, "--json").out)
    assert len(plain["ids"]) > 1
    assert "".join(token["text"] for token in plain["tokens"]) == "<|endoftext|>"
    special = json.loads(
        glassgpt("tokens", "<|endoftext|>", "--model", vocabulary, "--json", "--allow-special").out
    )
    assert special["ids"] == [Tokenizer.load(vocabulary).eot_id]


def test_a_models_own_tokenizer_and_one_without_merges(glassgpt, tiny):
    assert glassgpt("tokens", "h\u00e9", "--model", tiny, "--ids").out == "104 195 169\n"
    assert "<c3>" in glassgpt("tokens", "h\u00e9", "--model", tiny).out


def test_stdin(vocabulary):
    answer = run_program("tokens", "-", "--model", vocabulary, "--ids", stdin=b"the robot\n")
    assert [int(word) for word in answer.out.split()] == Tokenizer.load(vocabulary).encode("the robot\n")
    assert run_program("tokens", "-", "--model", vocabulary, stdin=b"\x80").is_one_line_error(
        "0x80", "offset 0"
    )
    assert run_program("tokens", "--model", vocabulary, stdin=b"").is_one_line_error("stdin is empty")


def test_errors(glassgpt, tmp_path, vocabulary):
    assert glassgpt("tokens", "", "--model", vocabulary).is_one_line_error("the text is empty")
    assert glassgpt("tokens", "a", "--model", tmp_path / "missing").is_one_line_error("missing")


def test_the_tokenizer_of_a_model_on_the_hub_is_fetched_without_its_weights(glassgpt, tiny, hub):
    hub.repos["someone/small"] = {file.name: file.read_bytes() for file in tiny.iterdir()}
    answer = glassgpt("tokens", "obey", "--ids", "--model", "someone/small")
    assert answer.out.split() == [str(byte) for byte in b"obey"]
    assert hub.asked("GET", "tokenizer.json")
    assert not hub.asked("GET", ".safetensors")
    assert not hub.asked("HEAD", ".safetensors")


@pytest.mark.parametrize("target", ["m.gguf", "m.bin", "m.pt", "m.safetensors"])
def test_tokenizers_of_every_format(glassgpt, tiny, tmp_path, target):
    assert glassgpt("convert", tiny, tmp_path / target).code == 0
    answer = glassgpt("tokens", "obey", "--ids", "--model", tmp_path / target)
    assert answer.out.split() == [str(byte) for byte in b"obey"]
    beside = tmp_path / "tokenizer.json"
    assert beside.exists() == (target != "m.gguf")  # the others have no room for it
    if beside.exists():
        beside.unlink()
        assert glassgpt("tokens", "obey", "--model", tmp_path / target).is_one_line_error(
            "has no tokenizer", "tokenizer.json"
        )
