"""Our model class for lm-evaluation-harness compared with its `hf`, on the same weights, request by
request."""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'glassgpt[eval]'")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate import harness
from glassgpt.evaluate.harness import GlassGPTLM
from tests.conftest import SHIPPED

if TYPE_CHECKING:
    from lm_eval.models.huggingface import HFLM

STORY = "The miller's cat went to the market, and the old mill stood by the river. " * 12

PAIRS = [
    ("The cook put salt in the", " soup"),
    ("The cook put salt in the ", "soup"),  # a blank at the end of the context
    ("The cook put salt in the \n\t ", "soup"),
    ("", "The stone bridge never fell."),  # nothing before it
    ("", " it"),
    ("", "<|endoftext|>A text that begins with the prefix itself"),
    ("One.<|endoftext|>", "Two."),
    ("Question: Which is hot?\nAnswer:", " ice"),  # choices of one question
    ("Question: Which is hot?\nAnswer:", " a cold stone"),
    ("Question: Which is hot?\nAnswer:", " fire"),
    ("Question: Which is hot?\nAnswer:", " ice"),  # and once more
    ("Der Bär aß Käse für 5 €,", " 熊は寝た 🐻‍❄️, naïve"),
    ("e", "\u0301 combining"),
    (STORY, " The cat slept."),  # longer than the small model reads
    (STORY, " The cat slept. " + STORY[:60]),
    (STORY + "and", " the"),
]
TEXTS = [
    "",
    "a",
    "The stone bridge.\n\nIt never fell.",
    "熊は寝た 🐻‍❄️ ",
    STORY,
    STORY * 3,
    "<|endoftext|>One<|endoftext|>",
]


def asked(kind: str, *requests: tuple) -> list[Instance]:
    return [Instance(kind, {}, arguments, i) for i, arguments in enumerate(requests)]


def theirs(folder: Path, dtype: str = "float32") -> HFLM:
    return get_model("hf")(pretrained=str(folder), device="cpu", dtype=dtype, batch_size=2)


@pytest.fixture(scope="module")
def both(random_words) -> tuple[GlassGPTLM, HFLM]:
    return GlassGPTLM(random_words.gpt), theirs(random_words.folder)


def assert_equal(ours: list[tuple[float, bool]], hf: list[tuple[float, bool]]) -> None:
    assert len(ours) == len(hf)
    assert [total for total, _ in ours] == pytest.approx([total for total, _ in hf], rel=0, abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in hf]


def greedy_continuations(hf: HFLM, contexts: list[str]) -> list[tuple[str, str]]:
    """Continuations that are the most likely ones, for flags that are not all false."""
    options = {"until": [], "max_gen_toks": 3}
    found = hf.generate_until(asked("generate_until", *((c, options) for c in contexts)), disable_tqdm=True)
    return list(zip(contexts, found, strict=True))


def test_it_is_known_to_lm_eval_by_its_name() -> None:
    assert get_model("glassgpt") is GlassGPTLM
    assert get_model("hf").__name__ == "HFLM"


def test_loglikelihood_is_that_of_hf(both) -> None:
    ours, hf = both
    pairs = PAIRS + [
        pair for pair in greedy_continuations(hf, [c for c, _ in PAIRS[:3]]) if pair[1].isascii()
    ]
    requests = asked("loglikelihood", *pairs)
    assert_equal(
        ours.loglikelihood(requests, disable_tqdm=True), hf.loglikelihood(requests, disable_tqdm=True)
    )


def test_rolling_loglikelihood_is_that_of_hf(both) -> None:
    ours, hf = both
    requests = asked("loglikelihood_rolling", *((text,) for text in TEXTS))
    a = ours.loglikelihood_rolling(requests, disable_tqdm=True)
    b = hf.loglikelihood_rolling(requests, disable_tqdm=True)
    assert a == pytest.approx(b, rel=1e-6, abs=1e-4)
    assert a[0] == 0
    assert a[1] < 0


def test_in_float64_requests_windows_and_sums_are_those_of_hf(random_words) -> None:
    """Without rounding nothing is left of the differences: what float32 shows of them is rounding only."""
    ours = GlassGPTLM(str(random_words.folder), device="cpu", dtype="float64")
    hf = theirs(random_words.folder, "float64")
    requests = asked("loglikelihood", *PAIRS)
    a, b = (model.loglikelihood(requests, disable_tqdm=True) for model in (ours, hf))
    assert [total for total, _ in a] == pytest.approx([total for total, _ in b], rel=0, abs=1e-10)
    requests = asked("loglikelihood_rolling", *((text,) for text in TEXTS))
    a, b = (model.loglikelihood_rolling(requests, disable_tqdm=True) for model in (ours, hf))
    assert a == pytest.approx(b, rel=0, abs=1e-10)


