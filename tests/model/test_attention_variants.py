"""Attention's relatives: each against its definition; what may see what; cached, padded, traced, saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.errors import ConfigError
from glassgpt.gpt import GPT
from glassgpt.inspect.taps import list_steps, shape_of
from glassgpt.model import GPT2, TorchBackend, load_model
from glassgpt.model.fast_path import can_capture, can_use_one_token_attention
from glassgpt.model.relative import scores_by_gathering, scores_by_skewing
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint
from tests.model.conftest import noisy

SMALL: dict[str, Any] = {"vocab_size": 101, "n_positions": 48, "n_embd": 32, "n_layer": 3, "n_head": 4}
NEAR = {"atol": 5e-5, "rtol": 0}  # some float32 roundings of logits of order 10, three blocks deep
CAUSAL: dict[str, dict[str, Any]] = {
    "relative": {"attention": "relative"},
    "clipped": {"attention": "relative", "relative_distance": 5, "absolute_positions": False},
}


def make(**settings: Any) -> GPT2:
    torch.manual_seed(3)
    return noisy(GPT2(Config(**(SMALL | settings)))).requires_grad_(False)


@pytest.fixture(params=CAUSAL)
def causal(request: pytest.FixtureRequest) -> GPT2:
    return make(**CAUSAL[request.param])


def influence(model: GPT2, length: int) -> np.ndarray:
    """(length, length) of bool: whether the logits of the row change with the token of the column."""
    ids = torch.arange(5, 5 + length)[None]
    with torch.no_grad():
        plain = model(ids)[0]
        columns = []
        for j in range(length):
            changed = ids.clone()
            changed[0, j] = 77
            columns.append((model(changed)[0] != plain).any(dim=1))
    return torch.stack(columns, dim=1).numpy()


# Every causal one.


def test_the_config_lists_its_tensors(causal: GPT2) -> None:
    state = {name: tuple(value.shape) for name, value in causal.state_dict().items()}
    assert state == causal.config.shapes()


def test_no_token_sees_a_later_one(causal: GPT2) -> None:
    seen = influence(causal, 20)
    assert not np.triu(seen, 1).any()
    assert seen.diagonal().all()


@pytest.mark.parametrize("rows", [1, 3])
def test_cached_equals_uncached(causal: GPT2, rows: int) -> None:
    assert not can_use_one_token_attention(causal)
    assert not can_capture(causal)
    backend = TorchBackend(causal, rows=rows)
    texts = [list(range(5 + row, 24 + 2 * row)) for row in range(rows)]
    starts = [3 + 4 * row for row in range(rows)]
    backend.extend(range(rows), [text[:start] for text, start in zip(texts, starts, strict=True)])
    backend.extend([0], [texts[0][3:7]], [3])  # some more of one row, all at once
    starts[0] = 7
    for step in range(8):
        where = [start + step for start in starts]
        ids = np.array([text[at] for text, at in zip(texts, where, strict=True)])
        found = backend.decode(range(rows), ids, where)
        for row, (text, at) in enumerate(zip(texts, where, strict=True)):
            np.testing.assert_allclose(found[row], backend.logits([text[: at + 1]])[0, -1], **NEAR)


@torch.no_grad()
def test_padded_equals_alone(causal: GPT2) -> None:
    ids = torch.tensor([[0, 0, 0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]])
    positions = torch.tensor([[-1, -1, -1, 0, 1, 2, 3, 4], list(range(8))])
    together = causal(ids, positions)
    assert together.isfinite().all()
    torch.testing.assert_close(together[0, 3:], causal(ids[:1, 3:])[0], **NEAR)
    torch.testing.assert_close(together[1], causal(ids[1:])[0], **NEAR)


def test_a_trace_shows_every_step(causal: GPT2) -> None:
    trace = GPT(TorchBackend(causal)).trace(range(5, 15))
    for name in list_steps(causal.config):
        assert trace[name].shape == shape_of(causal.config, name, 10), name
    logits = causal(torch.arange(5, 15)[None])[0]
    np.testing.assert_allclose(trace["logits"], logits, **NEAR)
    np.testing.assert_allclose(trace.append(15).logits[-1], causal(torch.arange(5, 16)[None])[0, -1], **NEAR)


def test_packed_holds_it_and_no_other_program_is_given_it(causal: GPT2, tmp_path: Path) -> None:
    tensors = {name: value.numpy() for name, value in causal.state_dict().items()}
    checkpoint = Checkpoint(causal.config, tensors, None, source="here")
    save_checkpoint(checkpoint, tmp_path / "packed", format="packed")
    again = load_model(load_checkpoint(tmp_path / "packed"), device="cpu")
    assert again.config == causal.config
    assert type(again.h[0].attn) is type(causal.h[0].attn)
    for name, value in again.state_dict().items():  # int8 has steps of a 127th of a row's largest value
        torch.testing.assert_close(
            value, causal.state_dict()[name], atol=float(value.abs().max()) / 250, rtol=0
        )
    for name, target in {
        "hf": "out", "gguf": "out.gguf", "openai": "out", "nanogpt": "out.pt", "llmc": "out.bin"
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=f"no attention '{causal.config.attention}'") as caught:
            save_checkpoint(checkpoint, tmp_path / name / target, format=name)
        assert "\n" not in str(caught.value)


def test_settings_of_another_attention_are_refused() -> None:
    with pytest.raises(ConfigError, match="relative_distance 5 is a setting of attention 'relative'"):
        Config(relative_distance=5)
    with pytest.raises(ConfigError, match="absolute_positions False is a setting of attention 'relative'"):
        Config(absolute_positions=False)
    assert not {"relative_distance", "absolute_positions"} & Config().to_dict().keys()


# Relative.


def naive_scores(q: Tensor, table: Tensor) -> Tensor:
    """As the formula says, with a vector for each pair: (T, T, D)."""
    T, R = q.shape[2], table.shape[1]
    distance = (torch.arange(T)[:, None] - torch.arange(T)[None]).clamp(0, R - 1)
    return torch.einsum("bhid,hijd->bhij", q, table[:, distance]).tril()


@pytest.mark.parametrize("R", [1, 5, 12, 40])
def test_skewing_equals_the_naive_form(R: int) -> None:
    torch.manual_seed(R)
    q, table = torch.randn(2, 4, 12, 8), torch.randn(4, R, 8)
    naive = naive_scores(q, table)
    torch.testing.assert_close(scores_by_skewing(q, table, 12).tril(), naive, atol=1e-5, rtol=0)
    distance = (torch.arange(12)[:, None] - torch.arange(12)[None])[None]
    torch.testing.assert_close(scores_by_gathering(q, table, distance).tril(), naive, atol=1e-5, rtol=0)
    last = scores_by_skewing(q[:, :, -3:], table, 12)  # queries at the end of a longer sequence
    torch.testing.assert_close(last.tril(9), naive[:, :, -3:], atol=1e-5, rtol=0)


def test_relative_attention_equals_the_naive_form() -> None:
    model = make(attention="relative", relative_distance=7)
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        model(torch.arange(5, 25)[None], tap=lambda name, x: seen.setdefault(name, x))
    attn = model.h[1].attn
    q, k, v = (seen[f"h.1.attn.{name}"] for name in "qkv")
    table = attn.wre.weight.view(7, 4, 8).transpose(0, 1)  # (H, R, D)
    scores = (q @ k.mT + naive_scores(q, table)) / math.sqrt(8)
    later = torch.ones(20, 20, dtype=torch.bool).triu(1)
    z = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(attn.attend(q, k, v, None, None, None, None), z, atol=1e-5, rtol=0)
    torch.testing.assert_close(seen["h.1.attn.z"], z, atol=1e-5, rtol=0)


def test_gradients_of_skewing_are_those_of_the_naive_form() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 2, 9, 4, requires_grad=True)
    table = torch.randn(2, 6, 4, requires_grad=True)
    weight = torch.randn(2, 2, 9, 9)
    found = torch.autograd.grad((scores_by_skewing(q, table, 9).tril() * weight).sum(), (q, table))
    expected = torch.autograd.grad((naive_scores(q, table) * weight).sum(), (q, table))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_without_absolute_positions_only_distances_count() -> None:
    model = make(attention="relative", absolute_positions=False)
    assert model.wpe is None
    assert "wpe.weight" not in model.state_dict()
    ids = torch.arange(5, 15)[None]
    moved = model(ids, torch.arange(30, 40)[None])
    torch.testing.assert_close(moved, model(ids), **NEAR)
    absolute = make(attention="relative")
    assert not torch.allclose(absolute(ids, torch.arange(30, 40)[None]), absolute(ids), atol=1e-2)
    with pytest.raises(ConfigError, match="relative_distance is 0; it must be a whole number"):
        Config(attention="relative", relative_distance=0)
