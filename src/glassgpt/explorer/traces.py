"""Texts that were run through a model, held for the questions that follow.

Held is the stream between the blocks, (T, C) for each; what happens inside a block is computed from it again
when somebody looks, one block at a time, so that a long text costs little until then.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.explorer.models import Model
from glassgpt.gpt import GPT
from glassgpt.http.errors import Refusal

if TYPE_CHECKING:
    from torch import Tensor

    from glassgpt.model import GPT2, Cache

MOST_TOKENS = 512
MOST_TRACES = 32


@dataclass(eq=False)
class Held:
    """One text in one model."""

    id: str
    number: int  # of the model: 0, or 1 for the one to compare with
    checkpoint: int | None
    model: Model
    gpt: GPT
    ids: list[int]
    residual: list[Tensor] = field(repr=False)  # n_layer + 1 of (T, C): after the embedding, after each block
    lens_ids: np.ndarray = field(repr=False)  # (n_layer + 1, T): what each layer would have said
    lens_p: np.ndarray = field(repr=False)  # (n_layer + 1, T)
    norms: np.ndarray = field(repr=False)  # (n_layer + 1, T)
    surprise: list[dict[str, float] | None] = field(repr=False)
    cache: Cache | None = field(default=None, repr=False)

    @property
    def torch_model(self) -> GPT2:
        return torch_model(self.gpt)

    def logits(self, token: int) -> np.ndarray:
        """The scores of every next token after a position, (V,)."""
        import torch

        with torch.inference_mode():
            x = self.residual[-1][token : token + 1]  # (1, C)
            logits: np.ndarray = numpy(self.torch_model.head(self.torch_model.ln_f(x)))[0]
            return logits

    def inside(self, layer: int) -> dict[str, Tensor]:
        """Every step within a block, by its name, the batch's dimension taken off."""
        import torch

        steps: dict[str, Tensor] = {}

        def tap(name: str, x: Tensor) -> Tensor:
            steps[name] = x[0]
            return x

        with torch.inference_mode():
            self.torch_model.h[layer](self.residual[layer][None], None, None, None, tap)
        return steps


class Traces:
    """The latest texts; the one that was not looked at for longest goes first."""

    def __init__(self, most: int = MOST_TRACES) -> None:
        self.most = most
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __getitem__(self, id: str) -> Held:
        if id not in self._held:
            raise Refusal(404, f"There is no trace {id[:40]!r} (any more). Send its text again.", "id")
        self._held.move_to_end(id)
        return self._held[id]

    def get(self, id: str) -> Held | None:
        return self[id] if id in self._held else None

    def add(self, held: Held) -> Held:
        self._held[held.id] = held
        self._held.move_to_end(held.id)
        while len(self._held) > self.most:
            self._held.popitem(last=False)
        return held


def id_of(number: int, checkpoint: int | None, ids: list[int]) -> str:
    """The same text in the same model is the same trace."""
    return hashlib.sha256(repr((number, checkpoint, ids)).encode()).hexdigest()[:16]


def trace(model: Model, number: int, checkpoint: int | None, ids: list[int]) -> Held:
    import torch

    gpt = model.at(checkpoint)
    net = torch_model(gpt)
    residual: list[Tensor] = []

    def tap(name: str, x: Tensor) -> Tensor:
        if name == "embedding" or name.endswith(".resid_post"):
            residual.append(x[0])
        return x

    with torch.inference_mode():
        net.hidden(torch.tensor([ids], device=net.wte.weight.device), tap=tap)
        lens_ids, lens_p, norms = lens(net, residual)
        surprise = [None, *surprises(net, residual[-1][:-1], ids[1:])]
    return Held(
        id_of(number, checkpoint, ids),
        number,
        checkpoint,
        model,
        gpt,
        ids,
        residual,
        lens_ids,
        lens_p,
        norms,
        surprise,
    )


def append(held: Held, token: int) -> Held:
    """The same text with one token more. Only its column is computed: keys and values come from the cache."""
    import torch

    from glassgpt.model import Cache

    net, T = held.torch_model, len(held.ids)
    device, dtype = net.wte.weight.device, net.wte.weight.dtype
    column: list[Tensor] = []

    def tap(name: str, x: Tensor) -> Tensor:
        if name == "embedding" or name.endswith(".resid_post"):
            column.append(x[0])  # (1, C)
        return x

    with torch.inference_mode():
        cache = Cache.empty(held.gpt.config, 1, T + 1, device, dtype)
        if held.cache is None:  # the first token that is appended: the text is read once into the cache
            net.hidden(torch.tensor([held.ids], device=device), cache=cache)
        else:
            cache.kv[..., :T, :] = held.cache.kv[..., :T, :]
        net.hidden(
            torch.tensor([[token]], device=device), torch.tensor([[T]], device=device), cache=cache, tap=tap
        )
        lens_ids, lens_p, norms = lens(net, column)
        surprise = surprises(net, held.residual[-1][-1:], [token])
        residual = [torch.cat([old, new]) for old, new in zip(held.residual, column, strict=True)]
    held.cache = None  # the longer text has it now
    ids = [*held.ids, token]
    return Held(
        id_of(held.number, held.checkpoint, ids),
        held.number,
        held.checkpoint,
        held.model,
        held.gpt,
        ids,
        residual,
        np.concatenate([held.lens_ids, lens_ids], axis=1),
        np.concatenate([held.lens_p, lens_p], axis=1),
        np.concatenate([held.norms, norms], axis=1),
        [*held.surprise, *surprise],
        cache,
    )


