"""`glassgpt generate`: what goes to stdout, what to stderr, and its errors."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess

import pytest

import glassgpt as package
from glassgpt.weights import save_checkpoint

from .conftest import program, random_checkpoint


def test_text_goes_to_stdout_and_everything_else_to_stderr(glassgpt, tiny):
    answer = glassgpt("generate", "A robot", "--model", tiny, "--max-new-tokens", "8", "--seed", "5")
    expected = package.load(tiny).generate("A robot", max_new_tokens=8, seed=5).text
    assert answer.code == 0
    assert answer.out == "A robot" + expected + ("" if expected.endswith("\n") else "\n")
    assert "seed 5" in answer.err
    assert "8 tokens" in answer.err
    assert "tokens/s" in answer.err


def test_the_reported_seed_reproduces_the_text(glassgpt, tiny):
    first = glassgpt("generate", "A robot", "--model", tiny, "--max-new-tokens", "8")
    seed = first.err.split("seed ")[1].split(",")[0]
    again = glassgpt("generate", "A robot", "--model", tiny, "--max-new-tokens", "8", "--seed", seed)
    assert again.out == first.out


@pytest.mark.parametrize("words", [[], ["--json"], ["--samples", "2"]])
def test_a_text_of_only_white_space_is_explained(glassgpt, tiny, words):
    blanks = ["--max-new-tokens", "4", "--logit-bias", "32", "1000000"]  # byte 32 is the space
    answer = glassgpt("generate", "def f(x):", "--model", tiny, *blanks, *words)
    assert answer.code == 0
    notes = [line for line in answer.err.splitlines() if "only white space" in line]
    assert notes == ["note: the generated text is only white space; try a sentence of prose, another --seed"]
    for tokens in "4", "0":
        seen = glassgpt("generate", "A robot", "--model", tiny, "--max-new-tokens", tokens, "--seed", "1")
        assert "white space" not in seen.err


def test_the_shipped_model_explains_that_it_was_not_trained_on_code(glassgpt):
    prompt = "def f(x):\n    "
    answer = glassgpt("generate", prompt, "--model", "tiny", "--max-new-tokens", "8", "--temperature", "0")
    assert answer.out.strip() == prompt.strip()  # if a new model writes text here, use another prompt
    assert (
        "this model was trained on books and encyclopedia articles, not code; try a sentence of prose"
        in answer.err
    )
    assert "--model gpt2" in answer.err


def test_json_prints_one_object_per_sample(glassgpt, tiny):
    answer = glassgpt(
        "generate",
        "Hello",
        "--model",
        tiny,
        "--max-new-tokens",
        "4",
        "--samples",
        "3",
        "--seed",
        "1",
        "--json",
    )
    objects = [json.loads(line) for line in answer.out.splitlines()]
    assert [found["sample"] for found in objects] == [0, 1, 2]
    for found in objects:
        assert found["prompt"] == "Hello"
        assert found["model"] == str(tiny)
        assert found["finish_reason"] == "length"
        assert found["seed"] == 1
        assert found["prompt_tokens"] == 5
        assert len(found["tokens"]) == len(found["logprobs"]) == 4
        assert all(logprob < 0 for logprob in found["logprobs"])
    assert objects[0]["tokens"] != objects[1]["tokens"]


def test_samples_are_separated(glassgpt, tiny):
    answer = glassgpt("generate", "Hi", "--model", tiny, "--max-new-tokens", "2", "--samples", "2")
    assert answer.out.index("--- 1 of 2 ---\nHi") < answer.out.index("\n--- 2 of 2 ---\nHi")


def test_without_a_prompt_a_new_document_starts(glassgpt, tiny):
    found = json.loads(
        glassgpt("generate", "--model", tiny, "--max-new-tokens", "3", "--ignore-eot", "--json").out
    )
    assert found["prompt"] is None
    assert len(found["tokens"]) == 3


def test_top_k_none_turns_it_off_and_temperature_0_is_greedy(glassgpt, tiny):
    words = ("generate", "Hi", "--model", tiny, "--max-new-tokens", "6", "--json")
    greedy = json.loads(glassgpt(*words, "--temperature", "0").out)
    one = json.loads(glassgpt(*words, "--top-k", "1").out)
    assert greedy["tokens"] == one["tokens"]
    assert greedy["tokens"] == package.load(tiny).generate("Hi", max_new_tokens=6, temperature=0).tokens
    free = json.loads(glassgpt(*words, "--top-k", "none", "--seed", "3").out)
    assert free["tokens"] == package.load(tiny).generate("Hi", max_new_tokens=6, top_k=None, seed=3).tokens


def test_end_of_text_in_a_prompt_is_text_unless_allowed(glassgpt, tiny):
    words = ("generate", "a<|endoftext|>b", "--model", tiny, "--max-new-tokens", "1", "--json")
    assert json.loads(glassgpt(*words).out)["prompt_tokens"] == len("a<|endoftext|>b")
    assert json.loads(glassgpt(*words, "--allow-special").out)["prompt_tokens"] == 3


def test_a_prompt_longer_than_the_context_is_truncated_with_a_note(glassgpt, tiny):
    answer = glassgpt("generate", "word " * 40, "--model", tiny, "--max-new-tokens", "4")
    assert answer.code == 0
    assert answer.out.startswith("word word")
    assert "200 tokens" in answer.err
    assert "32" in answer.err


def test_a_sliding_window_is_noted(glassgpt, tiny):
    answer = glassgpt("generate", "Hi", "--model", tiny, "--max-new-tokens", "50", "--ignore-eot")
    assert answer.code == 0
    assert "note:" in answer.err


WRONG_ARGUMENTS = {
    "empty prompt": ([""], ["prompt is empty", "leave it out"]),
    "temperature": (["Hi", "--temperature", "-1"], ["temperature", "-1"]),
    "k = -3": (["Hi", "--top-k", "-3"], ["top_k is -3; write a whole number", "0 or none switches it off"]),
    "not a number": (["Hi", "--top-k", "many"], ["--top-k", "'many'", "whole number"]),
    "not a float": (["Hi", "--temperature", "warm"], ["--temperature", "'warm'", "not a number"]),
    "no value": (["Hi", "--top-k"], ["--top-k", "needs a value"]),
    "top-p": (["Hi", "--top-p", "1.5"], ["top_p", "1.5"]),
    "tokens": (["Hi", "--max-new-tokens", "-3"], ["max_new_tokens", "-3"]),
    "samples": (["Hi", "--samples", "0"], ["samples", "0"]),
    "typo": (["Hi", "--temprature", "1"], ["--temprature", "--temperature?"]),
    "two words": (["Hi", "there"], ["there", "quote"]),
    "device": (["Hi", "--device", "abacus"], ["abacus"]),
    "dtype": (["Hi", "--dtype", "float7"], ["float7"]),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments_are_one_line(glassgpt, tiny, name):
    words, expected = WRONG_ARGUMENTS[name]
    assert glassgpt("generate", *words, "--model", tiny).is_one_line_error(*expected)


def test_wrong_models_are_one_line(glassgpt, tiny, tmp_path):
    def generate(model):
        return glassgpt("generate", "Hi", "--model", model)

    assert generate("gpt2-medum").is_one_line_error("gpt2-medum", "gpt2-medium")
    assert generate(tmp_path / "missing").is_one_line_error("missing", "does not exist")
    (tmp_path / "notes.txt").write_text("nothing")
    assert generate(tmp_path).is_one_line_error("contains no model", "notes.txt")

    def broken(change):
        folder = tmp_path / change.__name__
        folder.mkdir()
        for file in tiny.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        return generate(folder)

    def without_a_key(config):
        del config["n_head"]

    def wrong_shape(config):
        config["n_embd"] = 32

    def unknown_key(config):
        config["rotary"] = True

    assert broken(without_a_key).is_one_line_error("config.json", "n_head")
    assert broken(wrong_shape).is_one_line_error("wte.weight", "(257, 16)", "(257, 32)")
    assert broken(unknown_key).is_one_line_error("rotary")


def test_stdin(glassgpt, tiny, monkeypatch):
    def generate(stdin):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return glassgpt("generate", "-", "--model", tiny, "--max-new-tokens", "2", "--json")

    assert json.loads(generate("caf\u00e9\n".encode()).out)["prompt"] == "caf\u00e9"
    assert generate(b"ab\xffcd").is_one_line_error("stdin", "0xff", "offset 2")
    assert generate(b"").is_one_line_error("stdin is empty")


def start(tiny, *words):
    command, env = program(
        "generate", "Hi", "--model", tiny, "--max-new-tokens", "100000", "--ignore-eot", *words
    )
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(6)  # it has started
    return process


def test_a_closed_pipe_is_not_an_error(tiny):
    process = start(tiny)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=300) == 141
    assert err == b""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_control_c_keeps_what_was_written(tiny):
    process = start(tiny)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    assert b"interrupted" in err


@pytest.fixture
def control_c(monkeypatch):
    """Sends the signal at the sixth decoding step; the test runner's parent may have it ignored."""
    from glassgpt.backends.native import NativeBackend
    from glassgpt.backends.torch.backend import TorchBackend

    calls = itertools.count(1)

    def decode_by(original):
        def decode(self, rows, ids, positions):
            if next(calls) == 6:
                os.kill(os.getpid(), signal.SIGINT)
            return original(self, rows, ids, positions)

        return decode

    for backend in (TorchBackend, NativeBackend):  # whichever is the default here
        monkeypatch.setattr(backend, "decode", decode_by(backend.decode))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


