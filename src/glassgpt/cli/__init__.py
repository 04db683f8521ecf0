"""The front door: `glassgpt <verb>`.

A verb is a module of this folder with one typed function, `command`; its signature is its command line (tyro)
and its return value the exit code. A module is imported only when its verb is used, so that `--help` and
`--version` answer at once.

Exit codes: 0 done; 1 the answer is no (`verify`); 2 a mistake in what was asked, told in one line on stderr;
3 the loss is no finite number (`train`); 70 a bug of ours, whose traceback is in a file; 130 Ctrl-C; 141
whoever read our output stopped reading; 143 SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.errors import UserError
from glassgpt.openmp import spin_briefly

if TYPE_CHECKING:
    from glassgpt.cli.signals import Signals


@dataclass(frozen=True)
class Verb:
    does: str
    examples: tuple[str, ...]  # the first one is shown by `glassgpt --help`


# In the order a newcomer meets them.
VERBS = {
    "generate": Verb(
        "continue a text",
        (
            'glassgpt generate "A robot must obey"',
            'glassgpt generate "Once upon a time" --samples 3 --seed 7 --temperature 1',
            'glassgpt generate "The sea" --model gpt2-xl --max-new-tokens 200 --top-k none --top-p 0.9',
            "glassgpt generate - --json < prompt.txt",
        ),
    ),
    "next": Verb(
        "the phone keyboard: ten likely next tokens, pick one, go on",
        (
            'glassgpt next "A robot must obey the"',
            'glassgpt next "A robot must obey the" -k 20',
            'glassgpt next "The capital of France is" --json --model gpt2',
        ),
    ),
    "explore": Verb(
        "see inside: a text on its way through the model, in the browser",
        (
            'glassgpt explore "A robot must obey"',
            'glassgpt explore "The capital of France is" --model gpt2 --compare gpt2-medium',
            "glassgpt explore --model runs/mine --port 9000 --no-browser",
        ),
    ),
    "tokens": Verb(
        "show how a text is cut into tokens, merge by merge",
        (
            'glassgpt tokens "A robot must obey"',
            'glassgpt tokens "unbelievable" --merges',
            "glassgpt tokens - --ids < book.txt",
        ),
    ),
    "info": Verb(
        "count a model's parameters, matrix by matrix",
        ("glassgpt info gpt2", "glassgpt info gpt2 --illustrated", "glassgpt info path/to/model --json"),
    ),
    "convert": Verb(
        "write a model in another file format",
        (
            "glassgpt convert gpt2 gpt2.gguf",
            "glassgpt convert nanogpt/out/ckpt.pt my-model",
            "glassgpt convert my-model my-model.bin --format llmc --dtype bfloat16",
        ),
    ),
    "prepare": Verb(
        "cut texts into tokens to train on",
        (
            "glassgpt prepare corpus/ -o shards/",
            "glassgpt prepare 'books/*.jsonl.xz' notes.md -o shards/ --tokenizer gpt2",
            "glassgpt prepare input.txt -o shards/ --tokenizer chars --val-share 0.1",
            "glassgpt prepare corpus/ -o shards/ --tokenizer bpe --vocab-size 8192",
        ),
    ),
    "train": Verb(
        "train a model on prepared tokens",
        (
            "glassgpt train --data shards/ --out runs/mine --steps 2000",
            "glassgpt train --data shards/ --out runs/mine --steps 2000 --resume",
            "glassgpt train --data shards/ --out runs/gpt2 --steps 9000 --shape gpt2 --recipe gpt2 --dry-run",
            "glassgpt train --data shards/ --out runs/on --steps 300 --init-from default --lr 3e-4",
        ),
    ),
    "tune": Verb(
        "fine-tune a model on your own text",
        (
            "glassgpt tune my.txt",
            "glassgpt tune letters/ diary.md --out runs/me --minutes 5",
            "glassgpt tune my.txt --model gpt2 --lora",
            "glassgpt tune my.txt --dry-run",
        ),
    ),
    "eval": Verb(
        "measure a model by the paper's and other published rules",
        (
            "glassgpt eval default --suite paper --data data/",
            "glassgpt eval gpt2 --suite harness --json",
            "glassgpt eval default book.txt --suite perplexity --stride 512",
            "glassgpt eval gpt2 gpt2-q4.gguf --suite wikitext-2 --limit 50",
            "glassgpt eval gpt2 --tasks triviaqa,drop --limit 100",
        ),
    ),
    "verify": Verb(
        "check that this machine computes what it should",
        (
            "glassgpt verify",
            "glassgpt verify gpt2 --device cpu --dtype float32",
            "glassgpt verify my-model --json",
        ),
    ),
    "completion": Verb(
        "let the shell complete verbs and options",
        (
            'eval "$(glassgpt completion bash)"',
            "glassgpt completion bash > ~/.local/share/bash-completion/completions/glassgpt",
            'glassgpt completion zsh > "${fpath[1]}/_glassgpt"',
            "glassgpt completion fish > ~/.config/fish/completions/glassgpt.fish",
        ),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. GLASSGPT_DEBUG=1 shows the traceback of any error."""
    from glassgpt.cli import terminal
    from glassgpt.cli.signals import Signals

    spin_briefly()
    terminal.prepare_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    with Signals() as signals:
        try:
            try:
                code = guarded(words, signals)
                signals.disarm()
            except KeyboardInterrupt:
                code = signals.stopped()
        except KeyboardInterrupt:  # one more, just here; there is no third (see `Signals`)
            code = signals.stopped()
        if signals.is_terminated:  # also where the verb ended well after it
            code = signals.stopped()
        terminal.settle_streams(interrupted=code > 128 and code != 141)
        return code


