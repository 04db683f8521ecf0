"""`gpt.attribution_patch(...)`: a sweep's first-order estimate (Nanda 2023; Syed et al. 2023).

Two forward passes and one backward give every patch of a sweep at once: the gradient of the metric by an
activation, times how far the other text's activation is. It holds for small changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.backends.choose import is_torch_installed
from glassgpt.errors import NEEDS_TORCH, SettingError, UserError
from glassgpt.inspect.arrays import AnyArray, to_float64
from glassgpt.inspect.batches.metrics import make_metric
from glassgpt.inspect.batches.traces import MEMORY, as_bytes
from glassgpt.inspect.experiments.pairs import Into, Pairs
from glassgpt.inspect.experiments.sites import Sites
from glassgpt.inspect.experiments.sweep_result import SweepResult
from glassgpt.inspect.taps import resolve_name
from glassgpt.progress import Progress, no_progress

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel


def attribution_patch(
    gpt: TraceableModel,
    clean: Any,
    corrupted: Any,
    patch: str = "resid_post",
    metric: Any = "logit_diff",
    *,
    answer: Any = None,
    minus: Any = None,
    continuation: Any = None,
    layers: Any = None,
    positions: Any = None,
    into: Into = "corrupted",
    memory: float = MEMORY,
    progress: Progress = no_progress,
) -> SweepResult:
    """See `GPT.attribution_patch`."""
    if not is_torch_installed():
        raise UserError(f"attribution_patch {NEEDS_TORCH} Without it there is sweep, which patches in truth.")
    from glassgpt.inspect.experiments.activation_gradients import estimate_changes
    from glassgpt.inspect.torch_forward import at_least_float32

    model = at_least_float32(gpt.torch_model)
    found = make_metric(metric, answer, minus, continuation)
    pairs = Pairs(gpt, clean, corrupted, found, into, as_bytes(memory))
    sites = Sites(gpt.config, patch, layers, positions, pairs.base_prompts, pairs.longest)
    pairs.measure_both()
    steps = [resolve_name(gpt.config, f"h.{layer}.{sites.kind.step}") for layer in sites.layers]
    values = np.full(sites.shape, np.nan)
    with progress(f"estimating {patch}", len(pairs)) as advance:
        for group in pairs.groups(range(len(pairs))):
            for rows in split_rows(pairs, group):
                first = len(pairs.clean.ids[rows[0]]) - 1

                def score(logits: AnyArray, rows: list[int] = rows) -> AnyArray:
                    return pairs.score(logits, rows)

                others = [pairs.other_ids[pair] for pair in rows]
                try:
                    plain, changes = estimate_changes(model, pairs.ids(rows), others, steps, score, first)
                except RuntimeError as error:
                    if "require grad" not in str(error) and "numpy()" not in str(error):
                        raise
                    raise SettingError(
                        f"the metric cannot be differentiated ({error}). Compute it with torch operations "
                        "only, or use sweep."
                    ) from None
                for row, change in enumerate(changes):
                    fill(values, sites, rows, row, to_float64(plain), to_float64(change))
                advance(len(rows))
    return SweepResult(
        values, sites.dims, sites.labels, f"estimated {pairs.metric.name}",
        pairs.clean_values, pairs.corrupted_values, into,
    )  # fmt: skip


def split_rows(pairs: Pairs, group: list[int]) -> list[list[int]]:
    """As many pairs as fit with their autograd graph, which keeps every step of every block."""
    config, tokens = pairs.gpt.config, len(pairs.base_ids[group[0]])
    per_block = 10 * config.n_embd + 5 * config.d_mlp + 6 * config.n_head * tokens
    per_row = 4 * (3 * tokens * config.n_layer * per_block + 6 * config.vocab_size)
    count = max(1, pairs.memory_bytes // 2 // per_row)
    return [group[start : start + count] for start in range(0, len(group), count)]


def fill(
    values: np.ndarray, sites: Sites, rows: list[int], row: int, plain: np.ndarray, change: np.ndarray
) -> None:
    """Sum the changes (B, ...) of a layer over what each patch replaces, and write them to their places."""
    if sites.kind.axis == "neuron":
        change = change.swapaxes(1, 2)  # (B, M, T)
    else:
        change = change.sum(axis=-1)  # (B, T), or (B, H, T)
    for i, pair in enumerate(rows):
        if sites.positions is None:
            values[pair, row] = plain[i] + change[i].sum(axis=-1)
            continue
        columns = [(column, t) for column, t in enumerate(sites.positions[pair]) if t is not None]
        at = [column for column, _ in columns]
        values[pair, row][..., at] = (plain[i] + change[i])[..., [t for _, t in columns]]
