"""A loaded model, and what one does with it: `glassgpt.load("default").generate("Once upon a time")`."""

from __future__ import annotations

import dataclasses
import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.generate.backend import Backend
from glassgpt.generate.beam import beam_search
from glassgpt.generate.engine import Engine, checked_prompt
from glassgpt.generate.generation import Event, Generation, Interrupted, best
from glassgpt.generate.settings import MOST_RANKS, Settings
from glassgpt.generate.text import Tokenizer
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.inspect.attribute import DirectLogit, TokenScores
    from glassgpt.inspect.edits import Edit
    from glassgpt.inspect.intervene import Intervention
    from glassgpt.inspect.trace import Trace

Prompt = str | Sequence[int]

# Rows of the cache are made for what a call needs, but not beyond this much memory: what finds no row waits.
CACHE_BYTES = 4 * 2**30
MOST_ROWS = 64
BEAM_BYTES = 4 * CACHE_BYTES  # beams cannot wait: all of a search have a row at once


def load(
    name_or_path: str | Path = "default",
    *,
    device: str | None = None,
    dtype: str | None = None,
    backend: str | None = None,
) -> GPT:
    """Open a model: a shipped one by name, a published one from the hub, a folder or a file.

    `device` and `dtype` default to the best of this machine; `backend` is None or "torch".
    """
    if backend == "native":
        raise UserError(
            "backend 'native' is not built yet in this version. Use backend 'torch', or leave it out."
        )
    if backend not in (None, "torch"):
        raise SettingError(f"backend {backend!r} is not known. Use 'torch', or leave it out.")
    from glassgpt.weights import load_checkpoint

    with _no_collecting():
        checkpoint = load_checkpoint(str(name_or_path))
        try:
            from glassgpt.model import TorchBackend
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UserError(
                "running a model needs torch. Install it with: pip install 'glassgpt[torch]'"
            ) from None
        torch_backend = TorchBackend.load(checkpoint, device=device, dtype=dtype)
        return GPT(torch_backend, checkpoint.tokenizer, name=str(name_or_path))


