"""nanoGPT's `ckpt.pt`, against a twin of its model built from its published description."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from glassgpt.errors import ConfigError, FileFormatError
from glassgpt.weights import convert, load_checkpoint, save_checkpoint
from tests.weights.conftest import SMALL, assert_same, random_checkpoint

torch = pytest.importorskip("torch")

ARGS = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 24, "vocab_size": 304, "dropout": 0.0}


class Norm(torch.nn.Module):
    """A layer norm whose bias may be absent."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.bias = torch.nn.Parameter(torch.zeros(width)) if bias else None


class Twin(torch.nn.Module):
    """The parameters of a nanoGPT model, named, shaped and tied as there."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        n, C = torch.nn, ARGS["n_embd"]

        def block() -> Any:
            attention = n.ModuleDict({"c_attn": n.Linear(C, 3 * C, bias), "c_proj": n.Linear(C, C, bias)})
            mlp = n.ModuleDict({"c_fc": n.Linear(C, 4 * C, bias), "c_proj": n.Linear(4 * C, C, bias)})
            parts = {"ln_1": Norm(C, bias), "attn": attention, "ln_2": Norm(C, bias), "mlp": mlp}
            return n.ModuleDict(parts)

        self.transformer = n.ModuleDict(
            {
                "wte": n.Embedding(ARGS["vocab_size"], C),
                "wpe": n.Embedding(ARGS["block_size"], C),
                "h": n.ModuleList([block() for _ in range(ARGS["n_layer"])]),
                "ln_f": Norm(C, bias),
            }
        )
        self.lm_head = n.Linear(C, ARGS["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.5)


def checkpoint_of(model: Any, bias: bool, prefix: str = "") -> dict[str, Any]:
    """What nanoGPT's train.py saves, optimizer state included."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        "model": {prefix + name: tensor for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": {**ARGS, "bias": bias},
        "iter_num": 2000,
        "best_val_loss": torch.tensor(2.5),
        "config": {"dataset": "shakespeare", "learning_rate": 6e-4, "compile": True, "init_from": "scratch"},
    }


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("bias", [True, False])
def test_reads_a_training_checkpoint(bias: bool, prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    twin = Twin(bias)
    torch.save(checkpoint_of(twin, bias, prefix), tmp_path / "ckpt.pt")
    found = load_checkpoint(tmp_path)  # the folder, as nanoGPT's --out_dir names it
    assert found.format == "nanogpt"
    assert (found.config.vocab_size, found.config.n_positions) == (304, 24)
    assert found.config.activation_function == "gelu"  # nanoGPT's own: the exact form
    state = twin.state_dict()
    for name, tensor in found.tensors.items():
        theirs = state.get(f"transformer.{name}")
        if theirs is None:
            assert not bias
            assert name in found.notes
            assert not tensor.any()
            continue
        transposed = theirs.T if theirs.ndim == 2 and name.startswith("h.") else theirs
        assert np.array_equal(tensor, transposed.numpy()), name
    assert (len(found.notes) == 0) == bias


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nanogpt_reads_what_we_write(dtype: str, tmp_path: Path) -> None:
    """The steps of its sample.py: arguments, then a strict load of the state dict."""
    ours = random_checkpoint(dtype, vocab_size=304)
    save_checkpoint(ours, tmp_path / "out.pt", format="nanogpt")
    values = torch.load(tmp_path / "out.pt", weights_only=True)
    assert values["model_args"] == {**ARGS, "bias": True, "dropout": 0.1}
    twin = Twin(bias=True)
    twin.load_state_dict(values["model"], strict=True)
    fc = twin.transformer["h"][1]["mlp"]["c_fc"].weight  # (out, in)
    assert np.array_equal(fc.detach().numpy().T, ours.tensors["h.1.mlp.c_fc.weight"].astype(np.float32))
    table = values["model"]["transformer.wte.weight"]
    assert values["model"]["lm_head.weight"].data_ptr() == table.data_ptr()  # stored once


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_round_trip_is_exact(dtype: str, tmp_path: Path) -> None:
    ours = random_checkpoint(dtype)
    save_checkpoint(ours, tmp_path / "out.pt", format="nanogpt")
    found = load_checkpoint(tmp_path / "out.pt")
    assert found.config == ours.config
    assert_same(found.tensors, ours.tensors)


def test_the_report_says_what_was_filled_in_and_what_will_differ(tmp_path: Path) -> None:
    torch.save(checkpoint_of(Twin(False), False), tmp_path / "ckpt.pt")
    report = convert(tmp_path / "ckpt.pt", tmp_path / "hf")
    assert {t.name for t in report if "zeros" in t.note} == {
        t.name for t in report if t.name.endswith("bias")
    }
    assert report.max_abs_error == 0
    back = convert(tmp_path / "hf", tmp_path / "again.pt")
    assert not any("GELU" in note for note in back.notes)
    save_checkpoint(random_checkpoint(), tmp_path / "tanh")
    assert any("GELU" in note for note in convert(tmp_path / "tanh", tmp_path / "tanh.pt").notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_inner": 72}, "d_mlp = 72"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"activation_function": "relu"}, "activation_function 'relu'"),
    ],
)
@pytest.mark.parametrize("format", ["nanogpt", "llmc"])
def test_what_the_format_cannot_say_is_refused(
    format: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        save_checkpoint(random_checkpoint(**changes), tmp_path / "out", format=format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda v: v["model_args"].pop("n_head"), "model_args has no n_head"),
        (lambda v: v["model"].pop("transformer.ln_f.bias"), "tensor 'ln_f.bias' of shape (32,) is missing"),
        (lambda v: v.pop("model"), "has no model_args and model"),
        (
            lambda v: v["model_args"].update(n_embd=64),
            "has shape (304, 32), but the config requires (304, 64)",
        ),
        (lambda v: v["model_args"].update(n_layer=10**9), "1,000,000,000 layers"),
        (lambda v: v["model"].update({"lm_head.weight": torch.zeros(304, 32)}), "lm_head.weight differs"),
        (lambda v: v["model"].update({"transformer.extra": torch.zeros(3)}), "unknown tensor 'extra'"),
        (lambda v: v["model"].update({"transformer.ln_f.bias": 3}), "is a int, not a tensor"),
    ],
)
def test_wrong_files_are_explained(spoil: Any, words: str, tmp_path: Path) -> None:
    values = checkpoint_of(Twin(True), True)
    spoil(values)
    torch.save(values, tmp_path / "ckpt.pt")
    with pytest.raises((ConfigError, FileFormatError), match=re.escape(words)) as caught:
        load_checkpoint(tmp_path / "ckpt.pt")
    assert "\n" not in str(caught.value)


def test_the_real_settings_of_small_are_the_twins() -> None:
    """The two descriptions of the tiny model above must not drift apart."""
    assert (ARGS["n_layer"], ARGS["n_embd"], ARGS["n_head"], ARGS["block_size"]) == (
        SMALL["n_layer"],
        SMALL["n_embd"],
        SMALL["n_head"],
        SMALL["n_positions"],
    )
