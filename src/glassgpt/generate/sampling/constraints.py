"""Output that follows a JSON schema, a regular expression, a grammar or a list of choices.

llguidance keeps a parser for each sequence and computes before every draw which tokens may come next: a mask
that the sampler applies to the logits after all other changes. The text is then drawn from the model's own
distribution, restricted at each step to the allowed tokens. The parser reads bytes, so a token may be a part
of a character, or several words.

JSON is written on one line, with a space after each comma and colon: a small model gets lost in white space
that a grammar leaves open.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.generate.sampling.grammar_checker import GrammarChecker, find_checker
from glassgpt.generate.sampling.mask_workers import MaskWorkers
from glassgpt.generate.sampling.params import CONSTRAINTS, SamplingParams

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

MAX_COMPILED = 64  # grammars that an engine keeps
MAX_CHARACTERS = 200_000  # in a grammar
MAX_MASK_SECONDS = 0.1  # CPU time of one mask where others wait for it; most need less than 1 ms
PUSH_GRACE = 0.005  # seconds to wait for the lexer while another sequence's mask is computed with it
MAX_ENCODED = 10_000  # texts that llguidance has encoded and we keep


class SharedLexer:
    """The lexer that all copies of a compiled grammar share; one of them at a time may use it.

    A thread that waits for it inside llguidance blocks all Python threads, so threads wait for this lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.broken = False  # it exceeded a limit, and fails for every copy from then on


class Constraint:
    """The state of one sequence in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int, lexer: SharedLexer) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._lexer = lexer
        self._bits: np.ndarray | None = None
        self._unread: list[int] = []  # tokens drawn while another sequence used the lexer
        self._pending = False
        self._failure: str | None = None
        self.seconds = 0.0  # spent on its masks

    def copy(self) -> Constraint:
        return Constraint(self._matcher.deep_copy(), self._vocab_size, self._lexer)

    @property
    def usable(self) -> bool:
        return not self._lexer.broken

    def push(self, token: int) -> None:
        self._bits = None
        self._unread.append(token)
        if self._lexer.lock.acquire(timeout=PUSH_GRACE):
            try:
                self._read()
            finally:
                self._lexer.lock.release()

    def _read(self) -> None:
        for token in self._unread:
            self._matcher.consume_token(token)
        self._unread.clear()

    def begin(self, workers: MaskWorkers) -> None:
        """Have another thread compute the next mask. Call nothing else until it is `ready`."""
        self._pending = True
        workers.begin(self)

    @property
    def ready(self) -> bool:
        """Whether no mask is being computed."""
        return not self._pending

    def mask(self) -> np.ndarray:
        """Which tokens may come next: a bit for each, 32 to an int32, lowest first."""
        if self._bits is None:
            self.compute()
        assert self._bits is not None
        return self._bits

    def compute(self) -> None:
        bits = np.zeros(self._vocab_size // 32 + 1, np.int32)
        with self._lexer.lock:
            begun = time.thread_time()
            try:
                self._read()
                self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            except BaseException as error:  # a panic in Rust is not an Exception; the thread must continue
                self._failure = f"llguidance failed: {error}".split("\n")[0]
            spent = time.thread_time() - begun
        self.seconds += spent
        if self._pending and spent > MAX_MASK_SECONDS:
            self._failure = "it is too complex: to know what may come next takes too long"
        if self.error is not None:
            self._lexer.broken = True
            bits[:] = 0  # llguidance would allow end-of-text
        self._bits = bits
        self._pending = False

    @property
    def complete(self) -> bool:
        """Whether the grammar is fulfilled and nothing can follow."""
        return not self._unread and bool(self._matcher.is_stopped()) and self.error is None

    @property
    def error(self) -> str | None:
        """Why the text cannot continue: no token spells what must come, or the grammar is too complex."""
        if self._failure is not None:
            return self._failure
        return str(self._matcher.get_error()).split("\n")[0] if self._matcher.is_error() else None

    @property
    def fulfilled(self) -> bool:
        """Whether the text may end here, even if more may follow."""
        return bool(self._unread) or bool(self._matcher.is_accepting())


class GrammarCompiler:
    """Makes constraints for the vocabulary of a model. Keeps the vocabulary and the last grammars.

    Any thread may compile. A new grammar is checked in a child process first (`grammar_checker.py`): one that
    would take the process down, or too long, is a SettingError.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = [token for token in eos if token < vocab_size]
        self._vocabulary: Any = None  # llguidance's, built for the first grammar
        self._checker: GrammarChecker | None = None
        self._compiled: OrderedDict[tuple[str, str], Constraint] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def compile(self, settings: SamplingParams) -> Constraint | None:
        """The constraint of the settings, in its initial state; None if there is none."""
        name = settings.constraint
        if name is None:
            return None
        if self._tokenizer is None:
            raise UserError(f"{name} needs a tokenizer, and this model came without one.")
        guidance = import_guidance(name)
        text = _as_text(name, getattr(settings, name))
        if len(text) > MAX_CHARACTERS:
            raise SettingError(
                f"the {CONSTRAINTS[name]} has {len(text):,} characters, and {MAX_CHARACTERS:,} are the "
                "most. Give a shorter one."
            )
        with self._lock:
            known = self._compiled.get((name, text))
            checker, vocabulary = self._make_vocabulary(guidance, self._tokenizer)
        if known is None or not known.usable:
            try:
                source = checker.check(name, text)
            except SettingError as error:
                raise SettingError(_explain(name, text, str(error))) from None
            matcher = guidance.LLMatcher(vocabulary, source, log_level=0)
            if matcher.is_error():
                raise SettingError(_explain(name, text, matcher.get_error()))
            known = Constraint(matcher, self._vocab_size, SharedLexer())
        with self._lock:
            self._compiled[name, text] = known
            self._compiled.move_to_end((name, text))
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return known.copy()

    def is_known(self, settings: SamplingParams) -> bool:
        """Whether `compile` returns immediately for these settings."""
        name = settings.constraint
        return name is None or (name, _as_text(name, getattr(settings, name))) in self._compiled

    def _make_vocabulary(self, guidance: Any, tokenizer: Tokenizer) -> tuple[GrammarChecker, Any]:
        if self._vocabulary is None or self._checker is None:
            words = TokenizerWrapper(tokenizer, self._vocab_size, self._eos)
            eos = self._eos if self._eos else [self._vocab_size]
            self._vocabulary = guidance.LLTokenizer(words, eos_token=eos)
            self._checker = find_checker(words.tokens, words.special_token_ids, eos)
        return self._checker, self._vocabulary


