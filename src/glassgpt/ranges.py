"""Range checks of numbers from users, before any work: errors give the value, the range and a usual value."""

from __future__ import annotations

from glassgpt.errors import SettingError, short_repr

SEEDS = 2**64 - 1  # the largest that fits the generators
# Of training: each process adds its rank to it, and the sum must also fit.
TRAINING_SEEDS = 2**63 - 1


def check_whole(name: str, value: object, least: int, most: int | None = None, hint: str = "") -> None:
    """Raise unless `value` is an integer from `least` to `most`."""
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
    """Raise unless `value` is a finite number from `least` to `most` (exclusive with `above`, `below`)."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if good and not ((above and value == least) or (below and value == most)):
        return
    span = f"above {least:,}" if above else f"from {least:,}"
    span += f" to below {most:,}" if below else f" to {most:,}"
    raise SettingError(f"{name} is {short_repr(value)}; write a number {span}{_aside(hint)}.")


def _aside(hint: str) -> str:
    return f" ({hint})" if hint else ""
