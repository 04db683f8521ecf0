"""Rows to log-probabilities, with as little arithmetic as the answer allows.

Three things make it quick. Rows of like length share a batch, so that little is padding. The head, which for
GPT-2 small is a third of the work, is applied only to tokens that are scored, and its logits never exist for
more than a stretch of tokens. And rows of a document that begin alike (a question and its answers) are read
up to where they part once, not once for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassgpt.evaluate.rows import Group, Ids, Row, shared_length
from glassgpt.evaluate.store import Scores, Store, key_of
from glassgpt.generate.backend import Backend
from glassgpt.model import GPT2, Cache, TorchBackend

SHARED_LEAST = 8  # tokens that rows must have in common for a second pass to be worth it


@dataclass(frozen=True)
class Pace:
    """How much is computed at once."""

    tokens: int
    stretch: int  # tokens whose logits are held
    cache_bytes: int


CPU = Pace(tokens=2048, stretch=256, cache_bytes=2**29)  # more gains nothing, and a first batch is soon done
GPU = Pace(tokens=32768, stretch=4096, cache_bytes=2**32)  # 2 GB of logits with their exponentials


OnTokens = Callable[[int], None]  # told how many tokens were read


@dataclass
class Batch:
    """Rows to be computed together; with `shared` > 0 as groups, whose rows begin alike."""

    groups: list[Group]
    shared: list[int]  # for each group, how many tokens its rows share; empty for plain rows

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


class Scorer:
    """A model that scores. `barred` are the tokens that a row marked `barred` may not choose first."""

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        barred: Sequence[int] = (),
        pace: Pace | None = None,
    ) -> None:
        self.backend = backend
        self.store = Store() if store is None else store
        self.barred = np.array(sorted(barred), np.int64)
        self.barred_list = self.barred.tobytes()
        on_gpu = isinstance(backend, TorchBackend) and backend.device.type != "cpu"
        self.pace = pace if pace is not None else GPU if on_gpu else CPU

    @property
    def n_positions(self) -> int:
        return self.backend.context

    def todo(self, groups: Sequence[Group]) -> list[Group]:
        """The rows whose scores are not known yet, each once, still in their groups."""
        seen: set[bytes] = set()
        left = []
        for group in groups:
            new = []
            for row in group:
                key = key_of(row, self.barred_list)
                if key not in self.store and key not in seen:
                    seen.add(key)
                    new.append(row)
            if new:
                left.append(new)
        return left

    def score(self, groups: Sequence[Group], on_tokens: OnTokens = lambda n: None) -> list[list[Scores]]:
        """The scores of every row of every group."""
        for batch in self.plan(self.todo(groups)):
            rows = batch.rows
            found = self.compute(batch)
            self.store.add(
                [(key_of(row, self.barred_list), one) for row, one in zip(rows, found, strict=True)]
            )
            on_tokens(sum(len(row.ids) for row in rows))
        return [[self.store[key_of(row, self.barred_list)] for row in group] for group in groups]

    def plan(self, groups: Sequence[Group]) -> Iterator[Batch]:
        """Batches of like lengths, the longest first: what does not fit into memory fails at once."""
        plain: list[Row] = []
        sharing: list[tuple[int, Group]] = []
        for group in groups:
            shared = shared_length(group) if len(group) > 1 and self._has_model() else 0
            if shared >= SHARED_LEAST:
                sharing.append((shared, group))
            else:
                plain += group
        plain.sort(key=lambda row: -len(row.ids))
        yield from self._plain_batches(plain)
        yield from self._shared_batches(sorted(sharing, key=lambda one: -one[0]))

    def _plain_batches(self, rows: list[Row]) -> Iterator[Batch]:
        while rows:
            many = max(1, self.pace.tokens // len(rows[0].ids))
            yield Batch([rows[:many]], [])
            rows = rows[many:]

    def _shared_batches(self, sharing: list[tuple[int, Group]]) -> Iterator[Batch]:
        while sharing:
            many = max(1, self.pace.tokens // sharing[0][0])
            yield Batch([group for _, group in sharing[:many]], [shared for shared, _ in sharing[:many]])
            sharing = sharing[many:]

    def _has_model(self) -> bool:
        return isinstance(self.backend, TorchBackend)

    def compute(self, batch: Batch) -> list[Scores]:
        rows = batch.rows
        if isinstance(self.backend, TorchBackend):
            with torch.inference_mode():
                model = self.backend.model
                hidden = read_shared(model, batch, self.pace) if batch.shared else read_plain(model, rows)
                return self._judge(model.head, hidden, rows)
        logits = torch.from_numpy(np.asarray(self.backend.logits([row.ids[:-1].tolist() for row in rows])))
        picked = [logits[i, row.first - 1 : len(row.ids) - 1] for i, row in enumerate(rows)]
        return self._judge(lambda some: some, torch.cat(picked), rows)

    def _judge(self, head: Callable[[Tensor], Tensor], x: Tensor, rows: list[Row]) -> list[Scores]:
        """Scores of all rows' tokens, whose final vectors are the rows of x, (N, C)."""
        targets = torch.from_numpy(np.concatenate([row.ids[row.first :] for row in rows])).to(x.device)
        ends = np.cumsum([row.n_scored for row in rows])
        firsts = ends - [row.n_scored for row in rows]
        restricted = np.zeros(len(targets), bool)
        restricted[[first for first, row in zip(firsts, rows, strict=True) if row.barred]] = True
        logprobs, greedy, unbarred = [], [], []
        for start in range(0, len(targets), self.pace.stretch):
            some = slice(start, start + self.pace.stretch)
            logits = head(x[some]).float()  # (stretch, V)
            target = targets[some]
            best = logits.argmax(dim=-1)
            greedy.append(best == target)
            allowed = best.clone()
            where = torch.from_numpy(restricted[some].nonzero()[0]).to(x.device)
            if len(where) and len(self.barred):
                barred = torch.from_numpy(self.barred).to(x.device)
                allowed[where] = logits[where].index_fill(1, barred, -torch.inf).argmax(dim=-1)
            unbarred.append(allowed == target)
            at_target = logits.gather(1, target[:, None])[:, 0]
            logprobs.append(at_target - logits.logsumexp(dim=-1))
        values = torch.cat(logprobs).cpu().numpy()
        flags = torch.cat(greedy).cpu().numpy()
        free = torch.cat(unbarred).cpu().numpy() & restricted
        return [
            Scores(values[first:end], flags[first:end], free[first:end])
            for first, end in zip(firsts, ends, strict=True)
        ]