@pytest.mark.slow
def test_greedy_texts_are_those_of_hf(both) -> None:
    ours, hf = both
    contexts = ["The cook", "A stone bridge of wood ", "熊は", STORY, "The cook"]
    free = hf.generate_until(
        asked("generate_until", *((c, {"until": [], "max_gen_toks": 20}) for c in contexts)),
        disable_tqdm=True,
    )
    stop = [text[6:8] for text in free[:2]]  # strings that are sure to come
    for options in (
        {"until": [], "max_gen_toks": 20},
        {"until": stop, "max_gen_toks": 20, "do_sample": False},
        {"until": stop[0], "max_new_tokens": 7, "temperature": 0.0},
        {"until": ["\n\n"], "max_gen_toks": 9, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ):
        requests = asked("generate_until", *((context, dict(options)) for context in contexts))
        found = ours.generate_until(requests, disable_tqdm=True)
        assert found == hf.generate_until(requests, disable_tqdm=True)
        if options["until"] is stop:
            assert not any(mark in text for text in found for mark in stop)
            assert found[0] == free[0][: min(free[0].index(mark) for mark in stop if mark in free[0])]


def test_drawn_texts_differ_and_repeat_with_the_seed(both) -> None:
    import torch

    ours, _ = both
    options = {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": True, "temperature": 1.0}
    requests = asked("generate_until", *(("The cook", dict(options)) for _ in range(3)))
    found = []
    for _ in range(2):
        torch.manual_seed(1234)
        found.append(ours.generate_until(requests, disable_tqdm=True))
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
    assert ours.sampling_settings(options).top_k == 50  # as transformers has it
    assert ours.sampling_settings({**options, "top_k": 0, "top_p": 0.9}).top_k is None


def test_mistakes_are_one_line_errors(both) -> None:
    ours, _ = both
    with pytest.raises(UserError, match="'' adds no tokens to 'The cook'"):
        ours.loglikelihood(asked("loglikelihood", ("The cook", "")))
    with pytest.raises(UserError, match="nothing to score"):
        ours.loglikelihood(asked("loglikelihood", ("", "<|endoftext|>")))
    for options, message in (
        ({"max_gen_toks": 77}, "max_gen_toks is 77, but the context is 77"),
        ({"do_sample": True, "max_gen_toks": 5}, "do_sample needs a temperature above 0"),
        ({"num_beams": 4, "max_gen_toks": 5}, "num_beams=4"),
        ({"top_p": 2.0, "max_gen_toks": 5}, "top_p is 2.0"),
    ):
        with pytest.raises(SettingError, match=message):
            ours.generate_until(asked("generate_until", ("The cook", options)))


def test_what_hf_refuses_has_an_answer(both) -> None:
    """An ending longer than the context is scored in windows; blanks alone are not a context."""
    ours, _ = both
    (long,) = ours.loglikelihood(asked("loglikelihood", ("The cook", " " + STORY)), disable_tqdm=True)
    assert long[0] < -100
    blank, empty = ours.loglikelihood(asked("loglikelihood", (" ", "it"), ("", " it")), disable_tqdm=True)
    assert blank == empty


def test_scores_are_kept(random_words, tmp_path: Path) -> None:
    requests = asked("loglikelihood", *PAIRS)
    first = GlassGPTLM(random_words.gpt, cache=tmp_path)
    found = first.loglikelihood(requests, disable_tqdm=True)
    again = GlassGPTLM(random_words.gpt, cache=tmp_path)
    again.scorer._compute = None  # type: ignore[assignment]  # nothing is left to compute
    assert again.loglikelihood(requests, disable_tqdm=True) == found


@pytest.mark.slow
def test_shipped_model_on_requests_of_every_kind(shipped) -> None:
    ours, hf = GlassGPTLM(shipped.gpt), theirs(shipped.folder)
    pairs = PAIRS + greedy_continuations(hf, [context for context, _ in PAIRS[7:8]])
    pairs.append((STORY * 8, " The cat slept."))
    requests = asked("loglikelihood", *pairs)
    a = ours.loglikelihood(requests, disable_tqdm=True)
    assert_equal(a, hf.loglikelihood(requests, disable_tqdm=True))
    assert any(greedy for _, greedy in a)


@pytest.mark.slow
def test_shipped_model_on_real_documents(shipped, shared) -> None:
    """A few; `benchmarks/harness.py` compares 500 of each task."""
    real = shared / "data" / "eval"
    ours, hf = GlassGPTLM(shipped.gpt), theirs(shipped.folder)
    records = lzma.decompress((real / "lambada_test.jsonl.xz").read_bytes()).decode().splitlines()[:12]
    pairs = []
    for text in (json.loads(record)["text"] for record in records):
        context, _, word = text.rpartition(" ")
        pairs.append((context, " " + word))
    requests = asked("loglikelihood", *pairs)
    assert_equal(
        ours.loglikelihood(requests, disable_tqdm=True), hf.loglikelihood(requests, disable_tqdm=True)
    )
    page = lzma.decompress((real / "wikitext-2-raw.test.xz").read_bytes()).decode()[:9000]
    requests = asked("loglikelihood_rolling", (page,))
    (a,), (b,) = ours.loglikelihood_rolling(requests, disable_tqdm=True), hf.loglikelihood_rolling(requests)
    assert a == pytest.approx(b, rel=1e-6)


# The wrapper command.


@pytest.fixture
def own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two of our own tasks in lm_eval's format, next to their data."""
    folder = tmp_path / "own"
    folder.mkdir()
    rows = [
        {"question": "Which is hot?", "choices": ["ice", "fire"], "gold": 1},
        {"question": "Which is wet?", "choices": ["rain", "sand"], "gold": 0},
        {"question": "Which is tall?", "choices": ["an oak", "moss"], "gold": 0},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    common = (
        "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {file}\ntest_split: test\n"
        'doc_to_text: "Question: {{{{question}}}}\\nAnswer:"\n'
    )
    (folder / "own_choice.yaml").write_text(
        f"task: own_choice\noutput_type: multiple_choice\n{common.format(file=folder / 'rows.jsonl')}"
        'doc_to_choice: "{{choices}}"\ndoc_to_target: gold\nmetric_list:\n  - metric: acc\n'
    )
    (folder / "own_text.yaml").write_text(
        f"task: own_text\noutput_type: generate_until\n{common.format(file=folder / 'rows.jsonl')}"
        'doc_to_target: "{{choices[gold]}}"\ngeneration_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 5\n'
        "metric_list:\n  - metric: exact_match\n"
    )
    (folder / "own_missing.yaml").write_text(
        f"task: own_missing\noutput_type: generate_until\n{common.format(file=folder / 'no.jsonl')}"
        'doc_to_target: ""\n'
    )
    # One list of all tasks: lm_eval makes it anew at every call, in seconds.
    manager = harness.TaskManager(include_path=str(folder))
    for place in (harness, sys.modules["lm_eval.tasks"]):
        monkeypatch.setattr(place, "TaskManager", lambda **_: manager)
    return folder


@pytest.mark.slow
def test_the_command_runs_tasks_of_lm_eval(evaluate, random_words, own_tasks: Path) -> None:
    names = "own_choice,own_text,own_missing,own_choic"
    words = [random_words.folder, "--tasks", names, "--data", own_tasks, "--limit", "2"]
    code, out, err = evaluate(*words)
    assert code == 0
    _, row, _ = evaluate(random_words.folder, "--tasks", "own_choice", "--data", own_tasks, "--markdown")
    assert row.startswith("| model | own_choice.acc (lm_eval ")
    assert "own_missing: not available:" in err
    assert "own_choic: unknown task. Did you mean 'own_choice'?" in err
    found = json.loads(evaluate(*words, "--json")[1])
    assert set(found) == {"own_choice.acc,none", "own_text.exact_match,none"}
    assert {one["n"] for one in found.values()} == {2}
    for figure in found.values():
        assert {"value", "stderr", "n", "protocol"} <= figure.keys()  # as those of the suites
        assert re.fullmatch(r"lm_eval [\d.]+\w*, 0-shot; first 2", figure["protocol"])
        assert figure["protocol"] in out
    assert "own_choice" in out
    assert "exact_match" in out


def test_the_command_says_what_it_cannot_do(evaluate, random_words, tmp_path: Path) -> None:
    code, _, err = evaluate(SHIPPED, SHIPPED, "--tasks", "coqa")
    assert code == 2
    assert "takes one model" in err
    code, _, err = evaluate(SHIPPED, "--tasks", "coqa", "--data", tmp_path / "nowhere")
    assert code == 2
    assert "is not a folder" in err
    for words in (["--suite", "paper"], ["--stride", "64"], ["--any-data"]):
        code, _, err = evaluate("default", "--tasks", "coqa", *words)
        assert code == 2
        assert f"{words[0]} does not apply to --tasks" in err


@pytest.mark.slow
def test_lm_evals_own_command_line_skips_unknown_tasks(
    random_words, own_tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(names: str, device: str = "cpu") -> tuple[int, str, str]:
        model = ["--model", "glassgpt", "--model_args", f"pretrained={random_words.folder},device={device}"]
        words = [*model, "--include_path", str(own_tasks), "--tasks", names]
        monkeypatch.setattr(sys, "argv", ["harness", *words])
        return harness.main(), *capsys.readouterr()

    code, out, err = call("own_choic,own_choice")
    assert code == 0
    assert "own_choic: unknown task. Did you mean 'own_choice'" in err
    assert "own_choice" in out
    for names, say in (
        ("own_choic", "error: none of the tasks is known."),
        ("own_missing", "error: FileNotF"),
    ):
        code, _, err = call(names)
        assert code == 2
        assert err.splitlines()[-1].startswith(say)
    code, _, err = call("own_choice", device="qpu")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: device 'qpu' is not one torch knows")


def test_the_command_names_what_is_not_installed(evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "glassgpt.evaluate.harness")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, _, err = evaluate(SHIPPED, "--tasks", "triviaqa")
    assert code == 2
    assert "need the package lm_eval. Install it with: pip install 'glassgpt[eval]'" in err
