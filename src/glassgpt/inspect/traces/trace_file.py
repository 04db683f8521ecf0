"""A trace as one safetensors file: steps by name, token loss and lens, and the model's config as metadata."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, SettingError, UserError
from glassgpt.files import atomic_write
from glassgpt.inspect.taps import list_steps, shape_of, split_name
from glassgpt.inspect.traces.indexing import Array
from glassgpt.inspect.traces.lens import TokenStrings
from glassgpt.inspect.traces.trace import Trace
from glassgpt.weights.checkpoint import LazyTensors
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, size_of, write_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glassgpt.inspect.traceable_model import TraceableModel

FORMAT = "glassgpt trace 1"
LENS_TOP_K = 10


def save(trace: Trace, path: str | Path, steps: str | Sequence[str]) -> None:
    patterns = [steps] if isinstance(steps, str) else list(steps)
    known = list_steps(trace.config)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SettingError(f"no step matches {pattern!r}. Try 'h.*.attn.weights', or '*' for all steps.")
    names = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    T = len(trace)
    lens = trace.lens(min(LENS_TOP_K, trace.vocabulary.size))
    loss = trace.token_loss
    small = {
        "tokens": np.array(trace.tokens, np.int64),
        "token_loss": np.stack([loss.p, loss.rank, loss.entropy]),
        "norms": trace.norms,
        "lens.ids": lens.ids.astype(np.int64),
        "lens.p": lens.p,
    }
    out = [
        TensorToWrite(name, array.shape, array.dtype, partial(_identity, np.ascontiguousarray(array)))
        for name, array in small.items()
    ]
    out += [
        TensorToWrite(
            name,
            shape_of(trace.config, name, T),
            np.dtype(np.float32),
            partial(_read_step, trace, names, name),
        )
        for name in names
    ]
    header = {
        "config": trace.config.to_dict(),
        "name": trace.name,
        "texts": trace.texts,
        "vocabulary": trace.vocabulary.size,
        "lens": {str(token): trace.vocabulary.text(token) for token in np.unique(lens.ids)},
    }
    with atomic_write(path, needs=size_of(out)) as part:
        write_tensors(part, out, {"format": FORMAT, "trace": json.dumps(header, ensure_ascii=False)})


def load(path: str | Path, gpt: TraceableModel | None) -> Trace:
    tensors, metadata = open_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a GlassGPT trace. Write one with trace.save(path).")
    config, header = _read_header(path, metadata.get("trace", ""))
    entries: dict[str, tuple[tuple[int, ...], str]] = {
        name: (tensor.shape, tensor.dtype.kind) for name, tensor in tensors.items()
    }
    T = entries.get("tokens", ((0,), ""))[0][0] if entries.get("tokens", ((), ""))[0] else 0
    if not 1 <= T <= config.n_positions or len(header["texts"]) != T:
        raise _invalid(
            path, f"it has {T} tokens, {len(header['texts'])} texts, {config.n_positions} positions"
        )
    _check_shapes(path, config, T, entries)
    saved = LazyTensors(tensors)
    tokens = [int(token) for token in saved["tokens"]]
    for ids in (saved["tokens"], saved["lens.ids"]):
        if ids.min() < 0 or ids.max() >= config.vocab_size:
            raise _invalid(path, f"a token id is outside the vocabulary of {config.vocab_size}")
    vocabulary = TokenStrings(header["vocabulary"], None)
    vocabulary.update({int(token): text for token, text in header["lens"].items()})
    vocabulary.update(dict(zip(tokens, header["texts"], strict=True)))
    activations = None
    if gpt is not None:
        computed = Trace.from_tokens(gpt, tokens)
        if gpt.config.shapes() != config.shapes():
            raise UserError(
                f"{path} is a trace of {header['name'] or 'another model'}, not of the shape of {gpt!r}."
            )
        vocabulary, activations = computed.vocabulary, computed._activations
    return Trace(
        config,
        tokens,
        header["texts"],
        name=header["name"],
        vocabulary=vocabulary,
        activations=activations,
        saved=saved,
    )


def _read_header(path: str | Path, text: str) -> tuple[Config, dict[str, Any]]:
    """The metadata, with every value checked."""
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
        kinds = {"config": dict, "name": str, "texts": list, "vocabulary": int, "lens": dict}
        for key, kind in kinds.items():
            if not isinstance(header.get(key), kind):
                raise ValueError(f"{key} is {header.get(key)!r:.60}")
        config = Config.from_dict(header["config"], where="its config")
        if not all(isinstance(value, str) for value in [*header["texts"], *header["lens"].values()]):
            raise ValueError("a text is not a string")
        if not all(key.isascii() and key.isdigit() and len(key) < 12 for key in header["lens"]):
            raise ValueError("a token id is not a number")
        if not 1 <= header["vocabulary"] <= config.vocab_size:
            raise ValueError(f"vocabulary is {header['vocabulary']}")
    except (ValueError, RecursionError, ConfigError) as error:
        raise _invalid(path, f"its header is invalid ({error})") from None
    return config, header


def _check_shapes(
    path: str | Path, config: Config, T: int, entries: dict[str, tuple[tuple[int, ...], str]]
) -> None:
    n_residuals = config.n_layer + 1
    k = (entries.get("lens.ids", ((), ""))[0] or (0,))[-1]
    small: dict[str, tuple[tuple[int, ...], str]] = {
        "tokens": ((T,), "i"),
        "token_loss": ((3, T), "f"),
        "norms": ((n_residuals, T), "f"),
        "lens.ids": ((n_residuals, T, k), "i"),
        "lens.p": ((n_residuals, T, k), "f"),
    }
    for name, expected in small.items():
        if entries.get(name) != expected or k < 1:
            raise _invalid(path, f"{name} is {entries.get(name)}, not {expected}")
    for name, found in entries.items():
        if name in small:
            continue
        try:
            shape = shape_of(config, name, T)
        except IndexError as error:
            raise _invalid(path, str(error)) from None
        if found != (shape, "f"):
            raise _invalid(path, f"{name} has shape {found[0]}, not {shape}")


def _read_step(trace: Trace, names: list[str], name: str) -> Array:
    """One step, read together with the others of its block: a block is run once for all of them."""
    layer = split_name(name)[0]
    same_block = [other for other in names if layer is not None and split_name(other)[0] == layer]
    return trace.read(*same_block, name)[name]


def _identity(array: Array) -> Array:
    return array


def _invalid(path: str | Path, what: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a valid trace: {what}. Save it again with trace.save(path).")
