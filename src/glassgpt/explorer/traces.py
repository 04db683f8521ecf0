"""Texts that were run through a model, held for the questions that follow; what the page is told of them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.explorer.models import Model, Models
from glassgpt.gpt import GPT
from glassgpt.http.errors import Refusal

if TYPE_CHECKING:
    from glassgpt.inspect import Lens, Trace

MOST_TOKENS = 512
MOST_TRACES = 32
MOST_OPENED = (
    3  # of these the inside of blocks is kept, up to 256 MB each; of the others it is computed again
)


@dataclass(eq=False)
class Held:
    """One text in one model. The same text in the same model is the same trace, and has the same id."""

    number: int  # of the model: 0, or 1 for the one to compare with
    checkpoint: int | None
    model: Model
    gpt: GPT
    trace: Trace

    @property
    def id(self) -> str:
        return id_of(self.number, self.checkpoint, self.trace.tokens)

    def layer(self, layer: int) -> int:
        """The number of a block that is there."""
        n_layer = self.gpt.config.n_layer
        if layer >= n_layer:
            raise Refusal(422, f"layer: {layer} is too much; there are {n_layer}, from 0 on.", "layer")
        return layer

    def head(self, head: int) -> int:
        n_head = self.gpt.config.n_head
        if head >= n_head:
            raise Refusal(422, f"head: {head} is too much; there are {n_head}, from 0 on.", "head")
        return head

    def token(self, token: int) -> int:
        """A place in the text."""
        if token >= len(self.trace):
            raise Refusal(
                422, f"token: {token} is too much; the text has {len(self.trace)}, from 0 on.", "token"
            )
        return token


class Traces:
    """The latest texts; the one that nobody looked at for longest goes first."""

    def __init__(self, models: Models, most: int = MOST_TRACES) -> None:
        self.models = models
        self.most = most
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __getitem__(self, id: str) -> Held:
        if id not in self._held:
            raise Refusal(404, f"There is no trace {id[:40]!r} (any more). Send its text again.", "id")
        self._held.move_to_end(id)
        for older in list(self._held.values())[:-MOST_OPENED]:
            older.trace.forget()
        return self._held[id]

    def of(self, number: int, checkpoint: int | None, text: str | None, ids: list[int] | None) -> Held:
        """The trace of a text, or of token ids."""
        model = self.models[number]
        if (text is None) == (ids is None):
            raise Refusal(422, "Send either text or ids.", "text")
        name = "ids" if text is None else "text"
        ids = checked_ids(model, model.encode(text) if text is not None else list(ids or []), name)
        found = id_of(number, checkpoint, ids)
        if found not in self._held:
            gpt = model.at(checkpoint)
            self._add(Held(number, checkpoint, model, gpt, gpt.trace(ids)))
        return self[found]

    def longer(self, id: str, token: int) -> Held:
        """A text with one token more. Only its own column is computed: the rest is in the model's cache."""
        before = self[id]
        ids = checked_ids(before.model, [*before.trace.tokens, token], "token")
        found = id_of(before.number, before.checkpoint, ids)
        if found not in self._held:
            trace = before.trace.append(token)
            self._add(Held(before.number, before.checkpoint, before.model, before.gpt, trace))
        return self[found]

    def _add(self, held: Held) -> None:
        self._held[held.id] = held
        while len(self._held) > self.most:
            self._held.popitem(last=False)


def id_of(number: int, checkpoint: int | None, ids: list[int]) -> str:
    return hashlib.sha256(repr((number, checkpoint, ids)).encode()).hexdigest()[:16]


def checked_ids(model: Model, ids: list[int], field: str) -> list[int]:
    """Ids that this model can read, or the reason why not."""
    limit, size = most_tokens(model), model.n_tokens
    if not ids:
        eot = None if model.tokenizer is None else model.tokenizer.eot_id
        if eot is None or eot >= size:  # none, or one that the model never learned
            raise Refusal(422, "There is no text. Write at least one token.", field)
        return [eot]  # as a document begins in training
    wrong = next((i for i in ids if not 0 <= i < size), None)
    if wrong is not None:
        raise Refusal(422, f"{field}: {wrong} is no token id; they go from 0 to {size - 1:,}.", field)
    if len(ids) > limit:
        raise Refusal(
            422, f"{field}: {len(ids):,} tokens are too many; the limit is {limit:,}. Cut the text.", field
        )
    return ids


def most_tokens(model: Model) -> int:
    return min(MOST_TOKENS, model.gpt.config.n_positions)


def as_json(held: Held) -> dict[str, Any]:
    """What the page needs of a trace at once."""
    model, trace = held.model, held.trace
    words, of_token = words_of(model, trace.tokens)
    surprise = trace.surprise
    came = zip(surprise.p[1:], surprise.rank[1:], surprise.entropy[1:], strict=True)
    return {
        "id": held.id,
        "model": held.number,
        "checkpoint": held.checkpoint,
        "text": model.decode(trace.tokens),
        "tokens": [
            {"id": i, "text": model.text(i), "bytes": list(model.token_bytes(i) or b""), "word": word}
            for i, word in zip(trace.tokens, of_token, strict=True)
        ],
        "words": words,
        "surprise": [None, *({"p": p, "rank": int(rank), "entropy": entropy} for p, rank, entropy in came)],
        "lens": lens_json(model, trace.lens()),
        "norms": trace.norms,
    }


def lens_json(model: Model, lens: Lens) -> dict[str, Any]:
    return {
        "ids": np.ascontiguousarray(lens.ids),
        "texts": [[model.text(int(i)) for i in row] for row in lens.ids],
        "p": np.ascontiguousarray(lens.p),
    }


def words_of(model: Model, ids: list[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The words of a text with every state of their merging, and for each token the number of its word.

    Tokens that were picked one by one need not be how the text would be cut: from where the two part, each
    token is a word of its own.
    """
    words: list[dict[str, Any]] = []
    of_token: list[int] = []

    def add(text: str, states: list[list[str]], length: int) -> None:
        first = len(of_token)
        of_token.extend([len(words)] * length)
        words.append({"text": text, "first": first, "last": first + length - 1, "merges": states})

    if model.tokenizer is not None:
        for word in model.tokenizer.explain(model.decode(ids)):
            if list(word.ids) != ids[len(of_token) : len(of_token) + len(word.ids)]:
                break
            states = [word.start, *(merge.pieces for merge in word.merges)]
            add(word.text, [[piece_text(piece) for piece in pieces] for pieces in states], len(word.ids))
    for token in ids[len(of_token) :]:
        add(model.text(token), [[model.text(token)]], 1)
    return words, of_token


def piece_text(data: bytes) -> str:
    """A piece of a word; bytes that are no whole character as numbers, not as one � like the other."""
    shown = data.decode("utf-8", "surrogateescape")
    return "".join(f"<{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in shown)


def scale(gpt: GPT, layer: int) -> float:
    """What scores are multiplied with in a block: 1 / sqrt(d_head), for almost every model."""
    return float(gpt.torch_model.h[layer].attn.scale)  # type: ignore[union-attr, arg-type]
