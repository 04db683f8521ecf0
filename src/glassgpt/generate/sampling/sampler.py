"""Logits to tokens: the one sampler, for any number of sequences, each with its own settings.

The steps, in the order they are applied (the field's usual one):

    penalties, bias, bans -> grammar -> temperature -> top-k -> typical -> top-p -> min-p -> draw

Each step sees the probabilities that the previous one left, renormalized. Tokens are ranked by logit, and
among equal logits by id, lowest first, so that a tie at the edge of top-k falls the same way on every device.
Greedy is top-k with k = 1.

The code runs on numpy arrays and, unchanged, on torch tensors of a GPU, where it never waits for the device:
shapes depend on the settings alone, never on the values. Sums are running sums along the ranks: tokens that a
filter removed are zeros at the end or in between, so a row's values do not depend on how wide the other rows
made the table. They are float64: the draw must not depend on the device's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from glassgpt.backends.protocol import Array, Backend, array_namespace
from glassgpt.generate.sampling.constraints import unpack_masks
from glassgpt.generate.sampling.params import FILTERS, SamplingParams

NOTHING = -1  # in a report: no token could be drawn, since the best logit is not finite


class LogitEdits(NamedTuple):
    """Changes to single logits, (B, M) each: l -> (l / scale if l > 0 else l * scale) + shift.

    Rows with fewer than M changes repeat one of theirs, or have a change that does nothing.
    """

    ids: Array
    scale: Array
    shift: Array


class SamplingMetadata(NamedTuple):
    """The settings of each sequence as columns (B, 1); None where none of them uses a filter."""

    greedy: bool  # whether all rows are
    width: int  # the largest number of best tokens that any row draws from
    temperature: Array
    top_k: Array
    filters: tuple[Array | None, ...]  # in the order of `settings.FILTERS`
    alternatives: int | None  # the most that any row reports; None if no row reports log-probabilities


class Draw(NamedTuple):
    tokens: Array  # (B,) int64, on the device of the logits
    report: Array  # (B, 1 + [1 + 2n]) float64: token, its log-probability, n ids, their log-probabilities


def stack_metadata(
    settings: Sequence[SamplingParams], vocab_size: int, array: Callable[[np.ndarray], Array]
) -> SamplingMetadata:
    """Stack the settings of a batch; `array` moves them to the device."""

    def column(values: Sequence[float], dtype: type = np.float64) -> Array:
        return array(np.array(values, dtype)[:, None])

    def filter_column(name: str) -> Array | None:
        values = [None if s.greedy else getattr(s, name) for s in settings]
        off = FILTERS[name].off
        return None if all(v is None for v in values) else column([off if v is None else v for v in values])

    k = [1 if s.greedy else vocab_size if s.top_k is None else min(s.top_k, vocab_size) for s in settings]
    n_alternatives = [s.logprobs for s in settings if s.logprobs is not None]
    return SamplingMetadata(
        greedy=all(s.greedy for s in settings),
        width=max(k),
        temperature=column([1.0 if s.greedy else s.temperature for s in settings]),
        top_k=column(k, np.int64),
        filters=tuple(map(filter_column, FILTERS)),
        alternatives=min(max(n_alternatives), vocab_size) if n_alternatives else None,
    )


def draw_tokens(
    logits: Array,
    params: SamplingMetadata,
    uniform: Array,
    edits: LogitEdits | None = None,
    allowed: Array | None = None,
) -> Draw:
    """Draw one token per row of `logits` (B, V), with one number in [0, 1) for each in `uniform` (B,).

    `allowed` (B, V) is true for tokens that may be drawn.
    """
    xp = array_namespace(logits)
    scores = logits if edits is None else apply_edits(logits, edits)
    if allowed is not None:
        scores = xp.where(allowed, scores, -xp.inf)
    best = xp.max(scores, axis=-1)  # (B,): NaN if any is, -inf if every token is banned
    healthy = xp.isfinite(best)
    if params.greedy:
        tokens = xp.argmax(scores, axis=-1)
    else:
        with np.errstate(all="ignore"):  # rows that are not finite are reported below
            tokens = _draw_each(scores, params, uniform)
    columns = [xp.astype(xp.where(healthy, tokens, NOTHING), xp.float64)[:, None]]
    if params.alternatives is not None:  # of the model's own logits, before any setting
        columns.append(score_tokens(logits, tokens, params.alternatives))
    return Draw(tokens, xp.concat(columns, axis=1) if len(columns) > 1 else columns[0])


def token_drawer(backend: Backend) -> Callable[..., tuple[Array, Array]]:
    """The fastest `draw_tokens` for a backend. Its `allowed` is a result of `constraints.collect_masks`.

    A backend may have its own, which must draw the same tokens (the native one has, in C++, for every
    setting); the others use the one above.
    """
    own: Callable[..., tuple[Array, Array]] | None = getattr(backend, "draw_tokens", None)
    if own is not None:
        return own
    captured = backend.capture(draw_tokens)

    def draw(
        logits: Array,
        params: SamplingMetadata,
        uniform: Array,
        edits: LogitEdits | None,
        allowed: np.ndarray | None,
    ) -> tuple[Array, Array]:
        mask = None if allowed is None else backend.array(unpack_masks(allowed, logits.shape[1]))
        tokens, report = captured(logits, params, uniform, edits, mask)
        return tokens, report

    return draw


def score_tokens(logits: Array, tokens: Array, alternatives: int) -> Array:
    """(B, 1 + 2n) float64: a token's log-probability in each row (B, V), the n best ids, and theirs."""
    xp = array_namespace(logits)
    total = logsumexp(logits)[:, None]  # (B, 1)
    columns = [xp.astype(_take(xp, logits, tokens[:, None]), xp.float64) - total]
    if alternatives > 0:
        values, ids = rank_tokens(logits, alternatives)
        columns += [xp.astype(ids, xp.float64), xp.astype(values, xp.float64) - total]
    return xp.concat(columns, axis=1)


