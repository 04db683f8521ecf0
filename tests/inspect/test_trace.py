"""Traces: the values are the model's, nothing is stored that was not read, mistakes are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError, StepIndexError, UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead
from glassgpt.inspect.arrays import largest
from glassgpt.inspect.taps import BLOCK_STEPS, list_steps
from glassgpt.inspect.traces import activations, indexing
from glassgpt.inspect.traces.trace import Trace

from .conftest import SMALL, random_model, some_ids, weights_of
from .plain import forward, softmax

VARIANTS = [
    SMALL,
    Config(
        vocab_size=57, n_positions=16, n_embd=24, n_layer=2, n_head=3, tie_word_embeddings=False, n_inner=40
    ),
]


@pytest.mark.parametrize("config", VARIANTS)
@pytest.mark.parametrize("count", [1, 2, 13])
def test_every_step_equals_plain_numpy(config: Config, count: int) -> None:
    gpt = random_model(config)
    ids = some_ids(count, config=config)
    expected = forward(weights_of(gpt), config, ids)
    trace = gpt.trace(ids)
    assert set(list_steps(config)) == set(expected)
    for name, values in expected.items():
        # Float32 against float64: some dozen roundings of numbers of this size.
        scale = max(1.0, np.abs(values[np.isfinite(values)]).max())
        assert trace[name].dtype == np.float32
        np.testing.assert_allclose(trace[name], values, atol=5e-6 * scale, rtol=0, err_msg=name)


def test_attributes_are_the_steps(gpt: GPT) -> None:
    trace = gpt.trace(some_ids(9))
    for step, dims in BLOCK_STEPS.items():
        index = attrgetter(step)(trace)
        np.testing.assert_array_equal(index[-1], trace[f"h.2.{step}"])
        np.testing.assert_array_equal(index[1, -1, 4], trace[f"h.1.{step}"][-1, 4])
        if dims.startswith("H"):
            np.testing.assert_array_equal(index[2, 3], trace[f"h.2.{step}"][3])
        assert len(index) == 3
        assert len(list(index)) == 3
        assert step in repr(index)
    np.testing.assert_array_equal(trace.attention[2], trace["h.2.attn.weights"])
    np.testing.assert_array_equal(trace.residual[0], trace["embedding"])
    np.testing.assert_array_equal(trace.residual[3], trace["h.2.resid_post"])
    assert len(trace.residual) == 4
    np.testing.assert_allclose(trace.attention[0].sum(-1), 1, atol=1e-6)
    assert np.isneginf(trace.attn.masked[0, 0][0, 1:]).all()


def test_token_loss_lens_and_norms(gpt: GPT) -> None:
    ids = some_ids(11, seed=3)
    weights = weights_of(gpt)
    seen = forward(weights, SMALL, ids)
    trace = gpt.trace(ids)
    p = softmax(seen["logits"])
    loss = trace.token_loss
    assert np.isnan([loss.p[0], loss.rank[0], loss.entropy[0]]).all()
    for t in range(1, len(ids)):
        assert loss.p[t] == pytest.approx(p[t - 1, ids[t]], rel=1e-4)
        assert loss.rank[t] == 1 + (p[t - 1] > p[t - 1, ids[t]]).sum()
        assert loss.entropy[t] == pytest.approx(-(p[t - 1] * np.log(p[t - 1])).sum(), rel=1e-4)
    assert loss.nats[1] == pytest.approx(-np.log(p[0, ids[1]]), rel=1e-4)
    lens, top = trace.lens(), trace.lens(5)
    streams = [seen["embedding"], *(seen[f"h.{i}.resid_post"] for i in range(3))]
    for i, stream in enumerate(streams):
        from .plain import norm

        said = softmax(norm(stream, weights, "ln_f") @ weights["wte.weight"].T.astype(np.float64))
        np.testing.assert_array_equal(lens.ids[i], said.argmax(-1))
        np.testing.assert_allclose(lens.p[i], said.max(-1), rtol=1e-4)
        np.testing.assert_allclose(top.p[i], -np.sort(-said, axis=-1)[:, :5], rtol=1e-4)
        np.testing.assert_allclose(trace.norms[i], np.linalg.norm(stream, axis=-1), rtol=1e-5)
    assert top.ids.shape == top.texts.shape == (4, 11, 5)
    np.testing.assert_array_equal(trace.lens(2).ids, top.ids[..., :2])
    assert lens.texts[0, 0] == str(lens.ids[0, 0])  # no tokenizer: the number itself


def test_one_position_has_the_bits_of_all(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "CHUNK", 4)
    import glassgpt.inspect.traces.trace as room

    monkeypatch.setattr(room, "CHUNK", 4)
    ids = some_ids(11)
    for position in range(-11, 11):
        row = gpt.trace(ids).logits_at(position)
        np.testing.assert_array_equal(row, gpt.trace(ids).logits[position])
    assert gpt.trace(ids).p_at(3).sum() == pytest.approx(1, abs=1e-5)


def test_agrees_with_ordinary_use(shipped: GPT) -> None:
    text = "The old house stood at the"
    trace = shipped.trace(text)
    assert trace.texts == ["The", " old", " house", " stood", " at", " the"]
    # The fused kernel rounds differently; verify allows as much (7.7e-5 at the logits).
    np.testing.assert_allclose(trace.logits, shipped.logits([trace.tokens])[0], atol=1e-4)
    best, p = shipped.next(text, k=1)[0]
    assert trace.lens().texts[-1, -1] == best
    assert trace.lens().p[-1, -1] == pytest.approx(p, rel=1e-4)


def test_an_empty_text_is_the_beginning_of_a_document(shipped: GPT) -> None:
    trace = shipped.trace("")
    assert len(trace) == 1
    assert trace.lens().texts.shape == (shipped.config.n_layer + 1, 1)
    np.testing.assert_allclose(trace.p_at().max(), shipped.next("", k=1)[0][1], rtol=1e-4)


def test_reading_one_layer_caches_only_that(gpt: GPT) -> None:
    trace = gpt.trace(some_ids(40))
    assert trace._activations is not None
    assert trace._activations._residuals is None, "nothing runs before it is read"
    trace.attention[1, 2]
    assert set(trace._activations._cached) == {"h.1.attn.weights"}
    assert trace._activations.cached_bytes == 4 * 40 * 40 * 4
    trace.token_loss, trace.lens(), trace.norms
    assert set(trace._activations._cached) == {"h.1.attn.weights"}, "no logits are cached"


def test_the_cache_is_bounded(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "CACHE_BYTES", 60_000)
    trace = gpt.trace(some_ids(40))
    for layer in range(3):
        for index in (trace.attn.scores, trace.attention, trace.attn.q):
            index[layer]
            assert trace._activations is not None
            assert trace._activations.cached_bytes <= 60_000


def test_a_block_is_run_once_for_several_steps(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = gpt.trace(some_ids(5))
    trace.norms  # noqa: B018
    runs = []
    block = gpt.backend.model.h[1]
    original = type(block).forward
    monkeypatch.setattr(
        type(block), "forward", lambda self, *args: runs.append(self) or original(self, *args)
    )
    found = trace.read("h.1.attn.q", "h.1.mlp.gelu", "h.1.attn.scores", "ln_f", "wte")
    assert runs == [block]
    assert found["h.1.mlp.gelu"].shape == (5, 128)
    trace.attn.q[1], trace.attn.scores[1]
    assert len(runs) == 1, "what was read is cached"


def test_appending_equals_a_fresh_trace(gpt: GPT) -> None:
    ids = some_ids(12)
    trace = gpt.trace(ids[:5])
    sibling = trace.append(7).append(8)  # another continuation shares the cache for a while
    for token in ids[5:]:
        trace = trace.append(token)
    fresh = gpt.trace(ids)
    for name in list_steps(SMALL):
        values = fresh[name]
        scale = max(1.0, np.abs(values[np.isfinite(values)]).max())
        np.testing.assert_allclose(trace[name], values, atol=5e-6 * scale, rtol=0, err_msg=name)
    np.testing.assert_array_equal(trace.lens().ids, fresh.lens().ids)
    np.testing.assert_allclose(trace.token_loss.p[1:], fresh.token_loss.p[1:], rtol=1e-4)
    other = sibling.append(9)
    np.testing.assert_allclose(other.logits, gpt.trace([*ids[:5], 7, 8, 9]).logits, atol=2e-5)


def test_appending_computes_only_the_new_column(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(12)
    trace = gpt.trace(ids[:8])
    trace.lens(2), trace.token_loss
    rows = []
    head = type(gpt.backend.model).head
    monkeypatch.setattr(
        type(gpt.backend.model), "head", lambda self, x, *rest: rows.append(len(x)) or head(self, x, *rest)
    )
    longer = trace.append(ids[8]).append(ids[9])
    longer.lens(2), longer.token_loss
    assert sum(rows) <= (3 + 1) * 2 + 3  # two columns of each stream, and the answers before and at them
    for token in ids[10:]:
        longer = longer.append(token)
    fresh = gpt.trace(ids)
    for k in (None, 1, 2):
        np.testing.assert_array_equal(longer.lens(k).ids, fresh.lens(k).ids)
        np.testing.assert_allclose(longer.lens(k).p, fresh.lens(k).p, rtol=1e-4)
    for ours, theirs in zip(vars(longer.token_loss).values(), vars(fresh.token_loss).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert longer.lens(4).ids.shape == (4, 12, 4)
    assert len(trace.token_loss.p) == 8, "the shorter one is as it was"
    assert trace.lens().ids.shape == (4, 8)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: t.attention[3, 0], "layer 3 is out of range. Use 0 to 2"),
        (lambda t: t.attention[-4, 0], "layer -4"),
        (lambda t: t.attn.q[0, 4], "head 4 is out of range. Use 0 to 3"),
        (lambda t: t.attn.q[0, 1, 6], "does not fit attn.q"),
        (lambda t: t.residual[4], "residual 4 is out of range. Use 0 to 3"),
        (lambda t: t.mlp.fc[True], "layer True is not an integer"),
        (lambda t: t.attention["x", 0], "layer 'x' is not an integer"),
        (lambda t: t.attention[2:1], "this slice has no layers. Layers are 0 to 2"),
        (lambda t: t.attention[:, 9], "head 9 is out of range"),
        (lambda t: t["h.3.resid_pre"], "layer 3 is out of range"),
        (lambda t: t["h.9.ln_1"], "layer 9"),
        (lambda t: t["h.0.attn.Q"], "'h.0.attn.Q' is not a step"),
        (lambda t: t.logits_at(6), "position 6 is out of range. Use 0 to 5"),
    ],
)
def test_index_mistakes(gpt: GPT, ask: Callable[[Trace], object], says: str) -> None:
    with pytest.raises(StepIndexError, match=re.escape(says)) as caught:
        ask(gpt.trace(some_ids(6)))
    assert isinstance(caught.value, IndexError)
    assert "\n" not in str(caught.value)


def test_slices_stack_layers_within_a_limit(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = gpt.trace(some_ids(6))
    assert trace.residual[:].shape == (4, 6, 32)
    np.testing.assert_array_equal(trace.residual[:], np.stack(list(trace.residual)))
    some = np.stack([trace.attention[0, 1], trace.attention[2, 1]])
    np.testing.assert_array_equal(trace.attention[::2, 1], some)
    np.testing.assert_array_equal(trace.mlp.gelu[1:, -1], trace.mlp.gelu[:][1:, -1])
    monkeypatch.setattr(indexing, "SLICE_BYTES", 3 * 6 * 6 * 4 * 4 - 1)
    with pytest.raises(StepIndexError, match=r"3 layers of attn.weights take .* fewer than 3 together"):
        trace.attention[:]
    assert trace.attention[:2].shape == (2, 4, 6, 6)


def test_resid_pre_is_what_enters_a_block(gpt: GPT) -> None:
    trace = gpt.trace(some_ids(6))
    np.testing.assert_array_equal(trace.resid_pre[:], trace.residual[:-1])
    np.testing.assert_array_equal(trace["h.0.resid_pre"], trace["embedding"])
    np.testing.assert_array_equal(trace["h.2.resid_pre"], trace["h.1.resid_post"])
    assert set(trace.read("h.2.resid_pre", "h.1.resid_post")) == {"h.2.resid_pre", "h.1.resid_post"}


def test_the_stream_within_blocks_runs_no_block_again(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(6)
    with monkeypatch.context() as patch:
        patch.setattr(activations, "MIDDLES_BYTES", 0)
        expected = gpt.trace(ids).resid_mid[:]
    trace = gpt.trace(ids)
    trace.norms  # noqa: B018
    monkeypatch.setattr(type(gpt.backend.model.h[0]), "forward", None)
    np.testing.assert_array_equal(trace.resid_mid[:], expected)


def test_a_trace_is_of_one_text(gpt: GPT) -> None:
    for texts in (["a", "b"], [[1, 2], [3]]):
        with pytest.raises(SettingError, match=r"one text, not a list of 2. Trace each: \[gpt.trace"):
            gpt.trace(texts)  # type: ignore[arg-type]


def test_other_mistakes(gpt: GPT) -> None:
    with pytest.raises(SettingError, match="49 tokens, more than this model's context of 48"):
        gpt.trace([1] * 49)
    with pytest.raises(SettingError, match="token id 101"):
        gpt.trace([101])
    with pytest.raises(UserError, match="tokenizer"):
        gpt.trace("text")
    with pytest.raises(SettingError, match="k is 0"):
        gpt.trace([1]).lens(0)
    with pytest.raises(SettingError, match="not a token id"):
        gpt.trace([1]).append(-1)
    with pytest.raises(SettingError, match="fills this model's context of 48"):
        gpt.trace([1] * 48).append(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_give_float32(gpt: GPT, dtype: torch.dtype) -> None:
    import copy

    other = GPT(TorchBackend(copy.deepcopy(gpt.backend.model).to(dtype)))
    trace, exact = other.trace(some_ids(8)), gpt.trace(some_ids(8))
    assert trace.logits.dtype == trace.attention[0, 0].dtype == trace.norms.dtype == np.float32
    np.testing.assert_allclose(trace.norms, exact.norms, rtol=0.02)


def golden(folder: Path) -> tuple[GPT, dict[str, torch.Tensor]]:
    from tests.model.test_golden import nano, tensors

    model = nano(tensors(folder / "gpt-nano-sort-model.json"), "gelu_new").requires_grad_(False)
    return GPT(TorchBackend(model)), tensors(folder / "gpt-nano-sort-t0-partials.json")


def test_the_golden_model(shared: Path) -> None:
    from tests.model.test_golden import STEPS

    gpt, expected = golden(shared / "golden" / "llm_viz_gpt_nano")
    for row, ids in enumerate(expected["idx"].long().tolist()):
        trace = gpt.trace(ids)
        for ours, theirs in STEPS.items():
            values = expected[theirs].numpy()
            values = values[row] if theirs != "pos_emb" else values.reshape(trace[ours].shape)
            scale = max(1.0, float(np.abs(values).max()))
            np.testing.assert_allclose(trace[ours], values, atol=2e-6 * scale, rtol=0, err_msg=ours)


def test_the_first_pass_keeps_what_a_block_would_compute_again(gpt: GPT) -> None:
    ids = some_ids(40)
    plain, kept, patterns = (
        gpt.trace(ids),
        gpt.trace(ids).keep_steps(10**9),
        gpt.trace(ids).keep_steps(80_000),
    )
    for trace in (plain, kept, patterns):
        trace.norms  # noqa: B018
    assert plain._activations is not None
    assert not plain._activations._cached
    assert kept._activations is not None
    assert patterns._activations is not None
    steps = {name for name in list_steps(gpt.config) if name.startswith("h.")}
    assert set(kept._activations._cached) == {name for name in steps if not name.endswith("resid_post")}
    assert set(patterns._activations._cached) == {name for name in steps if name.endswith("attn.weights")}
    for name in steps:
        np.testing.assert_array_equal(kept[name], plain[name], err_msg=name)


def test_some_columns_of_the_lens_are_those_of_all(gpt: GPT) -> None:
    ids = some_ids(21)
    whole_ids, whole_p = gpt.trace(ids).lens_top_k(3)
    for first, last in ((0, 0), (4, 9), (20, 20), (0, 20)):
        found_ids, found_p = gpt.trace(ids).lens_top_k(3, first, last)
        np.testing.assert_array_equal(found_ids, whole_ids[:, first : last + 1])
        # A product of another size rounds differently.
        np.testing.assert_allclose(found_p, whole_p[:, first : last + 1], rtol=1e-5)
    edited, again = (gpt.intervene(ids, AblateHead(1, 2)).after for _ in range(2))
    part, whole = edited.lens_top_k(1, 3, 7), again.lens_top_k(1)
    np.testing.assert_array_equal(part[0], whole[0][:, 3:8])
    np.testing.assert_allclose(part[1], whole[1][:, 3:8], rtol=1e-5)
    with pytest.raises(StepIndexError, match="position 21"):
        edited.lens_top_k(1, 3, 21)


def test_an_appended_token_adds_a_row_to_kept_patterns(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(9)
    trace = gpt.trace(ids[:6]).keep_steps(2**20)
    trace.norms  # noqa: B018
    for token in ids[6:]:
        trace = trace.append(token)
    fresh = gpt.trace(ids)
    expected = [fresh.attention[layer] for layer in range(SMALL.n_layer)]
    runs = []
    block = type(gpt.backend.model.h[0])
    original = block.forward
    monkeypatch.setattr(block, "forward", lambda self, *args: runs.append(self) or original(self, *args))
    for layer in range(SMALL.n_layer):
        np.testing.assert_allclose(trace.attention[layer], expected[layer], atol=5e-6, rtol=0)
    assert runs == []


def test_the_largest_are_those_of_a_stable_sort() -> None:
    numbers = np.random.default_rng(0).integers(0, 9, 40).astype(np.float32)
    numbers[[3, 17]] = np.nan, -np.inf
    for k in (0, 1, 5, 39, 40, 50):
        np.testing.assert_array_equal(largest(numbers, k), np.argsort(-numbers, kind="stable")[:k])


def test_an_appended_column_has_the_numbers_of_a_fresh_pass(gpt: GPT) -> None:
    ids = some_ids(12)
    trace = gpt.trace(ids[:8])
    trace.lens_top_k(5), trace.token_loss
    for token in ids[8:]:
        trace = trace.append(token)
        trace.lens_top_k(5)
    fresh = gpt.trace(ids)
    for position in range(12):
        np.testing.assert_allclose(trace.logits_at(position), fresh.logits_at(position), atol=1e-5)
    np.testing.assert_array_equal(trace.lens_top_k(5)[0], fresh.lens_top_k(5)[0])
    np.testing.assert_allclose(trace.token_loss.p, fresh.token_loss.p, rtol=1e-4)
    np.testing.assert_allclose(trace.logits, fresh.logits, atol=1e-5)