MANY = ("--max-new-tokens", "20", "--ignore-eot", "--seed", "4")


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.usefixtures("control_c")
def test_control_c_prints_partial_samples_as_json(glassgpt, tiny):
    answer = glassgpt("generate", "Hi", "--model", tiny, "--samples", "3", "--json", *MANY)
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 130
    assert [one["sample"] for one in found] == [0, 1, 2]
    assert {one["finish_reason"] for one in found} == {"cancelled"}
    complete = (
        package.load(tiny).generate("Hi", max_new_tokens=20, ignore_eot=True, seed=4, samples=3).samples
    )
    for one, full in zip(found, complete, strict=True):
        assert 5 <= len(one["tokens"]) < 20
        assert one["tokens"] == full.tokens[: len(one["tokens"])]
    assert "interrupted" in answer.err


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.usefixtures("control_c")
@pytest.mark.parametrize(
    "options", [("--samples", "3"), ("--beams", "3", "--samples", "3"), ("--best-of", "3")]
)
def test_control_c_writes_partial_samples(glassgpt, tiny, options):
    answer = glassgpt("generate", "Hi", "--model", tiny, *options, *MANY)
    assert answer.code == 130
    assert answer.out.count("Hi") >= (1 if "--best-of" in options else 3)
    assert len(answer.out.encode()) > 5
    assert "Traceback" not in answer.err


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are POSIX's")
def test_lines_wrap_between_words_on_a_terminal(tiny):
    import pty

    leader, follower = pty.openpty()
    prompt = "some words that go on and on " * 4
    command, env = program("generate", prompt, "--model", tiny, "--max-new-tokens", "1", COLUMNS="40")
    with subprocess.Popen(command, env=env, stdout=follower, stderr=subprocess.PIPE) as process:
        os.close(follower)
        displayed = b""
        while chunk := read_all(leader):
            displayed += chunk
        assert process.wait(timeout=300) == 0
    lines = displayed.replace(b"\x1b[1m", b"").split(b"\r\n")
    assert lines[0] == b"some words that go on and on some words"
    assert lines[1] == b"that go on and on some words that go on"


