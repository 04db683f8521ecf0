"""The command line: `glassgpt COMMAND`.

`commands/` has the table of commands and a module for each; `parser/` reads arguments and writes --help. This
module handles what all commands share: signals, errors and exit codes.

Exit codes: 0 success; 1 a check failed (`verify`, `eval`); 2 a usage or input error, reported in one line on
stderr; 3 the loss is not finite (`train`); 70 an internal error, with its traceback in a file; 130 Ctrl-C;
141 broken pipe; 143 SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgpt.backends.torch.openmp import shorten_spin_wait
from glassgpt.cli.commands import COMMANDS as COMMANDS
from glassgpt.errors import NEEDS_TORCH, UserError, iconv_advice

if TYPE_CHECKING:
    from glassgpt.cli.signals import Signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. GLASSGPT_DEBUG=1 raises errors with their traceback."""
    from glassgpt.cli import terminal
    from glassgpt.cli.signals import Signals

    shorten_spin_wait()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when `datasets` or `lm_eval` are imported
    terminal.prepare_streams()
    args = sys.argv[1:] if argv is None else list(argv)
    with Signals() as signals:
        try:
            try:
                code = run_reporting_errors(args, signals)
                signals.disarm()
            except KeyboardInterrupt:
                code = signals.exit_code()
        except KeyboardInterrupt:  # a second one, right here; there is no third (see `Signals`)
            code = signals.exit_code()
        if signals.is_terminated:  # even if the command finished after it
            code = signals.exit_code()
        terminal.flush_streams(interrupted=code > 128 and code != 141)
        return code


def run_reporting_errors(args: Sequence[str], signals: Signals) -> int:
    """Run the command line; print an error as one line and return the exit code."""
    from glassgpt.cli import terminal

    try:
        with terminal.warnings_as_notes():
            code = run(args)
        sys.stdout.flush()  # here, where a closed pipe or a full disk is still reported properly
        return code
    except BrokenPipeError:
        return 141
    except Exception as error:
        if signals.received is not None:  # a library turned Ctrl-C into its own error
            raise KeyboardInterrupt from None
        if os.environ.get("GLASSGPT_DEBUG"):
            raise
        message = describe_error(error)
        if message is None:
            print_error(f"internal error: {type(error).__name__}: {error}. {save_traceback(error)}")
            return 70
        print_error(message)
        return error.exit_code if isinstance(error, UserError) else 2


def run(args: Sequence[str]) -> int:
    if args and args[0] in ("-V", "--version", "version"):
        from glassgpt import __version__

        print(f"glassgpt {__version__}")
        return 0
    args = [decode_argument(number, arg) for number, arg in enumerate(args, start=1)]
    if not args or args[0] in ("-h", "--help", "help"):
        if len(args) < 2:
            from glassgpt.cli.parser.help import print_overview

            return print_overview(COMMANDS)
        args = [*args[1:], "--help"]  # glassgpt help generate
    from glassgpt.cli.parser.parse import find_command, parse

    name = find_command(args[0], COMMANDS)
    call = parse(name, COMMANDS[name], args[1:])
    return call()


def decode_argument(number: int, arg: str) -> str:
    """Undo Python's surrogate escapes: bytes that the locale cannot decode may still be UTF-8."""
    if not any("\ud800" <= char <= "\udfff" for char in arg):
        return arg
    try:
        raw = arg.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
    except UnicodeEncodeError as error:
        problem = f"an unpaired surrogate at offset {error.start}"
    raise UserError(f"argument {number} is not UTF-8: {problem}. {iconv_advice()}")


def describe_error(error: Exception) -> str | None:
    """One line for an error that the user or the machine can cause; None for a bug."""
    import errno

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"this {NEEDS_TORCH}"
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "out of memory. Try a smaller model, fewer samples, or --dtype bfloat16."
    if "TORCHELASTIC_RUN_ID" in os.environ and _is_lost_peer(error):
        return "another process of this run has exited: see its output, then continue with --resume."
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename is not None else ""
        advice = {
            errno.ENOSPC: " Free some space, or write elsewhere.",
            errno.EDQUOT: " Free some space, or write elsewhere.",
            errno.EFBIG: " Write to a file system that allows larger files.",
        }.get(error.errno or 0, "")
        reason = error.strerror if error.strerror is not None else str(error)
        return f"{reason[:1].lower()}{reason[1:]}{where}.{advice}"
    return None


def _is_lost_peer(error: Exception) -> bool:
    """Whether torch.distributed lost another process: known by gloo's messages or NCCL's error class."""
    messages = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    gloo = isinstance(error, RuntimeError) and any(message in str(error) for message in messages)
    return gloo or any(kind.__name__ == "DistError" for kind in type(error).__mro__)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch ran out of memory, or the system while it loaded a library."""
    # By name: importing torch only to learn that this was not its error would take a second.
    messages = ("can't allocate memory", "annot allocate memory", "failed to map segment")
    return type(error).__name__ == "OutOfMemoryError" or any(message in str(error) for message in messages)


def save_traceback(error: Exception) -> str:
    """Write the traceback to a file; return the sentence that says where it is."""
    import tempfile
    import traceback

    try:
        handle, path = tempfile.mkstemp(prefix="glassgpt-", suffix=".traceback")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return "Set GLASSGPT_DEBUG=1 to see the traceback."
    return f"The traceback is in {path}; please report it."


def print_error(message: str) -> None:
    """Print one line; a message of several lines is folded into it."""
    from glassgpt.cli import terminal

    with terminal.ignore_write_errors():
        print("glassgpt:", " ".join(message.split()), file=sys.stderr)
