"""Lesson 5: the block."""

import math

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson04_heads import linear, self_attention
from glassgpt.course.exercises.toy import N_HEAD, C, toy_cache, toy_weights
from glassgpt.course.models import shape, trace, weights


def layer_norm(x, weight, bias):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def mlp(x, weights, layer):
    name = f"h.{layer}.mlp"
    hidden = gelu(linear(x, weights[f"{name}.c_fc.weight"], weights[f"{name}.c_fc.bias"]))  # (T, 4 C)
    return linear(hidden, weights[f"{name}.c_proj.weight"], weights[f"{name}.c_proj.bias"])  # (T, C)


def block(x, weights, layer, n_head, cache=None):
    name = f"h.{layer}"
    normed = layer_norm(x, weights[f"{name}.ln_1.weight"], weights[f"{name}.ln_1.bias"])
    x = x + self_attention(normed, weights, layer, n_head, cache)
    normed = layer_norm(x, weights[f"{name}.ln_2.weight"], weights[f"{name}.ln_2.bias"])
    return x + mlp(normed, weights, layer)


def norm_inputs(rng):
    made = [(rng.normal(size=s) * a + b, rng.normal(size=s[-1]), rng.normal(size=s[-1])) for s, a, b in (((3, 8), 1, 2), ((4, 4), 9, 0), ((2, 3, 5), 0.1, -3), ((6,), 1, 1))]
    flat = (np.full((2, 4), 3.0), np.ones(4), np.zeros(4))
    tiny = (rng.normal(size=(3, 4)) * 1e-3, np.ones(4), np.zeros(4))
    own = weights()
    return [*made, flat, tiny, (np.asarray(trace()["embedding"]), own["h.0.ln_1.weight"], own["h.0.ln_1.bias"])]


def gelu_inputs(rng):
    return [(np.linspace(-5, 5, 21),), (rng.normal(size=(3, 4)) * 2,), (np.array([0.0]),), (np.asarray(trace()["h.0.mlp.fc"]),)]


def mlp_inputs(rng):
    toy = toy_weights(rng)
    return [*((rng.normal(size=(n, C)), toy, layer) for n, layer in ((3, 0), (1, 1), (8, 1))), (np.asarray(trace()["h.2.ln_2"]), weights(), 2)]


def block_inputs(rng):
    toy = toy_weights(rng)
    made = [(rng.normal(size=(n, C)), toy, layer, N_HEAD, *rest) for n, layer, rest in ((3, 0, ()), (8, 1, ()), (2, 1, ({},)))]
    cached = (rng.normal(size=(1, C)), toy, 0, N_HEAD, toy_cache(rng, 4))
    return [*made, cached, (np.asarray(trace()["h.2.resid_post"]), weights(), 3, shape()[1])]


def norm_with(x, weight, bias, axis=-1, center=True, root=True, eps=1e-5, ddof=0, outside=False):
    centered = x - x.mean(axis, keepdims=True) if center else x
    spread = x.var(axis, keepdims=True, ddof=ddof) if center else (x * x).mean(axis, keepdims=True)
    divisor = np.sqrt(spread) + eps if outside else np.sqrt(spread + eps) if root else spread + eps
    return centered / divisor * weight + bias


def exact_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def gelu_with(x, a=math.sqrt(2 / math.pi), b=0.044715, power=3, half=0.5, one=1):
    return half * x * (one + np.tanh(a * (x + b * x**power)))


def own_mlp(x, weights, layer, act=gelu, twice=False, biases=(1, 1), last=True):
    name = f"h.{layer}.mlp"
    hidden = act(x @ weights[f"{name}.c_fc.weight"] + biases[0] * weights[f"{name}.c_fc.bias"])
    if not last:
        return hidden
    out = hidden @ weights[f"{name}.c_proj.weight"] + biases[1] * weights[f"{name}.c_proj.bias"]
    return act(out) if twice else out


def own_block(x, weights, layer, n_head, cache=None, norms="12", where="before", residual="am", order="am", hand_on=True):
    def normed(x, number):
        if norms[number] == "-":
            return x
        name = f"h.{layer}.ln_{norms[number]}"
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    for letter in order:
        number = "am".index(letter)
        taken = normed(x, number) if where == "before" else x
        if letter == "a":
            out = self_attention(taken, weights, layer, n_head, cache if hand_on else None)
        else:
            out = mlp(taken, weights, layer)
        base = {"normed": taken, "no": 0}.get(residual, x if letter in residual else 0)
        x = base + out
        if where == "after":
            x = normed(x, number)
    return x


def forgetful_block(x, weights, layer, n_head, cache=None):
    name = f"h.{layer}"
    normed = layer_norm(x, weights[f"{name}.ln_1.weight"], weights[f"{name}.ln_1.bias"])
    middle = x + self_attention(normed, weights, layer, n_head, cache)
    normed = layer_norm(middle, weights[f"{name}.ln_2.weight"], weights[f"{name}.ln_2.bias"])
    return x + mlp(normed, weights, layer)


