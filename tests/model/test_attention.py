"""Another attention by name: a small variant trains, decodes, is traced, scored, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.backends.torch.backend import TorchBackend, load_model
from glassgpt.backends.torch.fast_path import can_capture, has_standard_blocks
from glassgpt.config import ATTENTIONS, Config
from glassgpt.errors import ConfigError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2, attention
from glassgpt.model.attention import register_attention
from glassgpt.model.gpt2 import Attention
from glassgpt.model.mask import token_positions
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint
from tests.model.conftest import noisy

WINDOW = 4
SMALL = {"vocab_size": 101, "n_positions": 48, "n_embd": 32, "n_layer": 3, "n_head": 4, "attention": "window"}
NEAR = {"atol": 5e-5, "rtol": 0}  # some float32 roundings of logits of order 10, three blocks deep


class WindowAttention(Attention):
    """Each token sees the WINDOW tokens that end with itself."""

    def attend(self, q, k, v, inputs) -> Tensor:
        own, theirs = token_positions(q, k, inputs)
        age = own[:, None, :, None].clamp(min=0) - theirs[:, None, None, :]  # (B or 1, 1, T, L)
        near = (age < WINDOW) & ((age >= 0) if inputs.mask is None else inputs.mask)
        return super().attend(q, k, v, inputs._replace(mask=near))


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The example of docs/attention.md has this name: test_readme may have run it in the same process.
    others = {name: cls for name, cls in attention._CLASSES.items() if name != "window"}
    monkeypatch.setattr(attention, "_CLASSES", others)
    register_attention("window")(WindowAttention)
    yield
    del ATTENTIONS["window"]


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(3)
    return noisy(GPT2(Config(**SMALL))).requires_grad_(False)


def test_the_config_names_the_class_of_every_block(model: GPT2) -> None:
    assert all(type(block.attn) is WindowAttention for block in model.h)
    assert type(GPT2(Config(**{**SMALL, "attention": "causal"})).h[0].attn) is Attention
    with pytest.raises(ConfigError, match=r"attention 'sparse' is not one of causal, .*, window\."):
        Config(attention="sparse")
    for name, cls in ("window", "WindowAttention"), ("relative", "RelativeAttention"):
        with pytest.raises(ValueError, match=f"registered already, as {cls}"):
            register_attention(name)(WindowAttention)


def test_config_json_has_it_only_where_it_is_another() -> None:
    assert "attention" not in Config().to_dict()
    assert Config.from_dict(Config(**SMALL).to_dict()) == Config(**SMALL)
    assert Config.from_dict(Config().to_dict()).attention == "causal"


@torch.no_grad()
def test_a_token_sees_its_window_and_nothing_else(model: GPT2) -> None:
    ids = torch.arange(5, 25)[None]
    changed = ids.clone()
    changed[0, 0] = 77
    reach = 3 * (WINDOW - 1)  # three blocks, each hands a token on this many places further
    one, other = model(ids)[0], model(changed)[0]
    assert not torch.equal(one[reach], other[reach])
    assert torch.equal(one[reach + 1 :], other[reach + 1 :])


@pytest.mark.parametrize("rows", [1, 3])
def test_cached_equals_uncached(model: GPT2, rows: int) -> None:
    assert not has_standard_blocks(model)
    assert not can_capture(model)
    backend = TorchBackend(model, rows=rows)
    texts = [list(range(5 + row, 17 + 2 * row)) for row in range(rows)]
    backend.extend(range(rows), [text[:6] for text in texts])
    for step in range(6, 12):
        found = backend.decode(range(rows), np.array([text[step] for text in texts]), [step] * rows)
        for row, text in enumerate(texts):
            np.testing.assert_allclose(found[row], backend.logits([text[: step + 1]])[0, -1], **NEAR)


@torch.no_grad()
def test_padded_equals_alone(model: GPT2) -> None:
    ids = torch.tensor([[0, 0, 0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]])
    positions = torch.tensor([[-1, -1, -1, 0, 1, 2, 3, 4], list(range(8))])
    together = model(ids, positions)
    assert together.isfinite().all()
    torch.testing.assert_close(together[0, 3:], model(ids[:1, 3:])[0], **NEAR)


def test_taps_show_its_steps(model: GPT2) -> None:
    trace = GPT(TorchBackend(model)).trace(range(5, 15))
    weights = np.asarray(trace["h.1.attn.weights"])  # (H, T, L)
    age = np.arange(10)[:, None] - np.arange(10)[None]
    assert (weights[:, (age < 0) | (age >= WINDOW)] == 0).all()
    assert (weights[:, (age >= 0) & (age < WINDOW)] > 0).all()
    np.testing.assert_allclose(trace["logits"], model(torch.arange(5, 15)[None])[0], **NEAR)


def test_it_trains() -> None:
    torch.manual_seed(0)
    model = GPT2(Config(**SMALL, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = torch.arange(40)[None] % 7
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_it_is_saved_and_loaded_and_no_other_program_is_given_it(model: GPT2, tmp_path) -> None:
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    checkpoint = Checkpoint(model.config, tensors, None, source="here")
    save_checkpoint(checkpoint, tmp_path / "packed", format="packed")
    again = load_model(load_checkpoint(tmp_path / "packed"), device="cpu")
    assert again.config == model.config
    assert type(again.h[0].attn) is WindowAttention
    for name, target in {
        "hf": "out", "gguf": "out.gguf", "openai": "out", "nanogpt": "out.pt", "llmc": "out.bin"
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match="no attention 'window'") as caught:
            save_checkpoint(checkpoint, tmp_path / name / target, format=name)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / name).exists()
