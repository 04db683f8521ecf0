"""Prompts, answers and positions of an experiment, checked: an error names the prompt by its index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.files.text import Chunk, SourceFile, read_documents
from glassgpt.generate.prompt import Prompt, as_list, check_prompt, token_ids, usable_vocab_size
from glassgpt.inspect.taps import check_index
from glassgpt.inspect.traces.lens import TokenStrings

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

# A token of a text: its index (negative ones from the end), its text, or a function of the tokens' texts.
Position = int | str | Callable[[list[str]], int]
# One token for all prompts, or a list with one for each.
Answers = str | int | Sequence[str | int]


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say which prompt an error is about."""
    try:
        yield
    except UserError as error:
        raise SettingError(f"{what}: {error}") from None


class Prompts:
    """The token ids of several texts in a model, and the texts of their tokens."""

    def __init__(self, gpt: TraceableModel, given: Any, name: str = "prompts") -> None:
        self.gpt = gpt
        self.name = name  # of the argument, for errors
        self.vocabulary = TokenStrings(usable_vocab_size(gpt.backend, gpt.tokenizer), gpt.tokenizer)
        self.ids = [self._encode(number, prompt) for number, prompt in enumerate(_as_prompts(given, name))]
        if not self.ids:
            raise SettingError(f"{name} is empty. Give a list of texts, or of lists of token ids.")

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, number: int) -> str:
        return f"{self.name}[{number}]"

    def _encode(self, number: int, prompt: Prompt) -> list[int]:
        with naming(self.where(number)):
            if isinstance(prompt, str):
                ids = self.gpt.require_tokenizer("a text prompt").encode(prompt)
            else:
                ids = token_ids(prompt)
            if not ids:
                raise SettingError("the prompt is empty. Give at least one token.")
            return self._check_length(check_prompt(ids, self.gpt.backend, self.gpt.tokenizer))

    def _check_length(self, ids: list[int]) -> list[int]:
        if len(ids) > self.gpt.config.n_positions:
            raise SettingError(
                f"{len(ids):,} tokens are more than this model's context of "
                f"{self.gpt.config.n_positions:,}. Give a part of the text."
            )
        return ids

    def texts(self, number: int) -> list[str]:
        return [self.vocabulary.text(token) for token in self.ids[number]]

    def followed_by(self, continuations: list[list[int]]) -> list[list[int]]:
        """The ids of each text and of what follows it."""
        found = []
        for number, (ids, more) in enumerate(zip(self.ids, continuations, strict=True)):
            with naming(self.where(number)):
                found.append(self._check_length([*ids, *more]))
        return found

    def answers(self, what: str, given: Answers) -> list[int]:
        """One token for each prompt."""
        return [self._answer(what, number, each) for number, each in enumerate(self.one_each(what, given))]

    def one_each(self, what: str, given: Any) -> list[Any]:
        """A value for each prompt: the same for all, or a list."""
        if given is None or isinstance(given, str | int | np.integer) or callable(given):
            return [given] * len(self)
        several = as_list(given)
        if len(several) != len(self):
            raise SettingError(
                f"{what} has {len(several)} entries and {self.name} {len(self)}. "
                "Give one for all prompts, or a list with one for each."
            )
        return several

    def _answer(self, what: str, number: int, given: str | int) -> int:
        size = self.vocabulary.size
        if isinstance(given, str):
            with naming(self.where(number)):
                ids = self.gpt.require_tokenizer(f"{what} {given!r}").encode(given)
            if len(ids) == 1:
                return ids[0]
            pieces = ", ".join(repr(self.vocabulary.text(i)) for i in ids[:6])
            first = repr(self.vocabulary.text(ids[0])) if ids else "' the'"
            raise SettingError(
                f"{self.where(number)}: {what} {given!r} is {len(ids)} tokens ({pieces}), not one. Give one "
                f"token, such as {first} (most words start with a space), or an id."
            )
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 0 <= given < size:
            raise SettingError(
                f"{self.where(number)}: {what} {given!r} is not a token of this model. Give a text of one "
                f"token, or an id from 0 to {size - 1}."
            )
        return int(given)

    def continuations(self, given: Any) -> list[list[int]]:
        """What follows each prompt: a text or ids, for all or for each."""
        if isinstance(given, str) or (isinstance(given, Sequence) and given and isinstance(given[0], int)):
            given = [given] * len(self)
        found = []
        for number, each in enumerate(self.one_each("continuation", given)):
            with naming(self.where(number)):
                ids = (
                    self.gpt.require_tokenizer("a text").encode(each)
                    if isinstance(each, str)
                    else token_ids(each)
                )
                if not ids:
                    raise SettingError("the continuation is empty. Give a text, such as ' Mary'.")
                found.append(check_prompt(ids, self.gpt.backend, self.gpt.tokenizer))
        return found

    def positions(self, given: Position | Sequence[Position]) -> list[int]:
        """A position in each prompt."""
        return [self.position(number, each) for number, each in enumerate(self.one_each("position", given))]

    def position(self, number: int, given: Position) -> int:
        texts = self.texts(number)
        with naming(self.where(number)):
            return resolve_position(given, texts)


def resolve_position(given: Position, texts: list[str]) -> int:
    """An index from 0, from any way to name a token of a text."""
    if callable(given):
        found = given(list(texts))
        if isinstance(found, bool) or not isinstance(found, int | np.integer):
            raise SettingError(f"the function for a position returned {found!r}. Let it return an index.")
        return check_index("position", found, len(texts))
    if not isinstance(given, str):
        return check_index("position", given, len(texts))
    matches = [i for i, text in enumerate(texts) if text == given]
    if not matches:
        matches = [i for i, text in enumerate(texts) if text.strip() == given.strip()]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        shown = ", ".join(map(repr, texts[:12])) + (", ..." if len(texts) > 12 else "")
        raise SettingError(f"no token is {given!r}. Its tokens are {shown}. Give one of them, or an index.")
    raise SettingError(
        f"{given!r} is at positions {', '.join(map(str, matches))}. Give an index, such as {matches[0]}."
    )


def _as_prompts(given: Any, name: str) -> list[Prompt]:
    """The prompts of a list, or of a file of records."""
    if isinstance(given, Path):
        texts = read_prompt_file(given)
        if not texts:
            raise SettingError(f"{name}: {given} has no texts. Give a file with one record for each prompt.")
        return list(texts)
    if isinstance(given, str):
        return [given]
    if isinstance(given, Iterator):
        given = list(given)
    prompts = as_list(given)
    if prompts and all(isinstance(each, int | np.integer) for each in prompts):
        return [prompts]  # the ids of one text
    return prompts


def read_prompt_file(path: Path) -> list[str]:
    """A prompt for each record of a .jsonl or .parquet file ("text"), or for each line of a text file."""
    source = SourceFile.open(path)
    if source.kind == "text":
        whole = "".join(text for text, _ in read_documents(Chunk(source)))
        return [line for line in whole.splitlines() if line.strip()]
    return [text for text, _ in read_documents(Chunk(source))]
