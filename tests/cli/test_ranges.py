"""Numbers out of range: an error before any work, in one line that gives the range."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import glassgpt as package
from glassgpt.errors import SettingError
from glassgpt.generate.engine import pool as engine_pool
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.train.data.prepare import prepare
from glassgpt.train.data.vocabulary import learn_vocabulary

HUGE = str(10**25)
FLOATS = [
    "--temperature", "--top-p", "--min-p", "--typical-p", "--repetition-penalty", "--presence-penalty",
    "--frequency-penalty", "--required-bias", "--length-penalty",
]  # fmt: skip
COUNTS = [
    "--max-new-tokens", "--top-k", "--no-repeat-ngram", "--seed", "--samples", "--best-of", "--beams",
    "--logprobs",
]  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        *((flag, ("nan", "inf", "-inf", "1e30", "-1e30")) for flag in FLOATS),
        *(
            (flag, ("-1", HUGE, "-" + HUGE, "100000000000"))
            for flag in COUNTS
            if flag not in ("--seed", "--top-k")
        ),
        ("--top-k", ("-2", HUGE, "-" + HUGE, "100000000000")),  # 0 and -1 switch it off
        ("--samples", ("100000000",)),
        ("--seed", ("-1", str(2**64), HUGE)),
        ("--stop-tokens", (HUGE, "257")),
    ],
)
def test_generate_options(glassgpt, tiny, flag, values):
    for value in values:
        answer = glassgpt("generate", "a", "--model", tiny, f"{flag}={value}")
        answer.is_one_line_error(flag.removeprefix("--").replace("-", "_"), "; write a ", " to ")
        assert ", 000" not in answer.err  # a range is not broken at the end of a terminal's line


@pytest.mark.parametrize(
    "words",
    [
        ("next", "a", "-k", "1000000000"),
        ("next", "a", "-k", "0"),
        ("prepare", "nowhere.txt", "-o", "out", "--seed", HUGE),
        ("prepare", "nowhere.txt", "-o", "out", "--seed", "-1"),
        ("prepare", "nowhere.txt", "-o", "out", "--workers", HUGE),
        ("prepare", "nowhere.txt", "-o", "out", "--val-fraction", "nan"),
        ("tune", "nowhere.txt", "--minutes", "nan"),
        ("tune", "nowhere.txt", "--minutes", "1e30"),
        ("tune", "nowhere.txt", "--seed", HUGE),
        ("tune", "nowhere.txt", "--seed", "-1"),
        ("eval", "--limit", HUGE),
        ("eval", "--stride", HUGE),
        ("train", "--data", "d", "--out", "r", "--steps", "0"),
        ("train", "--data", "d", "--out", "r", "--steps", "5", "--shape", "1000000x32x2"),
        ("train", "--data", "d", "--out", "r", "--steps", "5", "--batch-size", "10000000000"),
        ("train", "--data", "d", "--out", "r", "--steps", "5", "--eval-batches", "100000000"),
        ("train", "--data", "d", "--out", "r", "--steps", "5", "--dropout", "nan"),
        ("train", "--data", "d", "--out", "r", "--steps", "5", "--tensor-parallel-size", "-1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_of_other_commands(glassgpt, tiny, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    np.arange(4096, dtype=np.uint16).tofile("d.bin")  # what is missing is said before what is out of range
    words = ["d.bin" if word == "d" else word for word in words]
    model = ("--model", tiny) if words[0] == "next" else ()
    glassgpt(*words, *model).is_one_line_error("; write a ", " to ")
    assert [file.name for file in tmp_path.iterdir()] == ["d.bin"]


def test_a_number_of_thousands_of_digits(glassgpt):
    glassgpt("next", "a", "-k", "9" * 5000).is_one_line_error("-k: a number of 5000 digits is too large")
    with pytest.raises(SettingError, match="samples is a whole number of about 5,001 digits; write"):
        SamplingParams(samples=10**5000)


def test_ranges_in_python(tiny, tmp_path):
    (tmp_path / "text.txt").write_text("some words\n" * 50)
    gpt = package.load(tiny)
    with pytest.raises(SettingError, match=r"^k is 10+; write a whole number from 1 to "):
        gpt.next("a", k=10**25)
    with pytest.raises(
        SettingError, match=r"^--vocab-size is 10+; write a whole number from 257 to 1,048,576"
    ):
        learn_vocabulary("bpe", [tmp_path / "text.txt"], vocab_size=10**9)
    for changes in ({"seed": 2**64}, {"seed": -1}, {"workers": 10**9}, {"val_fraction": math.nan}):
        with pytest.raises(SettingError, match="; write a "):
            prepare([tmp_path / "text.txt"], tmp_path / "out", gpt.tokenizer, **changes)
    for value in (math.nan, math.inf, -math.inf, sys.float_info.max, 10**400, True, "1"):
        with pytest.raises(SettingError, match=r"^temperature is .*; write a number from 0 to 1,000,000 "):
            SamplingParams(temperature=value)


def test_more_beams_than_fit_in_memory(tiny, monkeypatch):
    gpt = package.load(tiny)
    monkeypatch.setattr(engine_pool, "BEAM_BYTES", 5 * 2 * 2 * 32 * 16 * 4)  # five sequences of this model
    assert gpt.generate("a", beams=5, max_new_tokens=2).tokens
    with pytest.raises(SettingError, match=r"beams is 6; write a whole number from 1 to 5 \(what memory"):
        gpt.generate("a", beams=6, max_new_tokens=2)


def test_a_sampling_option_typed_with_beams_is_an_error(glassgpt, tiny):
    words = ("generate", "a", "--model", tiny, "--max-new-tokens", "2", "--beams", "2")
    assert glassgpt(*words).code == 0
    assert glassgpt(*words, "--temperature", "0").code == 0
    for flag, value in (("--temperature", "0.8"), ("--top-k", "40")):
        glassgpt(*words, flag, value).is_one_line_error(f"{value} has no meaning with beams 2")
    drawn = ("generate", "a", "--model", tiny, "--max-new-tokens", "9", "--seed", "1")
    assert glassgpt(*drawn, "--beams", "none").out == glassgpt(*drawn).out
    gpt = package.load(tiny)
    assert gpt.generate("a", beams=2, max_new_tokens=2).tokens
    assert gpt.generate("a", settings=SamplingParams(beams=2), max_new_tokens=2).tokens
    for change in ({"temperature": 0.8}, {"top_k": 40}):
        with pytest.raises(SettingError, match="has no meaning with beams 2"):
            gpt.generate("a", beams=2, **change)
