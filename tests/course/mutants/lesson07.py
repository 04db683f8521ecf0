"""Wrong and right solutions of lesson 7, written apart from the exercises' own."""

import math

import numpy as np


def soft(x):
    total = sum(math.exp(v - max(x)) for v in x)
    return np.array([math.exp(v - max(x)) / total for v in x])


def log_soft(x):
    return np.array([v - max(x) - math.log(sum(math.exp(w - max(x)) for w in x)) for v in x])


def hot_times(logits, temperature=1.0):
    logits = logits * temperature
    return np.exp(logits - np.max(logits)) / np.exp(logits - np.max(logits)).sum()


def never_hot(logits, temperature=1.0):
    return soft(list(logits))


def hot_late(logits, temperature=1.0):
    p = soft(list(logits))
    return p / temperature


def overflowing(logits, temperature=1.0):
    e = np.exp(logits / temperature)
    return e / e.sum()


def shares_of_logits(logits, temperature=1.0):
    x = logits / temperature
    return x / x.sum()


def unnormalized(logits, temperature=1.0):
    x = logits / temperature
    return np.exp(x - x.max())


def by_the_list(logits, temperature=1.0):
    return soft([v / temperature for v in logits])


def top_by_threshold(probs, k):
    p = probs.copy()
    p[p < np.sort(p)[-k]] = 0
    return p / p.sum()


def top_unscaled(probs, k):
    out = probs * 0
    for i in sorted(range(len(probs)), key=lambda i: -probs[i])[:k]:
        out[i] = probs[i]
    return out


def top_lowest(probs, k):
    out = np.zeros(len(probs))
    i = np.argsort(probs)[:k]
    out[i] = probs[i]
    return out / out.sum()


def top_first(probs, k):
    out = probs.copy()
    out[k:] = 0
    return out / out.sum()


def top_one_more(probs, k):
    return top_by_threshold(probs, min(k + 1, len(probs)))


def top_short(probs, k):
    p = np.sort(probs)[::-1][:k]
    return p / p.sum()


def top_equal(probs, k):
    out = np.zeros(len(probs))
    out[np.argsort(probs)[-k:]] = 1 / k
    return out


def nucleus(probs, p):
    out, total = np.zeros(len(probs)), 0.0
    for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
        if total >= p:
            break
        out[i] = probs[i]
        total += probs[i]
    return out / total


def nucleus_without_the_last(probs, p):
    out, total = np.zeros(len(probs)), 0.0
    for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
        total += probs[i]
        if total >= p and out.any():
            break
        out[i] = probs[i]
        if total >= p:
            break
    return out / out.sum()


def nucleus_unscaled(probs, p):
    kept = nucleus(probs, p) > 0
    return probs * kept


def nucleus_by_id(probs, p):
    out, total = np.zeros(len(probs)), 0.0
    for i, share in enumerate(probs):
        if total < p:
            out[i] = share
        total += share
    return out / out.sum()


def nucleus_from_below(probs, p):
    out, total = np.zeros(len(probs)), 0.0
    for i in np.argsort(probs):
        if total < p:
            out[i] = probs[i]
        total += probs[i]
    return out / out.sum()


def nucleus_sorted(probs, p):
    down = np.sort(probs)[::-1]
    n = np.searchsorted(np.cumsum(down), p) + 1
    down[n:] = 0
    return down / down.sum()


def nucleus_wrong_places(probs, p):
    n = int((nucleus(probs, p) > 0).sum())
    out = probs.copy()
    out[n:] = 0
    return out / out.sum()


def draw_by_walking(probs, u):
    for i, share in enumerate(probs):
        if u < share:
            return i
        u -= share
    return len(probs) - 1


def draw_late(probs, u):
    return draw_by_walking(probs, u) + 1


def draw_early(probs, u):
    return max(draw_by_walking(probs, u) - 1, 0)


def draw_from_behind(probs, u):
    return len(probs) - 1 - draw_by_walking(list(probs)[::-1], u)


def pick_with_choice(logits, temperature=0.0, top_k=0, rng=None):
    if temperature <= 0:
        return logits.argmax()
    x = logits / temperature
    if top_k:
        x = np.where(x >= np.sort(x)[-top_k], x, -np.inf)
    p = np.exp(x - x.max())
    return rng.choice(len(x), p=p / p.sum())


def pick_unlimited(logits, temperature=0.0, top_k=0, rng=None):
    return pick_with_choice(logits, temperature, 0, rng)


def pick_lukewarm(logits, temperature=0.0, top_k=0, rng=None):
    return pick_with_choice(logits, float(temperature > 0), top_k, rng)


def pick_inverse(logits, temperature=0.0, top_k=0, rng=None):
    return pick_with_choice(logits, 1 / temperature if temperature else 0, top_k, rng)


