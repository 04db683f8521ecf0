"""Check grammars in a child process, which starts with the first grammar and stays.

At most `MAX_WAITING` grammars wait, each for a bounded time: a flood of grammars is refused and does not
affect requests without one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from glassgpt.errors import QueueFullError, SettingError, UserError

PROGRAM = Path(__file__).with_name("grammar_child.py")
MAX_WAITING = 16
MAX_REFUSED = 256  # bad grammars that are remembered
WALL_SECONDS = 60  # for one check on a busy machine; the child limits its CPU time


class GrammarChecker:
    """Any thread may call `check`; one grammar is checked at a time."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], eos: Sequence[int]) -> None:
        self._vocabulary = {
            "path": sys.path,
            "tokens": [token.decode("latin-1") for token in tokens],
            "special": list(special),
            "eos": list(eos),
        }
        self._refused: dict[bytes, str] = {}  # oldest first
        self._turn = threading.Lock()
        self._waiting = 0
        self._child: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._stop: weakref.finalize[[subprocess.Popen[str]], GrammarChecker] | None = None

    def check(self, kind: str, text: str) -> str:
        """The grammar in llguidance's syntax, or a SettingError that says what is wrong with it."""
        key = hashlib.sha256(f"{kind}:{text}".encode("utf-8", "surrogatepass")).digest()
        if key in self._refused:
            raise SettingError(self._refused[key])
        if self._waiting >= MAX_WAITING:
            raise QueueFullError(
                f"{self._waiting} grammars wait to be compiled. Try again in a moment.", retry_after=1
            )
        self._waiting += 1
        try:
            with self._turn:
                answer = self._ask(kind, text)
        finally:
            self._waiting -= 1
        if "error" in answer:
            self._refused[key] = answer["error"]
            if len(self._refused) > MAX_REFUSED:
                self._refused.pop(next(iter(self._refused)), None)
            raise SettingError(answer["error"])
        return answer["source"]

    def _ask(self, kind: str, text: str) -> dict[str, str]:
        child = self._running_child()
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(WALL_SECONDS, child.kill)
        timer.daemon = True
        timer.start()
        line = ""
        try:
            with suppress(OSError):  # the child has died: no line will come
                child.stdin.write(json.dumps({"kind": kind, "text": text}) + "\n")
                child.stdin.flush()
                line = child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.close()
            raise UserError("the process that compiles grammars has ended, or took too long. Try again.")
        return dict(json.loads(line))

    def _running_child(self) -> subprocess.Popen[str]:
        if self._owner != os.getpid():  # in a fork: the pipes belong to the parent
            self._owner, self._child = os.getpid(), None
        if self._child is None or self._child.poll() is not None:
            self.close()
            try:
                # -P: do not import from the program's folder.
                child = subprocess.Popen(
                    [sys.executable, "-P", str(PROGRAM)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                )
            except OSError as error:
                raise UserError(
                    f"a grammar is checked in a child process, which cannot start: {error}."
                ) from None
            self._child, self._stop = child, weakref.finalize(self, stop, child)
            assert child.stdin is not None
            with suppress(OSError):
                child.stdin.write(json.dumps(self._vocabulary) + "\n")
        return self._child

    def close(self) -> None:
        """End the child. The next check starts another."""
        if self._stop is not None:
            self._stop()
        self._child = self._stop = None


def stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    child.wait()


_checkers: weakref.WeakValueDictionary[bytes, GrammarChecker] = weakref.WeakValueDictionary()
_checkers_lock = threading.Lock()


def find_checker(tokens: Sequence[bytes], special: Sequence[int], eos: Sequence[int]) -> GrammarChecker:
    """The checker of a vocabulary, one child for all engines that use it."""
    digest = hashlib.sha256(repr((list(special), list(eos))).encode())
    for token in tokens:
        digest.update(len(token).to_bytes(4) + token)
    with _checkers_lock:
        checker = _checkers.get(digest.digest())
        if checker is None:
            checker = _checkers[digest.digest()] = GrammarChecker(tokens, special, eos)
        return checker
