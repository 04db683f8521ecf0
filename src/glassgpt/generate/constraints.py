"""Output that follows a JSON schema, a regular expression, a grammar or a list of choices.

llguidance keeps a parser for each sequence and says before every draw which tokens may come next: a mask that
the sampler applies to the logits after all other changes. The text is then drawn from the model's own
distribution, restricted at each step to what is allowed. The parser reads bytes, so a token may be a part of
a character, or several words.

JSON is written on one line, with a space after each comma and colon: white space that the grammar leaves open
is where a small model gets lost.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.generate.settings import CONSTRAINTS, Settings
from glassgpt.generate.text import Tokenizer

JSON_FORMAT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_COMPILED = 64  # grammars of an engine that are kept
MAX_CHARACTERS = 200_000  # of a grammar: the slowest of some tried took 3.5 seconds
MAX_ENCODED = 10_000  # texts


class Constraint:
    """What one sequence has written so far, as its grammar sees it."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def copy(self) -> Constraint:
        return Constraint(self._matcher.deep_copy())

    def push(self, token: int) -> None:
        self._matcher.consume_token(token)

    def fill_mask(self, bits: np.ndarray) -> None:
        """Write which tokens may come next: a bit for each, 32 to an int32, lowest first."""
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self.error is not None:
            bits[:] = 0  # llguidance would allow end-of-text

    @property
    def complete(self) -> bool:
        """The grammar is fulfilled and nothing can follow."""
        return bool(self._matcher.is_stopped()) and self.error is None

    @property
    def error(self) -> str | None:
        """Why it cannot go on: no token spells what must come, or the grammar is too complex."""
        return str(self._matcher.get_error()).split("\n")[0] if self._matcher.is_error() else None

    @property
    def fulfilled(self) -> bool:
        """It could end here, although more may follow."""
        return bool(self._matcher.is_accepting())


class GrammarCompiler:
    """Makes constraints for the vocabulary of a model. The vocabulary and the last grammars are kept.

    Any thread may compile: llguidance takes some seconds for what is as large as allowed, and lets others run
    meanwhile.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = [token for token in eos if token < vocab_size]
        self._vocabulary: Any = None  # llguidance's, made with the first grammar
        self._compiled: OrderedDict[str, Constraint] = OrderedDict()  # the least recently used first
        self._lock = threading.Lock()

    def compile(self, settings: Settings) -> Constraint | None:
        """The constraint that the settings ask for, before its first token; None if there is none."""
        name = settings.constraint
        if name is None:
            return None
        if self._tokenizer is None:
            raise UserError(f"{name} needs a tokenizer, and this model came without one.")
        guidance = import_guidance(name)
        value = getattr(settings, name)
        try:
            source = _grammar(guidance, name, value)
        except ValueError as error:
            raise SettingError(_explain(name, value, str(error))) from None
        if len(source) > MAX_CHARACTERS:
            raise SettingError(
                f"the {CONSTRAINTS[name]} has {len(source):,} characters, and {MAX_CHARACTERS:,} are the "
                "most. Give a shorter one."
            )
        with self._lock:
            vocabulary = self._make_vocabulary(guidance)
            known = self._compiled.get(source)
        if known is None:
            matcher = guidance.LLMatcher(vocabulary, source, log_level=0)
            if matcher.is_error():
                raise SettingError(_explain(name, value, matcher.get_error()))
            known = Constraint(matcher)
        with self._lock:
            self._compiled[source] = known
            self._compiled.move_to_end(source)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return known.copy()

    def _make_vocabulary(self, guidance: Any) -> Any:
        if self._vocabulary is None:
            words = _Vocabulary(self._tokenizer, self._vocab_size, self._eos)
            self._vocabulary = guidance.LLTokenizer(words, eos_token=self._eos or [self._vocab_size])
        return self._vocabulary


def import_guidance(name: str) -> Any:
    try:
        return import_module("llguidance")
    except ModuleNotFoundError:
        raise UserError(
            f"{name} needs llguidance. Install it with: pip install 'glassgpt[constrain]'"
        ) from None


def _grammar(guidance: Any, name: str, value: Any) -> str:
    """What the user gave, as llguidance writes grammars."""
    matcher = guidance.LLMatcher
    if name == "schema":
        text = value if isinstance(value, str) else json.dumps(value)
        return str(matcher.grammar_from_json_schema(text, overrides=JSON_FORMAT))
    if name == "regex":
        return str(matcher.grammar_from_regex(value))
    if name == "choice":
        return str(matcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, value))))
    return str(guidance.grammar_from("grammar", value))  # Lark's syntax or llama.cpp's GBNF


class _Vocabulary:
    """A tokenizer as llguidance wants to see it.

    It has one token more, which no text has: a model without end-of-text gets it as such. Its texts end where
    nothing may follow.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab_size: int, eos: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._encoded: dict[str, list[int]] = {}  # what a grammar forces comes again and again
        self.eos_token_id = eos[0] if eos else vocab_size
        known = getattr(getattr(tokenizer, "data", None), "special", {}).values()
        special = {token for token in (*eos, *known) if token < vocab_size}
        self.special_token_ids = sorted({*special, vocab_size})
        self.tokens = [*(tokenizer.token_bytes(token) for token in range(vocab_size)), b""]
        for token in self.special_token_ids:
            self.tokens[token] = b"<|%d|>" % token  # a name; it stands for no text

    def __call__(self, text: str) -> list[int]:
        if text not in self._encoded:
            if len(self._encoded) >= MAX_ENCODED:
                self._encoded.clear()
            try:
                self._encoded[text] = list(self._tokenizer.encode(text))
            except SettingError:  # a character-level vocabulary without one of these
                self._encoded[text] = []
        return self._encoded[text]


def _explain(name: str, value: Any, message: str) -> str:
    """llguidance's message in one line."""
    lines = [line.strip() for line in message.splitlines()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    shown = value if isinstance(value, str) else json.dumps(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"the {CONSTRAINTS[name]} {shown!r} cannot be used: {reason.rstrip('.')}."


def collect_masks(constraints: Sequence[Constraint | None], vocab_size: int) -> np.ndarray | None:
    """Which tokens each sequence may draw, a bit for each, the lowest first: (B, V // 32 + 1) int32.

    None if all may draw all.
    """
    if all(constraint is None for constraint in constraints):
        return None
    bits = np.full((len(constraints), vocab_size // 32 + 1), -1, np.int32)
    for row, constraint in zip(bits, constraints, strict=True):
        if constraint is not None:
            constraint.fill_mask(row)
    return bits


def unpack_masks(bits: np.ndarray, vocab_size: int) -> np.ndarray:
    """The same as (B, V) bool."""
    unpacked = np.unpackbits(bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return unpacked.view(np.bool_)
