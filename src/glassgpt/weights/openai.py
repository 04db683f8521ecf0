"""OpenAI's own GPT-2 folder: hparams.json, a TensorFlow checkpoint, encoder.json and vocab.bpe.

As released in 2019, and as the programs built on OpenAI's code still write it. TensorFlow is not needed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, short_repr
from glassgpt.files import atomic_write, file_size, path_inside, read_bytes, read_json
from glassgpt.weights.checkpoint import (
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    check_published_architecture,
    check_tensors,
    parse_dtype,
    shape_of,
)
from glassgpt.weights.tf_bundle import read_bundle, write_bundle
from glassgpt.weights.tokenizers import find_tokenizer

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# OpenAI's names for the sizes, and ours (which are Hugging Face's).
HPARAMS = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}
# Written by forks of OpenAI's code; they do not affect the forward pass.
HARMLESS = {"res_dropout", "attn_dropout", "dropout", "embd_dropout", "dtype"}

# Adam's state for each weight in a training checkpoint, and its two scalars.
OPTIMIZER_STATE = ("/Adam", "/Adam_1", "beta1_power", "beta2_power", "global_step")

_NAME = re.compile(r"model/(?:h(?P<layer>\d{1,4})/)?(?P<rest>[a-z0-9_/]+)")


def detect(path: str | Path) -> bool:
    """Whether this is a folder as OpenAI's download script leaves it."""
    path = Path(path)
    return path.is_dir() and (path / "hparams.json").is_file() and any(path.glob("*.index"))


def load(path: str | Path) -> Checkpoint:
    """Open the folder. Tensors are read, and their checksums verified, on access."""
    path = Path(path)
    prefix = _prefix(path)
    variables = read_bundle(prefix, skip=OPTIMIZER_STATE)
    config = _config(path / "hparams.json", n_variables=len(variables))
    tensors = {}
    for name, variable in variables.items():
        canonical = canonical_name(name)
        if canonical is None:
            raise FileFormatError(f"{prefix}.index: {name!r} is not a variable of OpenAI's GPT-2. Remove it.")
        tensors[canonical] = _squeezed(variable) if name.endswith("/w") else variable
    check_tensors(config, lazy := LazyTensors(tensors), where=f"{prefix}.index")
    in_order = LazyTensors({name: lazy.entries[name] for name in config.shapes()})
    tokenizer, notes = find_tokenizer(path)
    if tokenizer is not None:
        config = dataclasses.replace(config, bos_token_id=tokenizer.eot_id, eos_token_id=tokenizer.eot_id)
    return Checkpoint(config, in_order, tokenizer, format="openai", source=str(path), notes=notes)


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write such a folder, which OpenAI's code and TensorFlow open.

    OpenAI's code declares float32 variables, so that is what is written unless another dtype is named.
    """
    config = checkpoint.config
    check_published_architecture(config, "OpenAI's code")
    to = parse_dtype("float32" if dtype is None else dtype)
    hparams = {theirs: getattr(config, ours) for theirs, ours in HPARAMS.items()}
    tensors = check_tensors(config, checkpoint.tensors)

    def variables() -> Iterator[tuple[str, Array]]:
        for name in tensors:
            array = tensors[name].astype(to, copy=False)
            # The matrices were kernels of one-wide convolutions: (1, in, out).
            yield openai_name(name), array[np.newaxis] if openai_name(name).endswith("/w") else array

    needs = sum(math.prod(shape_of(tensors, name)) for name in tensors) * to.itemsize
    with atomic_write(path, folder=True, needs=needs) as folder:
        (folder / "hparams.json").write_text(json.dumps(hparams), encoding="utf-8")
        write_bundle(folder / "model.ckpt", variables())
        names = 'model_checkpoint_path: "model.ckpt"\nall_model_checkpoint_paths: "model.ckpt"\n'
        (folder / "checkpoint").write_text(names, encoding="utf-8")
        for name, text in _tokenizer_files(checkpoint.tokenizer).items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")


def remarks(config: Config) -> list[str]:
    """Notes for running the written folder in OpenAI's code."""
    if config.activation_function == "gelu":
        return ["OpenAI's code computes the tanh GELU, this model the exact one: logits there differ"]
    return []


