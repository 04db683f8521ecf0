"""Log-likelihoods of the scored tokens of windows, with as little arithmetic as possible.

Four things make it fast. Windows of similar length share a batch, so there is little padding. The LM head, a
third of the work in GPT-2 small, is applied only to tokens that are scored, a chunk of them at a time. A
prefix that the windows of a document share is computed once (batching.py). On a CPU every core works on its
own batch (threads.py).
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
from glassgpt.evaluate.score_cache import ScoreCache, Scores, cache_key
from glassgpt.evaluate.threads import map_over_threads
from glassgpt.evaluate.windows import Group, Window, shared_prefix_length
from glassgpt.model import TorchBackend
from glassgpt.model.plain import all_attend_plainly

SHARED_LEAST = 8  # tokens that windows must share to be computed as a tree
TREE_ENDINGS = 1024  # tokens of endings in one tree: attention grows with the square


@dataclass(frozen=True)
class BatchLimits:
    """How much is computed together."""

    tokens: int  # of a batch
    chunk: int  # tokens whose logits are in memory together


# Larger ones overflow a core's cache, and the other cores wait longer for the last one.
CPU = BatchLimits(tokens=1024, chunk=256)


def gpu_batch_limits(config: Config, element: int, free: int) -> BatchLimits:
    """A quarter of the free memory for the blocks, another for the logits.

    A token takes up to four times its MLP's width while a block is computed, and its logits exist twice in
    float32. Beyond the upper bounds here no GPU gets faster.
    """
    reading = 4 * config.d_mlp * element
    scoring = 2 * 4 * config.vocab_size
    return BatchLimits(
        tokens=max(config.n_positions, min(2**17, free // 4 // reading)),
        chunk=max(64, min(2**14, free // 4 // scoring)),
    )


def batch_limits(backend: Backend) -> BatchLimits:
    """Small batches on a CPU, on other devices as large as their memory allows."""
    if not isinstance(backend, TorchBackend) or backend.device.type == "cpu":
        return CPU
    free = 4 * 2**30  # where the device cannot say
    if backend.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(backend.device)
    return gpu_batch_limits(backend.config, backend.model.wte.weight.element_size(), free)


OnTokens = Callable[[int], None]  # called with the number of tokens scored


@dataclass
class Batch:
    """Windows to be scored together; with `shared` > 0 as groups of windows with a common prefix."""

    groups: list[Group]
    shared: list[int]  # for each group, the length of the shared prefix; empty without trees

    @property
    def rows(self) -> list[Window]:
        return [row for group in self.groups for row in group]


class Scorer:
    """Scores windows. `suppress` are the tokens excluded at the first token of windows marked `suppress`."""

    def __init__(
        self,
        backend: Backend,
        cache: ScoreCache | None = None,
        suppress: Sequence[int] = (),
        limits: BatchLimits | None = None,
    ) -> None:
        self.backend = backend
        self.cache = ScoreCache() if cache is None else cache
        self.suppress = np.array(sorted(suppress), np.int64)
        self.suppressed_key = self.suppress.tobytes()
        self.limits = batch_limits(backend) if limits is None else limits

    @property
    def n_positions(self) -> int:
        return self.backend.context

    def uncached(self, groups: Sequence[Group]) -> list[Group]:
        """The windows whose scores are not in the cache, each once, still in their groups."""
        seen: set[bytes] = set()
        left = []
        for group in groups:
            new = []
            for row in group:
                key = cache_key(row, self.suppressed_key)
                if key not in self.cache and key not in seen:
                    self._check_ids(row)
                    seen.add(key)
                    new.append(row)
            if new:
                left.append(new)
        return left

    def _check_ids(self, row: Window) -> None:
        largest, vocab_size = int(row.ids.max(initial=0)), self.backend.config.vocab_size
        if largest >= vocab_size:
            raise UserError(
                f"the tokenizer gives the id {largest:,}, but the model's vocabulary has {vocab_size:,}: "
                "they do not belong together. Put the model's own tokenizer.json beside its weights."
            )

    def score(self, groups: Sequence[Group], on_tokens: OnTokens = lambda n: None) -> list[list[Scores]]:
        """The scores of every window of every group."""
        with closing(self.score_batches(self.make_batches(self.uncached(groups)))) as scored:
            for batch, found in scored:
                rows = batch.rows
                self.cache.add(
                    [(cache_key(row, self.suppressed_key), one) for row, one in zip(rows, found, strict=True)]
                )
                on_tokens(sum(len(row.ids) for row in rows))
        return [[self.cache[cache_key(row, self.suppressed_key)] for row in group] for group in groups]

    def make_batches(self, groups: Sequence[Group]) -> Iterator[Batch]:
        """Batches of similar lengths, the longest first: what does not fit into memory fails right away."""
        plain: list[Window] = []
        trees: list[tuple[Group, int]] = []
        # Another attention class need not support a tree's mask.
        may_share = isinstance(self.backend, TorchBackend) and all_attend_plainly(self.backend.model)
        for group in groups:
            shared = shared_prefix_length(group) if len(group) > 1 and may_share else 0
            if shared < SHARED_LEAST:
                plain += group
            else:
                trees += [(part, shared) for part in split_endings(group, shared)]
        plain.sort(key=lambda row: -len(row.ids))
        while plain:
            many = max(1, self.limits.tokens // len(plain[0].ids))
            yield Batch([plain[:many]], [])
            plain = plain[many:]
        trees.sort(key=lambda tree: -tree_length(*tree))
        while trees:
            many = max(1, self.limits.tokens // tree_length(*trees[0]))
            yield Batch([group for group, _ in trees[:many]], [shared for _, shared in trees[:many]])
            trees = trees[many:]

    def score_batches(self, batches: Iterator[Batch]) -> Generator[tuple[Batch, list[Scores]], None, None]:
        """Each batch with its scores, in order; on a CPU several in parallel."""
        if isinstance(self.backend, TorchBackend) and self.backend.device.type == "cpu":
            return map_over_threads(self.score_batch, list(batches))
        return ((batch, self.score_batch(batch)) for batch in batches)

    @torch.inference_mode()
    def score_batch(self, batch: Batch) -> list[Scores]:
        rows = batch.rows
        if isinstance(self.backend, TorchBackend):
            model = self.backend.model
            sheet = tree_sheet(batch.groups, batch.shared) if batch.shared else plain_sheet(rows)
            return self._score_tokens(model.head, read(model, sheet), rows)
        logits = torch.from_numpy(np.asarray(self.backend.logits([row.ids[:-1].tolist() for row in rows])))
        picked = [logits[i, row.first - 1 : len(row.ids) - 1] for i, row in enumerate(rows)]
        return self._score_tokens(lambda some: some, torch.cat(picked), rows)

    def _score_tokens(self, head: Callable[[Tensor], Tensor], x: Tensor, rows: list[Window]) -> list[Scores]:
        """The scores of all windows, whose final hidden states are x, (N, C)."""
        targets = torch.from_numpy(np.concatenate([row.ids[row.first :] for row in rows])).to(x.device)
        ends = np.cumsum([row.n_scored for row in rows])
        firsts = ends - [row.n_scored for row in rows]
        asked = np.array([first for first, row in zip(firsts, rows, strict=True) if row.suppress], np.int64)
        suppress = torch.from_numpy(self.suppress).to(x.device)
        logprobs, greedy, greedy_unsuppressed = [], [], []
        for start in range(0, len(targets), self.limits.chunk):
            some = slice(start, start + self.limits.chunk)
            logits = head(x[some])  # (chunk, V)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            found, flags = token_logprobs(logits, targets[some])
            logprobs.append(found)
            greedy.append(flags)
            here = asked[(asked >= start) & (asked < start + self.limits.chunk)] - start
            if len(here):
                where = torch.from_numpy(here).to(x.device)
                best = logits[where].index_fill(1, suppress, -torch.inf).argmax(dim=-1)
                greedy_unsuppressed.append(best == targets[some][where])
        values, said = torch.cat(logprobs).cpu().numpy(), torch.cat(greedy).cpu().numpy()
        free = np.zeros(len(values), bool)
        if greedy_unsuppressed:
            free[asked] = torch.cat(greedy_unsuppressed).cpu().numpy()
        return [
            Scores(values[first:end], said[first:end], free[first:end])
            for first, end in zip(firsts, ends, strict=True)
        ]


def token_logprobs(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, in float64, and whether it is the argmax (the first of several).

    The largest probability is one over the softmax's sum. Its logarithm is exact to a float32's last digits;
    a logsumexp, which has the magnitude of the logits, loses two more.
    """
    best = logits.amax(dim=-1)  # (N,)
    at_target = logits.gather(1, target[:, None])[:, 0]
    likeliest = logits.softmax(dim=-1).amax(dim=-1)
    logprobs = (at_target.double() - best.double()) + likeliest.double().log()
    greedy = at_target == best
    if logits.is_cpu:  # argmax takes as long as all of the above there
        ties = greedy.nonzero()[:, 0]
        greedy[ties] = logits[ties].argmax(dim=-1) == target[ties]
    else:
        greedy = logits.argmax(dim=-1) == target
    return logprobs, greedy


def split_endings(group: Group, shared: int) -> Iterator[Group]:
    """The windows of a group in as many trees as keep each within the limit."""
    part: Group = []
    for row in group:
        if part and tree_length([*part, row], shared) - shared > TREE_ENDINGS:
            yield part
            part = []
        part.append(row)
    yield part


def fingerprint(backend: Backend) -> str:
    """A hash of the weights, dtype and device type: the name of this model in the cache."""
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