def pick_one_more(logits, temperature=0.0, top_k=0, rng=None):
    return pick_with_choice(logits, temperature, top_k + 1 if top_k else 0, rng)


def joint(logits, ids):
    return math.fsum(log_soft(list(row))[following] for row, following in zip(logits[:-1], ids[1:]))


def joint_same_place(logits, ids):
    return math.fsum(log_soft(list(row))[own] for row, own in zip(logits, ids))


def joint_raw(logits, ids):
    return math.fsum(row[following] for row, following in zip(logits[:-1], ids[1:]))


def joint_product(logits, ids):
    return math.prod(soft(list(row))[following] for row, following in zip(logits[:-1], ids[1:]))


def joint_sum_of_p(logits, ids):
    return math.fsum(soft(list(row))[following] for row, following in zip(logits[:-1], ids[1:]))


def beams(beams, logprobs, width):
    table = np.array([[score] * len(row) for (score, _), row in zip(beams, logprobs)]) + np.array(logprobs)
    places = np.argsort(-table, axis=None)[:width]
    return [(table.flat[i], beams[i // table.shape[1]][1] + [int(i % table.shape[1])]) for i in places]


def beams_worst(own, logprobs, width):
    every = beams(own, logprobs, None)
    return every[::-1][:width]


def beams_forgetful(own, logprobs, width):
    return beams([(0.0, ids) for _, ids in own], logprobs, width)


def beams_one_each(own, logprobs, width):
    longer = [(s + max(row), ids + [int(np.argmax(row))]) for (s, ids), row in zip(own, logprobs)]
    return sorted(longer, reverse=True)[:width]


def beams_product(own, logprobs, width):
    longer = [(s * row[t], ids + [t]) for (s, ids), row in zip(own, logprobs) for t in range(len(row))]
    return sorted(longer, key=lambda b: b[0], reverse=True)[:width]


MUTANTS = {
    "probabilities": [
        (hot_times, "multiplied by the temperature"),
        (never_hot, "temperature is not used"),
        (hot_late, "divided by the temperature"),
        (overflowing, "overflow"),
        (shares_of_logits, "exponential"),
        (unnormalized, "do not sum to 1"),
    ],
    "keep_top_k": [
        (top_unscaled, "do not sum to 1"),
        (top_lowest, "least probable"),
        (top_first, "first k tokens"),
        (top_one_more, "One token too many"),
        (top_short, "Only k numbers"),
        (top_equal, "equally probable"),
    ],
    "keep_top_p": [
        (nucleus_without_the_last, "with which the sum passes p is missing"),
        (nucleus_unscaled, "do not sum to 1"),
        (nucleus_by_id, "by id"),
        (nucleus_from_below, "least probable"),
        (nucleus_sorted, "sorted order"),
        (nucleus_wrong_places, "places"),
    ],
    "draw_token": [
        (lambda probs, u: list(probs).index(max(probs)), "always the most probable"),
        (lambda probs, u: math.floor(len(probs) * u), "equally probable"),
        (draw_late, "after the right one"),
        (draw_early, "before the right one"),
        (draw_from_behind, "begins with the last token"),
        (lambda probs, u: int(np.abs(u - probs).argmin()), "nearest to u"),
    ],
    "pick": [
        (lambda logits, temperature=0.0, top_k=0, rng=None: logits.argmax(), "always the most probable"),
        (pick_unlimited, "top_k is not used"),
        (pick_lukewarm, "only compared with 0"),
        (pick_inverse, "multiplied by the temperature"),
        (pick_one_more, "One token too many"),
    ],
    "joint_logprob": [
        (joint_same_place, "scores the token after position t"),
        (joint_raw, "sums of logits"),
        (joint_product, "probability itself"),
        (joint_sum_of_p, "Probabilities are added"),
        (lambda logits, ids: joint(logits, ids) / len(ids[1:]), "mean per token"),
        (lambda logits, ids: -joint(logits, ids), "sign"),
    ],
    "extend_beams": [
        (beams_worst, "worst beams"),
        (beams_forgetful, "so far is forgotten"),
        (beams_one_each, "Only one token is tried"),
        (beams_product, "multiplied"),
        (lambda own, logprobs, width: beams(own, logprobs, len(own)), "as many beams as before"),
        (lambda own, logprobs, width: beams(own, logprobs, 1), "Only the best"),
    ],
}

OTHER_STYLE = {
    "probabilities": by_the_list,
    "keep_top_k": top_by_threshold,
    "keep_top_p": nucleus,
    "draw_token": draw_by_walking,
    "pick": pick_with_choice,
    "joint_logprob": joint,
    "extend_beams": beams,
}
