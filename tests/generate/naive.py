"""The textbook, in plain Python lists: how each setting acts on one row. Written apart from the sampler."""

from __future__ import annotations

import itertools
import math

from glassgpt.generate.sampling.params import SamplingParams


def distribution(logits: list[float], settings: SamplingParams) -> tuple[list[tuple[int, float]], float]:
    """(id, probability) in rank order after all filters; and how near the closest threshold was."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = [i for i in order if logits[i] > -math.inf]
    if settings.temperature == 0:
        return [(order[0], 1.0)], 1.0
    if settings.top_k is not None:
        order = order[: settings.top_k]
    best = logits[order[0]]
    weight = {i: math.exp((logits[i] - best) / settings.temperature) for i in order}
    slack = 1.0
    if settings.typical_p is not None:
        p = normalised(weight)
        entropy = -sum(x * math.log(x) for x in p.values() if x > 0)
        away = {i: abs(-math.log(x) - entropy) if x > 0 else math.inf for i, x in p.items()}
        by_distance = sorted(p, key=lambda i: away[i])
        gaps = [abs(away[a] - away[b]) for a, b in itertools.pairwise(by_distance)]
        slack = min([slack, *[gap for gap in gaps if gap > 0]])
        kept, slack = fewest(p, by_distance, settings.typical_p, slack)
        weight = {i: weight[i] for i in order if i in kept}
    if settings.top_p is not None:
        p = normalised(weight)
        kept, slack = fewest(p, list(p), settings.top_p, slack)
        weight = {i: weight[i] for i in p if i in kept}
    if settings.min_p is not None:
        p = normalised(weight)
        threshold = settings.min_p * max(p.values())
        slack = min([slack, *[abs(x - threshold) for x in p.values() if settings.min_p < 1]])
        weight = {i: weight[i] for i, x in p.items() if x >= threshold}
    return list(normalised(weight).items()), slack


def normalised(weight: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weight.values())
    return {i: x / total for i, x in weight.items()}


def fewest(p: dict[int, float], order: list[int], mass: float, slack: float) -> tuple[set[int], float]:
    """The first tokens in `order` that hold at least `mass`."""
    kept, held = set(), 0.0
    for i in order:
        if held >= mass:
            break
        kept.add(i)
        held += p[i]
        if mass < 1:
            slack = min(slack, abs(held - mass))
    return kept, slack


def draw(p: list[tuple[int, float]], u: float) -> tuple[int, float]:
    """The token at `u` of the cumulative distribution; and how near `u` is to a boundary.

    The end is one, too: where rounding makes the sum smaller than `u` of it, the sampler draws the likeliest.
    """
    up_to, chosen, slack = 0.0, None, 1.0
    for i, x in p:
        up_to += x
        slack = min(slack, abs(up_to - u))
        if chosen is None and up_to > u:
            chosen = i
    return p[-1][0] if chosen is None else chosen, slack
