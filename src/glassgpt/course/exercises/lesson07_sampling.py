"""Lesson 7: from a vector of logits to a token."""

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake


def probabilities(logits, temperature=1.0):
    scaled = logits / temperature
    shares = np.exp(scaled - scaled.max())
    return shares / shares.sum()


def keep_top_k(probs, k):
    best = np.argsort(-probs, kind="stable")[:k]
    kept = np.zeros_like(probs)
    kept[best] = probs[best]
    return kept / kept.sum()


def keep_top_p(probs, p):
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]  # what the more probable tokens have together
    kept = np.zeros_like(probs)
    best = order[before < p]
    kept[best] = probs[best]
    return kept / kept.sum()


def draw_token(probs, u):
    ends = np.cumsum(probs)  # where each token's stretch of the line from 0 to 1 ends
    return min(int((ends <= u).sum()), len(probs) - 1)


def pick(logits, temperature=0.0, top_k=0, rng=None):
    if temperature == 0:
        return int(np.argmax(logits))
    probs = probabilities(logits, temperature)
    if top_k > 0:
        probs = keep_top_k(probs, top_k)
    return draw_token(probs, rng.random())


def joint_logprob(logits, ids):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(sum(logprobs[t, ids[t + 1]] for t in range(len(ids) - 1)))


def extend_beams(beams, logprobs, width):
    longer = [
        (score + row[token], [*ids, token])
        for (score, ids), row in zip(beams, logprobs, strict=True)
        for token in range(len(row))
    ]
    return sorted(longer, key=lambda beam: -beam[0])[:width]


class FixedDraw:
    """A random generator that always says the same number."""

    def __init__(self, u):
        self.u = u

    def random(self, size=None):
        return self.u if size is None else np.full(size, self.u)

    def choice(self, a, size=None, p=None):
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        shares = np.full(len(values), 1 / len(values)) if p is None else np.asarray(p)
        token = values[min(int((np.cumsum(shares) <= self.u).sum()), len(values) - 1)]
        return token if size is None else np.full(size, token)


def softmax_of(x):
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def _logits(rng, n=8):
    return rng.normal(size=n) * 2


def _probs(rng, n=8):
    return softmax_of(_logits(rng, n))


