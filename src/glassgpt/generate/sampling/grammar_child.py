"""The child process that checks grammars; `grammar_checker.py` starts it.

A hostile grammar overflows llguidance's stack, fills the memory or needs minutes, and nothing inside a
process can stop that. So each grammar is first compiled here, in a fork with limits on its stack, memory and
CPU time, and a few masks are computed with it. A grammar that kills the fork is refused; one that does not is
safe to compile in the parent.

This module imports nothing from the package, so that it starts quickly. Standard input has the vocabulary as
a line of JSON, then one line for each grammar; the answer to each is one line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

JSON_FORMAT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CPU_SECONDS = 0.5  # of a check; usual grammars need 0.02
STACK_BYTES = 2 << 20  # at most, and a quarter of a thread's stack, so that it also fits in the parent
THREAD_BYTES = 2 << 20  # a thread's stack, if the system sets no limit
MEMORY_BYTES = 512 << 20
STEPS = 8  # masks to compute


class ByteTokenizerWrapper:
    """A vocabulary with the tokenizer interface that llguidance expects."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[str], special: list[int], eos: int) -> None:
        self.tokens = [token.encode("latin-1") for token in tokens]
        self.special_token_ids = special
        self.eos_token_id = eos
        self._bytes = {token: number for number, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: str) -> list[int]:
        """Encode byte by byte, which is good enough for a check."""
        return [self._bytes[byte] for value in text.encode() if (byte := bytes([value])) in self._bytes]


def convert(guidance: Any, kind: str, text: str) -> str:
    """Convert a grammar to llguidance's syntax. `text` is JSON for a schema and for choices."""
    matcher = guidance.LLMatcher
    if kind == "schema":
        return str(matcher.grammar_from_json_schema(text, overrides=JSON_FORMAT))
    if kind == "regex":
        return str(matcher.grammar_from_regex(text))
    if kind == "choice":
        return str(matcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(text)))))
    return str(guidance.grammar_from("grammar", text))  # Lark's syntax or llama.cpp's GBNF


def check(guidance: Any, vocabulary: Any, kind: str, text: str) -> dict[str, str]:
    """The grammar in llguidance's syntax, or an error message."""
    try:
        source = convert(guidance, kind, text)
    except (ValueError, RecursionError) as error:
        return {"error": str(error)}
    matcher = guidance.LLMatcher(vocabulary, source, log_level=0)
    if matcher.is_error():
        return {"error": matcher.get_error()}
    for _ in range(STEPS):
        mask = matcher.compute_bitmask()
        allowed = [8 * i + bit for i, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
        if matcher.is_error() or matcher.is_stopped() or not allowed:
            break
        matcher.consume_token(allowed[len(allowed) // 2])
    del matcher  # freeing a deep grammar may also overflow the stack
    return {"source": source}


def stack_limit(soft: int) -> int:
    """Bytes of stack for a check, from the parent's limit, which is the stack of each of its threads."""
    return min(STACK_BYTES, (soft if soft > 0 else THREAD_BYTES) // 4)  # -1: no limit


def limit_resources() -> None:
    """Let the system kill this process if it exceeds the limits."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (stack_limit(soft), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    except (OSError, ValueError):  # macOS
        pass
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def check_in_fork(guidance: Any, vocabulary: Any, kind: str, text: str) -> dict[str, str]:
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            os.close(reader)
            limit_resources()
            answer = json.dumps(check(guidance, vocabulary, kind, text)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            with os.fdopen(writer, "wb") as out:
                out.write(answer)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as result:
        answer = result.read()
    status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    if status == 0:
        return dict(json.loads(answer))
    if status == -signal.SIGPROF:
        return {"error": f"it is too complex: compiling it takes more than {CPU_SECONDS:g} seconds"}
    if status in (-signal.SIGSEGV, -signal.SIGBUS):
        return {"error": "it is nested too deeply: its rules or references form a chain of several hundred"}
    return {"error": f"it is too complex: compiling it takes more than {MEMORY_BYTES >> 20} MB"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends the input
    first = json.loads(sys.stdin.readline())
    sys.path[:] = first["path"]
    import llguidance

    words: Any = ByteTokenizerWrapper(first["tokens"], first["special"], first["eos"][0])
    vocabulary = llguidance.LLTokenizer(words, eos_token=first["eos"])
    run = check_in_fork if hasattr(os, "fork") else check
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run(llguidance, vocabulary, request["kind"], request["text"])), flush=True)


if __name__ == "__main__":
    main()
