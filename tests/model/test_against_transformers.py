"""Our forward pass against Hugging Face's GPT2LMHeadModel with the same numbers in it.

The yardstick is transformers' own rounding: how far its float32 logits lie from its float64 ones.
"""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import SIZES, Config
from glassgpt.model import GPT2
from tests.model.conftest import noisy

VARIANTS = {
    "narrow MLP": {"n_inner": 40},
    "untied head": {"tie_word_embeddings": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast scores": {"reorder_and_upcast_attn": True},
    "unscaled scores": {"scale_attn_weights": False},
    "wide epsilon": {"layer_norm_epsilon": 1e-3},
    **{
        f"activation {name}": {"activation_function": name}
        for name in ("gelu", "relu", "silu", "gelu_fast", "tanh")
    },
}


def twin(model: GPT2) -> transformers.GPT2LMHeadModel:
    """Hugging Face's model with our parameters."""
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**model.config.to_dict()))
    state = {
        f"transformer.{name}": value for name, value in model.state_dict().items() if name != "lm_head.weight"
    }
    state["lm_head.weight"] = model.wte.weight if model.lm_head is None else model.lm_head.weight
    theirs.load_state_dict(state)
    return theirs.eval()


@torch.no_grad()
def compare(model: GPT2, ids: torch.Tensor) -> None:
    theirs = twin(model)
    reference = theirs(ids).logits
    exact = copy.deepcopy(theirs).double()(ids).logits
    rounding = (reference - exact).abs().max()
    ours = model(ids)
    assert (ours - exact).abs().max() <= 4 * rounding
    assert (ours - reference).abs().max() <= 4 * rounding
    tapped = model(ids, tap=lambda name, x: x)  # the explicit attention
    assert (tapped - exact).abs().max() <= 4 * rounding


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_config_variant(changes: dict[str, object]) -> None:
    torch.manual_seed(2)
    config = Config(vocab_size=211, n_positions=64, n_embd=48, n_layer=3, n_head=4, **changes)
    compare(noisy(GPT2(config)), torch.randint(0, 211, (3, 64)))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_the_four_published_shapes_cut_to_two_layers(size: str) -> None:
    torch.manual_seed(3)
    compare(noisy(GPT2(Config.named(size, n_layer=2))), torch.randint(0, 50257, (2, 24)))


def greedy(backend: TorchBackend, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    logits = backend.extend([0], [prompt])[0]
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits = backend.decode([0], [ids[-1]], [len(ids) - 1])[0]
    return ids


def assert_same_greedy_text(config: Config, prompt: list[int]) -> None:
    model = noisy(GPT2(config))
    theirs = twin(model)
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=200, min_new_tokens=200, do_sample=False, pad_token_id=0
        )[0].tolist()
    assert greedy(TorchBackend(model), prompt, 200) == expected


def test_two_hundred_greedy_tokens() -> None:
    torch.manual_seed(4)
    assert_same_greedy_text(
        Config(vocab_size=997, n_positions=256, n_embd=64, n_layer=3, n_head=4), [5, 7, 11, 13]
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_two_hundred_greedy_tokens_at_the_published_shapes(size: str) -> None:
    torch.manual_seed(5)
    config = Config.named(size, n_layer=2, bos_token_id=None, eos_token_id=None)
    assert_same_greedy_text(config, [464, 9379, 1276])