def read_plain(model: GPT2, rows: list[Row]) -> Tensor:
    """The final vectors of all tokens that stand before a scored one, (N, C)."""
    device = model.wte.weight.device
    longest = max(len(row.ids) for row in rows) - 1
    ids = np.zeros((len(rows), longest), np.int64)  # what follows a row cannot reach back into it
    wanted = []
    for i, row in enumerate(rows):
        ids[i, : len(row.ids) - 1] = row.ids[:-1]
        wanted.append(np.arange(row.first - 1, len(row.ids) - 1) + i * longest)
    x = model.hidden(torch.from_numpy(ids).to(device))  # (B, T, C)
    return x.flatten(0, 1)[torch.from_numpy(np.concatenate(wanted)).to(device)]  # (N, C)


def read_shared(model: GPT2, batch: Batch, pace: Pace) -> Tensor:
    """The same for rows that begin alike: the beginnings once into a cache, then what follows them.

    What follows is sorted by length once more and read in smaller batches: answers to questions of equal
    length are not equally long, and padding was as much work as the tokens.
    """
    device, dtype = model.wte.weight.device, model.wte.weight.dtype
    shared, rows = np.array(batch.shared), batch.rows
    beginnings = np.zeros((len(shared), shared.max()), np.int64)
    for i, group in enumerate(batch.groups):
        beginnings[i, : shared[i]] = group[0].ids[: shared[i]]
    cache = Cache.empty(model.config, len(shared), int(shared.max()), device, dtype)
    model.hidden(torch.from_numpy(beginnings).to(device), cache=cache)

    owner = np.repeat(np.arange(len(shared)), [len(group) for group in batch.groups])
    rest = np.array([len(row.ids) - 1 for row in rows]) - shared[owner]  # tokens still to be read
    per_token = 2 * model.config.n_layer * model.config.n_embd * model.wte.weight.element_size()
    order = np.argsort(-rest, kind="stable")
    found: dict[int, Tensor] = {}
    while len(order):
        T, P = int(rest[order[0]]), int(shared.max())
        many = max(1, min(pace.tokens // 4 // T, pace.cache_bytes // (per_token * (P + T))))
        some, order = order[:many], order[many:]
        x = _read_on(model, cache, [rows[i] for i in some], owner[some], shared[owner[some]], T)  # (B, T, C)
        for i, vectors in zip(some, x, strict=True):
            found[int(i)] = vectors[rows[i].first - 1 - shared[owner[i]] : rest[i]]
    return torch.cat([found[i] for i in range(len(rows))])  # (N, C)


def _read_on(model: GPT2, cache: Cache, rows: list[Row], owner: Ids, shared: Ids, T: int) -> Tensor:
    """The final vectors of what follows the beginnings, at most T tokens, (B, T, C)."""
    device, P = model.wte.weight.device, int(shared.max())
    ids, positions = np.zeros((len(rows), T), np.int64), np.full((len(rows), T), -1, np.int64)
    for i, (row, begin) in enumerate(zip(rows, shared, strict=True)):
        n = len(row.ids) - 1 - begin
        ids[i, :n], positions[i, :n] = row.ids[begin:-1], np.arange(begin, begin + n)
    both = Cache.empty(model.config, len(rows), P + T, device, model.wte.weight.dtype)
    # A shorter beginning leaves padding after it; a row overwrites that before it could look there.
    both.kv[:, :, :, :, :P] = cache.kv[:, :, torch.from_numpy(owner).to(device), :, :P]
    return model.hidden(torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device), both)


def fingerprint(backend: Backend) -> str:
    """A name for exactly this model on this kind of device: the hash of its numbers."""
    hasher = hashlib.sha256(repr(backend.config).encode())
    if isinstance(backend, TorchBackend):
        for name, values in backend.model.state_dict().items():
            hasher.update(name.encode())
            hasher.update(values.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        hasher.update(f"{backend.dtype} {backend.device.type}".encode())
    else:
        probe = np.random.default_rng(0).integers(
            backend.config.vocab_size, size=(2, min(16, backend.context))
        )
        hasher.update(np.ascontiguousarray(backend.logits(probe.tolist())).tobytes())
    return hasher.hexdigest()[:32]
