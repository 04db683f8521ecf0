"""`GPT`: a model with its tokenizer, and everything it can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy as np

from glassgpt.backends.choose import is_torch_installed, load_backend
from glassgpt.backends.protocol import Backend
from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, SettingError, UserError
from glassgpt.generate.batch import generate_batch
from glassgpt.generate.engine.fair_lock import FairLock
from glassgpt.generate.engine.handle import RequestHandle
from glassgpt.generate.engine.pool import EnginePool
from glassgpt.generate.engine.speculation import check_draft
from glassgpt.generate.generation import Generation, Interrupted
from glassgpt.generate.prompt import Prompt, as_list, check_prompt, is_batch, original_prompt, token_ids
from glassgpt.generate.sampling.logits_processors import MakeRule
from glassgpt.generate.sampling.params import MAX_TOP_K, SamplingParams, SamplingParamsDict
from glassgpt.generate.stream import TextStream
from glassgpt.gpt.experiment_methods import ExperimentMethods
from glassgpt.gpt.task_methods import TaskMethods
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.generate.fill import Filled
    from glassgpt.generate.service.fair_queue import QueueLimits
    from glassgpt.generate.service.service import Service
    from glassgpt.inspect.attribution.attribute import (
        DirectLogitAttribution,
        DirectMethod,
        Target,
        TokenAttribution,
        TokenMethod,
    )
    from glassgpt.inspect.edits.edits import Edit
    from glassgpt.inspect.edits.intervene import Intervention
    from glassgpt.inspect.parameters.weights import ModelWeights
    from glassgpt.inspect.traces.trace import Trace
    from glassgpt.model import GPT2, NumpyGPT2
    from glassgpt.tasks.definition import Task
    from glassgpt.tokenizer import Tokenizer
    from glassgpt.weights import Checkpoint


class GPT(TaskMethods, ExperimentMethods):
    """A model with its tokenizer.

    Several threads may use it: each call has its own engine, and their steps alternate.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer | None = None,
        name: str = "",
        checkpoint: Checkpoint | None = None,
        *,
        task: str | None = None,
        classifier: np.ndarray | None = None,
    ) -> None:
        if tokenizer is not None and not tokenizer.fits(backend.config.vocab_size):
            size = backend.config.vocab_size
            tokens = max(tokenizer.text_size, min(tokenizer.vocab_size, size))
            raise UserError(
                f"the tokenizer of {name or 'this model'} has {tokens:,} tokens and the model {size:,}: they "
                "do not belong together. Put the model's own tokenizer.json next to its weights, or take its "
                "tokenizer away and give token ids."
            )
        self.backend = backend
        self.tokenizer = tokenizer
        self.name = name
        self.classifier = classifier  # the head of a classifier, (classes, C)
        self._task = task
        self._checkpoint = checkpoint
        self._model: Any = None  # with taps, if the backend has none
        self._engines = EnginePool(backend, tokenizer)

    def use_draft(self, draft: Backend, tokenizer: Tokenizer | None = None) -> None:
        """Let a smaller model with the same vocabulary guess ahead; see `generate.engine.speculation`."""
        check_draft(draft, self.backend)
        if getattr(tokenizer, "hash", None) != getattr(self.tokenizer, "hash", None):
            raise SettingError("the draft model has another tokenizer. Take one trained with the same.")
        self._engines.use_draft(draft)

    def add_adapter(self, folder: str | Path) -> int:
        """Add low-rank changes (LoRA) from an adapter's folder; texts of one batch may have different ones.

        Returns the number for `Engine.add` and `Job`. Add all of them before the first text.
        """
        from glassgpt.weights.registry import load_adapter

        if not hasattr(self.backend, "add_adapter"):
            raise UserError(
                "this backend has no adapters that share their model. Load it with backend='native' or "
                "'torch'."
            )
        number: int = self.backend.add_adapter(load_adapter(folder, self.config, self.name))
        return number

    @property
    def config(self) -> Config:
        return self.backend.config

    @cached_property
    def task(self) -> Task | None:
        """The task that the model was tuned for: the task.toml of its folder."""
        if self._task is None:
            return None
        from glassgpt.tasks.definition import parse_saved_task

        return parse_saved_task(self._task, self.name)

    @property
    def lock(self) -> FairLock:
        """A thread holds it while it computes with this model."""
        return self._engines.lock

    def start_service(self, max_batch_size: int | None = None, limits: QueueLimits | None = None) -> Service:
        """Compute the texts of several threads together, `max_batch_size` at a time (16; 64 on a GPU).

        Until `stop_service`, `generate` and `stream` hand their prompts to one thread, where they join the
        running batch: several times as fast for many threads at once. Without a service each call has its own
        engine, and the steps of several calls alternate. A text is the same either way, up to rounding.
        """
        return self._engines.start_service(max_batch_size, limits)

    def open(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingParams | Sequence[SamplingParams],
        edits: Edit | Sequence[Edit] = (),
    ) -> RequestHandle:
        """Start generating after prompts, given as ids; read the events of each step from the handle.

        `settings` are for all prompts, or a list with those of each. `edits` are those of `generate`.
        """
        return self._engines_with(edits, prompts, settings).open(prompts, settings)

    def stop_service(self) -> None:
        """End the service: each call has its own engine again. Unfinished texts fail."""
        self._engines.stop_service()

    @property
    def service(self) -> Service | None:
        """The service, if one was started."""
        return self._engines.service

    @property
    def model(self) -> GPT2 | NumpyGPT2:
        """The model whose steps can be seen and changed: the backend's own if it has taps, otherwise one with
        the same weights, in torch or, if that is not installed, in numpy."""
        own = getattr(self.backend, "model", None)
        if own is not None:
            return own  # type: ignore[no-any-return]
        if self._model is None:
            if self._checkpoint is None:
                raise UserError("this backend does not show its steps. Load the model with backend='torch'.")
            name = "torch" if is_torch_installed() else "numpy"
            model = load_backend(self._checkpoint, name, device="cpu").model  # type: ignore[attr-defined]
            self._model = model if name == "torch" else self._with_engine(model)
        return self._model  # type: ignore[no-any-return]

    def _with_engine(self, model: NumpyGPT2) -> NumpyGPT2:
        """The numpy model, computed by the native engine where that has the same weights."""
        from glassgpt.backends.native.backend import NativeBackend
        from glassgpt.backends.native.traced import EngineGPT2
        from glassgpt.backends.native.weights import stored_dtype

        assert self._checkpoint is not None
        backend = self.backend
        same = isinstance(backend, NativeBackend) and backend.dtype == stored_dtype(self._checkpoint)
        return EngineGPT2(model, backend.weights) if same else model  # type: ignore[attr-defined]

    @property
    def torch_model(self) -> GPT2:
        """`model` as a torch module."""
        if not is_torch_installed():
            raise UserError(f"a torch model {NEEDS_TORCH}")
        from glassgpt.model import GPT2

        if not isinstance(self.model, GPT2):
            raise UserError("the numpy backend has no torch model. Load the model with backend='torch'.")
        return self.model

    def __repr__(self) -> str:
        return f"GPT({self.name!r}, {self.config.n_parameters:,} parameters)"

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return self.require_tokenizer("text").encode(text, allow_special)

    def decode(self, ids: Sequence[int]) -> str:
        return self.require_tokenizer("text").decode(ids)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self,
        prompt: Prompt | None = None,
        *,
        settings: SamplingParams | None = None,
        rule: MakeRule | None = None,
        edits: Edit | Sequence[Edit] = (),
        **changes: Unpack[SamplingParamsDict],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        settings: SamplingParams | None = None,
        rule: MakeRule | None = None,
        edits: Edit | Sequence[Edit] = (),
        **changes: Unpack[SamplingParamsDict],
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        *,
        settings: SamplingParams | None = None,
        rule: MakeRule | None = None,
        edits: Edit | Sequence[Edit] = (),
        **changes: Unpack[SamplingParamsDict],
    ) -> Generation | list[Generation]:
        """Continue a prompt: a text, a list of token ids, or a list of those (a batch, which returns a list).

        Without a prompt the text starts like a document. The settings are the fields of `SamplingParams`.
        With several samples the result is the first (with best_of or beams, the best), and its `.samples`
        holds all of them in order. `rule` makes a `TokenRule` for each text: your own code that decides what
        may follow. `edits` change the forward pass while the text is generated, as in `intervene`. Ctrl-C
        raises `Interrupted`, a KeyboardInterrupt whose `.generations` has the texts so far.
        """
        settings = _settings(settings, changes)
        if not is_batch(prompt):
            return self._generate([prompt], settings, rule, edits)[0]  # type: ignore[list-item]
        return self._generate(as_list(prompt), settings, rule, edits)

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        settings: SamplingParams | None = None,
        edits: Edit | Sequence[Edit] = (),
        **changes: Unpack[SamplingParamsDict],
    ) -> TextStream:
        """Continue a prompt piece by piece; afterwards the iterator's `.generation` holds the whole text.
        `edits` are those of `generate`."""
        settings = _settings(settings, changes)
        for name, off in (("samples", 1), ("best_of", None), ("beams", None)):
            if getattr(settings, name) != off:
                raise SettingError(
                    f"{name} {getattr(settings, name)} cannot be streamed: there is more than one text. "
                    f"Leave out {name}, or use generate."
                )
        ids = self._ids(prompt)
        return TextStream(self._engines_with(edits, [ids], settings), ids, settings, original_prompt(prompt))

    def next(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable next tokens, as text or (no tokenizer) ids, with their probabilities."""
        text = str if self.tokenizer is None else lambda token: self.decode([token])
        return [(text(token), float(np.exp(logprob))) for token, logprob in self.next_ids(prompt, k)]

    def next_ids(self, prompt: Prompt | None = None, k: int = 10) -> list[tuple[int, float]]:
        """The ids of the k most probable next tokens, with their log-probabilities."""
        check_whole("k", k, 1, MAX_TOP_K)
        settings = SamplingParams(max_new_tokens=1, temperature=0, logprobs=k, ignore_eot=True)
        alternatives = self._generate([prompt], settings)[0].alternatives
        assert alternatives is not None
        return alternatives[0]

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        """The logits after every token of every sequence, float32 (B, longest, V).

        Sequences may have any lengths; logits after the end of a shorter one are meaningless.
        """
        rows = [token_ids(ids) for ids in as_list(batch)]
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
        with self.lock.hold():
            return self.backend.logits(rows)

    def fill(self, text: str, k: int = 5) -> Filled:
        """Fill the blanks of a text, ___ for each token, with their k most likely tokens.

        A bidirectional model sees both sides of a blank; any other guesses from the text before it and
        reranks its guesses by the text after it.
        """
        from glassgpt.generate.fill import fill

        return fill(self, text, k)

    def trace(self, text: Prompt) -> Trace:
        """The activations for a text (or token ids): attention, residual stream, logit lens, ..."""
        from glassgpt.inspect.traces.trace import Trace

        if is_batch(text) and len(text):
            raise SettingError(
                f"trace takes one text, not a list of {len(text)}. "
                "Trace each: [gpt.trace(text) for text in texts]"
            )
        return Trace.from_tokens(self, self._ids(text))

    @cached_property
    def weights(self) -> ModelWeights:
        """The weights by TransformerLens' names (`W_Q[layer, head]`, ...), as numpy arrays."""
        from glassgpt.inspect.parameters.weights import ModelWeights

        return ModelWeights(self.model)

    def intervene(
        self, text: Prompt | Trace, edits: Edit | Sequence[Edit] = (), position: int = -1
    ) -> Intervention:
        """Run the text with edits to the forward pass: ablation, activation patching, steering vectors.

        Edits are `AblateHead`, `AblateNeuron`, `AblateAttention`, `AblateMLP`, `AblateBlock`, `Patch`,
        `Steer` and `SteerToken` of `glassgpt.inspect`. The result compares the predictions at `position`.
        """
        from glassgpt.inspect.edits.intervene import intervene

        return intervene(self, text, edits, position)

    @overload
    def attribute(
        self,
        text: Prompt | Trace,
        target: Target = None,
        method: TokenMethod = "integrated_gradients",
        position: int = -1,
    ) -> TokenAttribution: ...

    @overload
    def attribute(
        self, text: Prompt | Trace, target: Target = None, *, method: DirectMethod, position: int = -1
    ) -> DirectLogitAttribution: ...

    @overload
    def attribute(
        self, text: Prompt | Trace, target: Target, method: DirectMethod, position: int = -1
    ) -> DirectLogitAttribution: ...

    @overload
    def attribute(
        self, text: Prompt | Trace, target: Target, method: str, position: int = -1
    ) -> TokenAttribution | DirectLogitAttribution: ...

    def attribute(
        self,
        text: Prompt | Trace,
        target: Target = None,
        method: str = "integrated_gradients",
        position: int = -1,
    ) -> TokenAttribution | DirectLogitAttribution:
        """Attribute the logit of `target` as the next token; by default, of the most likely token. Two
        targets, `(" Mary", " John")`, mean the difference of their logits.

        To tokens of the text: `input_x_gradient`, `integrated_gradients` (with its convergence delta) or
        `attention_rollout`. To heads and MLPs: `direct_logit_attribution`, a sum that equals the logit.
        """
        from glassgpt.inspect.attribution.attribute import attribute

        return attribute(self, text, target, method, position)

    def explore(self, text: str | None = None, height: int = 760) -> Any:
        """The Explorer with this text, in a notebook's cell; `.url` is its address for a browser.

        It needs the extra `serve`, and runs in this process until that ends.
        """
        try:
            # Above this room: what the Explorer shows is a model's.
            notebook = import_module("glassgpt.explorer.notebook")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("glassgpt"):
                raise
            raise UserError(
                f"explore needs {error.name}. Install it with: pip install 'glassgpt[serve]'"
            ) from None
        return notebook.explore(self, text, height)

    def max_batch_size(self) -> int:
        """The number of sequences of a call that run at once."""
        return self._engines.max_batch_size()

    def _engines_with(
        self,
        edits: Edit | Sequence[Edit],
        prompts: Sequence[Sequence[int]],
        settings: SamplingParams | Sequence[SamplingParams],
    ) -> EnginePool:
        """The model's engines, or others that generate with edits."""
        if isinstance(edits, Sequence) and not edits:
            return self._engines
        from glassgpt.inspect.edits.edited_backend import check_edits, edited_engines

        each = [settings] * len(prompts) if isinstance(settings, SamplingParams) else settings
        for ids, its in zip(prompts, each, strict=True):
            check_edits(self, edits, ids, its.max_new_tokens)
        return edited_engines(self, edits)

    def _generate(
        self,
        prompts: list[Prompt | None],
        settings: SamplingParams,
        rule: MakeRule | None = None,
        edits: Edit | Sequence[Edit] = (),
    ) -> list[Generation]:
        ids = [self._ids(prompt) for prompt in prompts]
        engines = self._engines_with(edits, ids, settings)
        try:
            batch = generate_batch(engines, ids, settings, rule)
        except Interrupted as interrupt:
            _attach_prompts(prompts, interrupt.generations)
            raise
        _attach_prompts(prompts, batch)
        return [generations[0] for generations in batch]

    def _ids(self, prompt: Prompt | None) -> list[int]:
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return self.require_tokenizer("a text prompt").encode(prompt)
        return token_ids(prompt)

    def require_tokenizer(self, purpose: str) -> Tokenizer:
        """The tokenizer, which `purpose` ("a text prompt") needs. Raises an error if there is none."""
        if self.tokenizer is None:
            raise UserError(
                f"{purpose} needs a tokenizer, and {self.name or 'this model'} came without one. "
                "Put its tokenizer.json next to the weights, or give token ids (on the command line: --ids)."
            )
        return self.tokenizer


def _settings(settings: SamplingParams | None, changes: SamplingParamsDict) -> SamplingParams:
    if settings is None:
        return SamplingParams.of(**changes)
    SamplingParams.of(**changes)  # checks the names
    return dataclasses.replace(settings, **cast(dict[str, Any], changes))


def _attach_prompts(prompts: list[Prompt | None], batch: list[list[Generation]]) -> None:
    """Set the prompt and the samples of every text. After Ctrl-C, some prompts may have none."""
    for prompt, generations in zip(prompts, batch, strict=False):
        for generation in generations:
            generation.prompt = original_prompt(prompt)
            generation.samples = generations
