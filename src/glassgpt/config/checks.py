"""Checks of the values in a config."""

from __future__ import annotations

from typing import Any

from glassgpt.errors import ConfigError, short_repr

# Far above every model there is: a larger number in a file is damage, and would only fail later, and worse.
LARGEST_COUNT = 2**40


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {short_repr(value)}; it must be a whole number of at least 1.")
    if value >= LARGEST_COUNT:
        raise ConfigError(f"{name} is {short_repr(value)}; no model is that large. Correct the number.")


def check_token_id(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LARGEST_COUNT:
        raise ConfigError(f"{name} is {short_repr(value)}; it must be a token id, a list of them, or null.")