def import_guidance(name: str) -> Any:
    try:
        return import_module("llguidance")
    except ModuleNotFoundError:
        raise UserError(
            f"{name} needs llguidance. Install it with: pip install 'glassgpt[constrain]'"
        ) from None


def _as_text(name: str, value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        raise SettingError(f"the {CONSTRAINTS[name]} is nested too deeply. Give a flatter one.") from None


class TokenizerWrapper:
    """A tokenizer with the interface that llguidance expects.

    It has one extra token, which no text contains: the end-of-text of a model that has none. Texts of such a
    model end where nothing may follow.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._encoded: dict[str, list[int]] = {}  # a grammar forces the same texts again and again
        self.eos_token_id = eos[0] if eos else vocab_size
        special = {token for token in (*eos, *tokenizer.special_tokens.values()) if token < vocab_size}
        self.special_token_ids = sorted({*special, vocab_size})
        self.tokens = [*(tokenizer.token_bytes(token) for token in range(vocab_size)), b""]
        for token in self.special_token_ids:
            self.tokens[token] = b"<|%d|>" % token  # a name, not text

    def __call__(self, text: str) -> list[int]:
        if text not in self._encoded:
            if len(self._encoded) >= MAX_ENCODED:
                self._encoded.clear()
            try:
                self._encoded[text] = list(self._tokenizer.encode(text))
            except SettingError:  # a character-level vocabulary lacks one of the characters
                self._encoded[text] = []
        return self._encoded[text]


def _explain(name: str, text: str, message: str) -> str:
    """Shorten llguidance's message to one line."""
    lines = [line.strip() for line in message.splitlines()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"the {CONSTRAINTS[name]} {shown!r} cannot be used: {reason.rstrip('.')}."


def collect_masks(constraints: Sequence[Constraint | None], vocab_size: int) -> np.ndarray | None:
    """The tokens that each sequence may draw, as bits, the lowest first: (B, V // 32 + 1) int32.

    None if every sequence may draw every token.
    """
    if all(constraint is None for constraint in constraints):
        return None
    bits = np.full((len(constraints), vocab_size // 32 + 1), -1, np.int32)
    for row, constraint in zip(bits, constraints, strict=True):
        if constraint is not None:
            row[:] = constraint.mask()
    return bits


def unpack_masks(bits: np.ndarray, vocab_size: int) -> np.ndarray:
    """The same as (B, V) bool."""
    unpacked = np.unpackbits(bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return unpacked.view(np.bool_)
