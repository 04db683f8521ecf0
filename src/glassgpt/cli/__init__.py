"""The command line: `glassgpt COMMAND`.

A command is a module in `commands/` with one typed function, `command`: tyro derives the command line from
its signature, and its return value is the exit code. A module is imported only when its command runs, so that
`--help` and `--version` start quickly.

Exit codes: 0 success; 1 a check failed (`verify`, `eval`); 2 a usage or input error, reported in one line on
stderr; 3 the loss is not finite (`train`); 70 an internal error, with its traceback in a file; 130 Ctrl-C;
141 broken pipe; 143 SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.backends.torch.openmp import shorten_spin_wait
from glassgpt.errors import NEEDS_TORCH, UserError, iconv_advice

if TYPE_CHECKING:
    from glassgpt.cli.signals import Signals


@dataclass(frozen=True)
class Command:
    summary: str
    examples: tuple[str, ...]  # `glassgpt --help` shows the first


# In the order a newcomer meets them.
COMMANDS = {
    "generate": Command(
        "generate text from a prompt",
        (
            'glassgpt generate "A robot must obey"',
            'glassgpt generate "Once upon a time" --samples 3 --seed 7 --temperature 1',
            'glassgpt generate "The sea" --model gpt2-xl --max-new-tokens 200 --top-k none --top-p 0.9',
            "glassgpt generate - --json < prompt.txt",
        ),
    ),
    "next": Command(
        "show the most likely next tokens; pick one and continue",
        (
            'glassgpt next "A robot must obey the"',
            'glassgpt next "A robot must obey the" -k 20',
            'glassgpt next "The capital of France is" --json --model gpt2',
        ),
    ),
    "fill": Command(
        "fill the blanks of a text",
        (
            'glassgpt fill "A robot must ___ the orders"',
            'glassgpt fill "The ___ rose over the ___." --model runs/bidirectional -k 3 --json',
        ),
    ),
    "explore": Command(
        "see inside the model, in the browser",
        (
            'glassgpt explore "A robot must obey"',
            'glassgpt explore "The capital of France is" --model gpt2 --compare gpt2-medium',
            "glassgpt explore --model runs/mine --port 9000 --no-browser",
        ),
    ),
    "translate": Command(
        "translate English into French, or French into English",
        (
            'glassgpt translate "Where is the station?" --to fr',
            "glassgpt translate - --to en < lettre.txt",
            "glassgpt translate --file sentences.jsonl --to fr --beams 4 --json",
        ),
    ),
    "summarize": Command(
        "summarize a text",
        (
            "glassgpt summarize article.txt",
            "glassgpt summarize article.txt --sentences 5 --json",
            "glassgpt summarize article.txt --zero-shot --model gpt2-xl --seed 1",
            "glassgpt summarize emails.jsonl --model subject-tuned --json",
        ),
    ),
    "classify": Command(
        "classify a text with a tuned model, or zero-shot",
        (
            'glassgpt classify "A charming journey." --labels good,bad',
            'glassgpt classify "Dull." --model reviews-tuned',
            "glassgpt classify --file reviews.tsv --model reviews-tuned --json",
        ),
    ),
    "serve": Command(
        "serve completions to the clients of OpenAI's API",
        (
            "glassgpt serve",
            "glassgpt serve --model gpt2 --model mine=runs/mine --port 9000",
            "glassgpt serve --host 0.0.0.0 --api-key secret --max-batch-size 32",
        ),
    ),
    "tokens": Command(
        "show how text is tokenized, merge by merge",
        (
            'glassgpt tokens "A robot must obey"',
            'glassgpt tokens "unbelievable" --merges',
            "glassgpt tokens - --ids < book.txt",
        ),
    ),
    "info": Command(
        "count a model's parameters, tensor by tensor",
        ("glassgpt info gpt2", "glassgpt info gpt2 --illustrated", "glassgpt info path/to/model --json"),
    ),
    "convert": Command(
        "convert a model to another file format",
        (
            "glassgpt convert gpt2 gpt2.gguf",
            "glassgpt convert nanogpt/out/ckpt.pt my-model",
            "glassgpt convert my-model my-model.bin --format llmc --dtype bfloat16",
            "glassgpt convert gpt2 gpt2-int4 --dtype int4",
        ),
    ),
    "prepare": Command(
        "tokenize text for training",
        (
            "glassgpt prepare corpus/ -o shards/",
            "glassgpt prepare 'books/*.jsonl.xz' notes.md -o shards/ --tokenizer gpt2",
            "glassgpt prepare input.txt -o shards/ --tokenizer chars --val-fraction 0.1",
            "glassgpt prepare corpus/ -o shards/ --tokenizer bpe --vocab-size 8192",
        ),
    ),
    "train": Command(
        "train a model on tokenized data",
        (
            "glassgpt train --data shards/ --out runs/mine --steps 2000",
            "glassgpt train --out runs/mine --resume",
            "glassgpt train --data shards/ --out runs/gpt2 --steps 9000 --shape gpt2 --recipe gpt2 --dry-run",
            "glassgpt train --data shards/ --out runs/on --steps 300 --init-from default --lr 3e-4",
        ),
    ),
    "tune": Command(
        "fine-tune a model on your own text",
        (
            "glassgpt tune my.txt",
            "glassgpt tune letters/ diary.md --out runs/me --minutes 5",
            "glassgpt tune my.txt --model gpt2 --lora",
            "glassgpt tune my.txt --dry-run",
        ),
    ),
    "eval": Command(
        "evaluate a model on the GPT-2 paper's benchmarks and others",
        (
            "glassgpt eval default --suite paper --data data/",
            "glassgpt eval gpt2 --suite harness --json",
            "glassgpt eval default book.txt --suite perplexity --stride 512",
            "glassgpt eval gpt2 gpt2-q4.gguf --suite wikitext-2 --limit 50",
            "glassgpt eval gpt2 --tasks triviaqa,drop --limit 100",
        ),
    ),
    "music": Command(
        "make piano music and hear it",
        (
            "glassgpt music sample -o a.mid --seconds 30 --seed 1",
            "glassgpt music continue opening.mid -o out.mid --seconds 20",
            "glassgpt music accompany melody.mid -o song.mid",
            "glassgpt music render a.mid -o a.wav",
            "glassgpt music roll a.mid -o a.svg",
            "glassgpt music prepare midi/ -o shards/ --tempi 5",
        ),
    ),
    "verify": Command(
        "check results on this machine against a float32 reference",
        (
            "glassgpt verify",
            "glassgpt verify gpt2 --device cpu --dtype float32",
            "glassgpt verify my-model --json",
        ),
    ),
    "bench": Command(
        "measure how fast a model is on this machine",
        ("glassgpt bench", "glassgpt bench gpt2 --dtype int8 --json", "glassgpt bench tiny --transformers"),
    ),
    "completion": Command(
        "print a shell completion script",
        (
            'eval "$(glassgpt completion bash)"',
            "glassgpt completion bash > ~/.local/share/bash-completion/completions/glassgpt",
            'glassgpt completion zsh > "${fpath[1]}/_glassgpt"',
            "glassgpt completion fish > ~/.config/fish/completions/glassgpt.fish",
        ),
    ),
}


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
        if signals.received is not None:  # a library turned Ctrl-C into an error of its own
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
    if not args or args[0] in ("-h", "--help", "help"):
        from glassgpt.cli.help import print_overview

        print_overview(COMMANDS)
        return 0
    if args[0] in ("-V", "--version", "version"):
        from glassgpt import __version__

        print(f"glassgpt {__version__}")
        return 0
    from glassgpt.cli.parse import find_command, parse

    args = [decode_argument(number, arg) for number, arg in enumerate(args, start=1)]
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
