"""`glassgpt verify`: agreement is reported, and a fault is found and located."""

from __future__ import annotations

import json

import pytest
import torch

import glassgpt as package
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer
from glassgpt.verify import checks, modes, plan, reference
from glassgpt.weights import load_checkpoint

from .conftest import random_checkpoint


def test_everything_agrees_on_this_machine(glassgpt, tiny):
    answer = glassgpt("verify", tiny, "--device", "cpu")
    assert answer.code == 0, answer
    planned = plan.plan(plan.backends(), ["cpu"], list(plan.EPS))
    expected = sum(len(modes.checks_of(backend)) for backend, _, _ in planned)
    assert expected > 3 * len(modes.CHECKS), "torch in three dtypes, and other backends"
    assert answer.out.count(" ok\n") == expected
    assert "cpu, numpy" in answer.out
    assert "FAIL" not in answer.out
    assert f"all {expected} checks agree" in answer.err


def test_json(glassgpt, tiny):
    found = json.loads(
        glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--backend", "torch", "--json").out
    )
    assert found["ok"] is True
    assert {check["mode"] for check in found["checks"]} == set(modes.CHECKS)
    assert all(check["deviation"] <= check["tolerance"] for check in found["checks"])
    counted = [check for check in found["checks"] if check["mode"] != "scores"]
    assert all(check["same_tokens"] == check["n_tokens"] > 0 for check in counted)


def test_what_is_allowed_comes_from_the_rounding_of_the_reference():
    checkpoint = random_checkpoint()
    plain = reference.make_reference(checkpoint, reference.sample_texts(checkpoint), tuple(plan.EPS))
    largest = max(abs(values["logits"]).max() for values in plain.seen)
    tolerance = {dtype: plain.tolerance("logits", dtype) for dtype in plan.EPS}
    assert 0 < tolerance["float32"] < 1e-4 * largest, "a tolerance that would hide a wrong digit is none"
    assert (
        tolerance["float16"] < tolerance["bfloat16"] <= 2**16 * tolerance["float32"]
    )  # 2**16: eps against eps
    assert tolerance["float16"] <= 2**13 * tolerance["float32"]


# A fault is put where only some of the ways meet it; `verify` must name those, and no other.
def test_a_fault_in_the_padding_is_found(glassgpt, tiny, monkeypatch):
    right = GPT2.hidden

    def blind_to_padding(self, ids, positions=None, cache=None, tap=None):
        if positions is not None and cache is None:
            positions = positions.clamp(min=0)  # padding is looked at
        return right(self, ids, positions, cache, tap)

    monkeypatch.setattr(GPT2, "hidden", blind_to_padding)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--backend", "torch", "--json")
    found = json.loads(answer.out)
    assert answer.code == 1
    assert [check["mode"] for check in found["checks"] if not check["ok"]] == [
        "left padding",
        "right padding",
    ]


def test_a_fault_in_the_cache_is_found_in_its_layer(glassgpt, tiny, monkeypatch):
    from glassgpt.model import Cache

    right = Cache.layer

    def forgets_in_layer_1(self, i):
        layer = right(self, i)
        return layer._replace(kv=layer.kv * 1.01) if i == 1 else layer  # a copy: what is kept there is lost

    monkeypatch.setattr(Cache, "layer", forgets_in_layer_1)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--backend", "torch", "--json")
    failed = [check for check in json.loads(answer.out)["checks"] if not check["ok"]]
    assert answer.code == 1
    assert {check["mode"] for check in failed} == {
        "prefill, then decode",
        "prefill in chunks",
        "engine, unequal lengths",
        "engine, twice the rows",
    }
    first = next(check for check in failed if check["mode"] == "prefill, then decode")
    assert not first["place"].startswith("h.0.")


def test_numbers_that_are_none_fail(glassgpt, tiny, monkeypatch):
    right = GPT2.embed

    def broken(self, *args, **kwargs):
        x = right(self, *args, **kwargs)
        return x * float("nan") if x.dtype == torch.float16 else x

    monkeypatch.setattr(GPT2, "embed", broken)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--backend", "torch")
    assert answer.code == 1
    assert answer.out.count("FAIL") == len(modes.CHECKS)
    assert "inf" in answer.out