def _logprobs(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _filter(probs, keep):
    kept = np.where(keep, probs, 0)
    return kept / kept.sum()


def _ranks(probs):
    return np.argsort(np.argsort(-probs, kind="stable"), kind="stable")


def _after(probs):
    """The running sum from the most probable token on, itself included, in the order of the ids."""
    return np.cumsum(-np.sort(-probs))[_ranks(probs)]


def _pick(logits, temperature, top_k, rng, *, scale=None, filtered=keep_top_k):
    """`pick` with some step exchanged."""
    if temperature == 0:
        return int(np.argmax(logits))
    probs = softmax_of(logits / temperature if scale is None else scale(logits, temperature))
    return draw_token(filtered(probs, top_k) if top_k > 0 else probs, rng.random())


def _beams(beams, logprobs, width, *, join=lambda score, row: score + row, best=-1, per_beam=None):
    """`extend_beams` with some step exchanged."""
    longer = []
    for (score, ids), row in zip(beams, logprobs, strict=False):
        own = [(join(score, row[t]), [*ids, t]) for t in range(len(row))]
        longer += own if per_beam is None else sorted(own, key=lambda beam: -beam[0])[:per_beam]
    return sorted(longer, key=lambda beam: best * beam[0])[:width]


def _beam_inputs(rng):
    made = []
    for n, width in ((2, 2), (3, 2), (2, 4), (1, 3)):
        beams = [(float(-2 * rng.random() - 0.5), [int(i) for i in rng.integers(0, 6, size=3)]) for _ in range(n)]
        made.append((beams, [_logprobs(_logits(rng, 6)) for _ in range(n)], width))
    made.append(([(-0.1, [1]), (-6.0, [2])], [_logprobs(np.arange(5.0) / 5), _logprobs(np.arange(5.0))], 3))
    return made


EXERCISES = [
    Exercise(
        name="probabilities",
        lesson=7,
        task="Turn the logits of one position, (V,), into probabilities, at a temperature.",
        solution=probabilities,
        keep=True,
        inputs=lambda rng: [
            (_logits(rng), 1.0),
            (_logits(rng), 0.5),
            (_logits(rng), 2.0),
            (_logits(rng) + 2000, 0.7),
        ],
        hints=(
            "A temperature divides the logits before the softmax: below 1 their differences grow.",
            "Softmax: the exponential of each number, divided by the sum of all exponentials.",
            "exp overflows for large logits. Subtract the largest first; the result is the same.",
        ),
        mistakes=(
            Mistake(
                lambda logits, temperature: softmax_of(logits * temperature),
                "The logits are multiplied by the temperature. Divide by it: a high temperature makes differences small.",
            ),
            Mistake(
                lambda logits, temperature: softmax_of(logits),
                "The temperature is not used. Divide the logits by it before the exponential.",
            ),
            Mistake(
                lambda logits, temperature: softmax_of(logits) / temperature,
                "The probabilities are divided by the temperature, so they no longer sum to 1. Divide the logits instead.",
            ),
            Mistake(
                lambda logits, temperature: np.exp(logits / temperature) / np.exp(logits / temperature).sum(),
                "Large logits overflow: exp(2000) is infinite. Subtract the largest number before the exponential.",
            ),
            Mistake(
                lambda logits, temperature: np.exp(logits / temperature - (logits / temperature).max()),
                "The exponentials do not sum to 1. Divide them by their sum.",
            ),
            Mistake(
                lambda logits, temperature: (logits / temperature) / (logits / temperature).sum(),
                "The logits themselves are divided by their sum, so some are negative. Take the exponential of each first.",
            ),
            Mistake(
                lambda logits, temperature: np.exp(logits / temperature) / np.exp(logits).sum(),
                "Only the numerator is divided by the temperature. Sum the same exponentials below the line.",
            ),
            Mistake(
                lambda logits, temperature: np.log(softmax_of(logits / temperature)),
                "These are log-probabilities. Return the probabilities themselves, without the logarithm.",
            ),
        ),
    ),
    Exercise(
        name="keep_top_k",
        lesson=7,
        task="Keep the k most probable tokens, set the others to zero, and let the kept ones sum to 1 again.",
        solution=keep_top_k,
        keep=True,
        inputs=lambda rng: [(_probs(rng), k) for k in (1, 3, 5, 8)],
        hints=(
            "np.argsort sorts from small to large and gives positions, not values.",
            "The positions of the k largest: np.argsort(-probs)[:k].",
            "Start with zeros, copy the kept probabilities to their places, divide by the sum.",
        ),
        mistakes=(
            Mistake(
                lambda probs, k: np.where(_ranks(probs) < k, probs, 0),
                "The kept probabilities do not sum to 1. Divide them by their sum.",
            ),
            Mistake(
                lambda probs, k: _filter(probs, _ranks(-probs) < k),
                "The k least probable tokens are kept. argsort begins with the smallest: sort -probs, or take the last k.",
            ),
            Mistake(
                lambda probs, k: _filter(probs, np.arange(len(probs)) < k),
                "The first k tokens of the vocabulary are kept. Keep the k most probable, wherever they are.",
            ),
            Mistake(
                lambda probs, k: _filter(probs, _ranks(probs) <= k),
                "One token too many is kept. Keep exactly k: a slice [:k] ends before position k.",
            ),
            Mistake(
                lambda probs, k: -np.sort(-probs)[:k] / (-np.sort(-probs)[:k]).sum(),
                "Only k numbers come back. Return one for every token of the vocabulary, with zeros for the others.",
            ),
            Mistake(
                lambda probs, k: np.argsort(-probs, kind="stable")[:k],
                "These are the places of the best tokens. Put their probabilities there, in an array of zeros.",
            ),
            Mistake(
                lambda probs, k: -np.sort(-probs)[:k],
                "Only k numbers come back, and they do not sum to 1. Return one for every token, zeros for the others.",
            ),
            Mistake(
                lambda probs, k: np.where(_ranks(probs) < k, 1 / k, 0),
                "The kept tokens are all equally probable. Keep their own probabilities, divided by their sum.",
            ),
            Mistake(
                lambda probs, k: softmax_of(np.where(_ranks(probs) < k, probs, 0)),
                "The zeros went through a softmax and are no longer zero. Divide by the sum instead.",
            ),
        ),
    ),
    Exercise(
        name="keep_top_p",
        lesson=7,
        task="Keep the fewest most probable tokens that have at least the share p together (the nucleus).",
        solution=keep_top_p,
        inputs=lambda rng: [(_probs(rng), p) for p in (0.3, 0.6, 0.9)] + [(np.array([0.1, 0.7, 0.2]), 0.5)],
        hints=(
            "Sort by probability, the largest first, and look at the running sum: np.cumsum.",
            "The token with which the sum passes p is kept as well. So ask what the tokens BEFORE it have together.",
            "Keep a token if the sum of all more probable ones is below p. Then divide the kept ones by their sum.",
        ),
        mistakes=(
            Mistake(
                lambda probs, p: _filter(probs, (_after(probs) < p) | (_ranks(probs) == 0)),
                "The token with which the sum passes p is missing. It is kept: without it the share is less than p.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, _after(probs) < p),
                "The token with which the sum passes p is missing (and if the first one passes it, nothing is left).",
            ),
            Mistake(
                lambda probs, p: np.where(_after(probs) - probs < p, probs, 0),
                "The kept probabilities do not sum to 1. Divide them by their sum.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, np.cumsum(probs) - probs < p),
                "The running sum goes through the tokens by id. Sort them by probability first.",
            ),
            Mistake(
                lambda probs, p: np.where(np.cumsum(probs) < p, probs, 0),
                "The running sum goes through the tokens by id. Sort by probability first, and divide by the sum at the end.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, (_after(-probs) * -1 - probs) < p),
                "The running sum begins with the least probable token. Begin with the most probable.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, (probs >= p) | (_ranks(probs) == 0)),
                "Each token alone is compared with p. Compare the running sum of the sorted probabilities.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, np.arange(len(probs)) < (_after(probs) - probs < p).sum()),
                "The kept places are those of the sorted list. Bring them back to the tokens' own places.",
            ),
            Mistake(
                lambda probs, p: _filter(-np.sort(-probs), np.cumsum(-np.sort(-probs)) + np.sort(-probs) < p),
                "The result is in sorted order. Put every probability back in its token's own place.",
            ),
            Mistake(
                lambda probs, p: _filter(probs, np.cumsum(probs) <= p),
                "The running sum goes through the tokens by id, and ends too early. Sort them by probability first.",
            ),
        ),
    ),
    Exercise(
        name="draw_token",
        lesson=7,
        task="Choose a token with a number u from 0 to 1: the token in whose stretch of the line u lies.",
        solution=draw_token,
        keep=True,
        inputs=lambda rng: [(np.array([0.5, 0.3, 0.2]), u) for u in (0.1, 0.6, 0.95)]
        + [(_probs(rng), float(rng.random())) for _ in range(5)],
        hints=(
            "Put the probabilities one behind the other on a line from 0 to 1. np.cumsum gives where each one ends.",
            "The token is the first whose end lies beyond u.",
            "Count the ends that are not beyond u: that count is the id.",
        ),
        mistakes=(
            Mistake(
                lambda probs, u: int(np.argmax(probs)),
                "This is always the most probable token. Use u, so that each token is drawn as often as it is probable.",
            ),
            Mistake(
                lambda probs, u: int(u * len(probs)),
                "All tokens are equally probable here. Give each a stretch as long as its probability.",
            ),
            Mistake(
                lambda probs, u: max(int((np.cumsum(probs) <= u).sum()) - 1, 0),
                "This is the token before the right one. The first whose end lies beyond u is the one.",
            ),
            Mistake(
                lambda probs, u: int((np.cumsum(probs) <= u).sum()) + 1,
                "This is the token after the right one. Ids count from 0.",
            ),
            Mistake(
                lambda probs, u: int(np.argmin(np.abs(probs - u))),
                "This is the token whose probability is nearest to u. Compare u with the running sum.",
            ),
            Mistake(
                lambda probs, u: int(np.argmin(np.abs(np.cumsum(probs) - u))),
                "This is the token whose end is nearest to u. Take the first whose end lies beyond u.",
            ),
            Mistake(
                lambda probs, u: len(probs) - 1 - int((np.cumsum(probs[::-1]) <= u).sum()),
                "The line begins with the last token. Begin with token 0.",
            ),
            Mistake(
                lambda probs, u: float(probs[draw_token(probs, u)]),
                "This is the probability of the token. Return its id.",
            ),
            Mistake(
                lambda probs, u: int(np.argmax(probs > u)),
                "Each probability alone is compared with u. Compare the running sum: np.cumsum.",
            ),
        ),
    ),
    Exercise(
        name="pick",
        lesson=7,
        task="Choose the next token's id from logits: greedy at temperature 0, otherwise drawn, from the top_k if given.",
        solution=pick,
        inputs=lambda rng: [
            (_logits(rng), 0.0, 0, None),
            *((_logits(rng), t, k, FixedDraw(float(u))) for t, k in ((1.0, 0), (0.6, 0), (1.5, 3), (1.0, 2), (2.0, 0))
              for u in rng.random(4)),
        ],
        hints=(
            "Three steps that you have: probabilities, keep_top_k (only if top_k > 0), draw_token.",
            "Temperature 0 would divide by zero. Treat it first: the id of the largest logit, np.argmax.",
            "The number for draw_token comes from rng.random().",
        ),
        keep=True,
        mistakes=(
            Mistake(
                lambda logits, temperature, top_k, rng: int(np.argmax(logits)),
                "This is always the most probable token. At a temperature above 0, draw one with rng.random().",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(logits, temperature, 0, rng),
                "top_k is not used. If it is above 0, keep only so many tokens before you draw.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(logits, temperature, top_k, rng, scale=lambda x, t: x),
                "The temperature is only compared with 0. Divide the logits by it as well.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(
                    logits, temperature, top_k, rng, scale=lambda x, t: x * t
                ),
                "The logits are multiplied by the temperature. Divide by it.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(
                    logits, temperature, top_k, rng, filtered=lambda probs, k: np.where(_ranks(probs) < k, probs, 0)
                ),
                "After top_k the probabilities do not sum to 1, so some draws fall behind the last token. Divide by the sum.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(
                    logits, temperature, top_k, rng, filtered=lambda probs, k: keep_top_k(probs, k + 1)
                ),
                "One token too many is kept. Keep exactly top_k.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: _pick(
                    logits, temperature, top_k, rng, filtered=lambda probs, k: _filter(probs, np.arange(len(probs)) < k)
                ),
                "The first top_k ids are kept. Keep the most probable ones.",
            ),
            Mistake(
                lambda logits, temperature, top_k, rng: float(np.max(softmax_of(logits))),
                "This is a probability. Return the id of the token, a whole number.",
            ),
        ),
    ),
    Exercise(
        name="joint_logprob",
        lesson=7,
        task="The log-probability of a whole text: logits (T, V) and ids (T); the first token is given.",
        solution=joint_logprob,
        inputs=lambda rng: [
            (rng.normal(size=(t, 9)) * 2, [int(i) for i in rng.integers(0, 9, size=t)]) for t in (2, 4, 7)
        ],
        hints=(
            "Probabilities of a chain multiply; their logarithms add.",
            "Row t of the logits is about the token AFTER position t: it scores ids[t + 1].",
            "log softmax: the logits minus the logarithm of the sum of their exponentials, in each row.",
        ),
        mistakes=(
            Mistake(
                lambda logits, ids: float(sum(_logprobs(logits)[t, ids[t]] for t in range(len(ids)))),
                "Row t scores the token after position t. Take logits[t] for ids[t + 1].",
            ),
            Mistake(
                lambda logits, ids: float(sum(_logprobs(logits)[t, ids[t]] for t in range(1, len(ids)))),
                "Row t scores the token after position t. Take logits[t - 1] for ids[t].",
            ),
            Mistake(
                lambda logits, ids: float(sum(logits[t, ids[t + 1]] for t in range(len(ids) - 1))),
                "These are sums of logits. Turn each row into log-probabilities first.",
            ),
            Mistake(
                lambda logits, ids: float(np.exp(joint_logprob(logits, ids))),
                "This is the probability itself. For long texts it is too small for a computer: return its logarithm.",
            ),
            Mistake(
                lambda logits, ids: joint_logprob(logits, ids) / (len(ids) - 1),
                "This is the mean per token. The logarithms of a whole text add up: return the sum.",
            ),
            Mistake(
                lambda logits, ids: float(sum(np.exp(_logprobs(logits)[t, ids[t + 1]]) for t in range(len(ids) - 1))),
                "Probabilities are added. Those of a chain multiply: add their logarithms.",
            ),
            Mistake(
                lambda logits, ids: -joint_logprob(logits, ids),
                "The sign is reversed. The logarithm of a number below 1 is negative; the loss is the positive one.",
            ),
            Mistake(
                lambda logits, ids: joint_logprob(logits, ids) / np.log(2),
                "These are bits, base 2. Use the natural logarithm.",
            ),
        ),
    ),
    Exercise(
        name="extend_beams",
        lesson=7,
        task="Extend each beam (score, ids) by each token, add the log-probabilities, return the best `width`, best first.",
        solution=extend_beams,
        inputs=_beam_inputs,
        hints=(
            "Two loops: over the beams with their rows of logprobs, and over the tokens of a row.",
            "A longer beam is (score + row[token], ids + [token]).",
            "Sort all longer beams together by score, the highest first, and cut after `width`.",
        ),
        mistakes=(
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, width, best=1),
                "The worst beams are kept. Log-probabilities are negative: the best is the one nearest to 0.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, width, join=lambda score, row: row),
                "The score of the beam so far is forgotten. Add the new token's log-probability to it.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, width, per_beam=1),
                "Only one token is tried for each beam. A beam may have several successors among the best.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, width, join=lambda score, row: score * row),
                "Log-probabilities are multiplied. Add them: logarithms turn products into sums.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, len(beams)),
                "There are as many beams as before. Return `width` of them.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, width, best=0),
                "The beams are not sorted. Sort all longer ones by score, the highest first, and cut then.",
            ),
            Mistake(
                lambda beams, logprobs, width: beams,
                "The beams come back as they were. Extend each of them by each token.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, None),
                "All longer beams are kept. Cut the sorted list after `width`.",
            ),
            Mistake(
                lambda beams, logprobs, width: _beams(beams, logprobs, 1),
                "Only the best is kept: that is greedy again. Keep `width` beams.",
            ),
            Mistake(
                lambda beams, logprobs, width: [(s, ids[-1:]) for s, ids in _beams(beams, logprobs, width)],
                "Only the new token comes back. Append it to the ids of its beam.",
            ),
        ),
    ),
]
