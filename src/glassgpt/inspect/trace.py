"""`gpt.trace(text)`: everything between a text and its next token, computed when it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.inspect.activations import ROWS, Live
from glassgpt.inspect.display import Shown
from glassgpt.inspect.indexing import Array, Heads, Layers, MLPs, Streams
from glassgpt.inspect.lens import Lens, Surprise, Tops, Vocabulary, joined, surprised
from glassgpt.inspect.taps import checked_index, letters
from glassgpt.model.gpt2 import Tap

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.inspect.svg import Picture


class Trace(Shown):
    """The inside of the model for one text. Made by `gpt.trace`, or by `Trace.load` from a file.

    Nothing is computed before it is asked for. The first question runs the model once and keeps the residual
    stream; a question about the inside of a block runs that block again. All arrays are numpy float32.
    """

    def __init__(
        self,
        config: Config,
        tokens: Sequence[int],
        texts: Sequence[str],
        *,
        name: str = "",
        vocabulary: Vocabulary | None = None,
        live: Live | None = None,
        saved: Mapping[str, Array] | None = None,
    ) -> None:
        self.config = config
        self.tokens = list(tokens)
        self.texts = list(texts)
        self.name = name
        self.vocabulary = Vocabulary(config.vocab_size, None) if vocabulary is None else vocabulary
        self._live = live
        self._saved = {} if saved is None else saved
        self._lenses: dict[int, Tops] = {}  # by k; of a trace that grew, perhaps only its first columns
        self._surprised = np.full((3, 1), np.nan, np.float32)  # likewise: what is known of the first tokens
        self._begins_as: tuple[Trace, int] | None = None  # a trace whose first streams, so many, are ours

    @classmethod
    def of(cls, gpt: GPT, tokens: Sequence[int], change: Tap | None = None) -> Trace:
        """The trace of token ids; `change` may replace what any step holds (see `gpt.intervene`)."""
        from glassgpt.generate.engine import check_prompt, usable_vocab_size

        model = gpt.torch_model
        ids = check_prompt(tokens, gpt.backend, gpt.tokenizer)
        if len(ids) > gpt.config.n_positions:
            raise SettingError(
                f"the text has {len(ids):,} tokens, and this model reads at most "
                f"{gpt.config.n_positions:,} at once. Trace a part of it."
            )
        vocabulary = Vocabulary(usable_vocab_size(gpt.backend, gpt.tokenizer), gpt.tokenizer)
        texts = [vocabulary.text(token) for token in ids]
        live = Live(model, ids, change)
        return cls(gpt.config, ids, texts, name=gpt.name, vocabulary=vocabulary, live=live)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        start = "".join(self.texts)
        start = start if len(start) <= 40 else start[:39] + "…"
        return f"Trace({start!r}, {len(self)} tokens, {self.config.n_layer} layers, {self.name!r})"

    def picture(self) -> Picture:
        from glassgpt.inspect.plots import of_trace

        return of_trace(self)

    # Any step, by its name in docs/model.md.

    def __getitem__(self, name: str) -> Array:
        """`trace["h.3.attn.scores"]`: what that step holds, (H, T, T) here."""
        if not isinstance(name, str):
            raise SettingError(f"trace[{name!r}]: name a step, such as trace['h.0.attn.weights'].")
        return self.read(name)[name]

    def read(self, *names: str) -> dict[str, Array]:
        """Several steps at once: those of one block cost one run of it."""
        missing = [name for name in names if name not in self._saved]
        found = {name: _array(values) for name, values in self.tensors(missing).items()} if missing else {}
        return {name: found[name] if name in found else np.asarray(self._saved[name]) for name in names}

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The same in the model's own dtype and on its device."""
        if self._live is not None:
            return self._live.read(names)
        for name in names:
            letters(self.config, name)
            if name not in self._saved:
                raise UserError(
                    f"{name} is not in this file. Give the model as well, Trace.load(path, gpt), or save the "
                    "trace with more steps."
                )
        return {name: torch.from_numpy(np.array(self._saved[name])) for name in names}

    # By layer and head.

    @property
    def attention(self) -> Heads:
        """`[layer, head]` -> (T, T): how much each token (row) looks at each (column). Rows sum to one."""
        return Heads(self, "attn.weights")

    @property
    def q(self) -> Heads:
        """`[layer, head]` -> (T, D): what each token asks."""
        return Heads(self, "attn.q")

    @property
    def k(self) -> Heads:
        """`[layer, head]` -> (T, D): what each token offers."""
        return Heads(self, "attn.k")

    @property
    def v(self) -> Heads:
        """`[layer, head]` -> (T, D): what each token passes on."""
        return Heads(self, "attn.v")

    @property
    def z(self) -> Heads:
        """`[layer, head]` -> (T, D): the values, mixed by attention."""
        return Heads(self, "attn.z")

    @property
    def scores(self) -> Heads:
        """`[layer, head]` -> (T, T): every query times every key."""
        return Heads(self, "attn.scores")

    @property
    def scaled(self) -> Heads:
        """The scores divided by the square root of D."""
        return Heads(self, "attn.scaled")

    @property
    def masked(self) -> Heads:
        """The same with -inf where a token would look ahead."""
        return Heads(self, "attn.masked")

    @property
    def residual(self) -> Streams:
        """`[i]` -> (T, C): the residual stream, 0 after the embedding, i after i blocks."""
        return Streams(self)

    @property
    def residual_mid(self) -> Layers:
        """`[layer]` -> (T, C): the stream between a block's attention and its MLP."""
        return Layers(self, "resid_mid")

    @property
    def ln_1(self) -> Layers:
        """`[layer]` -> (T, C): what attention reads."""
        return Layers(self, "ln_1")

    @property
    def ln_2(self) -> Layers:
        """`[layer]` -> (T, C): what the MLP reads."""
        return Layers(self, "ln_2")

    @property
    def merged(self) -> Layers:
        """`[layer]` -> (T, C): the heads side by side."""
        return Layers(self, "attn.merged")

    @property
    def projected(self) -> Layers:
        """`[layer]` -> (T, C): what attention adds to the stream."""
        return Layers(self, "attn.proj")

    @property
    def mlp(self) -> MLPs:
        """`[layer]` -> (pre, post, out): inside the MLP, (T, M), (T, M), and what it adds, (T, C)."""
        return MLPs(self)

    # What the model answers.

    @property
    def logits(self) -> Array:
        """The score of every token as the one after each position, (T, V)."""
        return self["logits"]

    def logits_at(self, position: int = -1) -> Array:
        """One row of `logits`, (V,), without computing the others."""
        position = checked_index("position", position, len(self))
        if self._live is None or "logits" in self._saved:
            row: Array = self.logits[position]
            return row
        piece = position // ROWS
        (rows,) = self._live.final_logits(slice(piece, piece + 1))
        return _array(rows[position % ROWS])

    def p_at(self, position: int = -1) -> Array:
        """The probabilities of all tokens after a position; those without a text are left out."""
        return _array(self._log_p(torch.from_numpy(self.logits_at(position))).exp())

    @cached_property
    def surprise(self) -> Surprise:
        """The probability and rank of each token, and the entropy before it came."""
        if "surprise" in self._saved:
            return Surprise(*np.asarray(self._saved["surprise"]))
        known = self._surprised  # once: another thread may be adding to it
        if known.shape[1] < len(self):
            first = known.shape[1]
            later = surprised(map(self._log_p, self._final(first - 1)), self.tokens[first:])
            self._surprised = known = np.concatenate([known, later], axis=1)
        return Surprise(*known)

    def lens(self, k: int | None = None) -> Lens:
        """The logit lens: each layer's stream through the last norm and the head, for every position.

        `ids` and `p` are (n_layer + 1, T); with `k` they are (n_layer + 1, T, k), likeliest first.
        """
        wanted = 1 if k is None else k
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= self.vocabulary.size:
            raise SettingError(f"k is {k!r}; write a whole number from 1 to {self.vocabulary.size}.")
        ids, p = self._lens(wanted)
        if k is None:
            ids, p = ids[..., 0], p[..., 0]
        return Lens(ids, p, self.vocabulary.texts(ids))

    def _lens(self, k: int) -> Tops:
        kept = next((kept for kept in list(self._lenses) if kept >= k), None)
        if kept is not None:
            ids, p = self._lenses[kept]
            known = ids.shape[1]
            if known < len(self) and self._live is not None:  # grown since
                more = self._tops(self._live.late_logits(known), self.config.n_layer + 1, kept)
                ids, p = joined((ids, p), more, axis=1)
                self._lenses[kept] = ids, p
            return ids[..., :k], p[..., :k]
        if "lens.ids" in self._saved and self._saved["lens.ids"].shape[2] >= k:
            return np.asarray(self._saved["lens.ids"])[..., :k], np.asarray(self._saved["lens.p"])[..., :k]
        if self._live is None:
            raise UserError(
                f"this file holds fewer than {k} tokens a layer. Trace.load(path, gpt) computes more."
            )
        other, same = (None, 0) if self._begins_as is None else self._begins_as
        same = min(same, self.config.n_layer)  # the last row is the answer itself
        pieces = itertools.chain(self._live.lens_logits(same), self._live.final_logits())
        found = self._tops(pieces, self.config.n_layer + 1 - same, k)
        if other is not None and same:
            ids, p = other._lens(k)
            found = joined((ids[:same], p[:same]), found, axis=0)
        self._lenses[k] = found
        return found

    def _tops(self, pieces: Iterable[Tensor], rows: int, k: int) -> Tops:
        """The k likeliest ids and their probabilities, (rows, positions, k) each."""
        tops = [self._log_p(piece).topk(k, dim=-1) for piece in pieces]
        ids = torch.cat([top.indices for top in tops]).view(rows, -1, k).cpu().numpy()
        return ids, _array(torch.cat([top.values for top in tops]).view(rows, -1, k).exp())

    @cached_property
    def norms(self) -> Array:
        """The length of the residual stream at each layer and position, (n_layer + 1, T)."""
        if "norms" in self._saved:
            return np.asarray(self._saved["norms"])
        if self._live is not None:
            return _array(self._live.streams().float().norm(dim=-1))
        return np.stack([np.linalg.norm(stream, axis=-1) for stream in self.residual])

    def append(self, token: int) -> Trace:
        """The trace of the text with one more token, computed as one new column (through a KV cache)."""
        if self._live is None or self._live.change is not None:
            why = "was loaded without its model" if self._live is None else "has edits in it"
            raise UserError(f"this trace {why}, so nothing can be appended. Trace the longer text instead.")
        if isinstance(token, bool) or not 0 <= token < self.config.vocab_size:
            raise SettingError(f"{token!r} is no token id of this model, 0 to {self.config.vocab_size - 1}.")
        token = int(token)
        if len(self) >= self.config.n_positions:
            raise SettingError(
                f"the text fills all {self.config.n_positions:,} positions of this model already."
            )
        longer = Trace(
            self.config,
            [*self.tokens, token],
            [*self.texts, self.vocabulary.text(token)],
            name=self.name,
            vocabulary=self.vocabulary,
            live=self._live.extended(token),
        )
        # What is known of the beginning stays true: of the answers, too, only the new column is computed.
        longer._lenses, longer._surprised = dict(self._lenses), self._surprised
        return longer

    def forget(self) -> None:
        """Give back the memory of what was computed inside blocks; it is computed again when asked for."""
        if self._live is not None:
            self._live.forget()

    def save(self, path: str | Path, steps: str | Sequence[str] = "*") -> None:
        """Write one safetensors file that `Trace.load` opens, with the steps that the patterns name."""
        from glassgpt.inspect.trace_file import save

        save(self, path, steps)

    @classmethod
    def load(cls, path: str | Path, gpt: GPT | None = None) -> Trace:
        """Open a saved trace. With its model, what was not saved is computed."""
        from glassgpt.inspect.trace_file import load

        return load(path, gpt)

    def final_log_p(self) -> Iterator[Tensor]:
        """The log-probabilities after every position, (at most ROWS, tokens) at a time, in float64."""
        return (self._log_p(piece if piece.is_mps else piece.double()) for piece in self._final())

    def is_plain_pass_of(self, gpt: GPT) -> bool:
        """Whether its streams come, or will come, from one unchanged pass of that very model."""
        live = self._live
        if live is None or live.grown or live.change is not None or self._saved:
            return False
        return live.model is getattr(gpt.backend, "model", None)

    def begin_as(self, other: Trace, first: int | None) -> None:
        """Take over another trace's streams of the same text, up to the one that enters block `first`."""
        if first is not None and self._live is not None and other._live is not None:
            self._live.start = other._live.streams()[: first + 1]
            self._begins_as = other, first + 1

    def _final(self, since: int = 0) -> Iterable[Tensor]:
        """The logits from a position on, in pieces."""
        if self._live is not None:
            return self._live.final_logits(since=since)
        return torch.split(torch.from_numpy(np.array(self.logits[since:])), ROWS)

    def _log_p(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the ids that stand for text: a padded vocabulary has more rows than tokens."""
        logits = logits[..., : self.vocabulary.size]
        return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)


def _array(values: Tensor) -> Array:
    return values.detach().float().cpu().numpy()
