"""Hugging Face folders: `config.json` next to `model.safetensors` or `pytorch_model.bin`, possibly sharded.

Matrices of GPT-2 are stored (in, out) there (its `Conv1D`), as in our canonical form, so reading is
renaming: the prefix `transformer.` is dropped, the buffers of the attention mask are left out, and a copy of
the tied head is accepted if it is equal to the embedding.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import SIZES, Config
from glassgpt.errors import ConfigError, FileFormatError, ModelNotFoundError, short_repr
from glassgpt.files import atomic_write, parse_json, path_inside, read_json, read_text
from glassgpt.weights import safetensors_file
from glassgpt.weights.checkpoint import (
    Array,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    cast,
    check_causal_attention,
    check_tensors,
    dtype_of,
    parse_dtype,
    shape_of,
)
from glassgpt.weights.tokenizers import find_tokenizer

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
GENERATION_CONFIG = "generation_config.json"
TASK = "task.toml"  # what a model was tuned for: see `glassgpt.tasks`
SCORE = "score.weight"  # the head of a classifier, as in GPT2ForSequenceClassification
WEIGHT_FILES = (SAFETENSORS, SAFETENSORS_INDEX, PICKLE, PICKLE_INDEX)  # in the order of preference
SHARD_LIMIT = 1000
TASK_LIMIT = 1 << 16  # bytes

_MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


def detect(path: str | Path) -> bool:
    """A folder with one of the weight files, or a single file of safetensors or of `torch.save`."""
    path = Path(path)
    if path.is_dir():
        return any((path / name).is_file() for name in WEIGHT_FILES)
    from glassgpt.weights import pickled

    return (
        path.name.endswith(".index.json")
        or safetensors_file.has_signature(path)
        or pickled.has_signature(path)
    )


def load(path: str | Path) -> Checkpoint:
    """Read a folder or a single weight file (its `config.json` next to it, inside it, or inferred)."""
    path = Path(path)
    if path.is_dir():
        folder = path
        file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
        if file is None:
            raise ModelNotFoundError(f"{path} has none of {', '.join(WEIGHT_FILES)}. Choose another folder.")
    else:
        folder, file = path.parent, path
    entries, metadata = _read_entries(file)
    tensors = _canonical(entries, str(file))
    score = tensors.pop(SCORE, None)
    if (folder / "config.json").is_file():
        config = read_config(folder / "config.json")
    elif "config" in metadata:
        config = config_from_text(metadata["config"], f"{file} (metadata)")
    else:
        config = infer_config(tensors, str(file))
    if config.tie_word_embeddings:
        tensors = _without_tied_head(tensors, str(file))
    lazy = LazyTensors(tensors)
    check_tensors(config, lazy, str(file))
    tokenizer, notes = find_tokenizer(folder)
    head = None if score is None else check_score(config, score, str(file))
    return Checkpoint(config, lazy, tokenizer, "hf", str(path), notes, read_task(folder), head)


def load_config(path: str | Path) -> Config:
    """The config only; with a `config.json` the weights are not opened."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    config = folder / "config.json"
    return read_config(config) if config.is_file() else load(path).config


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer` read.

    A path ending in .safetensors becomes that one file, without a tokenizer. Either way the config is in the
    file's metadata too, so that it is not lost where the file is moved by itself.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    check_causal_attention(config, "transformers")
    check_tensors(config, tensors, checkpoint.source)
    outgoing = [_outgoing(tensors, name, dtype) for name in config.shapes()]
    if checkpoint.score is not None:
        outgoing.append(score_to_write(checkpoint.score))
    size = safetensors_file.size_of(outgoing)
    metadata = {"format": "pt", "config": json.dumps(config.to_dict())}
    if Path(path).suffix == ".safetensors":
        with atomic_write(path, needs=size) as part:
            safetensors_file.write_tensors(part, outgoing, metadata)
        return
    with atomic_write(path, folder=True, needs=size) as part:
        safetensors_file.write_tensors(part / SAFETENSORS, outgoing, metadata)
        write_config(config, part, outgoing[0].dtype.name)
        write_task(checkpoint.task, part)
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.save(part)


def write_config(config: Config, folder: Path, dtype: str) -> None:
    """`config.json` and `generation_config.json`, as `transformers` expects them."""
    values = config.to_dict()
    special = {name: values[name] for name in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "config.json", {**config.kept, **values, "dtype": dtype})
    _write_json(folder / GENERATION_CONFIG, {"_from_model_config": True, **special})


def read_task(folder: Path) -> str | None:
    """The definition of the task a model was made for, if there is one next to it."""
    file = folder / TASK
    return read_text(file, TASK_LIMIT) if file.is_file() else None


def write_task(task: str | None, folder: Path) -> None:
    if task is not None:
        (folder / TASK).write_text(task, "utf-8")


def check_score(config: Config, score: LazyTensor, where: str) -> Array:
    """The head of a classifier: one row for each class."""
    if len(score.shape) != 2 or score.shape[1] != config.n_embd:
        raise FileFormatError(
            f"{where}: {SCORE} has shape {score.shape}; a classifier's head has {config.n_embd} columns."
        )
    return score.read().astype(np.float32)


def score_to_write(score: Array) -> safetensors_file.TensorToWrite:
    return safetensors_file.TensorToWrite(SCORE, score.shape, np.dtype(np.float32), lambda: score)


def read_config(file: Path) -> Config:
    """The checked `config.json`, refused above a sane size.

    Tokens that end a text only by `generation_config.json` next to it are taken from there.
    """
    values = read_json(file)
    if (file.parent / GENERATION_CONFIG).is_file():
        ends = values.get("eos_token_id")
        values["eos_token_id"] = [*(ends if isinstance(ends, list) else [ends]), *_more_ends(file.parent)]
    return _config(values, str(file))


def _more_ends(folder: Path) -> list[int]:
    """The end tokens in `generation_config.json`, which is optional: a damaged one is ignored."""
    try:
        ends = read_json(folder / GENERATION_CONFIG).get("eos_token_id")
    except FileFormatError:
        return []
    listed = ends if isinstance(ends, list) else [ends]
    return [each for each in listed if isinstance(each, int) and not isinstance(each, bool) and each >= 0]


def config_from_text(text: str, where: str) -> Config:
    return _config(parse_json(text, f"the config in {where}"), where)


def _config(values: dict[str, Any], where: str) -> Config:
    try:
        return Config.from_dict(values, where)
    except TypeError as error:  # a string where a number belongs
        raise ConfigError(f"{where}: {error}. Correct the value.") from None


def infer_config(tensors: dict[str, LazyTensor], where: str) -> Config:
    """A config from shapes alone, for the published widths: their heads are 64 wide.

    The number of heads leaves no trace in the shapes, and a wrong one gives wrong text without any complaint.
    """
    try:
        vocab_size, n_embd = tensors["wte.weight"].shape
        n_positions, _ = tensors["wpe.weight"].shape
        _, d_mlp = tensors["h.0.mlp.c_fc.weight"].shape
    except (KeyError, ValueError):
        raise FileFormatError(
            f"{where} is not a GPT-2: wte.weight, wpe.weight or h.0.mlp.c_fc.weight is missing or not "
            "a matrix. Put the model's config.json next to it."
        ) from None
    if n_embd not in {size.n_embd for size in SIZES.values()}:
        raise ConfigError(
            f"{where}: there is no config.json, and for width {n_embd}, which is not a published one, "
            "the number of heads cannot be inferred. Put the model's config.json next to the file."
        )
    layers = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    tied = "lm_head.weight" not in tensors or _equal(tensors["lm_head.weight"], tensors["wte.weight"])
    return Config(
        vocab_size=vocab_size,
        n_positions=n_positions,
        n_embd=n_embd,
        n_layer=len(layers),
        n_head=n_embd // 64,
        n_inner=None if d_mlp == 4 * n_embd else d_mlp,
        tie_word_embeddings=tied,
    )


def _read_entries(file: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Every tensor under the name it has in the file, and the file's metadata."""
    if file.name.endswith(".index.json"):
        return _read_shards(file), {}
    if file.suffix == ".safetensors" or safetensors_file.has_signature(file):
        return safetensors_file.open_tensors(file)
    from glassgpt.weights import pickled

    if pickled.has_signature(file):
        return pickled.lazy_tensors(found := pickled.load_pickled(file), found.values), {}
    raise FileFormatError(f"{file} is neither safetensors nor a file of torch.save. Download the file again.")


def _read_shards(index: Path) -> dict[str, LazyTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise FileFormatError(f"{index} has no weight_map. Download the file again.")
    if not all(isinstance(name, str) for name in weight_map.values()):
        raise FileFormatError(f"{index}: a shard in its weight_map is not a string.")
    names = sorted(set(weight_map.values()))
    if len(names) > SHARD_LIMIT:
        raise FileFormatError(f"{index} names {len(names):,} shards; at most {SHARD_LIMIT} are allowed.")
    shards: dict[str, dict[str, LazyTensor]] = {}
    for name in names:
        shard = path_inside(index.parent, name)
        if not shard.is_file():
            raise FileFormatError(f"{index} names the shard {name}, which is missing. Download it too.")
        if name.endswith(".index.json"):  # they could name each other endlessly
            raise FileFormatError(
                f"{index} names {name}, another index, as a shard. Download the index again."
            )
        shards[name], _ = _read_entries(shard)
    entries = {}
    for tensor, name in weight_map.items():
        if tensor not in shards[name]:
            raise FileFormatError(
                f"{index.parent / name} has no tensor {short_repr(tensor)}, which the index lists."
            )
        entries[tensor] = shards[name][tensor]
    return entries


def _canonical(entries: dict[str, LazyTensor], where: str) -> dict[str, LazyTensor]:
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in entries.items():
        short = name.removeprefix("transformer.")
        if _MASK_BUFFER.fullmatch(short):
            continue
        if short in tensors:
            raise FileFormatError(
                f"{where}: {short_repr(name)} occurs with and without the prefix 'transformer.'."
            )
        tensors[short] = tensor
    return tensors


def _without_tied_head(tensors: dict[str, LazyTensor], where: str) -> dict[str, LazyTensor]:
    if "lm_head.weight" not in tensors or "wte.weight" not in tensors:
        return tensors
    if not _equal(tensors["lm_head.weight"], tensors["wte.weight"]):
        raise FileFormatError(
            f"{where}: lm_head.weight differs from wte.weight, but the config ties them. "
            'Set "tie_word_embeddings": false in config.json if the head is its own.'
        )
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def _equal(one: LazyTensor, other: LazyTensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(np.array_equal(one.read(), other.read(), equal_nan=one.dtype.kind == "f"))


def _outgoing(tensors: Any, name: str, dtype: str | None) -> safetensors_file.TensorToWrite:
    def array() -> Array:
        return cast(tensors[name], dtype)

    target = dtype_of(tensors, name) if dtype is None else parse_dtype(dtype)
    file_name = name if name.startswith("lm_head.") else f"transformer.{name}"
    return safetensors_file.TensorToWrite(file_name, shape_of(tensors, name), target, array)


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
