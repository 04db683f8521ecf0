"""A loaded model, and what one does with it: `glassgpt.load("default").generate("Once upon a time")`."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from glassgpt.backend import Backend, check_backend, check_can_continue, is_torch_installed, load_backend
from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, SettingError, UserError
from glassgpt.generate.engine import Engine
from glassgpt.generate.fair_lock import FairLock
from glassgpt.generate.generation import Event, Generation, Interrupted, best
from glassgpt.generate.logits_processors import TokenRule
from glassgpt.generate.prompt import check_prompt
from glassgpt.generate.settings import MAX_TOP_K, Settings
from glassgpt.generate.speculation import check_draft
from glassgpt.generate.text import Tokenizer, belongs
from glassgpt.openmp import shorten_spin_wait
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.generate.fill import Filled
    from glassgpt.inspect.attribute import DirectLogitAttribution, TokenAttribution
    from glassgpt.inspect.edits import Edit
    from glassgpt.inspect.intervene import Intervention
    from glassgpt.inspect.trace import Trace
    from glassgpt.model import GPT2, NumpyGPT2
    from glassgpt.tasks.classify import Label
    from glassgpt.tasks.definition import Task
    from glassgpt.weights import Checkpoint

Prompt = str | Sequence[int]
Rule = Callable[[], TokenRule]  # makes one for each text

# The cache has a row for each sequence of a call, but takes no more memory than this: the others wait.
CACHE_BYTES = 4 * 2**30
MAX_BATCH_SIZE = 64
BEAM_BYTES = 4 * CACHE_BYTES  # beams cannot wait: all of a search need a row


def load(
    name_or_path: str | Path = "default",
    *,
    device: str | None = None,
    dtype: str | None = None,
    backend: str | None = None,
    draft: str | Path | None = None,
    progress: Progress = no_progress,
) -> GPT:
    """Open a model: a shipped one by name, a published one from the hub, a folder or a file.

    `device` and `dtype` default to the best of this machine; `backend` is a name of `backend.BACKENDS`.
    `draft` is a smaller model with the same vocabulary, which guesses ahead (`tiny` for `default`).
    """
    if backend is not None:
        check_backend(backend)
    from glassgpt.weights import load_checkpoint

    shorten_spin_wait()
    with _no_garbage_collection():
        checkpoint = load_checkpoint(str(name_or_path), progress=progress)
        for remark in checkpoint.remarks:
            warnings.warn(remark, stacklevel=2)
        loaded = load_backend(checkpoint, backend, device=device, dtype=dtype)
        again = None if hasattr(loaded, "model") else checkpoint  # to be read again for a trace
        task, score = checkpoint.task, checkpoint.score
        gpt = GPT(loaded, checkpoint.tokenizer, str(name_or_path), again, task=task, score=score)
        if draft is not None:
            other = load_checkpoint(str(draft), progress=progress)
            gpt.use_draft(load_backend(other, backend, device=device, dtype=dtype), other.tokenizer)
        return gpt


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No garbage collection meanwhile: nothing made here is garbage, and each pass walks all of torch.

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
    """A model with its tokenizer.

    Several threads may use it: each call has an engine of its own, and their steps alternate.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer | None = None,
        name: str = "",
        checkpoint: Checkpoint | None = None,
        *,
        task: str | None = None,
        score: np.ndarray | None = None,
    ) -> None:
        if tokenizer is not None and not belongs(tokenizer, backend.config.vocab_size):
            size = backend.config.vocab_size
            tokens = max(tokenizer.text_size, min(tokenizer.vocab_size, size))
            raise UserError(
                f"the tokenizer of {name or 'this model'} has {tokens:,} tokens and the model {size:,}: they "
                "do not belong together. Put the model's own tokenizer.json beside its weights, or take its "
                "tokenizer away and give token ids."
            )
        self.backend = backend
        self.tokenizer = tokenizer
        self.name = name
        self.score = score  # (classes, C): the head of a classifier
        self._task = task
        self._checkpoint = checkpoint
        self._model: Any = None  # with taps, beside a backend that has none
        self._lock = FairLock()  # one thread computes at a time: others would compete for the same cores
        self._idle: dict[int, Engine] = {}  # by rows
        self._spare: Backend | None = backend  # while no engine has its cache
        self._draft: Backend | None = None

    def use_draft(self, draft: Backend, tokenizer: Tokenizer | None = None) -> None:
        """Let a smaller model with the same vocabulary guess ahead; see `generate.speculation`."""
        check_draft(draft, self.backend)
        if getattr(tokenizer, "hash", None) != getattr(self.tokenizer, "hash", None):
            raise SettingError("the draft model has another tokenizer. Take one trained with the same.")
        with self._lock.hold():
            self._idle.clear()
            self._spare = self.backend
            self._draft = draft

    @property
    def config(self) -> Config:
        return self.backend.config

    @cached_property
    def task(self) -> Task | None:
        """The task the model was made for: the task.toml of its folder."""
        if self._task is None:
            return None
        from glassgpt.tasks.definition import parse_saved_task

        return parse_saved_task(self._task, self.name)

    @property
    def lock(self) -> FairLock:
        """Held by whoever computes with this model."""
        return self._lock

    @property
    def model(self) -> GPT2 | NumpyGPT2:
        """The model whose steps can be seen and changed: the backend's own if it has taps, else one with the
        same weights, in torch or (where that is not installed) in numpy."""
        own = getattr(self.backend, "model", None)
        if own is not None:
            return own  # type: ignore[no-any-return]
        if self._model is None:
            if self._checkpoint is None:
                raise UserError("this backend does not show its steps. Load the model with backend='torch'.")
            name = "torch" if is_torch_installed() else "numpy"
            self._model = load_backend(self._checkpoint, name, device="cpu").model  # type: ignore[attr-defined]
        return self._model  # type: ignore[no-any-return]

    @property
    def torch_model(self) -> GPT2:
        """The same, as a torch module."""
        if not is_torch_installed():
            raise UserError(f"a torch model {NEEDS_TORCH}")
        from glassgpt.model import GPT2

        if not isinstance(self.model, GPT2):
            raise UserError("the numpy backend has no torch model. Load the model with backend='torch'.")
        return self.model

    def __repr__(self) -> str:
        return f"GPT({self.name!r}, {self.config.n_parameters:,} parameters)"

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return self._need_tokenizer("text").encode(text, allow_special)

    def decode(self, ids: Sequence[int]) -> str:
        return self._need_tokenizer("text").decode(ids)

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        settings: Settings | None = None,
        rule: Rule | None = None,
        **changes: Any,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        settings: Settings | None = None,
        rule: Rule | None = None,
        **changes: Any,
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        settings: Settings | None = None,
        rule: Rule | None = None,
        **changes: Any,
    ) -> Generation | list[Generation]:
        """Continue a prompt: a text, a list of token ids, or a list of those (a batch, which gives a list).

        No prompt at all lets the model ramble from the beginning of a document. The settings are the fields
        of `Settings`. With several samples the result is the first (with best_of or beams, the best), and
        its `.samples` holds all of them in order. `rule` makes a `TokenRule` for each text: code of your own
        that decides what may follow. Ctrl-C raises `Interrupted`, a KeyboardInterrupt whose
        `.found` has what was finished by then, and what there is of the rest.
        """
        settings = _settings(settings, changes)
        if not _is_batch(prompt):
            return self._generate([prompt], settings, rule)[0]  # type: ignore[list-item]
        return self._generate(_as_list(prompt), settings, rule)

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
        return TextStream(self, prompt, settings)

    def next(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable next tokens, as text or (no tokenizer) ids, with their probabilities."""
        text = str if self.tokenizer is None else lambda token: self.decode([token])
        return [(text(token), float(np.exp(logprob))) for token, logprob in self.next_ids(prompt, k)]

    def next_ids(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[int, float]]:
        """The ids of the k most probable next tokens, with their log-probabilities."""
        check_whole("k", k, 1, MAX_TOP_K)
        settings = Settings(max_new_tokens=1, temperature=0, logprobs=k, ignore_eot=True)
        alternatives = self._generate([prompt], settings)[0].alternatives
        assert alternatives is not None
        return alternatives[0]

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        """The logits after every token of every sequence, float32 (B, longest, V).

        Sequences may be of any lengths; what stands after the end of a shorter one means nothing.
        """
        rows = [_token_ids(ids) for ids in _as_list(batch)]
        if not rows:
            raise SettingError("the batch is empty. Give a list of lists of token ids.")
        for ids in rows:
            if not ids:
                raise SettingError("a sequence of the batch is empty. Give each at least one token id.")
            if len(ids) > self.backend.context:
                raise SettingError(
                    f"a sequence of {len(ids)} tokens is too long. Truncate it to {self.backend.context}."
                )
            check_prompt(ids, self.backend, self.tokenizer)
        with self._lock.hold():
            return self.backend.logits(rows)

    def fill(self, text: str, k: int = 5) -> Filled:
        """Fill the blanks of a text, ___ for each token, with their k likeliest tokens.

        A bidirectional model sees both sides of a blank, any other guesses from what precedes it.
        """
        from glassgpt.generate.fill import fill

        return fill(self, text, k)

    def trace(self, text: Prompt) -> Trace:
        """The activations for a text (or token ids): attention, residual stream, logit lens, ..."""
        from glassgpt.inspect.trace import Trace

        return Trace.from_tokens(self, self._ids(text))

    def intervene(
        self, text: Prompt | Trace, edits: Edit | Sequence[Edit] = (), position: int = -1
    ) -> Intervention:
        """Run the text with edits to the forward pass: ablation, activation patching, steering vectors.

        Edits are `AblateHead`, `AblateNeuron`, `AblateAttention`, `AblateMLP`, `AblateBlock`, `Patch`,
        `Steer` and `SteerToken` of `glassgpt.inspect`. The result compares the predictions at `position`.
        """
        from glassgpt.inspect.intervene import intervene

        return intervene(self, text, edits, position)

    def attribute(
        self,
        text: Prompt | Trace,
        target: str | int | None = None,
        method: str = "integrated_gradients",
        position: int = -1,
    ) -> TokenAttribution | DirectLogitAttribution:
        """What the logit of `target` as the next token comes from; by default, of the most likely token.

        To tokens of the text: `input_x_gradient`, `integrated_gradients` (with its convergence delta) or
        `attention_rollout`. To heads and MLPs: `direct_logit_attribution`, a sum that equals the logit.
        """
        from glassgpt.inspect.attribute import attribute

        return attribute(self, text, target, method, position)

    @overload
    def translate(self, text: str, to: str, **decoding: Any) -> str: ...

    @overload
    def translate(self, text: Sequence[str], to: str, **decoding: Any) -> list[str]: ...

    def translate(self, text: str | Sequence[str], to: str, **decoding: Any) -> str | list[str]:
        """Translate a text, or a list of texts, with a model made for it: `load("en-fr").translate("Hi.",
        to="fr")`. `decoding` are fields of `Settings`, such as `beams=4`."""
        from glassgpt.tasks.translate import translate

        made = [one.text for one in translate(self, _as_texts(text), to, **decoding)]
        return made[0] if isinstance(text, str) else made

    @overload
    def summarize(self, text: str, **decoding: Any) -> str: ...

    @overload
    def summarize(self, text: Sequence[str], **decoding: Any) -> list[str]: ...

    def summarize(self, text: str | Sequence[str], **decoding: Any) -> str | list[str]:
        """Summarize a text, or a list of texts: `load("summarize").summarize(text)`. A model that was not
        made for it is given a `TL;DR:`. Of a long text only a part is seen: `tasks.summarize` says which."""
        from glassgpt.tasks.summarize import summarize

        made = [one.text for one in summarize(self, _as_texts(text), **decoding)]
        return made[0] if isinstance(text, str) else made

    @overload
    def classify(self, text: str, labels: Sequence[str] | None = None, **options: Any) -> Label: ...

    @overload
    def classify(
        self, text: Sequence[str], labels: Sequence[str] | None = None, **options: Any
    ) -> list[Label]: ...

    def classify(
        self, text: str | Sequence[str], labels: Sequence[str] | None = None, **options: Any
    ) -> Label | list[Label]:
        """The label of a text, or of each of a list, with probabilities: by the head of a tuned model, or
        zero-shot among `labels`."""
        from glassgpt.tasks.classify import classify

        made = classify(self, _as_texts(text), labels=labels, **options)
        return made[0] if isinstance(text, str) else made

    def _generate(
        self, prompts: list[Prompt | None], settings: Settings, rule: Rule | None = None
    ) -> list[Generation]:
        prompts_ids = [self._ids(prompt) for prompt in prompts]
        if rule is not None and settings.beams is not None:
            raise SettingError("a rule needs sampling. Leave out beams.")
        try:
            found = (
                self._sample(prompts_ids, settings, rule)
                if settings.beams is None
                else self._search(prompts_ids, settings)
            )
        except Interrupted as interrupt:
            _attach_prompts(prompts, interrupt.found)
            raise
        _attach_prompts(prompts, found)
        return [generations[0] for generations in found]

    def _search(self, prompts: list[list[int]], settings: Settings) -> list[list[Generation]]:
        from glassgpt.generate.beam import beam_search

        assert settings.beams is not None
        check_whole(
            "beams", settings.beams, 1, max(1, BEAM_BYTES // self._bytes_per_row), "what memory allows here"
        )
        found: list[list[Generation]] = []
        engine = self._acquire_engine(settings.beams, all_at_once=True)
        try:
            for ids in prompts:
                with self._lock.hold():
                    found.append(beam_search(engine.backend, ids, settings, self.tokenizer))
        except Interrupted as interrupt:
            raise Interrupted(found + interrupt.found) from None
        finally:
            self._release_engine(engine)
        return found

    def _sample(
        self, prompts: list[list[int]], settings: Settings, rule: Rule | None = None
    ) -> list[list[Generation]]:
        found: list[list[Generation]] = [[] for _ in prompts]
        requests: dict[int, list[Generation]] = {}
        engine = self._acquire_engine(len(prompts) * settings.candidates)

        def step() -> None:
            with self._lock.hold():
                events = engine.step()
            for event in events:
                if event.error is not None:
                    raise event.error
                if event.generation is not None:
                    requests[event.request].append(event.generation)

        def in_order() -> list[list[Generation]]:
            if settings.best_of is not None:
                return [best(generations, settings.samples) for generations in found]
            return [sorted(generations, key=lambda generation: generation.sample) for generations in found]

        try:
            for ids, generations in zip(prompts, found, strict=True):
                requests[engine.add(ids, settings, rule)] = generations
            while engine.busy:
                step()
        except KeyboardInterrupt:
            for number in requests:
                engine.cancel(number)
            if engine.busy:
                step()
            raise Interrupted(in_order()) from None
        finally:
            self._release_engine(engine)
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
                "Put its tokenizer.json beside the weights, or give token ids (on the command line: --ids)."
            )
        return self.tokenizer

    def _acquire_engine(self, sequences: int, all_at_once: bool = False) -> Engine:
        """An engine with enough rows, for the caller alone until it is released.

        One for single texts and one of the size last asked for are kept: a captured step computes every row
        of its cache, in use or not.
        """
        check_can_continue(self.config)
        most = sequences if all_at_once else min(sequences, self.max_batch_size())
        rows = 1
        while rows < most:
            rows *= 2
        with self._lock.hold():  # allocating a cache is work for the device, too
            for other in [other for other in list(self._idle) if other not in (1, rows)]:
                self._drop_engine(self._idle.pop(other))
            engine = self._idle.pop(rows, None)
            if engine is None:
                if self._spare is not None and self._spare.rows == rows:
                    backend, self._spare = self._spare, None
                else:
                    backend = self.backend.with_rows(rows)
                engine = Engine(backend, self.tokenizer, draft=self._draft)
            return engine

    def _release_engine(self, engine: Engine) -> None:
        """Keep an engine for the next call that needs its size, unless there is one already.

        Takes no lock: a stream may be collected by a thread that has it.
        """
        engine.clear()
        if self._idle.setdefault(engine.backend.rows, engine) is not engine:
            self._drop_engine(engine)

    def _drop_engine(self, engine: Engine) -> None:
        """Its cache is freed with it, unless it is the one that the model came with."""
        if engine.backend is self.backend:
            self._spare = self.backend

    def max_batch_size(self) -> int:
        return max(1, min(MAX_BATCH_SIZE, CACHE_BYTES // self._bytes_per_row))

    @property
    def _bytes_per_row(self) -> int:
        """Keys and values of one row of the cache, in float32."""
        return 2 * self.config.n_layer * self.backend.context * self.config.n_embd * 4


class TextStream(Iterator[str]):
    """Pieces of text as they come. Closing it, or dropping it, ends the generation."""

    def __init__(self, gpt: GPT, prompt: Prompt | None, settings: Settings) -> None:
        self._gpt = gpt
        self._prompt = prompt
        self._engine: Engine | None = None  # until the text is finished
        self._events: deque[Event] = deque()
        self.notes: list[str] = []
        self.generation: Generation | None = None
        ids = gpt._ids(prompt)
        self._engine = gpt._acquire_engine(1)
        try:
            self._number = self._engine.add(ids, settings)
        except BaseException:
            self._end()
            raise

    def __next__(self) -> str:
        text: str | None = ""
        while text == "":
            with self._gpt._lock.hold():
                text = self._read()
        if text is None:
            raise StopIteration
        return text

    def _read(self) -> str | None:
        """The text of the next event; None after the last."""
        engine = self._engine
        if engine is None:
            return None
        try:
            if not self._events:
                self._events.extend(engine.step())
            if not self._events:  # a device is a step ahead
                return ""
            event = self._events.popleft()
            if event.error is not None:
                raise event.error
            if event.note is not None:
                self.notes.append(event.note)
            if event.generation is not None:
                self._finish(event.generation)
            return event.text
        except KeyboardInterrupt:
            engine.cancel(self._number)
            for event in (*self._events, *engine.step()):
                if event.generation is not None:
                    self._finish(event.generation)
            raise
        except BaseException:
            self._end()
            raise

    def _finish(self, generation: Generation) -> None:
        _attach_prompts([self._prompt], [[generation]])
        self.generation = generation
        self._end()

    def _end(self) -> None:
        engine, self._engine = self._engine, None
        self._events.clear()
        if engine is not None:
            self._gpt._release_engine(engine)

    def close(self) -> None:
        with self._gpt._lock.hold():  # another thread may be reading
            self._end()

    def __del__(self) -> None:
        self._end()  # without waiting: nobody else has it, and this thread may be in a step of another stream


def _attach_prompts(prompts: list[Prompt | None], found: list[list[Generation]]) -> None:
    """Set the prompt and the siblings of every text. After Ctrl-C, some prompts may have none."""
    for prompt, generations in zip(prompts, found, strict=False):
        for generation in generations:
            generation.prompt = _original_prompt(prompt)
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
    some = _as_list(prompt)
    return not some or isinstance(some[0], str) or hasattr(some[0], "__len__")


def _as_list(values: Any) -> list[Any]:
    """A list of what was given as a list, a tuple, a range, or an array of numpy or torch."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple | range):
        raise SettingError(
            f"a {type(values).__name__} is not a prompt. Give text, token ids, or a list of either."
        )
    return list(values)


def _as_texts(text: str | Sequence[str]) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text)
    for number, one in enumerate(texts, start=1):
        if not isinstance(one, str) or not one.strip():
            what = "empty" if isinstance(one, str) else f"a {type(one).__name__}, not a text"
            raise SettingError(f"text {number} is {what}. Give a text, or a list of texts.")
    return texts


def _token_ids(values: Any) -> list[int]:
    ids = _as_list(values)
    wrong = [i for i in ids if isinstance(i, bool) or not isinstance(i, int | np.integer)]
    if wrong:
        raise SettingError(f"{wrong[0]!r} is not a token id. Give a text, or whole numbers.")
    return [int(i) for i in ids]


def _original_prompt(prompt: Prompt | None) -> str | list[int]:
    if prompt is None:
        return ""
    return prompt if isinstance(prompt, str) else _token_ids(prompt)