def read_all(leader):
    try:
        return os.read(leader, 4096)
    except OSError:  # on Linux: the other end is closed
        return b""


def test_ids_in_and_ids_out(glassgpt, tiny):
    """With a tokenizer or without: the prompt's ids, then the generated ones."""
    common = ("--model", tiny, "--max-new-tokens", "4", "--temperature", "0")
    expected = package.load(tiny).generate([72, 105], max_new_tokens=4, temperature=0).tokens
    answer = glassgpt("generate", "--ids", "72 105", *common)
    assert answer.code == 0
    assert answer.out == " ".join(map(str, [72, 105, *expected])) + "\n"
    assert glassgpt("generate", "72,105", "--ids", "--samples", "2", *common).out.count("72,105") == 2
    found = json.loads(glassgpt("generate", "72 105", "--ids", "--json", *common).out)
    assert found["tokens"] == expected


@pytest.mark.parametrize("wrong", ["A robot", "1 2 x", "-1", "1.5", " ", "9999999999", "257"])
def test_a_wrong_token_id_is_one_line(glassgpt, tiny, wrong):
    answer = glassgpt("generate", "--model", tiny, "--ids", "--", wrong)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "token id" in answer.err


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A folder whose tokenizer.json is of an unsupported kind."""
    folder = tmp_path_factory.mktemp("foreign") / "model"
    save_checkpoint(random_checkpoint(), folder)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)
    wordpiece = {"type": "WordPiece", "vocab": {"[UNK]": 0, "the": 1}, "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": wordpiece}))
    return folder


@pytest.mark.filterwarnings("always")
def test_ids_work_with_an_unreadable_tokenizer(glassgpt, foreign):
    answer = glassgpt(
        "generate", "--ids", "1 2 3", "--model", foreign, "--max-new-tokens", "4", "--seed", "1"
    )
    assert answer.code == 0
    assert answer.out.startswith("1 2 3 ")
    assert len(answer.out.split()) == 7
    (note,) = [line for line in answer.err.splitlines() if "without a tokenizer" in line]
    assert "tokenizer.json" in note
    one_id = glassgpt("generate", "--ids", "7", "--model", foreign, "--max-new-tokens", "3", "--json")
    assert len(json.loads(one_id.out)["tokens"]) == 3
    listed = json.loads(glassgpt("next", "--ids", "1 2 3", "--model", foreign, "--json").out)
    assert [one["text"] for one in listed["next"]] == [str(one["id"]) for one in listed["next"]]
    assert glassgpt("next", "--ids", "1 2 3", "--model", foreign).code == 0


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("verb", ["generate", "next"])
def test_text_without_a_tokenizer_suggests_ids(glassgpt, foreign, verb):
    answer = glassgpt(verb, "A robot", "--model", foreign)
    assert answer.code == 2
    assert f"glassgpt {verb} --ids '1 2 3'" in answer.err.splitlines()[-1]