def apply_edits(logits: Array, edits: LogitEdits) -> Array:
    """A copy of the logits (B, V) with the edits applied."""
    xp = array_namespace(logits)
    old = _take(xp, logits, edits.ids)  # (B, M)
    new = xp.where(old > 0, old / edits.scale, old * edits.scale) + edits.shift
    return _put(logits, edits.ids, new)


def logsumexp(logits: Array) -> Array:
    """log(sum(exp(l))) of each row (B, V), summed in float64."""
    xp = array_namespace(logits)
    best = xp.max(logits, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        total = xp.sum(xp.exp(logits - best), axis=-1, dtype=xp.float64)
    return xp.astype(best[:, 0], xp.float64) + xp.log(total)


def _draw_each(scores: Array, params: SamplingMetadata, uniform: Array) -> Array:
    """A token for each row of the scores (B, V)."""
    xp = array_namespace(scores)
    vocab_size = scores.shape[1]
    full, widths = None, [params.width]
    if isinstance(scores, np.ndarray) and params.width == vocab_size and not ranks_all(params):
        # Rows without top-k rarely draw a low-ranking token, and sorting is what costs most on a CPU (2 ms
        # for V = 50,257): rank the few best first, and more only if these do not decide the draw.
        full, widths = _total_weight(scores, params), _widths(params, vocab_size)
    for width in widths:
        values, ids = rank_tokens(scores, width)  # (B, K)
        rank, certain = _draw_rank(values, params, uniform, full)
        if width == widths[-1] or bool(certain.all()):
            break
    return _take(xp, ids, rank[:, None])[:, 0]


def ranks_all(params: SamplingMetadata) -> bool:
    """Whether a filter needs every token: typical tokens are not the most probable ones."""
    typical_p, *_ = params.filters
    return typical_p is not None


def _total_weight(scores: np.ndarray, params: SamplingMetadata) -> np.ndarray:
    """The weight of all tokens in rows without top-k, (B, 1); NaN in the other rows, which need none."""
    open_rows = np.flatnonzero(params.top_k[:, 0] >= scores.shape[1])
    full = np.full((len(scores), 1), np.nan)
    for i in open_rows:
        scaled = (scores[i].astype(np.float64) - float(scores[i].max())) / params.temperature[i]
        full[i] = np.exp(scaled).sum()
    return full


def _widths(params: SamplingMetadata, vocab_size: int) -> list[int]:
    limited = int(np.where(params.top_k < vocab_size, params.top_k, 1).max())
    return [*sorted({max(limited, w) for w in (vocab_size // 128, vocab_size // 12) if w >= 32}), vocab_size]


def _draw_rank(
    values: Array, params: SamplingMetadata, uniform: Array, full: Array | None
) -> tuple[Array, Array]:
    """The rank that each row draws, (B,), from its best logits (B, K) in falling order; and whether it is
    sure.

    `full` (B, 1) is the total weight of a row that continues beyond K, and NaN for other rows.
    """
    xp = array_namespace(values)
    typical_p, top_p, min_p = params.filters
    values = xp.astype(values, xp.float64)
    rank = xp.arange(values.shape[1], device=values.device)[None, :]
    keep = (rank < params.top_k) & (values > -xp.inf)
    # The best is subtracted first, so that a temperature near 0 cannot overflow.
    scaled = (values - values[:, :1]) / params.temperature  # (B, K)
    weight = xp.where(keep, xp.exp(scaled), 0.0)
    cut = xp.zeros_like(params.top_k) > 0  # (B, 1): whether a filter removed everything beyond K
    if typical_p is not None:
        keep = keep & _keep_typical(scaled, weight, keep, typical_p)
        weight = xp.where(keep, weight, 0.0)
    if top_p is not None:
        before, total = _cumulative(weight)
        if full is not None:
            total = xp.where(xp.isnan(full), total, full)
        keep = keep & (before < top_p * total)  # the token that crosses the threshold stays
        weight = xp.where(keep, weight, 0.0)
        cut = cut | (top_p < xp.inf)
    if min_p is not None:
        keep = keep & (weight >= min_p * xp.max(weight, axis=-1, keepdims=True))
        weight = xp.where(keep, weight, 0.0)
        cut = cut | (min_p > 0)
    up_to = xp.cumulative_sum(weight, axis=-1)
    total = up_to[:, -1:]
    if full is not None:
        total = xp.where(cut | xp.isnan(full), total, full)
    reached = keep & (up_to > uniform[:, None] * total)
    # The first rank that reaches the draw; if rounding leaves none, the first that was kept.
    drawn = xp.argmax(xp.astype(keep, xp.int8) + xp.astype(reached, xp.int8), axis=-1)
    if full is None:
        return drawn, keep[:, 0]
    sure = xp.where(cut, ~keep[:, -1:], xp.any(reached, axis=-1, keepdims=True))
    return drawn, (sure | xp.isnan(full))[:, 0]


def _keep_typical(scaled: Array, weight: Array, keep: Array, mass: Array) -> Array:
    """Tokens whose -log p is nearest to the entropy, until they hold `mass` (arXiv:2202.00666)."""
    xp = array_namespace(scaled)
    _, total = _cumulative(weight)
    nll = xp.log(total) - scaled  # -log p
    terms = weight / total * xp.where(weight > 0, nll, 0.0)  # 0 log 0 is 0
    _, entropy = _cumulative(terms)
    distance = xp.where(keep, xp.abs(nll - entropy), xp.inf)
    order = xp.argsort(distance, axis=-1, stable=True)
    before, total = _cumulative(_take(xp, weight, order))
    return _put(keep, order, before < mass * total)


def _cumulative(weight: Array) -> tuple[Array, Array]:
    """The sum of the weights before each place (B, K), and of all (B, 1)."""
    xp = array_namespace(weight)
    up_to = xp.cumulative_sum(weight, axis=-1)
    return xp.concat([xp.zeros_like(up_to[:, :1]), up_to[:, :-1]], axis=1), up_to[:, -1:]


def _take(xp: Array, values: Array, indices: Array) -> Array:
    return xp.take_along_axis(values, indices, axis=1)


def _put(values: Array, indices: Array, new: Array) -> Array:
    """A copy with new values in some columns of each row. The array API has no such function."""
    if isinstance(values, np.ndarray):
        result = values.copy()
        np.put_along_axis(result, indices, new, axis=1)
        return result
    return values.scatter(1, indices, new)


def rank_tokens(scores: Array, width: int) -> tuple[Array, Array]:
    """The `width` best of each row (B, V) in falling order, lower ids first among equals, and their ids."""
    if isinstance(scores, np.ndarray):
        rows = [_rank_row(row, width) for row in scores]
        ids = np.stack(rows)
        return np.take_along_axis(scores, ids, axis=1), ids
    xp = array_namespace(scores)
    keys = _sort_keys(scores)
    if width < scores.shape[1]:
        best = xp.topk(keys, width, dim=1).values  # sorted; there are no ties for it to break
    else:
        best = xp.sort(keys, axis=1, descending=True)
    ids = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    return _take(xp, scores, ids), ids


def _rank_row(row: np.ndarray, width: int) -> np.ndarray:
    """The ids of the best of one numpy row, without sorting the rest.

    The k-th largest of the maxima of blocks of 64 is no larger than the k-th largest value: a bound that
    costs one pass (V = 50,257, k = 40: 0.05 ms; `partition` takes 0.3 ms, a whole stable sort 4 ms).
    """
    vocab_size = len(row)
    bound = np.float32(np.inf)
    blocks = row[: vocab_size // 64 * 64].reshape(-1, 64)
    if width <= len(blocks) // 2:
        bound = np.partition(blocks.max(axis=1), len(blocks) - width)[len(blocks) - width]
    elif width <= vocab_size // 8:
        bound = np.partition(row, vocab_size - width)[vocab_size - width]
    if bound == -np.inf:  # most tokens are banned: sort only the others
        open_ids = np.flatnonzero(row > -np.inf)
        if len(open_ids) <= width:
            banned = np.flatnonzero(row == -np.inf)[: width - len(open_ids)]
            return np.concatenate([open_ids[np.argsort(-row[open_ids], kind="stable")], banned])
    candidates = np.flatnonzero(row >= bound)
    if width <= len(candidates) < vocab_size // 2:  # fewer only if there are NaNs, which the caller reports
        return candidates[np.argsort(-row[candidates], kind="stable")[:width]]
    keys = np.sort(_sort_keys(row[None])[0])[::-1][:width]  # unique integers: twice as fast as a stable sort
    return np.asarray(0xFFFFFFFF - (keys & 0xFFFFFFFF))


def _sort_keys(scores: Array) -> Array:
    """One int64 per float32 logit: larger for larger logits, and among equal logits for lower ids."""
    xp = array_namespace(scores)
    bits = (scores + 0.0).view(xp.int32)  # adding 0 makes -0.0 equal to 0.0
    ordered = xp.astype(bits ^ ((bits >> 31) & 0x7FFFFFFF), xp.int64)  # IEEE floats sort like these integers
    ids = xp.arange(scores.shape[1], dtype=xp.int64, device=scores.device)
    return (ordered << 32) + (0xFFFFFFFF - ids)
