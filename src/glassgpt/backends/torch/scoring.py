"""Texts to log-probabilities, with as little arithmetic as the answer allows.

Four things make it fast. Texts of similar length share a batch, so that little is padding. The head, which
for GPT-2 small is a third of the work, is applied only to tokens that are scored, and its logits never exist
for more than a chunk of them. The common prefix of a group is read once (scoring_batches.py). And on a CPU
every core has its own batch (threads.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassgpt.backends.protocol import ScoredBatch, ScoreRequest, TokenScores, shared_length
from glassgpt.backends.torch.fast_path import has_standard_blocks
from glassgpt.backends.torch.scoring_batches import pack_texts, pack_trees, scored_hidden, tree_length
from glassgpt.backends.torch.threads import map_over_threads
from glassgpt.config import Config
from glassgpt.model.gpt2 import GPT2

MIN_SHARED = 8  # tokens that texts must have in common to be read as a tree
MAX_ENDINGS = 1024  # tokens of endings in one tree: the cost of its attention grows with the square


@dataclass(frozen=True)
class BatchLimits:
    tokens: int  # of a batch
    chunk: int  # tokens whose logits are held


# Larger batches leave a core's own cache; and the last one, for which the other cores wait, is soon done.
CPU_LIMITS = BatchLimits(tokens=1024, chunk=256)


def gpu_limits(config: Config, element_size: int, free: int) -> BatchLimits:
    """As much as a quarter of the free memory holds, for the blocks and again for the logits.

    A token takes up to four times its MLP's width while a block is computed, and its logits are there in
    float32 twice. No GPU gains by more than the limits here.
    """
    per_token = 4 * config.d_mlp * element_size
    per_scored_token = 2 * 4 * config.vocab_size
    return BatchLimits(
        tokens=max(config.n_positions, min(2**17, free // 4 // per_token)),
        chunk=max(64, min(2**14, free // 4 // per_scored_token)),
    )


def batch_limits(model: GPT2) -> BatchLimits:
    """Small batches on a CPU; on other devices as large as their memory allows."""
    weight = model.wte.weight
    if weight.is_cpu:
        return CPU_LIMITS
    free = 4 * 2**30  # where the device cannot say
    if weight.is_cuda:
        free, _ = torch.cuda.mem_get_info(weight.device)
    return gpu_limits(model.config, weight.element_size(), free)


class ScoredText(NamedTuple):
    key: tuple[int, int]  # the index of the group, and the index within it
    request: ScoreRequest


@dataclass
class ScoringBatch:
    """Texts to be computed together; as groups with a common prefix where `shared` is not empty."""

    groups: list[list[ScoredText]]
    shared: list[int]  # for each group, how many tokens its texts begin with in common

    @property
    def texts(self) -> list[ScoredText]:
        return [text for group in self.groups for text in group]

    @property
    def requests(self) -> list[ScoreRequest]:
        return [text.request for text in self.texts]


def score(
    model: GPT2,
    groups: Sequence[Sequence[ScoreRequest]],
    excluded: Sequence[int] = (),
    limits: BatchLimits | None = None,
) -> Generator[ScoredBatch, None, None]:
    """`Backend.score`: each batch with its scores, in the order planned; on a CPU several at a time."""
    limits = batch_limits(model) if limits is None else limits
    excluded_ids = torch.tensor(sorted(excluded), dtype=torch.int64, device=model.wte.weight.device)

    def compute(batch: ScoringBatch) -> list[TokenScores]:
        return score_batch(model, batch, excluded_ids, limits.chunk)

    batches = list(plan_batches(model, groups, limits.tokens))
    computed: Iterator[tuple[ScoringBatch, list[TokenScores]]] = (
        map_over_threads(compute, batches)
        if model.wte.weight.is_cpu
        else ((batch, compute(batch)) for batch in batches)
    )
    try:
        for batch, scores in computed:
            yield [text.key for text in batch.texts], scores
    finally:
        if isinstance(computed, Generator):
            computed.close()


def plan_batches(
    model: GPT2, groups: Sequence[Sequence[ScoreRequest]], max_tokens: int
) -> Iterator[ScoringBatch]:
    """Batches of similar lengths, the longest first: a batch that does not fit into memory fails early."""
    single: list[ScoredText] = []
    trees: list[tuple[list[ScoredText], int]] = []
    may_share = has_standard_blocks(model)
    for number, requests in enumerate(groups):
        group = [ScoredText((number, i), request) for i, request in enumerate(requests)]
        shared = shared_length(requests) if len(group) > 1 and may_share else 0
        if shared < MIN_SHARED:
            single += group
        else:
            trees += [(part, shared) for part in split_endings(group, shared)]
    single.sort(key=lambda text: -len(text.request.ids))
    while single:
        many = max(1, max_tokens // len(single[0].request.ids))
        yield ScoringBatch([single[:many]], [])
        single = single[many:]
    trees.sort(key=lambda tree: -length_of(*tree))
    while trees:
        many = max(1, max_tokens // length_of(*trees[0]))
        yield ScoringBatch([group for group, _ in trees[:many]], [shared for _, shared in trees[:many]])
        trees = trees[many:]


def length_of(group: Sequence[ScoredText], shared: int) -> int:
    return tree_length([text.request for text in group], shared)


def split_endings(group: Sequence[ScoredText], shared: int) -> Iterator[list[ScoredText]]:
    """A group in as many trees as keep each within bounds."""
    part: list[ScoredText] = []
    for text in group:
        if part and length_of([*part, text], shared) - shared > MAX_ENDINGS:
            yield part
            part = []
        part.append(text)
    yield part


@torch.inference_mode()
def score_batch(model: GPT2, batch: ScoringBatch, excluded: Tensor, chunk: int) -> list[TokenScores]:
    requests = batch.requests
    if batch.shared:
        packed = pack_trees([[text.request for text in group] for group in batch.groups], batch.shared)
    else:
        packed = pack_texts(requests)
    x = scored_hidden(model, packed)  # (N, C)
    targets = torch.from_numpy(np.concatenate([r.ids[r.first :] for r in requests])).to(x.device)  # (N,)
    sizes = [len(request.ids) - request.first for request in requests]
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    asked = np.array([first for first, r in zip(firsts, requests, strict=True) if r.exclude], np.int64)
    logprobs, greedy, allowed = [], [], []
    for start in range(0, len(targets), chunk):
        some = slice(start, start + chunk)
        logits = model.head(x[some])  # (chunk, V)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        chunk_logprobs, chunk_greedy = target_logprobs(logits, targets[some])
        logprobs.append(chunk_logprobs)
        greedy.append(chunk_greedy)
        here = asked[(asked >= start) & (asked < start + chunk)] - start
        if len(here):
            where = torch.from_numpy(here).to(x.device)
            best = logits[where].index_fill(1, excluded, -torch.inf).argmax(dim=-1)
            allowed.append(best == targets[some][where])
    values, is_greedy = torch.cat(logprobs).cpu().numpy(), torch.cat(greedy).cpu().numpy()
    is_allowed = np.zeros(len(values), bool)
    if allowed:
        is_allowed[asked] = torch.cat(allowed).cpu().numpy()
    return [
        TokenScores(values[first:end], is_greedy[first:end], is_allowed[first:end])
        for first, end in zip(firsts, ends, strict=True)
    ]


def target_logprobs(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, in float64, and whether it is the most likely token (the first of
    several).

    The most likely token's probability is one over the softmax's sum. Its logarithm is exact to a float32's
    last digits, where that of the logits' sum, which is as large as they are, loses two digits.
    """
    best = logits.amax(dim=-1)  # (N,)
    at_target = logits.gather(1, target[:, None])[:, 0]
    best_probability = logits.softmax(dim=-1).amax(dim=-1)
    logprobs = (at_target.double() - best.double()) + best_probability.double().log()
    greedy = at_target == best
    if logits.is_cpu:  # there, to find the place of the largest takes as long as all of the above
        ties = greedy.nonzero()[:, 0]
        greedy[ties] = logits[ties].argmax(dim=-1) == target[ties]
    else:
        greedy = logits.argmax(dim=-1) == target
    return logprobs, greedy
