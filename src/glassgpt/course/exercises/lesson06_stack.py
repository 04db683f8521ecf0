"""Lesson 6: the whole model, and what every block would have said."""

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson02_embeddings import embed
from glassgpt.course.exercises.lesson03_attention import softmax
from glassgpt.course.exercises.lesson05_block import block, layer_norm
from glassgpt.course.exercises.toy import N_HEAD, N_LAYER, C, V, toy_cache, toy_weights
from glassgpt.course.models import SENTENCE, model, shape, trace, weights


def unembed(x, weights):
    x = layer_norm(x, weights["ln_f.weight"], weights["ln_f.bias"])  # (T, C)
    return x @ weights["wte.weight"].T  # (T, V)


def gpt2(ids, weights, n_layer, n_head, cache=None):
    start = cache[0][0].shape[1] if cache else 0  # the tokens that the cache holds
    x = embed(ids, weights["wte.weight"], weights["wpe.weight"], start)  # (T, C)
    for layer in range(n_layer):
        x = block(x, weights, layer, n_head, cache)  # (T, C)
    return unembed(x, weights)  # (T, V)


def top_tokens(logits, k):
    return [int(i) for i in np.argsort(-logits)[:k]]


def surprise(logits, token):
    return float(-np.log2(softmax(logits)[token]))


def unembed_inputs(rng):
    toy = toy_weights(rng)
    return [(rng.normal(size=(n, C)) * 3, toy) for n in (1, 4, 8)] + [(np.asarray(trace()["h.1.resid_post"]), weights())]


def gpt2_inputs(rng):
    toy = toy_weights(rng)
    made = [(rng.integers(0, V, n), toy, N_LAYER, N_HEAD, *rest) for n, rest in ((5, ()), (1, ()), (3, ({},)))]
    cached = (rng.integers(0, V, 2), toy, N_LAYER, N_HEAD, toy_cache(rng, 4))
    ids = np.array(model().encode(SENTENCE))
    return [*made, cached, (ids, weights(), *shape())]


def logit_inputs(rng):
    return [(rng.permutation(12) * 0.7 - 3, k) for k in (1, 3, 12)] + [(np.asarray(trace().logits[-1], np.float32), 5)]


def token_inputs(rng):
    return [(rng.normal(size=9) * 3, token) for token in (0, 4, 8)] + [(np.array([2000.0, 1990.0, 0.0]), 1)]


def own_gpt2(ids, weights, n_layer, n_head, cache=None, start=True, positions=True, final=True, layers=None, hand_on=True, head="T", out="logits"):
    first = cache[0][0].shape[1] if cache and start else 0
    x = embed(ids, weights["wte.weight"], weights["wpe.weight"] * positions, first)
    for layer in range(n_layer) if layers is None else layers(n_layer):
        x = block(x, weights, layer, n_head, cache if hand_on else None)
    if final:
        x = layer_norm(x, weights["ln_f.weight"], weights["ln_f.bias"])
    if out == "stream":
        return x
    logits = x @ weights["wte.weight"].T
    return {"logits": logits, "p": softmax(logits), "last": logits[-1]}[out]


def idle_gpt2(ids, weights, n_layer, n_head, cache=None):
    start = cache[0][0].shape[1] if cache else 0
    x = embed(ids, weights["wte.weight"], weights["wpe.weight"], start)
    for layer in range(n_layer):
        block(x, weights, layer, n_head, cache)
    return unembed(x, weights)


def normed_twice(ids, weights, n_layer, n_head, cache=None):
    x = own_gpt2(ids, weights, n_layer, n_head, cache, out="stream")
    return unembed(x, weights)