def test_a_check_that_fails_says_why(glassgpt, tiny, monkeypatch):
    def breaks(model, texts):
        raise RuntimeError("CUDA error: operation not supported\nand much more")

    monkeypatch.setitem(modes.CHECKS, "left padding", breaks)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--backend", "torch")
    assert answer.code == 1
    assert answer.out.count("FAIL") == 1
    assert "failed: CUDA error" in " ".join(answer.out.split())
    assert f"1 of {len(modes.CHECKS)} checks FAIL" in answer.err

    def has_no_kernel(model, texts):
        raise RuntimeError("\"addmm\" not implemented for 'Half'")

    monkeypatch.setitem(modes.CHECKS, "left padding", has_no_kernel)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--backend", "torch")
    assert answer.code == 0
    assert "torch has no such kernel here" in answer.out


def test_texts_for_a_gpu_reach_every_graph():
    from glassgpt.backends.torch.cuda_graphs import LONG_PROMPT, SHORT

    texts = reference.sample_texts(random_checkpoint(n_positions=1024), reference.CUDA_LENGTH)
    prompts = [len(text) - modes.STEPS for text in texts]
    assert max(prompts) > LONG_PROMPT
    assert any(SHORT[1] < n <= LONG_PROMPT for n in prompts)
    assert any(n <= SHORT[1] for n in prompts)


def test_known_answers_are_asked_only_of_the_published_shape():
    assert not checks.is_published_small(random_checkpoint())


@pytest.mark.parametrize(("shift", "ok"), [(0.0, True), (1e-5, True), (1e-4, False)])
def test_known_answers_are_compared(tiny, monkeypatch, shift, ok):
    """With the small model's own answers in the place of the published ones."""
    gpt = package.load(tiny, dtype="float32", device="cpu")
    found = [
        (text, p) for text, p in gpt.next([gpt.tokenizer.eot_id], k=257) if text.isascii() and len(text) == 1
    ]
    responses = dict(found[:4])
    first = next(iter(responses))
    monkeypatch.setattr(checks, "KNOWN_ANSWERS", {**responses, first: responses[first] + shift})
    check = checks.check_known_answers(load_checkpoint(tiny))
    assert check.ok is ok
    assert check.deviation == pytest.approx(shift, abs=1e-7)
    if shift:
        assert repr(first) in check.place


def test_each_known_answer_is_one_token_of_the_published_vocabulary(shared):
    tokenizer = Tokenizer.load(shared / "gpt2-bpe")
    assert [tokenizer.encode(text) for text in checks.KNOWN_ANSWERS] == [[198], [464], [1], [32], [40]]


def test_mistakes(glassgpt, tiny, tmp_path):
    assert glassgpt("verify", tiny, "--device", "abacus").is_one_line_error("abacus")
    assert glassgpt("verify", tmp_path / "missing").is_one_line_error("missing")
    assert glassgpt("verify", tiny, "--dtype", "float7").is_one_line_error("float7")
    assert glassgpt("verify", tiny, "--backend", "abacus").is_one_line_error("abacus")
    assert glassgpt("verify", tiny, "--backend", "numpy", "--dtype", "float16").is_one_line_error("numpy")


def test_a_fault_in_another_backend_is_found(glassgpt, tiny, monkeypatch):
    from glassgpt.backends.numpy import NumpyBackend

    right = NumpyBackend.decode

    def forgets_the_last_token(self, rows, ids, positions):
        return right(self, rows, ids, [max(0, position - 1) for position in positions])

    monkeypatch.setattr(NumpyBackend, "decode", forgets_the_last_token)
    answer = glassgpt("verify", tiny, "--device", "cpu", "--dtype", "float32", "--json")
    failed = [check for check in json.loads(answer.out)["checks"] if not check["ok"]]
    assert answer.code == 1
    assert {check["backend"] for check in failed} == {"numpy"}
    assert {check["mode"] for check in failed} == {"engine, unequal lengths", "engine, twice the rows"}