def guarded(argv: Sequence[str], signals: Signals) -> int:
    """The exit code; an error becomes one line."""
    from glassgpt.cli import terminal

    try:
        with terminal.plain_warnings():
            code = run(argv)
        sys.stdout.flush()  # here, where a closed pipe or a full disk still gets a proper end
        return code
    except BrokenPipeError:
        return 141
    except Exception as error:
        if signals.seen is not None:  # a library made an error of its own of the Ctrl-C
            raise KeyboardInterrupt from None
        if os.environ.get("GLASSGPT_DEBUG"):
            raise
        message = explain(error)
        if message is None:
            complain(f"a bug of ours: {type(error).__name__}: {error}. {where_traceback_is(error)}")
            return 70
        complain(message)
        return error.exit_code if isinstance(error, UserError) else 2


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        from glassgpt.cli.help import overview

        overview(VERBS)
        return 0
    if argv[0] in ("-V", "--version", "version"):
        from glassgpt import __version__

        print(f"glassgpt {__version__}")
        return 0
    from glassgpt.cli.parse import checked_verb, parse

    argv = [as_utf8(number, word) for number, word in enumerate(argv, start=1)]
    verb = checked_verb(argv[0], VERBS)
    call = parse(verb, VERBS[verb], argv[1:])
    return call()


def as_utf8(number: int, word: str) -> str:
    """Python smuggles bytes that the locale cannot decode in as lone surrogates; they may still be UTF-8."""
    if not any("\ud800" <= char <= "\udfff" for char in word):
        return word
    try:
        raw = word.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
    except UnicodeEncodeError as error:
        what = f"half a character at offset {error.start}"
    raise UserError(
        f"argument {number} is not UTF-8: {what}. Convert the text to UTF-8 (iconv -t UTF-8) and try again."
    )


def explain(error: Exception) -> str | None:
    """One line for what a user or their machine can cause; None for a bug."""
    import errno

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return 'this needs PyTorch, which is not installed. Type: pip install "glassgpt[torch]"'
    if isinstance(error, MemoryError) or _is_torch_out_of_memory(error):
        return "out of memory. Try a smaller model, fewer samples, or --dtype bfloat16."
    if "TORCHELASTIC_RUN_ID" in os.environ and _is_lost_peer(error):
        return "another process of this run has ended, which see; then go on with --resume."
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename is not None else ""
        advice = {
            errno.ENOSPC: " Free some space, or write elsewhere.",
            errno.EDQUOT: " Free some space, or write elsewhere.",
            errno.EFBIG: " Write to a place that allows larger files.",
        }.get(error.errno or 0, "")
        reason = error.strerror if error.strerror is not None else str(error)
        return f"{reason[:1].lower()}{reason[1:]}{where}.{advice}"
    return None


def _is_lost_peer(error: Exception) -> bool:
    """What torch.distributed makes of a process that is gone: gloo's words, or a class of its own (NCCL)."""
    lost = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    gloo = isinstance(error, RuntimeError) and any(words in str(error) for words in lost)
    return gloo or any(kind.__name__ == "DistError" for kind in type(error).__mro__)


def _is_torch_out_of_memory(error: Exception) -> bool:
    # By name, so that nobody pays for importing torch to find out that this was not its error.
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def where_traceback_is(error: Exception) -> str:
    """Keep the traceback in a file, and say which."""
    import tempfile
    import traceback

    try:
        handle, path = tempfile.mkstemp(prefix="glassgpt-", suffix=".traceback")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return "See its traceback with GLASSGPT_DEBUG=1."
    return f"Its traceback is in {path}; please report it."


def complain(message: str) -> None:
    """The one line. A message of several lines is folded: programs and people read the first."""
    from glassgpt.cli import terminal

    with terminal.unimportant():
        print("glassgpt:", " ".join(message.split()), file=sys.stderr)
