"""GGUF, the file of llama.cpp and its many descendants, for models of the architecture "gpt2".

llama.cpp stores matrices as (out, in), transposed relative to ours, and has its own tensor names.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, SettingError, short_repr
from glassgpt.files import atomic_write
from glassgpt.weights.checkpoint import (
    SCALING,
    Checkpoint,
    LazyTensor,
    LazyTensors,
    check_published_architecture,
    check_tensors,
    dtype_of,
    shape_of,
)
from glassgpt.weights.ggml_types import (
    BF16,
    F16,
    F32,
    Q4_0,
    Q4_K,
    Q8_0,
    Bytes,
    GGMLType,
    quantize_q4_0,
    quantize_q4_k,
    quantize_q8_0,
)
from glassgpt.weights.gguf_file import (
    GGUFFile,
    GGUFTensorToWrite,
    Setting,
    StoredTensor,
    Value,
    read_gguf,
    write_gguf,
)
from glassgpt.weights.gguf_vocabulary import read_vocabulary, vocabulary_settings
from glassgpt.weights.linear import is_linear, transposed

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

# llama.cpp's names and ours, without ".weight" and ".bias".
NAMES = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"}
BLOCK_NAMES = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
THEIR_NAMES = {ours: theirs for theirs, ours in (NAMES | BLOCK_NAMES).items()}

# general.file_type by the dtype of most tensors.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K": 14, "BF16": 32}
WRITABLE_TYPES = {
    "float32": F32, "float16": F16, "bfloat16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "q4_k": Q4_K,
    "int8": Q8_0, "int4": Q4_0,
}  # fmt: skip
QUANTIZERS = {Q8_0: quantize_q8_0, Q4_0: quantize_q4_0, Q4_K: quantize_q4_k}

# What llama.cpp has no key for (it ignores unknown keys), so that our own files round-trip exactly.
OWN_ACTIVATION, OWN_TIE = "glassgpt.activation_function", "glassgpt.tie_word_embeddings"


def detect(path: str | Path) -> bool:
    """Whether this is a GGUF file, by its first four bytes or its name."""
    path = Path(path)
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF" or path.suffix.lower() == ".gguf"
    except OSError:
        return False


def load(path: str | Path) -> Checkpoint:
    """Open the file. Tensors are dequantized and transposed on access."""
    path = Path(path)
    file = _read(path)
    stored: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        canonical = canonical_name(name)
        if canonical is None or canonical in stored:
            raise FileFormatError(f"{path}: {name[:80]!r} is not a tensor of llama.cpp's gpt2.")
        stored[canonical] = tensor
    if file.settings.get(OWN_TIE) is not False and _head_repeats_embedding(file, stored):
        del stored["lm_head.weight"]
    config = _config(file, stored)
    tensors = LazyTensors({name: _lazy(file, name, tensor) for name, tensor in stored.items()})
    check_tensors(config, tensors, where=str(path))
    in_order = LazyTensors({name: tensors.entries[name] for name in config.shapes()})
    tokenizer, why_not = read_vocabulary(path, file.settings, config.vocab_size)
    notes = {} if why_not is None else {"tokenizer": why_not}
    return Checkpoint(config, in_order, tokenizer, format="gguf", source=str(path), notes=notes)


def load_tokenizer(path: str | Path) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer in the file's head, or why there is none; no tensor is touched."""
    path = Path(path)
    file = _read(path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise FileFormatError(f"{path} has no tensor 'token_embd.weight'. Download the file again.")
    return read_vocabulary(path, file.settings, embedding.shape[0])


def save(checkpoint: Checkpoint, path: str | Path, dtype: str | None = None) -> None:
    """Write a file that llama.cpp runs: matrices as float32, float16, bfloat16, q8_0, q4_0 or q4_k, else
    as they are.

    Vectors and positions stay float32, as llama.cpp's own converter keeps them: they are a hundredth of a
    model, and its kernels add them in float32. Rows that do not fill blocks of 32 stay float16 under q8_0 and
    q4_0; rows that do not fill those of 256 are q4_0 under q4_k. With 4 bits the embeddings, which are the
    head as well, are q8_0: 4 bits cost most there, and llama.cpp's own quantizer also keeps them finer.
    """
    config = checkpoint.config
    check_published_architecture(config, "llama.cpp", SCALING)
    if dtype is not None and dtype not in WRITABLE_TYPES:
        raise SettingError(f"dtype {dtype!r} is not one of {', '.join(WRITABLE_TYPES)}.")
    tensors = check_tensors(config, checkpoint.tensors)
    outgoing = []
    for name in config.shapes():
        shape = shape_of(tensors, name)
        stored_shape = shape[::-1] if is_linear(name) else shape
        kind = _choose_type(name, stored_shape, dtype_of(tensors, name), dtype)
        make = functools.partial(_bytes_of, checkpoint, name, kind)
        outgoing.append(GGUFTensorToWrite(gguf_name(name), stored_shape, kind, make))
    epsilon = float(np.float32(config.layer_norm_epsilon))
    embedding = next(tensor for tensor in outgoing if tensor.name == "token_embd.weight")
    kinds = [tensor.kind for tensor in outgoing if tensor.kind in (Q4_0, Q4_K)]
    settings: dict[str, Setting] = {
        "general.architecture": "gpt2",
        "general.name": Path(checkpoint.source).stem if checkpoint.source else "gpt2",
        "general.file_type": FILE_TYPES[(kinds[0] if kinds else embedding.kind).name],
        "general.quantization_version": 2,
        "gpt2.context_length": config.n_positions,
        "gpt2.embedding_length": config.n_embd,
        "gpt2.feed_forward_length": config.d_mlp,
        "gpt2.block_count": config.n_layer,
        "gpt2.attention.head_count": config.n_head,
        "gpt2.attention.layer_norm_epsilon": epsilon,
        "gpt2.vocab_size": config.vocab_size,
        **vocabulary_settings(checkpoint.tokenizer, config),
    }
    if config.activation_function == "gelu":
        settings[OWN_ACTIVATION] = config.activation_function
    if not config.tie_word_embeddings:
        settings[OWN_TIE] = False
    needs = sum(tensor.kind.n_bytes(int(np.prod(tensor.shape))) for tensor in outgoing)
    with atomic_write(path, needs=needs) as part:
        write_gguf(part, settings, outgoing)


def remarks(config: Config) -> list[str]:
    """Notes for running the written file in llama.cpp."""
    if config.activation_function == "gelu":
        return ["llama.cpp computes the tanh GELU, this model the exact one: logits there differ"]
    return []


def canonical_name(name: str) -> str | None:
    """llama.cpp's name -> ours: `blk.0.attn_qkv.weight` -> `h.0.attn.c_attn.weight`; None if unknown."""
    match = re.fullmatch(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)", name)
    if match is None:
        return None
    layer, theirs, part = match.groups()
    ours = (NAMES if layer is None else BLOCK_NAMES).get(theirs)
    if ours is None:
        return None
    return f"{ours}.{part}" if layer is None else f"h.{int(layer)}.{ours}.{part}"


def gguf_name(name: str) -> str:
    """Our name -> llama.cpp's, the other way round."""
    place, _, part = name.rpartition(".")
    if match := re.fullmatch(r"h\.(\d+)\.(.+)", place):
        return f"blk.{match[1]}.{THEIR_NAMES[match[2]]}.{part}"
    return f"{THEIR_NAMES[place]}.{part}"


def _read(path: Path) -> GGUFFile:
    file = read_gguf(path)
    architecture = file.settings.get("general.architecture")
    if architecture != "gpt2":
        raise FileFormatError(
            f"{path} has a model of architecture {short_repr(architecture)}; only 'gpt2' is supported."
        )
    if file.settings.get("split.count", 1) != 1:
        raise FileFormatError(f"{path} is one part of several. Join them first (llama-gguf-split --merge).")
    return file


def _lazy(file: GGUFFile, name: str, tensor: StoredTensor) -> LazyTensor:
    stored = None if tensor.kind.dequantize is None else tensor.kind.name
    read = functools.partial(file.read, tensor)
    lazy = LazyTensor(tensor.shape, tensor.kind.dtype, read, stored=stored)
    return dataclasses.replace(transposed(lazy), stored=stored) if is_linear(name) else lazy


def _head_repeats_embedding(file: GGUFFile, stored: dict[str, StoredTensor]) -> bool:
    """Older converters wrote the tied head a second time; it is then not a separate tensor."""
    head, embedding = stored.get("lm_head.weight"), stored.get("wte.weight")
    if head is None or embedding is None or (head.shape, head.kind) != (embedding.shape, embedding.kind):
        return False
    one, other = file.bytes_of(head), file.bytes_of(embedding)
    step = 2**24
    return all(np.array_equal(one[i : i + step], other[i : i + step]) for i in range(0, len(one), step))


def _config(file: GGUFFile, stored: dict[str, StoredTensor]) -> Config:
    def integer(key: str, default: int | None = None) -> int:
        value = file.settings.get(key, default)
        if type(value) is not int:
            raise FileFormatError(f"{file.path}: {key} is {short_repr(value)}; an integer is required.")
        return value

    def token(key: str) -> int | None:
        value = file.settings.get(key)
        if value is None or not isinstance(value, int) or not 0 <= value < vocab_size:
            return None
        return value

    n_layer = integer("gpt2.block_count")
    if n_layer > len(stored):  # before anything is counted out layer by layer
        raise FileFormatError(f"{file.path} has {n_layer:,} layers, but only {len(stored):,} tensors.")
    if "wte.weight" not in stored:
        raise FileFormatError(f"{file.path} has no tensor 'token_embd.weight'. Download the file again.")
    vocab_size = stored["wte.weight"].shape[0]
    n_embd = integer("gpt2.embedding_length")
    n_inner = integer("gpt2.feed_forward_length", 4 * n_embd)
    try:
        return Config(
            vocab_size=vocab_size,
            n_positions=integer("gpt2.context_length"),
            n_embd=n_embd,
            n_layer=n_layer,
            n_head=integer("gpt2.attention.head_count"),
            n_inner=None if n_inner == 4 * n_embd else n_inner,
            activation_function="gelu" if file.settings.get(OWN_ACTIVATION) == "gelu" else "gelu_new",
            layer_norm_epsilon=_epsilon(file.settings.get("gpt2.attention.layer_norm_epsilon"), file.path),
            tie_word_embeddings="lm_head.weight" not in stored,
            bos_token_id=token("tokenizer.ggml.bos_token_id"),
            eos_token_id=token("tokenizer.ggml.eos_token_id"),
        )
    except ConfigError as error:
        raise FileFormatError(f"{file.path}: {error}") from None


def _epsilon(value: Value | None, path: Path) -> float:
    """The file has it in float32; what the author wrote is the shortest decimal that rounds to that."""
    if not isinstance(value, float) or not 0 <= value < 1:
        raise FileFormatError(
            f"{path}: gpt2.attention.layer_norm_epsilon is {short_repr(value)}; "
            "a number from 0 to 1 is required."
        )
    return float(str(np.float32(value)))


def _choose_type(name: str, shape: tuple[int, ...], own: np.dtype[Any], dtype: str | None) -> GGMLType:
    """The storage type of a tensor, by its name, its shape in the file, and the requested dtype."""
    if len(shape) == 1 or name == "wpe.weight":
        return F32
    if dtype is None:
        return {F16.layout: F16, BF16.layout: BF16}.get(own, F32)
    kind = WRITABLE_TYPES[dtype]
    if kind is Q4_K and shape[-1] % Q4_K.block:
        kind = Q4_0
    if kind in (Q4_0, Q4_K) and name in ("wte.weight", "lm_head.weight"):
        kind = Q8_0
    return F16 if shape[-1] % kind.block else kind


def _bytes_of(checkpoint: Checkpoint, name: str, kind: GGMLType) -> Bytes:
    array: NDArray[Any] = checkpoint.tensors[name]
    if is_linear(name):
        array = array.T  # (in, out) -> (out, in)
    if kind in QUANTIZERS:
        numbers = np.ascontiguousarray(array, np.float32)
        data = QUANTIZERS[kind](numbers)
        scales = [data.view(kind.layout)[name] for name in ("d", "m") if name in (kind.layout.names or ())]
        overflowed = not all(np.isfinite(scale).all() for scale in scales) or bool(np.isnan(numbers).any())
    else:
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, kind.layout)
        overflowed = kind is F16 and bool((np.isinf(stored) & np.isfinite(array)).any())
        data = stored.reshape(-1).view(np.uint8)
    if overflowed:
        raise SettingError(
            f"{name} has values too large for {kind.name}, or NaN. Choose bfloat16 or float32."
        )
    return data
