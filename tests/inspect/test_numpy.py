"""The numpy model against the torch model: every tap, every kind of edit, the lens and the attributions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import glassgpt
from glassgpt.backends.choose import load_like
from glassgpt.backends.numpy import NumpyBackend
from glassgpt.config import ACTIVATIONS, Config
from glassgpt.errors import SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import (
    AblateAttention,
    AblateBlock,
    AblateHead,
    AblateMLP,
    AblateNeuron,
    Patch,
    Steer,
    SteerToken,
)
from glassgpt.inspect.taps import list_steps
from glassgpt.model.numpy_gpt2 import NumpyGPT2, numpy_class
from glassgpt.weights import Checkpoint, load_checkpoint
from tests.conftest import SHIPPED

from .conftest import SMALL, random_model, some_ids, weights_of

IDS = some_ids(11)
# The largest difference measured here is 6e-6, at attention scores of 8.
NEAR = {"atol": 1e-4, "rtol": 1e-4}

VARIANTS = {
    **{name: {"activation_function": name} for name in ACTIVATIONS},
    "unscaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},
    "untied": {"tie_word_embeddings": False},
    "narrow mlp": {"n_inner": 20},
    "one head": {"n_head": 1},
    "epsilon": {"layer_norm_epsilon": 0.1},
    "relative": {"attention": "relative", "relative_distance": 5, "absolute_positions": False},
    "relative and absolute": {"attention": "relative"},
}

UNMASKED = ("attn.relative", "attn.scores", "attn.scaled")  # skewing leaves anything above the diagonal


def twin(gpt: GPT) -> GPT:
    """The same weights in numpy."""
    model = numpy_class(gpt.config)(gpt.config, weights_of(gpt))
    return GPT(NumpyBackend(model), gpt.tokenizer, name=gpt.name)


@pytest.fixture(scope="module")
def pair() -> tuple[GPT, GPT]:
    gpt = random_model()
    return gpt, twin(gpt)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_tap_equals_torch(changes: dict) -> None:
    gpt = random_model(dataclasses.replace(SMALL, **changes))
    steps = list_steps(gpt.config)
    found, wanted = twin(gpt).trace(IDS).read(*steps), gpt.trace(IDS).read(*steps)
    for step in steps:
        assert found[step].dtype == np.float32
        if step.endswith(UNMASKED) and gpt.config.attention == "relative":
            found[step], wanted[step] = np.tril(found[step]), np.tril(wanted[step])
        np.testing.assert_allclose(found[step], wanted[step], err_msg=step, **NEAR)


def test_the_taps_are_the_steps_in_order(pair: tuple[GPT, GPT]) -> None:
    names: list[str] = []
    model = pair[1].model
    assert isinstance(model, NumpyGPT2)

    def tap(name: str, x: np.ndarray) -> np.ndarray:
        names.append(name)
        return x

    model(np.array([IDS]), tap=tap)
    assert names == list_steps(SMALL)


EDITS = {
    "head": AblateHead(1, 2),
    "head, mean, some positions": AblateHead(0, 3, "mean", positions=(2, 5)),
    "head, mean of another text": AblateHead(2, 0, "mean", reference=some_ids(7, 3)),
    "neuron": AblateNeuron(1, 17),
    "attention": AblateAttention(1),
    "mlp": AblateMLP(2, "mean"),
    "block": AblateBlock(0),
    "patch": Patch("h.1.resid_post", some_ids(11, 4)),
    "patch a head at a position": Patch("h.0.attn.z", some_ids(4, 4), head=1, positions=(3,)),
    "patch attention": Patch("h.2.attn.masked", some_ids(11, 5)),
    "patch the embedding": Patch("wte", some_ids(11, 6), positions=(0, 1)),
    "patch ln_f": Patch("ln_f", some_ids(11, 6), positions=(10,)),
    "steer": Steer("h.1.resid_post", np.linspace(-1, 1, 32), 2.5),
    "steer to a token": SteerToken(1, 7, 1.5, positions=(4, -1)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_every_edit_equals_torch(pair: tuple[GPT, GPT], edit) -> None:
    wanted, found = (gpt.intervene(IDS, edit) for gpt in pair)
    np.testing.assert_allclose(found.logits, wanted.logits, **NEAR)
    np.testing.assert_allclose(found.kl_per_token, wanted.kl_per_token, **NEAR)
    assert found.kl > 1e-5, "an edit that changes nothing tests nothing"
    ids = [change.id for change in wanted.top_changes(3)]
    assert [change.id for change in found.top_changes(3)] == ids
    steps = ["h.2.attn.weights", "h.2.resid_post", "ln_f"]
    for step, values in wanted.after.read(*steps).items():
        np.testing.assert_allclose(found.after[step], values, err_msg=step, **NEAR)


def test_edits_together_and_a_patch_across_kinds(pair: tuple[GPT, GPT]) -> None:
    """A patch may come from a trace of the other kind of model."""
    edits = [AblateHead(0, 1), Patch("h.1.mlp.proj", pair[0].trace(some_ids(11, 9))), SteerToken(2, 3)]
    wanted, found = (gpt.intervene(IDS, edits) for gpt in pair)
    np.testing.assert_allclose(found.logits, wanted.logits, **NEAR)
    back = [Patch("h.1.mlp.proj", pair[1].trace(some_ids(11, 9)))]
    np.testing.assert_allclose(*(gpt.intervene(IDS, back).logits for gpt in pair), **NEAR)


def test_predictions_equal_torch(pair: tuple[GPT, GPT]) -> None:
    wanted, found = (gpt.trace(IDS) for gpt in pair)
    for name in ("p", "rank", "entropy"):
        np.testing.assert_allclose(
            getattr(found.token_loss, name), getattr(wanted.token_loss, name), err_msg=name, **NEAR
        )
    for k in (None, 5):
        np.testing.assert_array_equal(found.lens(k).ids, wanted.lens(k).ids)
        np.testing.assert_allclose(found.lens(k).p, wanted.lens(k).p, **NEAR)
    np.testing.assert_allclose(found.norms, wanted.norms, **NEAR)
    np.testing.assert_allclose(found.p_at(3), wanted.p_at(3), **NEAR)


def test_appended_tokens_equal_one_pass(pair: tuple[GPT, GPT]) -> None:
    trace = pair[1].trace(IDS[:8])
    trace.lens()
    for token in IDS[8:]:
        trace = trace.append(token)
    whole = pair[1].trace(IDS)
    np.testing.assert_allclose(trace.logits, whole.logits, **NEAR)
    np.testing.assert_array_equal(trace.lens().ids, whole.lens().ids)
    np.testing.assert_allclose(trace.attention[2], whole.attention[2], **NEAR)


def test_attribution_without_gradients_equals_torch(pair: tuple[GPT, GPT]) -> None:
    rollout = [gpt.attribute(IDS, 3, "attention_rollout", position=8).scores for gpt in pair]
    np.testing.assert_allclose(*rollout, **NEAR)
    wanted, found = (gpt.attribute(IDS, 3, "direct_logit_attribution") for gpt in pair)
    for name in ("heads", "mlps", "attn_bias", "wte", "wpe", "ln_f_bias", "logit", "total"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), err_msg=name, **NEAR)
    assert found.total == pytest.approx(found.logit, abs=1e-4)


def test_gradients_are_refused_in_one_line(pair: tuple[GPT, GPT]) -> None:
    with pytest.raises(UserError, match=r"Load the model with backend='torch'\."):
        pair[1].attribute(IDS, 3, "integrated_gradients")


def test_the_shipped_int8_model_gives_the_numbers_of_torch() -> None:
    one, other = (glassgpt.load(SHIPPED, device="cpu", backend=name) for name in ("torch", "numpy"))
    ids = one.encode("A robot must obey the orders given it")
    np.testing.assert_allclose(other.logits([ids]), one.logits([ids]), **NEAR)
    text = [gpt.generate("The old house", max_new_tokens=30, temperature=0).text for gpt in (one, other)]
    assert text[0] == text[1]
    trace = [gpt.trace(ids) for gpt in (one, other)]
    np.testing.assert_array_equal(trace[0].lens().ids, trace[1].lens().ids)


def test_a_saved_trace_opens_with_either(pair: tuple[GPT, GPT], tmp_path) -> None:
    from glassgpt.inspect import Trace

    pair[1].trace(IDS).save(tmp_path / "trace.safetensors", "h.*.attn.weights")
    for gpt in (None, *pair):
        opened = Trace.load(tmp_path / "trace.safetensors", gpt)
        np.testing.assert_allclose(opened.attention[1], pair[0].trace(IDS).attention[1], **NEAR)


def test_what_numpy_cannot_compute_is_refused_in_one_line() -> None:
    checkpoint = load_checkpoint(SHIPPED)
    with pytest.raises(SettingError, match=r"device 'cuda' needs PyTorch, which `make full` installs"):
        NumpyBackend.load(checkpoint, device="cuda")
    with pytest.raises(SettingError, match=r"dtype 'bfloat16' needs PyTorch.*numpy.*float32 and float64"):
        NumpyBackend.load(checkpoint, dtype="bfloat16")
    other = Checkpoint(dataclasses.replace(checkpoint.config, attention="memory"), checkpoint.tensors)
    with pytest.raises(UserError, match="attention 'memory' needs PyTorch"):
        NumpyBackend.load(other)


def test_weights_of_any_dtype(pair: tuple[GPT, GPT]) -> None:
    tensors = {name: values.astype(np.float16) for name, values in weights_of(pair[0]).items()}
    backend = NumpyBackend.load(Checkpoint(SMALL, tensors), dtype="float64")
    again = load_like(backend, Checkpoint(SMALL, weights_of(pair[0])))
    assert isinstance(again, NumpyBackend)
    assert again.dtype == backend.dtype == np.float64
    np.testing.assert_allclose(backend.logits([IDS]), pair[0].logits([IDS]), atol=0.2)  # half precision


def test_scores_reach_over_chunks() -> None:
    from glassgpt.backends import numpy as numpy_backend
    from glassgpt.backends.protocol import ScoreRequest

    gpt = random_model(Config(vocab_size=50, n_positions=300, n_embd=16, n_layer=2, n_head=2))
    ids = np.array(some_ids(280, config=gpt.config))
    assert len(ids) > 2 * numpy_backend.CHUNK
    ((_, (found,)),) = twin(gpt).backend.score([[ScoreRequest(ids, 1)]])
    ((_, (wanted,)),) = gpt.backend.score([[ScoreRequest(ids, 1)]])
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, **NEAR)
    np.testing.assert_array_equal(found.greedy, wanted.greedy)
