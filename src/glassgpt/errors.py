"""The errors a user may cause. Each message says what was wrong, which value it was, and what to do next.

Everything derived from `UserError` is printed by the command line as one line on stderr with exit code 2;
anything else is a bug of ours, whose traceback goes into a file.
"""

import math
import reprlib


class UserError(Exception):
    """A mistake in what the user asked for or gave us, never a bug of ours."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A model shape that cannot be: a missing or unknown key, a width that its heads do not divide."""


class FileFormatError(UserError, ValueError):
    """A file that is not what it says it is: truncated, lying about its sizes, or unsafe to open."""


class ModelNotFoundError(UserError, LookupError):
    """No model by that name, in that folder, or on the hub."""


class SettingError(UserError, ValueError):
    """A generation setting out of its range, such as temperature -1."""


class StepIndexError(UserError, IndexError):
    """A step, layer, head, neuron or position that this model or text does not have."""


class NonFiniteLossError(UserError):
    """The loss became NaN or infinite; the weights were not moved."""

    exit_code = 3


def shown(value: object) -> str:
    """A value short enough for a message: it may be a megabyte, nested very deep, or a number that fills
    lines."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    return _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80
