"""Tokens added to a vocabulary: the tokenizer learns their names, the model gets a row for each.

They are special tokens, like `<|endoftext|>`: written by a task's format, never found in a user's text, and
exported to Hugging Face as `added_tokens`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.tokenizer import Tokenizer
from glassgpt.tokenizer.bpe import BPETokenizer
from glassgpt.weights.checkpoint import Array, Checkpoint


def add_tokens(tokenizer: Tokenizer, names: Iterable[str]) -> Tokenizer:
    """Add special tokens at the end of the vocabulary, except those it already has."""
    new = [name for name in names if not has_token(tokenizer, name)]
    if not new:
        return tokenizer
    if not isinstance(tokenizer, BPETokenizer):
        raise SettingError(
            f"the token {new[0]!r} cannot be added to a tokenizer of kind {tokenizer.kind!r}. Use a model "
            "with a byte-level BPE, or write the task's format as plain text."
        )
    data = tokenizer.data
    ids = {name: len(data.tokens) + i for i, name in enumerate(new)}
    return BPETokenizer(
        dataclasses.replace(
            data, tokens=(*data.tokens, *(name.encode() for name in new)), special={**data.special, **ids}
        )
    )


def has_token(tokenizer: Tokenizer, name: str) -> bool:
    """Whether the tokenizer knows this name as one special or added token."""
    return isinstance(tokenizer, BPETokenizer) and name in {**tokenizer.data.special, **tokenizer.data.added}


def grow_vocabulary(checkpoint: Checkpoint, names: Iterable[str], seed: int = 0) -> Checkpoint:
    """Add tokens to a model's tokenizer and embeddings.

    A new row is the mean of all rows, which makes it as likely as an average token everywhere (Hewitt, 2021),
    plus some noise, so that two new tokens differ.
    """
    if checkpoint.tokenizer is None:
        raise SettingError(
            f"{checkpoint.source} has no tokenizer. Put its tokenizer.json beside the weights."
        )
    tokenizer = add_tokens(checkpoint.tokenizer, names)
    missing = tokenizer.vocab_size - checkpoint.config.vocab_size
    if missing <= 0:  # it has them all, or the model's vocabulary is padded
        return dataclasses.replace(checkpoint, tokenizer=tokenizer)
    tables = ("wte.weight", "lm_head.weight")
    tensors: dict[str, Array] = {
        name: grow_rows(checkpoint.tensors[name], missing, seed)
        if name in tables
        else checkpoint.tensors[name]
        for name in checkpoint.tensors
    }
    config = dataclasses.replace(checkpoint.config, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(checkpoint, config=config, tensors=tensors, tokenizer=tokenizer)


def grow_rows(table: Array, count: int, seed: int) -> Array:
    table = table.astype(np.float32, copy=False)
    noise = np.random.default_rng(seed).standard_normal((count, table.shape[1]), np.float32)
    rows = table.mean(axis=0) + 0.1 * table.std(axis=0) * noise
    return np.concatenate([table, rows.astype(np.float32)])
