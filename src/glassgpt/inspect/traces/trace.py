"""`gpt.trace(text)`: every activation between a text and its next token, computed on demand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError, short_repr
from glassgpt.inspect.arrays import (
    AnyArray,
    concat,
    double,
    log_softmax,
    norm,
    split,
    to_host,
    to_numpy,
    top_k,
)
from glassgpt.inspect.figures.display import Displayable
from glassgpt.inspect.forward import Tap, make_forward
from glassgpt.inspect.taps import RESID_PRE, check_index, dims_of, resolve_name
from glassgpt.inspect.traces.activations import CHUNK, Activations
from glassgpt.inspect.traces.indexing import (
    Array,
    AttentionSteps,
    BlockStep,
    Heads,
    Layers,
    MLPSteps,
    ResidualStream,
)
from glassgpt.inspect.traces.lens import Lens, TokenLoss, TokenStrings, TopK, compute_token_loss, concat_top_k

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure
    from glassgpt.inspect.traceable_model import TraceableModel


class Trace(Displayable):
    """The activations of a model for one text. Made by `gpt.trace`, or by `Trace.load` from a file.

    Everything is computed on demand. The first access runs the model once and keeps the residual stream;
    reading inside a block runs that block again. All arrays are numpy float32.
    """

    def __init__(
        self,
        config: Config,
        tokens: Sequence[int],
        texts: Sequence[str],
        *,
        name: str = "",
        vocabulary: TokenStrings | None = None,
        activations: Activations | None = None,
        saved: Mapping[str, Array] | None = None,
    ) -> None:
        self.config = config
        self.tokens = list(tokens)
        self.texts = list(texts)
        self.name = name
        self.vocabulary = TokenStrings(config.vocab_size, None) if vocabulary is None else vocabulary
        self._activations = activations
        self._saved = {} if saved is None else saved
        self._lenses: dict[int, TopK] = {}  # by k; after append(), perhaps the first positions only
        self._token_loss = np.full((3, 1), np.nan, np.float32)  # likewise
        self.gradient_pass: object = None  # of inspect/attribution/gradients.py, if `keep_steps` was called
        self._same_residuals: tuple[Trace, int] | None = None  # a trace, and how many residuals are its

    @classmethod
    def from_tokens(cls, gpt: TraceableModel, tokens: Sequence[int], tap: Tap | None = None) -> Trace:
        """The trace of token ids; `tap` may replace any activation (see `gpt.intervene`)."""
        from glassgpt.generate.prompt import check_prompt, usable_vocab_size

        model = gpt.model
        ids = check_prompt(tokens, gpt.backend, gpt.tokenizer)
        if len(ids) > gpt.config.n_positions:
            raise SettingError(
                f"the text has {len(ids):,} tokens, more than this model's context of "
                f"{gpt.config.n_positions:,}. Trace a part of it."
            )
        vocabulary = TokenStrings(usable_vocab_size(gpt.backend, gpt.tokenizer), gpt.tokenizer)
        texts = [vocabulary.text(token) for token in ids]
        activations = Activations(make_forward(model), ids, tap)
        return cls(gpt.config, ids, texts, name=gpt.name, vocabulary=vocabulary, activations=activations)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        start = "".join(self.texts)
        start = start if len(start) <= 40 else start[:39] + "…"
        return f"Trace({start!r}, {len(self)} tokens, {self.config.n_layer} layers, {self.name!r})"

    def figure(self) -> Figure:
        from glassgpt.inspect.figures.plots import plot_trace

        return plot_trace(self)

    # Any step, by its full name (inspect/taps.py, docs/model.md).

    def __getitem__(self, name: str) -> Array:
        """`trace["h.3.attn.scores"]`: that activation, (H, T, T) here."""
        if not isinstance(name, str):
            raise SettingError(f"trace[{name!r}]: name a step, such as trace['h.0.attn.weights'].")
        return self.read(name)[name]

    def read(self, *names: str) -> dict[str, Array]:
        """Several steps in one call: a block is run once for all of its steps."""
        steps = {name: resolve_name(self.config, name) for name in names}
        missing = [step for step in steps.values() if step not in self._saved]
        computed = (
            {step: to_numpy(values) for step, values in self.tensors(missing).items()} if missing else {}
        )
        return {
            name: computed[step] if step in computed else np.asarray(self._saved[step])
            for name, step in steps.items()
        }

    def tensors(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """The same as arrays of the model: numpy or torch, in its dtype and on its device."""
        if self._activations is not None:
            return self._activations.read(names)
        for name in names:
            dims_of(self.config, name)
            if name not in self._saved:
                raise UserError(
                    f"{name} is not in this file. Pass the model, Trace.load(path, gpt), or save more steps."
                )
        return {name: np.array(self._saved[name]) for name in names}

    # By layer and head, by the names of inspect/taps.py.

    resid_pre = BlockStep(Layers, RESID_PRE)  # [layer] -> (T, C): what enters the block
    ln_1 = BlockStep(Layers, "ln_1")  # [layer] -> (T, C): the input of attention
    ln_2 = BlockStep(Layers, "ln_2")  # [layer] -> (T, C): the input of the MLP
    resid_mid = BlockStep(Layers, "resid_mid")  # [layer] -> (T, C): between attention and MLP
    resid_post = BlockStep(Layers, "resid_post")  # [layer] -> (T, C): after the block

    @property
    def attn(self) -> AttentionSteps:
        """`.q`, `.k`, `.v`, `.scores`, `.scaled`, `.masked`, `.weights`, `.z`, `.merged`, `.proj`."""
        return AttentionSteps(self)

    @property
    def mlp(self) -> MLPSteps:
        """`.fc`, `.gelu`, `.proj`."""
        return MLPSteps(self)

    @property
    def attention(self) -> Heads:
        """`[layer, head]` -> (T, T): `attn.weights`, how much each token (row) attends to each (column)."""
        return self.attn.weights

    @property
    def residual(self) -> ResidualStream:
        """`[i]` -> (T, C): the residual stream, 0 after the embedding, i after i blocks."""
        return ResidualStream(self)

    # Predictions.

    @property
    def logits(self) -> Array:
        """The next-token logits at every position, (T, V)."""
        return self["logits"]

    def logits_at(self, position: int = -1) -> Array:
        """`logits` at one position, (V,), without computing the others."""
        position = check_index("position", position, len(self))
        if self._activations is None or "logits" in self._saved:
            logits: Array = self.logits[position]
            return logits
        return to_numpy(self._activations.logits_at(position))

    def p_at(self, position: int = -1) -> Array:
        """The next-token probabilities at a position, over the ids that have text."""
        return np.asarray(np.exp(self._log_softmax(self.logits_at(position))))

    @cached_property
    def token_loss(self) -> TokenLoss:
        """The probability, rank and loss of each token, and the entropy of what predicted it."""
        if "token_loss" in self._saved:
            return TokenLoss(*np.asarray(self._saved["token_loss"]))
        known = self._token_loss  # read once: another thread may replace it
        if known.shape[1] < len(self):
            first = known.shape[1]
            later = compute_token_loss(
                map(self._log_softmax, self._final_logits(first - 1)), self.tokens[first:]
            )
            self._token_loss = known = np.concatenate([known, later], axis=1)
        return TokenLoss(*known)

    def lens(self, k: int | None = None) -> Lens:
        """The logit lens: each layer's residual stream through ln_f and the head, at every position.

        `ids` and `p` are (n_layer + 1, T); with `k` they are (n_layer + 1, T, k), most likely first.
        """
        ids, p = self.lens_top_k(1 if k is None else k)
        if k is None:
            ids, p = ids[..., 0], p[..., 0]
        return Lens(ids, p, self.vocabulary.texts(ids))

    def lens_top_k(self, k: int, first: int = 0, last: int | None = None) -> TopK:
        """The `ids` and `p` of `lens(k)`, without the texts; of the positions `first` to `last`, if given."""
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= self.vocabulary.size:
            raise SettingError(f"k is {short_repr(k)}; use an integer from 1 to {self.vocabulary.size}.")
        first = check_index("position", first, len(self))
        stop = 1 + check_index("position", len(self) - 1 if last is None else last, len(self))
        is_part = stop - first < len(self)
        if is_part and self._activations is not None and not any(known >= k for known in list(self._lenses)):
            return self._compute_lens(k, slice(first, stop))
        ids, p = self._lens(k)
        return ids[:, first:stop], p[:, first:stop]

    def _lens(self, k: int) -> TopK:
        stored = next((stored for stored in list(self._lenses) if stored >= k), None)
        if stored is not None:
            ids, p = self._lenses[stored]
            known = ids.shape[1]
            if known < len(self) and self._activations is not None:  # tokens were appended since
                added = self._top_k(
                    self._activations.lens_logits_from(known), self.config.n_layer + 1, stored
                )
                ids, p = concat_top_k((ids, p), added, axis=1)
                self._lenses[stored] = ids, p
            return ids[..., :k], p[..., :k]
        if "lens.ids" in self._saved and self._saved["lens.ids"].shape[2] >= k:
            return np.asarray(self._saved["lens.ids"])[..., :k], np.asarray(self._saved["lens.p"])[..., :k]
        if self._activations is None:
            raise UserError(
                f"this file has fewer than {k} tokens per layer. Trace.load(path, gpt) computes more."
            )
        top = self._lenses[k] = self._compute_lens(k, slice(0, len(self)))
        return top

    def _compute_lens(self, k: int, positions: slice) -> TopK:
        """The lens at some positions. Layers that an edit did not change come from the trace without it."""
        assert self._activations is not None
        other, same = (None, 0) if self._same_residuals is None else self._same_residuals
        same = min(same, self.config.n_layer)  # the last layer is the prediction itself
        chunks = itertools.chain(
            self._activations.lens_logits(slice(same, None), positions),
            self._activations.final_logits(positions.start, positions.stop),
        )
        top = self._top_k(chunks, self.config.n_layer + 1 - same, k)
        if other is not None and same:
            ids, p = other.lens_top_k(k, positions.start, positions.stop - 1)
            top = concat_top_k((ids[:same], p[:same]), top, axis=0)
        return top

    def _top_k(self, chunks: Iterable[AnyArray], n_layers: int, k: int) -> TopK:
        """The k most likely ids and their probabilities, (n_layers, positions, k) each."""
        tops = [top_k(self._log_softmax(chunk), k) for chunk in chunks]
        log_p, ids = (to_host(concat(parts)).reshape(n_layers, -1, k) for parts in zip(*tops, strict=True))
        return ids, np.exp(log_p.astype(np.float32, copy=False))

    @cached_property
    def norms(self) -> Array:
        """The norm of the residual stream at each layer and position, (n_layer + 1, T)."""
        if "norms" in self._saved:
            return np.asarray(self._saved["norms"])
        if self._activations is not None:
            return to_numpy(norm(self._activations.residuals()))
        return np.stack([np.linalg.norm(residual, axis=-1) for residual in self.residual])

    def append(self, token: int) -> Trace:
        """The trace of the text with one more token; only the new column is computed, with a KV cache."""
        if self._activations is None or self._activations.tap is not None:
            why = "was loaded without its model" if self._activations is None else "has edits"
            raise UserError(f"cannot append: this trace {why}. Trace the longer text instead.")
        is_whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
        if not is_whole or not 0 <= token < self.config.vocab_size:
            raise SettingError(
                f"{short_repr(token)} is not a token id of this model (0 to {self.config.vocab_size - 1})."
            )
        token = int(token)
        if len(self) >= self.config.n_positions:
            raise SettingError(
                f"the text already fills this model's context of {self.config.n_positions:,} tokens."
            )
        longer = Trace(
            self.config,
            [*self.tokens, token],
            [*self.texts, self.vocabulary.text(token)],
            name=self.name,
            vocabulary=self.vocabulary,
            activations=self._activations.append(token),
        )
        # Earlier positions stay valid: the lens and the loss are also computed for the new column only.
        longer._lenses, longer._token_loss = dict(self._lenses), self._token_loss
        return longer

    def keep_steps(self, max_bytes: int) -> Trace:
        """Let the first pass keep the steps inside blocks, or else the attention weights, if these take at
        most `max_bytes`: a caller that reads every block then does not run them twice."""
        if self._activations is not None:
            self._activations.keep_bytes = max_bytes
        return self

    @property
    def keeps_steps(self) -> bool:
        """Whether memory is spent on steps that may be read next."""
        return self._activations is not None and self._activations.keep_bytes > 0

    @property
    def held_bytes(self) -> int:
        """The memory of what this trace keeps."""
        return 0 if self._activations is None else self._activations.held_bytes

    def clear_cache(self) -> None:
        """Free the activations inside blocks; they are recomputed when read again."""
        self.gradient_pass = None
        if self._activations is not None:
            self._activations.clear_cache()

    def save(self, path: str | Path, steps: str | Sequence[str] = "*") -> None:
        """Write a safetensors file for `Trace.load`, with the steps that match the patterns."""
        from glassgpt.inspect.traces.trace_file import save

        save(self, path, steps)

    @classmethod
    def load(cls, path: str | Path, gpt: TraceableModel | None = None) -> Trace:
        """Open a saved trace. With the model, steps that were not saved are computed."""
        from glassgpt.inspect.traces.trace_file import load

        return load(path, gpt)

    def log_probs(self) -> Iterator[AnyArray]:
        """The next-token log-probabilities of every position, (at most CHUNK, V) at a time, in float64."""
        return (self._log_softmax(double(chunk)) for chunk in self._final_logits())

    def is_unmodified_pass_of(self, gpt: TraceableModel) -> bool:
        """Whether its residuals come, or will come, from one pass of this very model, without edits."""
        found = self._activations
        if found is None or found.incremental or found.tap is not None or self._saved:
            return False
        return found.forward.model is gpt.model

    def reuse_residuals(self, other: Trace, first: int | None) -> None:
        """Take the residuals of another trace of the same text, up to the input of block `first`."""
        if first is not None and self._activations is not None and other._activations is not None:
            self._activations.first_residuals = other._activations.residuals()[: first + 1]
            self._same_residuals = other, first + 1

    def _final_logits(self, start: int = 0) -> Iterable[AnyArray]:
        """The logits from a position on, in chunks."""
        if self._activations is not None:
            return self._activations.final_logits(start=start)
        return split(self.logits[start:], CHUNK)

    def _log_softmax(self, logits: AnyArray) -> AnyArray:
        """Log-probabilities of the ids that have text: a padded vocabulary has more ids than tokens."""
        return log_softmax(logits[..., : self.vocabulary.size])
