"""The range of a number that a person or a program gives: checked once, before any work, in one manner.

An error names the value, the range and, where that helps, what is usual.
"""

from __future__ import annotations

from glassgpt.errors import SettingError, short_repr

SEEDS = 2**64 - 1  # the largest that fits the generators
# Of training. Each process adds its number to it, and a sum must fit, too.
TRAINING_SEEDS = 2**63 - 1


def check_whole(name: str, value: object, least: int, most: int | None = None, hint: str = "") -> None:
    """Refuse what is no whole number from `least` to `most`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        span = f"of at least {least}" if most is None else f"from {least:,} to {most:,}"
        raise SettingError(f"{name} is {short_repr(value)}; write a whole number {span}{_aside(hint)}.")


def check_number(
    name: str,
    value: object,
    least: float,
    most: float,
    hint: str = "",
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """Refuse what is no finite number from `least` to `most`, or `above` the one, or `below` the other."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if good and not ((above and value == least) or (below and value == most)):
        return
    span = f"above {least:,}" if above else f"from {least:,}"
    span += f" to below {most:,}" if below else f" to {most:,}"
    raise SettingError(f"{name} is {short_repr(value)}; write a number {span}{_aside(hint)}.")


def _aside(hint: str) -> str:
    return f" ({hint})" if hint else ""
