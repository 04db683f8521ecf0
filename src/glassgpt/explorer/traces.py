"""The cache of traced texts, and a trace as JSON."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import short_repr
from glassgpt.explorer.models import Model, Models, piece_text
from glassgpt.generate.prompt import find_unknown_id
from glassgpt.gpt import GPT
from glassgpt.http.errors import ApiError
from glassgpt.inspect.arrays import largest

if TYPE_CHECKING:
    from glassgpt.inspect import Edit, Intervention, Trace

MAX_TOKENS = 1024  # the context of the published models; a longer one is seen in part
MAX_TRACES = 32
# The latest traces cache the activations inside blocks, up to 256 MB each; others recompute them.
MAX_CACHED_ACTIVATIONS = 3
MAX_INTERVENTIONS = 4
# The first pass of a text keeps what the views ask for next, if it is small: all steps of 70 tokens of the
# shipped model, the attention patterns of 290.
KEEP_BYTES = 32 * 2**20
LENS_TOP = 5  # the tokens of an opened cell of the tower
CANDIDATES = 10  # the next tokens that the page lists


@dataclass(eq=False)
class CachedTrace:
    """The trace of one text in one model. The same text in the same model has the same id."""

    number: int  # of the model: 0, or 1 for the second one
    checkpoint: int | None
    model: Model
    gpt: GPT
    trace: Trace
    # The head that the page opens (salient_heads.py), once known: it outlives the activations.
    opening: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return make_id(self.number, self.checkpoint, self.trace.tokens)

    def check_layer(self, layer: int) -> int:
        n_layer = self.gpt.config.n_layer
        if layer >= n_layer:
            raise ApiError(422, f"layer: {layer} is out of range. Use 0 to {n_layer - 1}.", "layer")
        return layer

    def check_head(self, head: int) -> int:
        n_head = self.gpt.config.n_head
        if head >= n_head:
            raise ApiError(422, f"head: {head} is out of range. Use 0 to {n_head - 1}.", "head")
        return head

    def check_token(self, token: int) -> int:
        if token >= self.model.n_tokens:
            raise ApiError(422, f"token: {token} is not a token id of this model.", "token")
        return token

    def check_position(self, position: int) -> int:
        if position >= len(self.trace):
            last = len(self.trace) - 1
            raise ApiError(422, f"position: {position} is out of range. Use 0 to {last}.", "position")
        return position

    def most_likely(self, position: int) -> list[int]:
        """The tokens that Next token lists at a position: the most likely first, of equals the lower id."""
        logits = self.trace.logits_at(position)[: self.model.n_tokens]
        found: list[int] = largest(logits, CANDIDATES).tolist()
        return found


class TraceCache:
    """The latest traces; the least recently used one is dropped first."""

    def __init__(self, models: Models, max_traces: int = MAX_TRACES) -> None:
        self.models = models
        self.max_traces = max_traces
        self._traces: OrderedDict[str, CachedTrace] = OrderedDict()
        self._interventions: OrderedDict[str, Intervention] = OrderedDict()

    def __getitem__(self, id: str) -> CachedTrace:
        if id not in self._traces:
            raise ApiError(404, f"Trace {id[:40]!r} is not cached (any more). Send its text again.", "id")
        self._traces.move_to_end(id)
        for older in list(self._traces.values())[:-MAX_CACHED_ACTIVATIONS]:
            older.trace.clear_cache()
        return self._traces[id]

    def get_or_trace(
        self, number: int, checkpoint: int | None, text: str | None, ids: list[int] | None
    ) -> CachedTrace:
        """The trace of a text, or of token ids."""
        model = self.models[number]
        if (text is None) == (ids is None):
            raise ApiError(422, "Send either text or ids.", "text")
        name = "ids" if text is None else "text"
        ids = check_ids(model, model.encode(text) if text is not None else list(ids or []), name)
        id = make_id(number, checkpoint, ids)
        if id not in self._traces:
            gpt = model.at(checkpoint)
            self._add(CachedTrace(number, checkpoint, model, gpt, gpt.trace(ids).keep_steps(KEEP_BYTES)))
        return self[id]

    def append(self, id: str, token: int) -> CachedTrace:
        """The text with one more token. Only its column is computed, with the KV cache."""
        before = self[id]
        ids = check_ids(before.model, [*before.trace.tokens, token], "token")
        new_id = make_id(before.number, before.checkpoint, ids)
        if new_id not in self._traces:
            trace = before.trace.append(token)
            self._add(CachedTrace(before.number, before.checkpoint, before.model, before.gpt, trace))
        return self[new_id]

    def intervene(self, cached: CachedTrace, edits: list[dict[str, Any]]) -> Intervention:
        """The text with edits: one run, whose result serves every position."""
        key = json.dumps([cached.id, edits], sort_keys=True)
        if key not in self._interventions:
            self._interventions[key] = cached.gpt.intervene(cached.trace, self.parse_edits(cached.gpt, edits))
            while len(self._interventions) > MAX_INTERVENTIONS:
                self._interventions.popitem(last=False)
        self._interventions.move_to_end(key)
        return self._interventions[key]

    def parse_edits(self, gpt: GPT, edits: list[dict[str, Any]]) -> list[Edit]:
        """Edits of a model; patches name a trace as their source."""
        from glassgpt.inspect import edit_from_dict

        sources = {each["source"]: self._source(each["source"], gpt) for each in edits if "source" in each}
        return [edit_from_dict(edit, sources) for edit in edits]

    def _source(self, id: str, gpt: GPT) -> Trace:
        """The trace that a patch takes its values from, of a model of the same shape."""
        source = self[id]
        if source.gpt.config.shapes() != gpt.config.shapes():
            raise ApiError(422, "source: a patch needs a trace of a model of the same shape.", "source")
        return source.trace

    def _add(self, cached: CachedTrace) -> None:
        self._traces[cached.id] = cached
        while len(self._traces) > self.max_traces:
            self._traces.popitem(last=False)


def make_id(number: int, checkpoint: int | None, ids: list[int]) -> str:
    return hashlib.sha256(repr((number, checkpoint, ids)).encode()).hexdigest()[:16]


def check_ids(model: Model, ids: list[int], field: str) -> list[int]:
    """The ids, once it is sure that this model can read them."""
    limit, size = max_tokens(model), model.n_tokens
    if not ids:
        eot = None if model.tokenizer is None else model.tokenizer.eot_id
        if eot is None or eot >= size:  # none, or one outside the model's vocabulary
            raise ApiError(422, "The text is empty. Enter at least one token.", field)
        return [eot]  # as at the start of a document in training
    unknown = find_unknown_id(ids, size)
    if unknown is not None:
        raise ApiError(
            422, f"{field}: {short_repr(unknown)} is not a token id. Use 0 to {size - 1:,}.", field
        )
    if len(ids) > limit:
        raise ApiError(
            422, f"{field}: {len(ids):,} tokens are over the limit of {limit:,}. Shorten the text.", field
        )
    return ids


def max_tokens(model: Model) -> int:
    return min(MAX_TOKENS, model.gpt.config.n_positions)


def trace_json(cached: CachedTrace) -> dict[str, Any]:
    """What the page needs of a trace when it opens."""
    model, trace = cached.model, cached.trace
    words, of_token = split_words(model, trace.tokens)
    ids, p = trace.lens_top_k(min(LENS_TOP, trace.vocabulary.size))  # for cells that are opened later
    loss = trace.token_loss
    losses = zip(loss.p[1:], loss.rank[1:], loss.entropy[1:], strict=True)
    return {
        "id": cached.id,
        "model": cached.number,
        "checkpoint": cached.checkpoint,
        "text": model.decode(trace.tokens),
        "tokens": [
            {"id": i, "text": model.text(i), "bytes": list(model.token_bytes(i) or b""), "word": word}
            for i, word in zip(trace.tokens, of_token, strict=True)
        ],
        "words": words,
        "token_loss": [
            None,
            *({"p": q, "rank": int(rank), "entropy": entropy} for q, rank, entropy in losses),
        ],
        "lens": lens_json(model, ids[..., 0], p[..., 0]),
        "norms": trace.norms,
    }


def lens_json(model: Model, ids: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    """Layers by positions, or layers by rank at one position."""
    return {
        "ids": np.ascontiguousarray(ids),
        "texts": [[model.text(i) for i in row] for row in ids.tolist()],
        "p": np.ascontiguousarray(p),
    }


def split_words(model: Model, ids: list[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The words of a text with every BPE merge, and for each token the number of its word.

    Ids that were picked one by one may differ from how the text would be tokenized: from there to the next
    special token, each token is a word of its own.
    """
    words: list[dict[str, Any]] = []
    of_token: list[int] = []

    def add(text: str, states: list[list[str]], length: int) -> None:
        first = len(of_token)
        of_token.extend([len(words)] * length)
        words.append({"text": text, "first": first, "last": first + length - 1, "merges": states})

    special = set() if model.tokenizer is None else set(model.tokenizer.special_tokens.values())
    while len(of_token) < len(ids):
        # Text between special tokens; these are words of their own.
        start = len(of_token)
        end = next((at for at in range(start, len(ids)) if ids[at] in special), len(ids))
        if model.tokenizer is not None and end > start:
            for word in model.tokenizer.explain(model.decode(ids[start:end])):
                if list(word.ids) != ids[len(of_token) : len(of_token) + len(word.ids)]:
                    break
                states = [word.start, *(merge.pieces for merge in word.merges)]
                add(word.text, [[piece_text(piece) for piece in pieces] for pieces in states], len(word.ids))
        for token in ids[len(of_token) : end + 1]:
            add(model.text(token), [[model.text(token)]], 1)
    return words, of_token


def attention_scale(gpt: GPT, layer: int) -> float:
    """The factor of a block's attention scores: 1 / sqrt(d_head) for most models."""
    from glassgpt.inspect.forward import make_forward

    return make_forward(gpt.model).attention_scale(layer)