@contextmanager
def _no_collecting() -> Iterator[None]:
    """No garbage collection meanwhile: what is made here stays, and each pass looks at all of torch.

    Loading 47 million parameters takes 0.31 s this way, 0.42 s without.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


class GPT:
    """A model with its tokenizer. Not for several threads at once; a server has its own engine."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer | None = None, name: str = "") -> None:
        # A special token that was added later, and never learned, may lie above the model's vocabulary.
        if tokenizer is not None and tokenizer.text_size > backend.config.vocab_size:
            raise UserError(
                f"the tokenizer of {name or 'this model'} has {tokenizer.text_size:,} tokens and the model "
                f"only {backend.config.vocab_size:,}: they do not belong together. Put the model's own "
                "tokenizer.json beside its weights."
            )
        self.backend = backend
        self.tokenizer = tokenizer
        self.name = name
        self._lines: list[_Line] = []

    @property
    def config(self) -> Config:
        return self.backend.config

    def __repr__(self) -> str:
        return f"GPT({self.name!r}, {self.config.n_parameters:,} parameters)"

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return self._need_tokenizer("text").encode(text, allow_special)

    def decode(self, ids: Sequence[int]) -> str:
        return self._need_tokenizer("text").decode(ids)

    @overload
    def generate(
        self, prompt: Prompt | None = None, *, settings: Settings | None = None, **changes: Any
    ) -> Generation: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, settings: Settings | None = None, **changes: Any
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        settings: Settings | None = None,
        **changes: Any,
    ) -> Generation | list[Generation]:
        """Continue a prompt: a text, a list of token ids, or a list of those (a batch, which gives a list).

        No prompt at all lets the model ramble from the beginning of a document. The settings are the fields
        of `Settings`. With several samples the result is the first (with best_of or beams, the best), and
        its `.samples` holds all of them in order. Ctrl-C raises `Interrupted`, a KeyboardInterrupt whose
        `.found` has what was finished by then, and what there is of the rest.
        """
        settings = _settings(settings, changes)
        if not _is_batch(prompt):
            return self._generate([prompt], settings)[0]  # type: ignore[list-item]
        return self._generate(_listed(prompt), settings)

    def stream(
        self, prompt: Prompt | None = None, *, settings: Settings | None = None, **changes: Any
    ) -> TextStream:
        """The same, as an iterator of pieces of text; afterwards its `.generation` holds the whole."""
        settings = _settings(settings, changes)
        for name, off in (("samples", 1), ("best_of", None), ("beams", None)):
            if getattr(settings, name) != off:
                raise SettingError(
                    f"{name} {getattr(settings, name)} cannot be streamed: there is more than one text. "
                    f"Leave out {name}, or use generate."
                )
        line = self._line(1)
        number = line.submit(self._ids(prompt), settings)
        return TextStream(line, number, prompt)

    def next(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable next tokens, as text, with their probabilities."""
        return [(self.decode([token]), float(np.exp(logprob))) for token, logprob in self.next_ids(prompt, k)]

    def next_ids(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[int, float]]:
        """The ids of the k most probable next tokens, with their log-probabilities."""
        check_whole("k", k, 1, MOST_RANKS)
        settings = Settings(max_new_tokens=1, temperature=0, logprobs=k, ignore_eot=True)
        alternatives = self._generate([prompt], settings)[0].alternatives
        assert alternatives is not None
        return alternatives[0]

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        """The logits after every token of every sequence, float32 (B, longest, V).

        Sequences may be of any lengths; what stands after the end of a shorter one means nothing.
        """
        rows = [_token_ids(ids) for ids in _listed(batch)]
        if not rows:
            raise SettingError("the batch is empty. Give a list of lists of token ids.")
        for ids in rows:
            if not ids:
                raise SettingError("a sequence of the batch is empty. Give each at least one token id.")
            if len(ids) > self.backend.context:
                raise SettingError(
                    f"a sequence of {len(ids)} tokens is too long. Cut it to {self.backend.context}."
                )
            checked_prompt(ids, self.backend, self.tokenizer)
        return self.backend.logits(rows)

    def trace(self, text: Prompt) -> Trace:
        """The inside of the model for a text (or token ids): attention, residual stream, logit lens, ..."""
        from glassgpt.inspect.trace import Trace

        return Trace.of(self, self._ids(text))

    def intervene(
        self, text: Prompt | Trace, edits: Edit | Sequence[Edit] = (), position: int = -1
    ) -> Intervention:
        """The text once more with changes inside: heads switched off, activations patched, a vector added.

        Edits are `AblateHead`, `AblateNeuron`, `AblateAttention`, `AblateMLP`, `AblateBlock`, `Patch`,
        `Steer` and `SteerToken` of `glassgpt.inspect`. The result compares the answers at `position`.
        """
        from glassgpt.inspect.intervene import intervene

        return intervene(self, text, edits, position)

    def attribute(
        self,
        text: Prompt | Trace,
        target: str | int | None = None,
        method: str = "integrated",
        position: int = -1,
    ) -> TokenScores | DirectLogit:
        """What the score of `target` as the next token is owed to; left out, it is the likeliest one.

        To which tokens of the text: `gradient` (times input), `integrated` (gradients, with the
        completeness gap) or `rollout` (of attention). To which heads and MLPs: `direct`, a sum that is the
        logit.
        """
        from glassgpt.inspect.attribute import attribute

        return attribute(self, text, target, method, position)

    def _generate(self, prompts: list[Prompt | None], settings: Settings) -> list[Generation]:
        prompts_ids = [self._ids(prompt) for prompt in prompts]
        try:
            found = (self._sample if settings.beams is None else self._search)(prompts_ids, settings)
        except Interrupted as interrupt:
            _tie(prompts, interrupt.found)
            raise
        _tie(prompts, found)
        return [generations[0] for generations in found]

    def _search(self, prompts: list[list[int]], settings: Settings) -> list[list[Generation]]:
        assert settings.beams is not None
        check_whole(
            "beams", settings.beams, 1, max(1, BEAM_BYTES // self._row_bytes), "what memory allows here"
        )
        backend = self._line(settings.beams, all_at_once=True).engine.backend
        found: list[list[Generation]] = []
        for ids in prompts:
            try:
                found.append(beam_search(backend, ids, settings, self.tokenizer))
            except Interrupted as interrupt:
                raise Interrupted(found + interrupt.found) from None
        return found

    def _sample(self, prompts: list[list[int]], settings: Settings) -> list[list[Generation]]:
        line = self._line(len(prompts) * settings.candidates)
        numbers: list[int] = []
        found: list[list[Generation]] = [[] for _ in prompts]

        def in_order() -> list[list[Generation]]:
            if settings.best_of is not None:
                return [best(generations, settings.samples) for generations in found]
            return [sorted(generations, key=lambda generation: generation.sample) for generations in found]

        try:
            numbers.extend(line.submit(ids, settings) for ids in prompts)
            for number, done in zip(numbers, found, strict=True):
                for event in line.events(number, settings.candidates):
                    if event.generation is not None:
                        done.append(event.generation)
        except KeyboardInterrupt:
            for rest, done in zip(line.break_off(numbers), found, strict=False):
                done += rest
            raise Interrupted(in_order()) from None
        finally:
            for number in numbers:  # nothing is left of them unless there was an error
                line.drop(number)
        return in_order()

    def _ids(self, prompt: Prompt | None) -> list[int]:
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return self._need_tokenizer("a text prompt").encode(prompt)
        return _token_ids(prompt)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                f"{what} needs a tokenizer, and {self.name or 'this model'} came without one. "
                "Put its tokenizer.json beside the weights, or give token ids."
            )
        return self.tokenizer

    def _line(self, sequences: int, all_at_once: bool = False) -> _Line:
        """An idle engine with rows enough.

        Kept are one for single texts and one of the size last asked for: a device's recorded step computes
        every row of its cache, in use or not. A stream that is still open keeps the engine it has.
        """
        most = sequences if all_at_once else min(sequences, self.most_rows())
        rows = 1
        while rows < most:
            rows *= 2
        kept = [line for line in self._lines if line.busy or line.rows in (1, rows)]
        line = next((line for line in kept if line.rows == rows and not line.busy), None)
        if line is None:
            backend = (
                self.backend
                if rows == self.backend.rows and not self._lines
                else self.backend.with_rows(rows)
            )
            line = _Line(Engine(backend, self.tokenizer))
            kept.append(line)
        self._lines = kept
        return line

    def most_rows(self) -> int:
        return max(1, min(MOST_ROWS, CACHE_BYTES // self._row_bytes))

    @property
    def _row_bytes(self) -> int:
        """Keys and values of one row of the cache, in float32."""
        return 2 * self.config.n_layer * self.backend.context * self.config.n_embd * 4


class TextStream(Iterator[str]):
    """Pieces of text as they come. Closing it, or dropping it, ends the generation."""

    def __init__(self, line: _Line, number: int, prompt: Prompt | None) -> None:
        self._line = line
        self._number = number
        self._prompt = prompt
        self._events = line.events(number, 1)
        self.notes: list[str] = []
        self.generation: Generation | None = None

    def __next__(self) -> str:
        try:
            for event in self._events:
                if event.note is not None:
                    self.notes.append(event.note)
                if event.generation is not None:
                    self._finish([event.generation])
                if event.text:
                    return event.text
        except KeyboardInterrupt:
            self._finish(self._line.break_off([self._number])[0])
            raise
        raise StopIteration

    def _finish(self, found: list[Generation]) -> None:
        _tie([self._prompt], [found])
        self.generation = found[0] if found else None

    def close(self) -> None:
        self._line.drop(self._number)

    def __del__(self) -> None:
        self.close()


class _Line:
    """An engine with an inbox for each request's events, so that requests can be read one after the other."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rows = engine.backend.rows
        self._inboxes: dict[int, deque[Event]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._inboxes)

    def submit(self, ids: list[int], settings: Settings) -> int:
        number = self.engine.add(ids, settings)
        self._inboxes[number] = deque()
        return number

    def events(self, number: int, texts: int) -> Iterator[Event]:
        """The events of a request until all its texts are finished.

        Ctrl-C leaves the request where it is, to be read on, broken off or dropped.
        """
        try:
            while texts and number in self._inboxes:
                while not self._inboxes[number]:
                    if not self.engine.busy:
                        return
                    for event in self.engine.step():
                        if event.request in self._inboxes:
                            self._inboxes[event.request].append(event)
                event = self._inboxes[number].popleft()
                if event.error is not None:
                    raise event.error
                texts -= event.generation is not None
                yield event
        except KeyboardInterrupt:
            raise
        except BaseException:  # also the end of a loop that reads no further
            self.drop(number)
            raise
        self.drop(number)

    def break_off(self, numbers: Sequence[int]) -> list[list[Generation]]:
        """End requests now; for each, its texts that were not read yet, finished or not."""
        for number in numbers:
            self.engine.cancel(number)
        for event in self.engine.step() if self.engine.busy else ():
            if event.request in self._inboxes:
                self._inboxes[event.request].append(event)
        inboxes = [self._inboxes.pop(number, ()) for number in numbers]
        return [[event.generation for event in inbox if event.generation is not None] for inbox in inboxes]

    def drop(self, number: int) -> None:
        """Forget a request, and end it if it still runs."""
        if self._inboxes.pop(number, None) is not None:
            self.engine.cancel(number)


def _tie(prompts: list[Prompt | None], found: list[list[Generation]]) -> None:
    """Let every text know its prompt and its siblings. Interrupted, fewer prompts may have been reached."""
    for prompt, generations in zip(prompts, found, strict=False):
        for generation in generations:
            generation.prompt = _as_given(prompt)
            generation.samples = generations


def _settings(settings: Settings | None, changes: dict[str, Any]) -> Settings:
    if settings is None:
        return Settings.of(**changes)
    Settings.of(**changes)  # what is given here
    return dataclasses.replace(settings, **changes)


def _is_batch(prompt: Prompt | Sequence[Prompt] | None) -> bool:
    """A list of texts or of lists; an empty list is a batch of none."""
    if prompt is None or isinstance(prompt, str):
        return False
    some = _listed(prompt)
    return not some or isinstance(some[0], str) or hasattr(some[0], "__len__")


def _listed(values: Any) -> list[Any]:
    """A list of what was given as a list, a tuple, a range, or an array of numpy or torch."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple | range):
        raise SettingError(
            f"a {type(values).__name__} is no prompt. Give a text, a list of token ids, or a list of those."
        )
    return list(values)


def _token_ids(values: Any) -> list[int]:
    ids = _listed(values)
    wrong = [i for i in ids if isinstance(i, bool) or not isinstance(i, int | np.integer)]
    if wrong:
        raise SettingError(f"{wrong[0]!r} is no token id. Give a text, or whole numbers.")
    return [int(i) for i in ids]


def _as_given(prompt: Prompt | None) -> str | list[int]:
    if prompt is None:
        return ""
    return prompt if isinstance(prompt, str) else _token_ids(prompt)