def canonical_name(name: str) -> str | None:
    """OpenAI's name -> ours: `model/h0/attn/c_attn/w` -> `h.0.attn.c_attn.weight`; None if no weight."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, rest = match["layer"], match["rest"]
    if layer is None and rest in ("wte", "wpe"):
        return f"{rest}.weight"
    place, _, kind = rest.rpartition("/")
    part = {"w": "weight", "g": "weight", "b": "bias"}.get(kind)
    if part is None or not place:
        return None
    dotted = place.replace("/", ".")
    return f"{dotted}.{part}" if layer is None else f"h.{int(layer)}.{dotted}.{part}"


def openai_name(name: str) -> str:
    """Our name -> OpenAI's, the other way round."""
    place, _, part = name.rpartition(".")
    if place in ("wte", "wpe"):
        return f"model/{place}"
    is_norm = place.rpartition(".")[2].startswith("ln_")
    kind = "b" if part == "bias" else "g" if is_norm else "w"
    return f"model/{re.sub(r'^h[.]', 'h', place).replace('.', '/')}/{kind}"


def _squeezed(variable: LazyTensor) -> LazyTensor:
    """(1, in, out) -> (in, out)."""
    if len(variable.shape) != 3 or variable.shape[0] != 1:
        return variable
    return LazyTensor(variable.shape[1:], variable.dtype, lambda: variable.read()[0])


def _prefix(folder: Path) -> Path:
    """The prefix of the checkpoint's files: named in the file `checkpoint`, or the only one."""
    pointer = folder / "checkpoint"
    if pointer.is_file() and file_size(pointer) < 2**16:
        text = read_bytes(pointer).decode("utf-8", "replace")
        if match := re.search(r'^model_checkpoint_path: "([^"\n]*)"', text, re.MULTILINE):
            # It may be a full path on another machine; only the last part is used.
            prefix = path_inside(folder, re.split(r"[/\\]", match[1])[-1])
            if prefix.with_name(prefix.name + ".index").is_file():
                return prefix
    indexes = sorted(folder.glob("*.index")) if folder.is_dir() else []
    if len(indexes) != 1:
        raise FileFormatError(
            f"{folder} has {len(indexes)} files *.index; an OpenAI folder has one, model.ckpt.index. "
            "Name the right one in the file 'checkpoint'."
        )
    return indexes[0].with_suffix("")


def _config(file: Path, n_variables: int) -> Config:
    hparams = read_json(file)
    unknown = sorted(set(hparams) - set(HPARAMS) - HARMLESS)
    if unknown:
        raise ConfigError(
            f"{file}: unknown key {short_repr(unknown[0])} = {short_repr(hparams[unknown[0]])}. Remove it."
        )
    missing = [key for key in HPARAMS if key not in hparams]
    if missing:
        raise ConfigError(f"{file} has no {missing[0]!r}. Add it.")
    config = Config(**{ours: hparams[theirs] for theirs, ours in HPARAMS.items()})
    if config.n_layer > n_variables:  # before iterating over the layers
        raise FileFormatError(
            f"{file} has {config.n_layer:,} layers, but there are only {n_variables:,} variables."
        )
    return config


def _tokenizer_files(tokenizer: Tokenizer | None) -> dict[str, str]:
    """OpenAI's two files; the same text as Hugging Face's vocab.json and merges.txt under older names."""
    if tokenizer is None:
        return {}
    files = tokenizer.files()
    if "vocab.json" in files and "merges.txt" in files:
        return {"encoder.json": files["vocab.json"], "vocab.bpe": files["merges.txt"]}
    return files
