"""Every setting's range, and what an error tells."""

from __future__ import annotations

import math

import pytest

from glassgpt.errors import SettingError
from glassgpt.generate.sampling.params import DEFAULTS, FIELDS, SamplingParams


def test_the_defaults_are_allowed():
    settings = SamplingParams()
    assert (settings.temperature, settings.top_k, settings.max_new_tokens) == (0.8, 40, 100)
    assert not settings.greedy
    assert settings.candidates == 1


@pytest.mark.parametrize("off", [0, -1, None])
def test_top_k_is_switched_off_in_one_way_everywhere(off):
    assert SamplingParams(top_k=off).top_k is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-1, -1e-9, math.nan, math.inf, "hot", None, True)],
        *[("top_k", value) for value in (-3, 2.5, True, False, "all")],
        *[("top_p", value) for value in (0, 0.0, 1.0001, -0.5, math.nan)],
        *[("typical_p", value) for value in (0, 1.5, math.nan)],
        *[("min_p", value) for value in (-0.1, 1.1, math.nan)],
        *[("repetition_penalty", value) for value in (0, -1, 1e-300, math.inf, math.nan)],
        *[("presence_penalty", value) for value in (math.nan, math.inf, -1e300, 10**400, "x")],
        *[("frequency_penalty", value) for value in (math.nan, -math.inf)],
        *[("no_repeat_ngram", value) for value in (0, -1, 1.0)],
        *[("max_new_tokens", value) for value in (-1, 1.5, None, True)],
        *[("samples", value) for value in (0, -2, None)],
        *[("best_of", value) for value in (0, -1)],
        *[("beams", value) for value in (0, -1, 1.5)],
        *[("length_penalty", value) for value in (math.nan, math.inf, 400, None)],
        *[("logprobs", value) for value in (-1, 0.5, True)],
        *[("seed", value) for value in (-1, 2**64, 1.5)],
        *[("stop", value) for value in ("", ["a", ""], 5, [1])],
        *[("stop_tokens", value) for value in ([-1], ["a"], 3, [True])],
        *[("banned_words", value) for value in ("", [3], 7)],
        *[("required_words", value) for value in ([""], 7)],
        ("required_bias", math.inf),
        *[
            ("logit_bias", value)
            for value in ({1: math.nan}, {1: math.inf}, {1: 1e300}, {-1: 1.0}, {"a": 1}, [1], {1: "x"})
        ],
    ],
)
def test_out_of_range_names_the_setting_and_says_what_to_write(name, value):
    with pytest.raises(SettingError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert message.endswith(".")
    assert any(hint in message for hint in ("write", "Write"))


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"temperature": 1e-9},
        {"top_k": None, "top_p": None},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 0},
        {"min_p": 1},
        {"logit_bias": {3: -math.inf, 4: 2}},
        {"max_new_tokens": 0},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"logprobs": None},
        {"samples": 3, "best_of": 3},
        {"beams": 4, "samples": 4},
        {"beams": 4, "temperature": 0},
        {"beams": 4, "top_k": None},
        {"presence_penalty": -2, "frequency_penalty": -0.5},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(given):
    SamplingParams(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": 3, "best_of": 2}, ("best_of 2", "samples 3")),
        ({"best_of": 2, "logprobs": None}, ("best_of", "logprobs")),
        ({"beams": 2, "samples": 3}, ("samples 3", "beams 2")),
        ({"beams": 2, "top_p": 0.9}, ("top_p 0.9", "beams 2")),
        ({"beams": 2, "temperature": 0.5}, ("temperature 0.5", "beams")),
        ({"beams": 2, "top_k": 7}, ("top_k 7", "beams")),
        ({"beams": 2, "best_of": 2}, ("best_of 2", "beams")),
    ],
)
def test_settings_that_contradict_each_other(given, words):
    with pytest.raises(SettingError) as caught:
        SamplingParams(**given)
    assert all(word in str(caught.value) for word in words)


def test_a_single_string_stands_for_a_list_of_one():
    settings = SamplingParams(stop="\n", banned_words="cat", required_words=["dog"])
    assert (settings.stop, settings.banned_words, settings.required_words) == (("\n",), ("cat",), ("dog",))


def test_an_unknown_setting_is_named():
    with pytest.raises(SettingError, match=r"'topk'.*top_k"):
        SamplingParams.of(topk=3)
    assert set(DEFAULTS) <= set(FIELDS)