def lens(net: GPT2, residual: list[Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each layer would have said, how sure it is, and the stream's length: (n_layer + 1, T) each."""
    import torch

    ids, p, norms = [], [], []
    for x in residual:
        logits = net.head(net.ln_f(x)).float()  # (T, V)
        best = logits.max(dim=-1)
        ids.append(best.indices)
        p.append((best.values - logits.logsumexp(dim=-1)).exp())
        norms.append(x.float().norm(dim=-1))
    return tuple(numpy(torch.stack(rows)) for rows in (ids, p, norms))  # type: ignore[return-value]


def surprises(net: GPT2, x: Tensor, followed_by: list[int]) -> list[dict[str, float] | None]:
    """How the model took each token that came: its probability, its rank, how open the question was."""
    import torch

    if not followed_by:
        return []
    logprobs = net.head(net.ln_f(x)).float().log_softmax(dim=-1)  # (T, V)
    came = logprobs.gather(1, torch.tensor(followed_by, device=x.device)[:, None])  # (T, 1)
    rank = (logprobs > came).sum(dim=-1) + 1
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(dim=-1)
    rows = zip(came[:, 0].exp().tolist(), rank.tolist(), entropy.tolist(), strict=True)
    return [{"p": p, "rank": rank, "entropy": entropy} for p, rank, entropy in rows]


def checked_ids(model: Model, ids: list[int], field: str) -> list[int]:
    """Ids that this model can read, or the reason why not."""
    config = model.gpt.config
    limit = most_tokens(model)
    if not ids:
        eot = None if model.tokenizer is None else model.tokenizer.eot_id
        if eot is None:
            raise Refusal(422, "There is no text. Write at least one token.", field)
        return [eot]  # as a document begins in training
    if len(ids) > limit:
        raise Refusal(
            422,
            f"{field}: {len(ids):,} tokens are too many; the limit is {limit:,}. Send a shorter text.",
            field,
        )
    wrong = next((i for i in ids if not 0 <= i < config.vocab_size), None)
    if wrong is not None:
        raise Refusal(
            422, f"{field}: {wrong} is no token id; they go from 0 to {config.vocab_size - 1:,}.", field
        )
    return ids


def most_tokens(model: Model) -> int:
    return min(MOST_TOKENS, model.gpt.config.n_positions)


def torch_model(gpt: GPT) -> GPT2:
    return gpt.backend.model  # type: ignore[attr-defined, no-any-return]


def numpy(x: Tensor) -> np.ndarray:
    return (x if x.dtype.is_floating_point is False else x.float()).cpu().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    best = x.max()
    weights: np.ndarray = np.exp(x - (best if math.isfinite(best) else 0))
    total: np.ndarray = weights / weights.sum()
    return total


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
        add(model.token_text(token), [[model.token_text(token)]], 1)
    return words, of_token


def piece_text(data: bytes) -> str:
    """A piece of a word; bytes that are no whole character as numbers, not as one � like the other."""
    shown = data.decode("utf-8", "surrogateescape")
    return "".join(f"<{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in shown)


def as_json(held: Held) -> dict[str, Any]:
    """What the page needs of a trace at once."""
    model = held.model
    words, of_token = words_of(model, held.ids)
    data = [model.token_bytes(i) for i in held.ids]
    return {
        "id": held.id,
        "model": held.number,
        "checkpoint": held.checkpoint,
        "text": model.decode(held.ids),
        "tokens": [
            {"id": i, "text": model.token_text(i), "bytes": list(b or b""), "word": word}
            for i, b, word in zip(held.ids, data, of_token, strict=True)
        ],
        "words": words,
        "surprise": held.surprise,
        "lens": lens_json(model, held.lens_ids, held.lens_p),
        "norms": held.norms,
    }


def lens_json(model: Model, ids: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    return {"ids": ids, "texts": [[model.token_text(int(i)) for i in row] for row in ids], "p": p}