def parallel_block(x, weights, layer, n_head, cache=None):
    name = f"h.{layer}"
    one, two = (layer_norm(x, weights[f"{name}.ln_{n}.weight"], weights[f"{name}.ln_{n}.bias"]) for n in (1, 2))
    return x + self_attention(one, weights, layer, n_head, cache) + mlp(two, weights, layer)


def one_variance(x, weight, bias):
    centered = x - x.mean(-1, keepdims=True)
    return centered / math.sqrt((centered**2).mean() + 1e-5) * weight + bias


EXERCISES = [
    Exercise(
        "layer_norm", 5, "For each row: subtract its mean, divide by the root of its variance plus 1e-5, then times weight plus bias.",
        layer_norm, norm_inputs,
        (
            Mistake(lambda x, w, b: norm_with(x, w, b, axis=0), "The mean runs over the tokens. Each token is normalized by itself: axis=-1."),
            Mistake(lambda x, w, b: norm_with(x, w, b, axis=None), "One mean for all tokens. Each token has its own: axis=-1, keepdims=True."),
            Mistake(lambda x, w, b: norm_with(x, w, b, axis=None, eps=0), "One mean for all tokens, and the 1e-5 is missing. Each token has its own mean: axis=-1, keepdims=True."),
            Mistake(lambda x, w, b: norm_with(x, w, b, root=False), "It divides by the variance. Divide by its square root."),
            Mistake(lambda x, w, b: norm_with(x, w, b, eps=0), "The 1e-5 is missing: a row whose numbers are all equal has the variance 0."),
            Mistake(lambda x, w, b: norm_with(x, w, b, outside=True), "The 1e-5 is added to the root. Add it to the variance, under the root."),
            Mistake(lambda x, w, b: norm_with(x, w, b, ddof=1), "The variance is divided by n - 1. Divide by n, as np.var does by itself."),
            Mistake(lambda x, w, b: norm_with(x, w, b, center=False), "The mean is not subtracted."),
            Mistake(lambda x, w, b: norm_with(x, 1, b), "The weight is missing."),
            Mistake(lambda x, w, b: norm_with(x, w, 0), "The bias is missing."),
            Mistake(lambda x, w, b: norm_with(x, 1, 0), "Weight and bias are missing."),
            Mistake(lambda x, w, b: norm_with(x, 1, 0) * (w + b), "The bias multiplies. Add it at the end."),
            Mistake(lambda x, w, b: (norm_with(x, 1, 0) + b) * w, "The bias is added before the weight. First times weight, then plus bias."),
            Mistake(lambda x, w, b: norm_with(x, w, b, eps=1e-8), "Under the root is 1e-8. GPT-2 adds 1e-5."),
            Mistake(lambda x, w, b: norm_with(x, w, b, eps=1e-6), "Under the root is 1e-6. GPT-2 adds 1e-5."),
            Mistake(lambda x, w, b: norm_with(x, w, b, eps=1e-12), "Under the root is 1e-12. GPT-2 adds 1e-5."),
            Mistake(lambda x, w, b: (x - x.mean(-1, keepdims=True)) * w + b, "It is not divided by the root of the variance."),
            Mistake(one_variance, "One variance for all tokens. Each token has its own: axis=-1, keepdims=True."),
        ),
        ("x.mean(axis=-1, keepdims=True) has a shape that can be subtracted from x.", "The variance is the mean of the squares of what is left.", "centered / np.sqrt(variance + 1e-5) * weight + bias"),
        keep=True,
    ),
    Exercise(
        "gelu", 5, "Half of x, times 1 plus tanh of sqrt(2 / pi) times (x + 0.044715 x cubed).",
        gelu, gelu_inputs,
        (
            Mistake(lambda x: np.maximum(x, 0), "This is a ReLU, with a corner at 0. GELU is round there."),
            Mistake(exact_gelu, "This is the exact GELU, by the error function. It differs from the fourth digit on: GPT-2 was trained with the tanh form."),
            Mistake(lambda x: x / (1 + np.exp(-1.702 * x)), "This is the sigmoid form. GPT-2 was trained with the tanh form."),
            Mistake(lambda x: x / (1 + np.exp(-x)), "This is SiLU, x times its sigmoid."),
            Mistake(lambda x: gelu_with(x, half=1), "The half is missing."),
            Mistake(lambda x: gelu_with(x, one=0), "The 1 + is missing before the tanh."),
            Mistake(lambda x: gelu_with(x, b=0), "The cubed term is missing."),
            Mistake(lambda x: gelu_with(x, power=2), "x is squared. It is cubed."),
            Mistake(lambda x: gelu_with(x, a=2 / math.pi), "The square root of 2 / pi is missing."),
            Mistake(lambda x: gelu_with(x, a=math.sqrt(2) / math.pi), "The root covers only the 2: it is that of 2 / pi."),
            Mistake(lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x + 0.044715 * x**3)), "The root multiplies only x. It multiplies all of (x + 0.044715 x cubed)."),
            Mistake(lambda x: gelu_with(x, a=1), "The factor sqrt(2 / pi) is missing."),
            Mistake(lambda x: gelu(x) / np.where(x == 0, 1, x), "The x in front is missing."),
            Mistake(lambda x: 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), "The x in front is missing."),
            Mistake(lambda x: np.tanh(x), "This is only a tanh."),
            Mistake(lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * 3))), "x is multiplied by 3. x cubed is x**3."),
        ),
        ("np.tanh works on arrays; math.tanh does not.", "0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))"),
        keep=True, tolerance=2e-6,
    ),
    Exercise(
        "mlp", 5, "A linear layer to four times the width (c_fc), GELU, and a linear layer back (c_proj).",
        mlp, mlp_inputs,
        (
            Mistake(lambda *a: own_mlp(*a, act=lambda x: x), "The GELU between the two layers is missing."),
            Mistake(lambda *a: own_mlp(*a, act=lambda x: np.maximum(x, 0)), "There is a ReLU between the layers. GPT-2 uses GELU."),
            Mistake(lambda *a: own_mlp(*a, twice=True), "There is a GELU after the second layer, too. It comes only between them."),
            Mistake(lambda *a: own_mlp(*a, biases=(0, 1)), "The bias of c_fc is missing."),
            Mistake(lambda *a: own_mlp(*a, biases=(1, 0)), "The bias of c_proj is missing."),
            Mistake(lambda *a: own_mlp(*a, biases=(0, 0)), "Both biases are missing."),
            Mistake(lambda *a: own_mlp(*a, last=False), "The second layer, c_proj, is missing."),
            Mistake(lambda x, w, layer: x + own_mlp(x, w, layer), "The input is added. That sum is part of the block."),
            Mistake(lambda x, w, layer: own_mlp(x, w, 0), "It always uses the weights of block 0. Use those of `layer`."),
            Mistake(lambda x, w, layer: own_mlp(gelu(x), w, layer, act=lambda x: x), "The GELU comes before the first layer. It comes between the two."),
            Mistake(lambda x, w, layer: own_mlp(layer_norm(x, w[f"h.{layer}.ln_2.weight"], w[f"h.{layer}.ln_2.bias"]), w, layer), "The norm is applied here. It is part of the block."),
        ),
        ("The names are f\"h.{layer}.mlp.c_fc.weight\" and so on.", "linear(gelu(linear(...)), ...)"),
        keep=True,
    ),
    Exercise(
        "block", 5, "x plus attention of its first norm; then the result plus the MLP of its second norm.",
        block, block_inputs,
        (
            Mistake(lambda *a: own_block(*a, residual="no"), "Both sums are missing: x + attention, x + MLP."),
            Mistake(lambda *a: own_block(*a, residual="m"), "The first sum is missing: add x to what attention returns."),
            Mistake(lambda *a: own_block(*a, residual="a"), "The second sum is missing: add x to what the MLP returns."),
            Mistake(lambda *a: own_block(*a, residual="normed"), "The normed x is added. Add x as it was: the stream itself is never normed."),
            Mistake(lambda *a: own_block(*a, norms="--"), "Both norms are missing."),
            Mistake(lambda *a: own_block(*a, norms="-2"), "The first norm, ln_1, is missing."),
            Mistake(lambda *a: own_block(*a, norms="1-"), "The second norm, ln_2, is missing."),
            Mistake(lambda *a: own_block(*a, norms="11"), "ln_1 is used twice. The MLP reads through ln_2."),
            Mistake(lambda *a: own_block(*a, norms="21"), "ln_1 and ln_2 are exchanged."),
            Mistake(lambda *a: own_block(*a, where="after"), "The norms come after the sums, as in the first transformer. In GPT-2 they come before attention and MLP."),
            Mistake(lambda *a: own_block(*a, order="ma"), "The MLP comes first. Attention comes first."),
            Mistake(lambda *a: own_block(*a, order="a"), "The MLP is missing."),
            Mistake(lambda *a: own_block(*a, order="m"), "Attention is missing."),
            Mistake(forgetful_block, "The second sum begins with the old x: what attention added is lost. Write x = x + ... both times."),
            Mistake(parallel_block, "The MLP reads x as it was before attention. It reads the sum."),
            Mistake(lambda *a: own_block(*a, hand_on=False), "The cache is not handed on: self_attention(..., cache)."),
            Mistake(lambda x, w, layer, *a: own_block(x, w, 0, *a), "It always uses the weights of block 0. Use those of `layer`."),
        ),
        ("Attention first: x = x + self_attention(layer_norm(x, ...), ...).", "The MLP reads the new x, through ln_2.", "Hand the cache on to self_attention."),
        keep=True, changes=(4,),
    ),
]