EXERCISES = [
    Exercise(
        "unembed", 6, "Score every token of the vocabulary: the final norm, then the dot product with each row of wte.",
        unembed, unembed_inputs,
        (
            Mistake(lambda x, w: x @ w["wte.weight"].T, "The final norm, ln_f, is missing."),
            Mistake(lambda x, w: layer_norm(x, w["ln_f.weight"], w["ln_f.bias"]), "This is the normed stream. Multiply it by wte, turned: .T."),
            Mistake(lambda x, w: softmax(unembed(x, w)), "These are probabilities. Return the scores."),
            Mistake(lambda x, w: layer_norm(x, w["h.0.ln_1.weight"], w["h.0.ln_1.bias"]) @ w["wte.weight"].T, "This is the norm of block 0. The final one is ln_f."),
            Mistake(lambda x, w: layer_norm(x, w["ln_f.weight"], 0) @ w["wte.weight"].T, "The bias of ln_f is missing."),
            Mistake(lambda x, w: layer_norm(x, 1, w["ln_f.bias"]) @ w["wte.weight"].T, "The weight of ln_f is missing."),
            Mistake(lambda x, w: unembed(x, w)[-1], "These are the scores after the last token. Keep those of every token."),
            Mistake(lambda x, w: unembed(x, w) / np.sqrt(x.shape[-1]), "The scores are divided by the root of the width. That belongs to attention."),
        ),
        ("layer_norm with ln_f.weight and ln_f.bias comes first.", "wte.weight is (V, C): its rows are the tokens, so multiply by wte.weight.T."),
        keep=True,
    ),
    Exercise(
        "gpt2", 6, "Ids in, scores out: embed, every block in order, unembed. With a cache, positions go on where it ends.",
        gpt2, gpt2_inputs,
        (
            Mistake(lambda *a: own_gpt2(*a, final=False), "The final norm, ln_f, is missing: use unembed."),
            Mistake(lambda *a: own_gpt2(*a, positions=False), "The positions are missing: use embed."),
            Mistake(lambda *a: own_gpt2(*a, layers=lambda n: range(n - 1)), "The last block is missing: range(n_layer) counts from 0 to n_layer - 1."),
            Mistake(lambda *a: own_gpt2(*a, layers=lambda n: range(1, n)), "Block 0 is missing."),
            Mistake(lambda *a: own_gpt2(*a, layers=lambda n: reversed(range(n))), "The blocks run from last to first."),
            Mistake(lambda *a: own_gpt2(*a, layers=lambda n: [0] * n), "Block 0 is used every time. Hand `layer` over."),
            Mistake(lambda *a: own_gpt2(*a, layers=lambda n: []), "There are no blocks."),
            Mistake(idle_gpt2, "What block returns is not used: x = block(x, ...)."),
            Mistake(lambda *a: own_gpt2(*a, hand_on=False), "The cache is not handed on: block(..., cache)."),
            Mistake(lambda *a: own_gpt2(*a, start=False), "With a cache the positions begin at 0 again. They go on where it ends: hand `start` over to embed."),
            Mistake(lambda *a: own_gpt2(*a, out="stream"), "These are the vectors of the stream. Multiply them by wte, turned: unembed does it."),
            Mistake(lambda *a: own_gpt2(*a, out="p"), "These are probabilities. Return the scores."),
            Mistake(lambda *a: own_gpt2(*a, out="last"), "These are the scores after the last token. Keep those of every token."),
            Mistake(lambda *a: own_gpt2(*a, final=False, out="stream"), "These are the vectors of the stream. unembed makes scores of them."),
            Mistake(normed_twice, "The final norm is applied twice: unembed has it already."),
        ),
        ("embed, a loop over range(n_layer), unembed.", "x = block(x, weights, layer, n_head, cache)"),
        keep=True, changes=(4,),
    ),
    Exercise(
        "top_tokens", 6, "Return the ids of the k highest scores, the highest first, as a list.",
        top_tokens, logit_inputs,
        (
            Mistake(lambda x, k: [int(i) for i in np.argsort(x)[:k]], "These are the lowest scores: argsort goes from small to large."),
            Mistake(lambda x, k: [int(i) for i in np.argsort(x)[-k:]], "These are the right ids in the wrong order: the highest first."),
            Mistake(lambda x, k: [float(v) for v in np.sort(x)[::-1][:k]], "These are the scores. Return their places: argsort."),
            Mistake(lambda x, k: [float(v) for v in np.sort(x)[-k:]], "These are the scores, and the highest is last. Return their places, the highest first."),
            Mistake(lambda x, k: [int(i) for i in np.argsort(-np.abs(x))[:k]], "A large negative score is not likely: do not take np.abs."),
            Mistake(lambda x, k: sorted(int(i) for i in np.argsort(-x)[:k]), "They are sorted by id. The highest score comes first."),
            Mistake(lambda x, k: int(np.argmax(x)), "This is only the best one. Return a list of k."),
            Mistake(lambda x, k: [int(i) for i in np.argsort(-x)[1 : k + 1]], "The best one is missing: begin at 0."),
            Mistake(lambda x, k: [int(i) for i in np.argsort(-x)], "These are all ids. Return only k of them."),
        ),
        ("np.argsort(-logits) has the highest first.",),
    ),
    Exercise(
        "surprise", 6, "Return how surprising a token is, in bits: minus the logarithm to base 2 of its probability.",
        surprise, token_inputs,
        (
            Mistake(lambda x, t: float(-np.log(softmax(x)[t])), "This is in nats, by the natural logarithm. Bits take np.log2."),
            Mistake(lambda x, t: float(np.log2(softmax(x)[t])), "The sign is missing: a probability is below 1, so its logarithm is negative."),
            Mistake(lambda x, t: float(softmax(x)[t]), "This is the probability. Take minus its logarithm to base 2."),
            Mistake(lambda x, t: float(1 / softmax(x)[t]), "This is one divided by the probability. Take the logarithm to base 2 of it."),
            Mistake(lambda x, t: float(-x[t]), "This is minus the score. Make probabilities of the scores first: softmax."),
            Mistake(lambda x, t: float(-np.log2(x[t])), "This is the logarithm of the score. Make probabilities of the scores first: softmax."),
            Mistake(lambda x, t: float(-np.log10(softmax(x)[t])), "This is the logarithm to base 10. Take np.log2."),
            Mistake(lambda x, t: -np.log2(softmax(x)), "This is the surprise of every token. Take that of one."),
            Mistake(lambda x, t: float(-(softmax(x) * np.log2(softmax(x))).sum()), "This is the mean surprise, the entropy. Take that of the token."),
            Mistake(lambda x, t: float(-np.log2(np.exp(x) / np.exp(x).sum())[t]), "Right for small scores. Large ones overflow: use your softmax."),
            Mistake(lambda x, t: 0.0, "The surprise is always 0. The softmax of one score alone is 1: take softmax(logits)[token]."),
        ),
        ("softmax(logits)[token] is the probability.", "-np.log2(p): half is one bit, a quarter two."),
    ),
]
