"""A trace in one safetensors file: its steps by name, its small results, and who it is in the metadata."""

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
from glassgpt.inspect.indexing import Array
from glassgpt.inspect.lens import Vocabulary
from glassgpt.inspect.taps import all_steps, shape_at, split_name
from glassgpt.inspect.trace import Trace
from glassgpt.weights.checkpoint import LazyTensors
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, size_of, write_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glassgpt.gpt import GPT

FORMAT = "glassgpt trace 1"
LENS = 10  # so many tokens of each layer and position are kept


def save(trace: Trace, path: str | Path, steps: str | Sequence[str]) -> None:
    patterns = [steps] if isinstance(steps, str) else list(steps)
    known = all_steps(trace.config)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SettingError(
                f"no step is called {pattern!r}. Try 'h.*.attn.weights', or '*' for all of them."
            )
    names = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    T = len(trace)
    lens = trace.lens(min(LENS, trace.vocabulary.size))
    surprise = trace.surprise
    small = {
        "tokens": np.array(trace.tokens, np.int64),
        "surprise": np.stack([surprise.p, surprise.rank, surprise.entropy]),
        "norms": trace.norms,
        "lens.ids": lens.ids.astype(np.int64),
        "lens.p": lens.p,
    }
    out = [
        TensorToWrite(name, array.shape, array.dtype, partial(_same, np.ascontiguousarray(array)))
        for name, array in small.items()
    ]
    out += [
        TensorToWrite(
            name,
            shape_at(trace.config, name, T),
            np.dtype(np.float32),
            partial(_of_block, trace, names, name),
        )
        for name in names
    ]
    about = {
        "config": trace.config.to_dict(),
        "name": trace.name,
        "texts": trace.texts,
        "vocabulary": trace.vocabulary.size,
        "lens": {str(token): trace.vocabulary.text(token) for token in np.unique(lens.ids)},
    }
    with atomic_write(path, needs=size_of(out)) as part:
        write_tensors(part, out, {"format": FORMAT, "trace": json.dumps(about, ensure_ascii=False)})


def load(path: str | Path, gpt: GPT | None) -> Trace:
    tensors, metadata = open_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a trace of glassgpt. Write one with trace.save(path).")
    config, about = _about(path, metadata.get("trace", ""))
    entries: dict[str, tuple[tuple[int, ...], str]] = {
        name: (tensor.shape, tensor.dtype.kind) for name, tensor in tensors.items()
    }
    T = entries.get("tokens", ((0,), ""))[0][0] if entries.get("tokens", ((), ""))[0] else 0
    if not 1 <= T <= config.n_positions or len(about["texts"]) != T:
        raise _unsound(
            path, f"it has {T} tokens, {len(about['texts'])} texts, {config.n_positions} positions"
        )
    _check_shapes(path, config, T, entries)
    saved = LazyTensors(tensors)
    tokens = [int(token) for token in saved["tokens"]]
    for ids in (saved["tokens"], saved["lens.ids"]):
        if ids.min() < 0 or ids.max() >= config.vocab_size:
            raise _unsound(path, f"a token id lies outside the vocabulary of {config.vocab_size}")
    vocabulary = Vocabulary(about["vocabulary"], None)
    vocabulary.learn({int(token): text for token, text in about["lens"].items()})
    vocabulary.learn(dict(zip(tokens, about["texts"], strict=True)))
    live = None
    if gpt is not None:
        fresh = Trace.of(gpt, tokens)
        if gpt.config.shapes() != config.shapes():
            raise UserError(
                f"{path} is a trace of {about['name'] or 'another model'}, of another shape than {gpt!r}."
            )
        vocabulary, live = fresh.vocabulary, fresh._live
    return Trace(
        config, tokens, about["texts"], name=about["name"], vocabulary=vocabulary, live=live, saved=saved
    )


def _about(path: str | Path, text: str) -> tuple[Config, dict[str, Any]]:
    """The metadata, every value of it checked."""
    try:
        about = json.loads(text)
        if not isinstance(about, dict):
            raise ValueError("it is not an object")
        kinds = {"config": dict, "name": str, "texts": list, "vocabulary": int, "lens": dict}
        for key, kind in kinds.items():
            if not isinstance(about.get(key), kind):
                raise ValueError(f"{key} is {about.get(key)!r:.60}")
        config = Config.from_dict(about["config"], where="its config")
        if not all(isinstance(value, str) for value in [*about["texts"], *about["lens"].values()]):
            raise ValueError("a text is not a string")
        if not all(key.isascii() and key.isdigit() and len(key) < 12 for key in about["lens"]):
            raise ValueError("a token id is not a number")
        if not 1 <= about["vocabulary"] <= config.vocab_size:
            raise ValueError(f"vocabulary is {about['vocabulary']}")
    except (ValueError, RecursionError, ConfigError) as error:
        raise _unsound(path, f"its description does not hold ({error})") from None
    return config, about


def _check_shapes(
    path: str | Path, config: Config, T: int, entries: dict[str, tuple[tuple[int, ...], str]]
) -> None:
    rows = config.n_layer + 1
    k = (entries.get("lens.ids", ((), ""))[0] or (0,))[-1]
    small: dict[str, tuple[tuple[int, ...], str]] = {
        "tokens": ((T,), "i"),
        "surprise": ((3, T), "f"),
        "norms": ((rows, T), "f"),
        "lens.ids": ((rows, T, k), "i"),
        "lens.p": ((rows, T, k), "f"),
    }
    for name, expected in small.items():
        if entries.get(name) != expected or k < 1:
            raise _unsound(path, f"{name} is {entries.get(name)}, not {expected}")
    for name, found in entries.items():
        if name in small:
            continue
        try:
            wanted = shape_at(config, name, T)
        except IndexError as error:
            raise _unsound(path, str(error)) from None
        if found != (wanted, "f"):
            raise _unsound(path, f"{name} has shape {found[0]}, not {wanted}")


def _of_block(trace: Trace, names: list[str], name: str) -> Array:
    """One step, read together with what follows it in its block: a block is run once for all of them."""
    layer = split_name(name)[0]
    together = [other for other in names if layer is not None and split_name(other)[0] == layer]
    return trace.read(*together, name)[name]


def _same(array: Array) -> Array:
    return array


def _unsound(path: str | Path, what: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a sound trace: {what}. Save it again with trace.save(path).")
