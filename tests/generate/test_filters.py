"""The one table of filters, and everything that is made from it or has to agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.sampling.params import DEFAULTS, DRAWING, FIELDS, FILTERS, SamplingParams
from glassgpt.generate.sampling.sampler import stack_metadata
from glassgpt.tasks.definition import load_task
from tests.conftest import SHIPPED

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, tuple[str, str]]:
    """The default and the range of each setting, from the table of docs/generation.md."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| (.*?) \|", doc("generation"), re.M)
    return {name: (default, span) for names, default, span in rows for name in re.findall(r"\w+", names)}


def doc(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def test_filters_are_off_by_default_and_keep_everything_at_their_neutral_value() -> None:
    for name, row in FILTERS.items():
        assert DEFAULTS[name] is None
        assert row.low <= row.neutral <= row.high
        SamplingParams(**{name: row.neutral})
        for outside in (row.low - 0.01, row.high + 0.01, *([row.low] if row.above else [])):
            with pytest.raises(SettingError, match=f"{name} is .*{re.escape(row.usual)}"):
                SamplingParams(**{name: outside})


def test_the_docs_have_every_setting_and_the_filters_ranges_and_order() -> None:
    rows = documented()
    assert set(FIELDS) - {"required_bias"} <= set(rows)  # that one is named beside required_words
    for name, row in FILTERS.items():
        span = f"above {row.low:g}, to {row.high:g}" if row.above else f"{row.low:g} to {row.high:g}"
        assert rows[name] == ("none", span)
    steps = " → ".join(name.replace("_", "-") for name in (*DRAWING, "draw"))
    assert f"> penalties, bias, bans → grammar → {steps}\n" in doc("generation")


def test_task_definitions_drop_every_filter_where_beams_are_asked_for() -> None:
    task = load_task("tldr")
    assert task.decoding["top_k"] == 2
    settings = task.settings(beams=2)
    assert [getattr(settings, name) for name in DRAWING] == [DEFAULTS[name] for name in DRAWING]
    for name, row in FILTERS.items():
        with pytest.raises(SettingError, match=f"{name} .* has no meaning with beams"):
            SamplingParams(beams=2, **{name: row.high})


def test_the_server_takes_every_filter_in_its_range() -> None:
    pydantic = pytest.importorskip("pydantic")
    from glassgpt.serve.schemas import CompletionRequest

    for name, row in FILTERS.items():
        assert getattr(CompletionRequest(**{name: row.high}), name) == row.high
        assert getattr(CompletionRequest(), name) is None
        with pytest.raises(pydantic.ValidationError):
            CompletionRequest(**{name: row.high + 0.01})
        with pytest.raises(pydantic.ValidationError):
            CompletionRequest(**{name: row.low if row.above else row.low - 0.01})


def test_the_harness_passes_every_filter_on() -> None:
    pytest.importorskip("lm_eval")
    from glassgpt.evaluate.harness import GENERATION_ARGUMENTS

    assert set(FILTERS) <= set(GENERATION_ARGUMENTS)


def test_the_native_engine_refuses_filters_that_it_was_not_compiled_with() -> None:
    gpt = glassgpt.load(SHIPPED)
    if not hasattr(gpt.backend, "draw_tokens"):
        pytest.skip("the native engine was not built")
    params = stack_metadata([SamplingParams(top_p=0.9)], 8, lambda values: values)
    assert len(params.filters) == len(FILTERS)
    logits, uniform = np.zeros((1, 8), np.float32), np.zeros(1)
    gpt.backend.draw_tokens(logits, params, uniform)
    with pytest.raises(UserError, match="compile the engine again"):
        gpt.backend.draw_tokens(logits, params._replace(filters=(*params.filters, None)), uniform)
