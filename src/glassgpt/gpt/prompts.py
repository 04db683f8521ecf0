"""What callers give as a prompt: a text, token ids as a list or an array, or a batch of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgpt.errors import SettingError

Prompt = str | Sequence[int]


def is_batch(prompt: Prompt | Sequence[Prompt] | None) -> bool:
    """A list of texts or of lists; an empty list is a batch of none."""
    if prompt is None or isinstance(prompt, str):
        return False
    some = as_list(prompt)
    return not some or isinstance(some[0], str) or hasattr(some[0], "__len__")


def as_list(values: Any) -> list[Any]:
    """A list of what was given as a list, a tuple, a range, or an array of numpy or torch."""
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
        raise SettingError(f"{wrong[0]!r} is not a token id. Give a text, or whole numbers.")
    return [int(i) for i in ids]


def original_prompt(prompt: Prompt | None) -> str | list[int]:
    if prompt is None:
        return ""
    return prompt if isinstance(prompt, str) else token_ids(prompt)
