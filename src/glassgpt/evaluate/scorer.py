"""Rows to log-probabilities, with as little arithmetic as the answer allows.

Four things make it quick. Rows of like length share a batch, so that little is padding. The head, which for
GPT-2 small is a third of the work, is applied only to tokens that are scored, and its logits never exist for
more than a stretch of tokens. What rows of a document have in common is read once (see reading.py). And on a
CPU every core has a batch of its own (see cores.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassgpt.backend import Backend
from glassgpt.config import Config
from glassgpt.errors import UserError
from glassgpt.evaluate.batching import plain_sheet, read, tree_length, tree_sheet
from glassgpt.evaluate.score_cache import Scores, Store, key_of
from glassgpt.evaluate.threads import over_cores
from glassgpt.evaluate.windows import Group, Row, shared_length
from glassgpt.model import TorchBackend
from glassgpt.model.fast_path import can_score_trees

SHARED_LEAST = 8  # tokens that rows must have in common to be read as a tree
TREE_ENDINGS = 1024  # tokens of endings in one tree: what it costs to look at grows with the square


@dataclass(frozen=True)
class Pace:
    """How much is computed at once."""

    tokens: int  # of a batch
    stretch: int  # tokens whose logits are held


# Larger ones leave a core's own cache; and the last one, for which the other cores wait, is soon done.
CPU = Pace(tokens=1024, stretch=256)


def gpu_pace(config: Config, element: int, free: int) -> Pace:
    """As much as a quarter of the free memory holds, for the blocks and again for the logits.

    A token takes up to four times its MLP's width while a block is computed, and its row of logits is there
    in float32 twice. More than the limits here no GPU gains by.
    """
    reading = 4 * config.d_mlp * element
    scoring = 2 * 4 * config.vocab_size
    return Pace(
        tokens=max(config.n_positions, min(2**17, free // 4 // reading)),
        stretch=max(64, min(2**14, free // 4 // scoring)),
    )


def pace_of(backend: Backend) -> Pace:
    """Small batches on a CPU, on other devices as large as their memory allows."""
    if not isinstance(backend, TorchBackend) or backend.device.type == "cpu":
        return CPU
    free = 4 * 2**30  # where the device cannot say
    if backend.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(backend.device)
    return gpu_pace(backend.config, backend.model.wte.weight.element_size(), free)


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
        self.pace = pace_of(backend) if pace is None else pace

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
                    self._check_ids(row)
                    seen.add(key)
                    new.append(row)
            if new:
                left.append(new)
        return left

    def _check_ids(self, row: Row) -> None:
        largest, vocab_size = int(row.ids.max(initial=0)), self.backend.config.vocab_size
        if largest >= vocab_size:
            raise UserError(
                f"the tokenizer gives the id {largest:,}, but the model's vocabulary has {vocab_size:,}: "
                "they do not belong together. Put the model's own tokenizer.json beside its weights."
            )

    def score(self, groups: Sequence[Group], on_tokens: OnTokens = lambda n: None) -> list[list[Scores]]:
        """The scores of every row of every group."""
        with closing(self.computed(self.plan(self.todo(groups)))) as computed:
            for batch, found in computed:
                rows = batch.rows
                self.store.add(
                    [(key_of(row, self.barred_list), one) for row, one in zip(rows, found, strict=True)]
                )
                on_tokens(sum(len(row.ids) for row in rows))
        return [[self.store[key_of(row, self.barred_list)] for row in group] for group in groups]

    def plan(self, groups: Sequence[Group]) -> Iterator[Batch]:
        """Batches of like lengths, the longest first: what does not fit into memory fails at once."""
        plain: list[Row] = []
        trees: list[tuple[Group, int]] = []
        # Another attention than ours need not know what a tree's mask means.
        may_share = isinstance(self.backend, TorchBackend) and can_score_trees(self.backend.model)
        for group in groups:
            shared = shared_length(group) if len(group) > 1 and may_share else 0
            if shared < SHARED_LEAST:
                plain += group
            else:
                trees += [(part, shared) for part in split_endings(group, shared)]
        plain.sort(key=lambda row: -len(row.ids))
        while plain:
            many = max(1, self.pace.tokens // len(plain[0].ids))
            yield Batch([plain[:many]], [])
            plain = plain[many:]
        trees.sort(key=lambda tree: -tree_length(*tree))
        while trees:
            many = max(1, self.pace.tokens // tree_length(*trees[0]))
            yield Batch([group for group, _ in trees[:many]], [shared for _, shared in trees[:many]])
            trees = trees[many:]

    def computed(self, batches: Iterator[Batch]) -> Generator[tuple[Batch, list[Scores]], None, None]:
        """Each batch with its scores, in order; on a CPU several at a time."""
        if isinstance(self.backend, TorchBackend) and self.backend.device.type == "cpu":
            return over_cores(self.compute, list(batches))
        return ((batch, self.compute(batch)) for batch in batches)

    @torch.inference_mode()
    def compute(self, batch: Batch) -> list[Scores]:
        rows = batch.rows
        if isinstance(self.backend, TorchBackend):
            model = self.backend.model
            sheet = tree_sheet(batch.groups, batch.shared) if batch.shared else plain_sheet(rows)
            return self._judge(model.head, read(model, sheet), rows)
        logits = torch.from_numpy(np.asarray(self.backend.logits([row.ids[:-1].tolist() for row in rows])))
        picked = [logits[i, row.first - 1 : len(row.ids) - 1] for i, row in enumerate(rows)]
        return self._judge(lambda some: some, torch.cat(picked), rows)

    def _judge(self, head: Callable[[Tensor], Tensor], x: Tensor, rows: list[Row]) -> list[Scores]:
        """Scores of all rows' tokens, whose final vectors are the rows of x, (N, C)."""
        targets = torch.from_numpy(np.concatenate([row.ids[row.first :] for row in rows])).to(x.device)
        ends = np.cumsum([row.n_scored for row in rows])
        firsts = ends - [row.n_scored for row in rows]
        asked = np.array([first for first, row in zip(firsts, rows, strict=True) if row.barred], np.int64)
        barred = torch.from_numpy(self.barred).to(x.device)
        logprobs, greedy, unbarred = [], [], []
        for start in range(0, len(targets), self.pace.stretch):
            some = slice(start, start + self.pace.stretch)
            logits = head(x[some])  # (stretch, V)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            found, flags = judged(logits, targets[some])
            logprobs.append(found)
            greedy.append(flags)
            here = asked[(asked >= start) & (asked < start + self.pace.stretch)] - start
            if len(here):
                where = torch.from_numpy(here).to(x.device)
                best = logits[where].index_fill(1, barred, -torch.inf).argmax(dim=-1)
                unbarred.append(best == targets[some][where])
        values, said = torch.cat(logprobs).cpu().numpy(), torch.cat(greedy).cpu().numpy()
        free = np.zeros(len(values), bool)
        if unbarred:
            free[asked] = torch.cat(unbarred).cpu().numpy()
        return [
            Scores(values[first:end], said[first:end], free[first:end])
            for first, end in zip(firsts, ends, strict=True)
        ]


def judged(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, in float64, and whether it is the likeliest token (the first of
    those that are).

    The likeliest token's probability is one over the softmax's sum. Its logarithm is exact to a float32's
    last digits, where that of the logits' sum, which is of their size, loses two more.
    """
    best = logits.amax(dim=-1)  # (N,)
    at_target = logits.gather(1, target[:, None])[:, 0]
    likeliest = logits.softmax(dim=-1).amax(dim=-1)
    logprobs = (at_target.double() - best.double()) + likeliest.double().log()
    greedy = at_target == best
    if logits.is_cpu:  # there, to find the place of the largest takes as long as all of the above
        ties = greedy.nonzero()[:, 0]
        greedy[ties] = logits[ties].argmax(dim=-1) == target[ties]
    else:
        greedy = logits.argmax(dim=-1) == target
    return logprobs, greedy


def split_endings(group: Group, shared: int) -> Iterator[Group]:
    """The rows of a group in as many trees as keep each within bounds."""
    part: Group = []
    for row in group:
        if part and tree_length([*part, row], shared) - shared > TREE_ENDINGS:
            yield part
            part = []
        part.append(row)
    yield part


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
