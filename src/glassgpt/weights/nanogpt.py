"""nanoGPT's `ckpt.pt`: a dictionary with `model_args` (its config) and `model` (its state dict).

Its matrices are `nn.Linear`, (out, in), so they are transposed on the way. Its names are ours with
`transformer.` before them, and `_orig_mod.` before that where the model had been compiled. Without biases
(`bias=False`) the missing ones are zeros. Its GELU is the exact one (erf), its vocabulary often padded to
50,304: both are preserved, because the model was trained with them.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, ConfigError, FileFormatError, UserError
from glassgpt.files import atomic_write
from glassgpt.weights import pickled
from glassgpt.weights.checkpoint import (
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    cast,
    check_published_architecture,
    check_tensors,
)
from glassgpt.weights.huggingface import config_from_text
from glassgpt.weights.linear import is_linear, transposed
from glassgpt.weights.tokenizers import find_tokenizer

FILE = "ckpt.pt"
_ARGS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_OWN_KEY = "glassgpt_config"  # what model_args cannot express, so that our files round-trip exactly
_MASK_BUFFERS = (".attn.bias", ".attn.masked_bias")


def detect(path: str | Path) -> bool:
    """Whether this is a torch.save file with `model_args`, or a folder with a `ckpt.pt`."""
    path = Path(path)
    if path.is_dir():
        return (path / FILE).is_file()
    return pickled.has_signature(path) and pickled.mentions(path, "model_args")


def load(path: str | Path) -> Checkpoint:
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    checkpoint = pickled.load_pickled(file)
    values = checkpoint.values
    args, state = values.get("model_args"), values.get("model")
    if not isinstance(args, dict) or not isinstance(state, dict):
        raise FileFormatError(f"{file} has no model_args and model; it is not a nanoGPT checkpoint.")
    config = _config(args, values.get(_OWN_KEY), str(file))
    tensors = _canonical(pickled.lazy_tensors(checkpoint, state), str(file))
    tokenizer, notes = find_tokenizer(file.parent)
    if args.get("bias") is False and config.n_layer <= len(tensors):
        for name, shape in config.shapes().items():
            if name.endswith(".bias") and name not in tensors:
                zeros = functools.partial(np.zeros, shape, np.float32)
                tensors[name] = LazyTensor(shape, np.dtype(np.float32), zeros)
                notes[name] = "absent (bias=False), so zeros"
    lazy = LazyTensors(tensors)
    check_tensors(config, lazy, str(file))
    return Checkpoint(config, lazy, tokenizer, "nanogpt", str(path), notes)


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write a `ckpt.pt` that nanoGPT's sample.py loads."""
    config, tensors = checkpoint.config, checkpoint.tensors
    check_tensors(config, tensors, checkpoint.source)
    check_published_architecture(config, "nanoGPT")
    try:
        import torch
    except ImportError:
        raise UserError(f"writing a nanoGPT file {NEEDS_TORCH}") from None
    state = {f"transformer.{name}": _torch(tensors, name, dtype) for name in config.shapes()}
    state["lm_head.weight"] = state["transformer.wte.weight"]  # tied: one storage under two names
    values = {
        "model": state,
        "model_args": {
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_embd": config.n_embd,
            "block_size": config.n_positions,
            "bias": True,
            "vocab_size": config.vocab_size,
            "dropout": config.resid_pdrop,
        },
        "iter_num": 0,
        "best_val_loss": math.inf,
        "config": {},
        _OWN_KEY: json.dumps(config.to_dict()),
    }
    size = (
        sum(math.prod(shape) for shape in config.shapes().values()) * state["lm_head.weight"].element_size()
    )
    with atomic_write(path, needs=size) as part, open(part, "wb") as file:
        torch.save(values, file)


def remarks(config: Config) -> list[str]:
    """Notes for running the written file in nanoGPT."""
    if config.activation_function == "gelu":
        return []
    return [
        "nanoGPT computes the exact (erf) GELU, this model was trained with the tanh form: "
        "its logits there differ in the third decimal"
    ]


def _config(args: dict[Any, Any], own: Any, where: str) -> Config:
    for key in _ARGS:
        if key not in args:
            raise ConfigError(f"{where}: model_args has no {key}.")
        # Only integers may reach a message: printing a list that contains itself never ends.
        if type(args[key]) is not int or not 0 < args[key] < 2**40:
            raise ConfigError(f"{where}: {key} in model_args is not a valid number.")
    dropout = args.get("dropout", 0.0)
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise ConfigError(f"{where}: dropout in model_args is not a number from 0 to 1.")
    config = Config(
        vocab_size=args["vocab_size"],
        n_positions=args["block_size"],
        n_embd=args["n_embd"],
        n_layer=args["n_layer"],
        n_head=args["n_head"],
        activation_function="gelu",
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
    )
    if type(own) is not str:
        return config
    ours = config_from_text(own, where)
    shape = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    if any(getattr(ours, name) != getattr(config, name) for name in shape):
        raise ConfigError(f"{where}: {_OWN_KEY} and model_args describe two different models.")
    return ours


def _canonical(entries: Mapping[str, LazyTensor], where: str) -> dict[str, LazyTensor]:
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in entries.items():
        short = name.removeprefix("_orig_mod.").removeprefix("transformer.")
        if short.endswith(_MASK_BUFFERS):  # saved by nanoGPT without flash attention
            continue
        if short in tensors:
            raise FileFormatError(f"{where}: the tensor {name!r} occurs twice.")
        tensors[short] = transposed(tensor) if is_linear(short) else tensor
    head, table = tensors.pop("lm_head.weight", None), tensors.get("wte.weight")
    if head is not None and table is not None:
        same = head.shape == table.shape and np.array_equal(head.read(), table.read(), equal_nan=True)
        if not same:
            raise FileFormatError(f"{where}: lm_head.weight differs from wte.weight; nanoGPT ties the two.")
    return tensors


def _torch(tensors: Mapping[str, Array], name: str, dtype: str | None) -> Any:
    import torch

    array = cast(tensors[name], dtype)
    array = np.array(array.T if is_linear(name) else array, order="C")  # torch needs a writable copy
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
