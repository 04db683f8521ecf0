"""Prompts: what callers may give (a text, token ids as a list or an array, or a batch of either), how many of
their ids fit, and which tokens end the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.backends.protocol import Backend
from glassgpt.errors import SettingError, short_repr
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

Prompt = str | Sequence[int]


def is_batch(prompt: Prompt | Sequence[Prompt] | None) -> bool:
    """Whether a prompt is a list of texts or of lists. An empty list is an empty batch."""
    if prompt is None or isinstance(prompt, str):
        return False
    prompts = as_list(prompt)
    return not prompts or isinstance(prompts[0], str) or hasattr(prompts[0], "__len__")


def as_list(values: Any) -> list[Any]:
    """A list, tuple, range, or numpy or torch array as a list."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple | range):
        raise SettingError(
            f"a {type(values).__name__} is not a prompt. Give text, token ids, or a list of either."
        )
    return list(values)


def token_ids(values: Any) -> list[int]:
    ids = as_list(values)
    wrong = [i for i in ids if isinstance(i, bool) or not isinstance(i, int | np.integer)]
    if wrong:
        raise SettingError(f"{short_repr(wrong[0])} is not a token id. Give a text, or whole numbers.")
    return [int(i) for i in ids]


def original_prompt(prompt: Prompt | None) -> str | list[int]:
    if prompt is None:
        return ""
    return prompt if isinstance(prompt, str) else token_ids(prompt)


def fit_length(length: int, remaining: int, context: int) -> int:
    """How many of the last tokens to read so that `remaining` can follow, if possible without sliding."""
    if length <= context and length + remaining - 1 <= context:
        return length
    least = context - context // 4
    return min(length, max(least, min(context, context - (remaining - 1))))


def truncation_note(length: int, read: int, context: int) -> str:
    return f"the prompt has {length} tokens and the model reads {context} at a time: it saw the last {read}"


def sliding_note(context: int) -> str:
    return (
        f"the text is longer than the {context} tokens the model reads at a time: "
        f"from here on it sees only the last {context - context // 4} to {context}"
    )


def parse_ids(text: str, example: str = "1 2 3") -> list[int]:
    """Token ids that a person typed, separated by spaces or commas."""
    words = text.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise SettingError(f"{word[:40]!r} is not a token id. Type whole numbers: {example}")
    return [int(word) for word in words]


def find_unknown_id(ids: Sequence[int], vocab_size: int) -> int | None:
    """The first id outside the vocabulary, None if there is none.

    Whoever accepts ids checks them with this, to say where they came from. Backends check them once more
    (`backends.protocol.check_ids`): they must not read outside their arrays, whoever calls them.
    """
    return next((token for token in ids if not 0 <= token < vocab_size), None)


def check_prompt(prompt: Sequence[int], backend: Backend, tokenizer: Tokenizer | None) -> list[int]:
    """The ids to start from; an empty prompt means the beginning of a document."""
    vocab_size = backend.config.vocab_size
    ids = [int(token) for token in prompt]
    unknown = find_unknown_id(ids, vocab_size)
    if unknown is not None:
        raise SettingError(
            f"token id {short_repr(unknown)} is not in this model's vocabulary, 0 to {vocab_size - 1}."
        )
    if ids:
        return ids
    start = end_of_text(backend, tokenizer)
    if start is None:
        start = backend.config.bos_token_id
    if start is None or not 0 <= start < vocab_size:
        raise SettingError(
            "an empty prompt needs an end-of-text token, which this model lacks. Write a prompt."
        )
    return [start]


def usable_vocab_size(backend: Backend, tokenizer: Tokenizer | None) -> int:
    """The number of logits that are tokens.

    A vocabulary is often padded to a round number (nanoGPT's 50,304 for 50,257 tokens). Ids beyond the
    tokenizer's have no text, so they are never drawn, listed or counted as probability.
    """
    size = backend.config.vocab_size
    return size if tokenizer is None else min(size, tokenizer.vocab_size)


def end_of_text(backend: Backend, tokenizer: Tokenizer | None) -> int | None:
    eot = None if tokenizer is None else tokenizer.eot_id
    # One added to the tokenizer alone has no embedding: the model never learned it.
    return backend.config.eos_token_id if eot is None or eot >= backend.config.vocab_size else eot


def stop_tokens(settings: SamplingParams, backend: Backend, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The tokens that end a text: those of the settings, end-of-text, and others that the config names."""
    for token in settings.stop_tokens:
        check_whole("a token id in stop_tokens", token, 0, backend.config.vocab_size - 1, "the vocabulary")
    if settings.ignore_eot and settings.constraint is None:  # a grammar ends with end-of-text
        return frozenset(settings.stop_tokens)
    eot = end_of_text(backend, tokenizer)
    return frozenset((*settings.stop_tokens, *backend.config.eos_token_ids, *(() if eot is None else (eot,))))
