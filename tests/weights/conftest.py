"""Small random models for the file formats, and the variants of the architecture they must carry."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from glassgpt.config import Config
from glassgpt.weights import Checkpoint, huggingface, packed, safetensors_file, save_checkpoint
from glassgpt.weights.checkpoint import parse_dtype

SMALL = {"vocab_size": 301, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}

VARIANTS = {
    "published": {},
    "untied": {"tie_word_embeddings": False},
    "inner": {"n_inner": 72},
    "inverse": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "relu": {"activation_function": "relu"},
    "erf": {"activation_function": "gelu"},
    "unscaled": {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
}


def random_checkpoint(dtype: str = "float32", seed: int = 0, **changes: object) -> Checkpoint:
    """A model in which every number is different, so that a misplaced tensor cannot go unnoticed."""
    config = Config(**{**SMALL, **changes})  # type: ignore[arg-type]
    random = np.random.default_rng(seed)
    tensors = {
        name: random.normal(0, 0.5, shape).astype(np.float32).astype(parse_dtype(dtype))
        for name, shape in config.shapes().items()
    }
    return Checkpoint(config, tensors, source="random")


def assert_same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """The same names, dtypes, shapes and bits."""
    assert set(found) == set(wanted)
    for name in wanted:
        a, b = np.asarray(found[name]), np.asarray(wanted[name])
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        assert a.tobytes() == b.tobytes(), name


def write_shards(checkpoint: Checkpoint, folder: Path, count: int = 3) -> None:
    """The folder of a model whose safetensors come in several files."""
    huggingface.save(checkpoint, folder)
    tensors, metadata = safetensors_file.open_tensors(folder / huggingface.SAFETENSORS)
    weight_map = {}
    for number in range(count):
        shard = f"model-{number + 1:05}-of-{count:05}.safetensors"
        names = list(tensors)[number::count]
        weight_map |= dict.fromkeys(names, shard)
        parts = [(name, tensors[name]) for name in names]
        outgoing = [
            safetensors_file.TensorToWrite(name, part.shape, part.dtype, part.read) for name, part in parts
        ]
        safetensors_file.write_tensors(folder / shard, outgoing, metadata)
    (folder / huggingface.SAFETENSORS).unlink()
    (folder / huggingface.SAFETENSORS_INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def small() -> Checkpoint:
    return random_checkpoint()


def save_rows(checkpoint: Checkpoint, folder: Path) -> None:
    """A packed model as the shipped ones are: int8 rows, (out, in), not the panels that are written today."""
    save_checkpoint(checkpoint, folder, format="packed")
    made = packed.pack(checkpoint)
    arrays: dict[str, np.ndarray] = {}
    for name in made.tensors:
        both = made.packed(name)
        arrays |= {name: made.tensors[name]} if both is None else {name: both[0], f"{name}.scale": both[1]}
    outgoing = [
        safetensors_file.TensorToWrite(
            name, values.shape, values.dtype, functools.partial(np.asarray, values)
        )
        for name, values in arrays.items()
    ]
    safetensors_file.write_tensors(folder / packed.FILE, outgoing, {"format": "glassgpt-int8-rows"})
