"""Errors that users may cause. Each message says what is wrong, the value, and what to do.

Everything derived from `UserError` is printed by the command line as one line on stderr with exit code 2;
anything else is a bug, whose traceback goes into a file.
"""

import math
import reprlib
import shlex

# The end of a message about something that only PyTorch can do.
NEEDS_TORCH = "needs PyTorch, which `make full` installs, or: pip install 'glassgpt[torch]'."


class UserError(Exception):
    """An error in the user's input, not a bug."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """An invalid model config: a missing or unknown key, a width not divisible by the heads."""


class FileFormatError(UserError, ValueError):
    """An invalid file: truncated, with wrong sizes, or unsafe to open."""


class ModelNotFoundError(UserError, LookupError):
    """No model by that name, in that folder, or on the hub."""


class SettingError(UserError, ValueError):
    """A setting out of range, such as temperature -1."""


class StepIndexError(UserError, IndexError):
    """A step, layer, head, neuron or position that this model or text does not have."""


class NonFiniteLossError(UserError):
    """The loss became NaN or infinite; the weights were not updated."""

    exit_code = 3


class QueueFullError(UserError):
    """Too many requests are waiting, or the wait would be too long. Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceStoppedError(UserError):
    """The service that runs the requests was stopped before they were finished."""


def iconv_advice(path: object = None, encoding: str | None = None) -> str:
    """What to type for a text that is not UTF-8: for a file, or for text from a pipe. Where
    nobody knows the encoding, it may be Latin-1."""
    name = "LATIN1" if encoding is None else encoding
    guess = "If it is Latin-1, convert it" if encoding is None else "Convert it"
    if path is None:
        return f"{guess} first: iconv -f {name} -t UTF-8"
    return f"{guess}: iconv -f {name} -t UTF-8 {shlex.quote(str(path))} > utf8.txt"


def short_repr(value: object) -> str:
    """The repr of a value, shortened for a message: it may be a megabyte, or nested very deep."""
    return _BRIEF.repr(value)


class _ShortRepr(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 256:  # Python does not write those of more than 4,300 digits
            return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
        return super().repr_int(value, level)


_BRIEF = _ShortRepr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80
