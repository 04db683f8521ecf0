"""Lesson 10: a loss, its gradient, and a step."""

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake
from glassgpt.course.exercises.lesson03_attention import softmax


def cross_entropy(logits, targets):
    rows = np.arange(len(targets))
    return float(-np.log(softmax(logits)[rows, targets]).mean())


def cross_entropy_gradient(logits, targets):
    gradient = softmax(logits)  # (N, V)
    gradient[np.arange(len(targets)), targets] -= 1
    return gradient / len(targets)


def linear_gradients(x, w, d_out):
    d_x = d_out @ w.T
    d_w = x.T @ d_out
    d_b = d_out.sum(axis=0)
    return d_x, d_w, d_b


def sgd_step(parameters, gradients, rate):
    return {name: value - rate * gradients[name] for name, value in parameters.items()}


def numeric_gradient(loss, w, step=1e-4):
    gradient = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        above, below = w.copy(), w.copy()
        above[place] += step
        below[place] -= step
        gradient[place] = (loss(above) - loss(below)) / (2 * step)
    return gradient


def _batches(rng):
    return [(rng.normal(size=(n, v)) * 2, rng.integers(0, v, size=n)) for n, v in ((1, 5), (4, 6), (7, 3))]


def _linears(rng):
    return [
        (rng.normal(size=(n, c)), rng.normal(size=(c, m)), rng.normal(size=(n, m)))
        for n, c, m in ((2, 3, 5), (4, 4, 4), (6, 2, 3))
    ]


def _dicts(rng):
    def numbers():
        return {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}

    return [(numbers(), numbers(), rate) for rate in (0.1, 1.0, 3.0)]


def _cube(w):
    return float((w**3).sum())


def _wave(w):
    return float(np.sin(w).sum() * w.flat[0])


def _quotients(loss, w, step, up=1, down=1, width=None):
    gradient = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        above, below = w.copy(), w.copy()
        above[place] += up * step
        below[place] -= down * step
        gradient[place] = (loss(above) - loss(below)) / ((up + down) * step if width is None else width)
    return gradient


def _onehot(logits, targets):
    out = np.zeros_like(logits)
    out[np.arange(len(targets)), targets] = 1
    return out


def _picked(logits, targets):
    return softmax(logits)[np.arange(len(targets)), targets]


def _minus_one(logits, places):
    probs = softmax(logits)
    probs[places] -= 1
    return probs / len(logits)


def _uncopied(loss, w, step):
    gradient = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        above, below = w, w
        above[place] += step
        below[place] -= step
        gradient[place] = (loss(above) - loss(below)) / (2 * step)
    return gradient


def _row_by_row(loss, w, step):
    gradient = np.zeros_like(w)
    for i in range(len(w)):
        above, below = w.copy(), w.copy()
        above[i] += step
        below[i] -= step
        gradient[i] = (loss(above) - loss(below)) / (2 * step)
    return gradient


EXERCISES = [
    Exercise(
        name="cross_entropy",
        lesson=10,
        task="The loss: the mean of -log p over the rows, p being the probability of each row's target.",
        solution=cross_entropy,
        inputs=_batches,
        hints=(
            "softmax(logits) gives (N, V) probabilities, a row for each position.",
            "The probability of each row's target: probs[np.arange(N), targets].",
            "Take the logarithm of each, change the sign, and take the mean.",
        ),
        mistakes=(
            Mistake(
                lambda logits, targets: float(np.log(_picked(logits, targets)).mean()),
                "The sign is reversed. A loss is small when the model is right: -log p.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(_picked(logits, targets)).sum()),
                "This is the sum over the rows. Take the mean, so that batches of any size can be compared.",
            ),
            Mistake(
                lambda logits, targets: float(-_picked(logits, targets).mean()),
                "The logarithm is missing.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(_picked(logits, targets).mean())),
                "The mean is taken before the logarithm. Take the logarithm of each probability first.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log2(_picked(logits, targets)).mean()),
                "These are bits, base 2. The loss is measured in nats: np.log.",
            ),
            Mistake(
                lambda logits, targets: float(-logits[np.arange(len(targets)), targets].mean()),
                "The logits themselves are taken. Turn each row into probabilities with a softmax first.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(softmax(logits)).mean()),
                "All tokens of the vocabulary are in the mean. Only each row's target counts.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(softmax(logits).max(axis=-1)).mean()),
                "The most probable token is scored. Score the target, the token that really comes.",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(softmax(logits)[:, targets]).mean()),
                "[:, targets] takes the columns of all targets in every row. Each row has one: probs[np.arange(N), targets].",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(softmax(logits)[targets]).mean()),
                "[targets] takes rows. Each row has a target, which is a column: probs[np.arange(N), targets].",
            ),
            Mistake(
                lambda logits, targets: float(-np.log(logits[range(len(targets)), targets]).mean()),
                "This is the logarithm of logits. Turn each row into probabilities with a softmax first.",
            ),
        ),
    ),
    Exercise(
        name="cross_entropy_gradient",
        lesson=10,
        task="The gradient of the loss with respect to every logit, (N, V): (probabilities - targets as 0 and 1) / N.",
        solution=cross_entropy_gradient,
        inputs=_batches,
        hints=(
            "A logit pushes the loss up by its token's probability, and the target's logit pulls it down by 1.",
            "Begin with softmax(logits), and subtract 1 at [np.arange(N), targets].",
            "The loss is a mean over N rows, so each row's gradient is divided by N.",
        ),
        mistakes=(
            Mistake(
                lambda logits, targets: softmax(logits) - _onehot(logits, targets),
                "The loss is a mean over the rows: divide by their number.",
            ),
            Mistake(
                lambda logits, targets: (_onehot(logits, targets) - softmax(logits)) / len(targets),
                "The sign is reversed: this points downhill. The gradient points uphill, and a step subtracts it.",
            ),
            Mistake(
                lambda logits, targets: softmax(logits) / len(targets),
                "The 1 at each row's target is not subtracted.",
            ),
            Mistake(
                lambda logits, targets: (logits - _onehot(logits, targets)) / len(targets),
                "The logits themselves are taken. Their softmax belongs here.",
            ),
            Mistake(
                lambda logits, targets: (softmax(logits) - _onehot(logits, targets)) / logits.size,
                "It is divided by the size of the whole array. Divide by the number of rows.",
            ),
            Mistake(
                lambda logits, targets: (softmax(logits) - _onehot(logits, targets)) / logits.shape[1],
                "It is divided by the size of the vocabulary. Divide by the number of rows.",
            ),
            Mistake(
                lambda logits, targets: (softmax(logits) - 1) / len(targets),
                "1 is subtracted everywhere. Subtract it only at each row's target.",
            ),
            Mistake(
                lambda logits, targets: -_onehot(logits, targets) / _picked(logits, targets)[:, None] / len(targets),
                "This is the gradient for the probabilities. Go on through the softmax to the logits.",
            ),
            Mistake(
                lambda logits, targets: _minus_one(logits, (slice(None), targets)),
                "1 is subtracted in the columns of all targets. Each row has one: probs[np.arange(N), targets] -= 1.",
            ),
            Mistake(
                lambda logits, targets: _minus_one(logits, targets),
                "[targets] takes rows. Each row has a target, which is a column: probs[np.arange(N), targets] -= 1.",
            ),
        ),
    ),
    Exercise(
        name="linear_gradients",
        lesson=10,
        task="From d_out, the gradient for out = x @ w + b, find those for x, w and b.",
        solution=linear_gradients,
        inputs=_linears,
        hints=(
            "A gradient has the shape of what it belongs to. Which products of d_out, x and w have these shapes?",
            "out[n, m] is a sum over c of x[n, c] w[c, m]. So d_w[c, m] sums x[n, c] d_out[n, m] over n: x.T @ d_out.",
            "d_x = d_out @ w.T. The bias is added to every row, so d_b is the sum over the rows.",
        ),
        mistakes=(
            Mistake(
                lambda x, w, d: (d @ w.T, d.T @ x, d.sum(axis=0)),
                "d_w is transposed: it needs the shape of w. Write x.T @ d_out.",
            ),
            Mistake(
                lambda x, w, d: (d @ w, x.T @ d, d.sum(axis=0)),
                "d_x needs w.T: d_out has the width of the output, and w.T leads back to the width of x.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d, d.mean(axis=0)),
                "d_b is the sum over the rows, not their mean: the bias acts in each of them.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d, d),
                "d_b has to have the shape of b: sum over the rows.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d, d.sum(axis=1)),
                "d_b sums over the wrong axis. b has one number for each column: sum over the rows, axis 0.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d / len(x), d.sum(axis=0)),
                "d_w is divided by the number of rows. d_out contains that division already.",
            ),
            Mistake(
                lambda x, w, d: (x.T @ d, d @ w.T, d.sum(axis=0)),
                "The gradients for x and w are exchanged. Return d_x, d_w, d_b.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d, np.ones(d.shape[1])),
                "d_b does not depend on d_out here. The slope for b is 1 in each row: sum d_out over the rows.",
            ),
            Mistake(
                lambda x, w, d: (d @ w.T, x.T @ d, d.sum()),
                "d_b is a single number. b has one for each column: sum over the rows, axis=0.",
            ),
        ),
    ),
    Exercise(
        name="sgd_step",
        lesson=10,
        task="One step of gradient descent: a new dict with every parameter moved against its gradient, times the rate.",
        solution=sgd_step,
        inputs=_dicts,
        hints=(
            "A gradient points to where the loss grows. A step goes the other way.",
            "For each name: parameters[name] - rate * gradients[name]. Build a new dict.",
        ),
        mistakes=(
            Mistake(
                lambda p, g, rate: {k: v + rate * g[k] for k, v in p.items()},
                "The step goes uphill. Subtract the gradient.",
            ),
            Mistake(
                lambda p, g, rate: p - rate * g,
                "The parameters are a dict, which cannot be multiplied. Compute each name's array, and build a new dict.",
            ),
            Mistake(lambda p, g, rate: {k: v - g[k] for k, v in p.items()}, "The rate is not used."),
            Mistake(
                lambda p, g, rate: {k: v - g[k] / rate for k, v in p.items()},
                "The gradient is divided by the rate. Multiply by it: a small rate is a small step.",
            ),
            Mistake(
                lambda p, g, rate: {k: v - rate * np.sign(g[k]) for k, v in p.items()},
                "Only the sign of the gradient is used. Where the slope is steep, the step is long.",
            ),
            Mistake(
                lambda p, g, rate: {k: v * (1 - rate * g[k]) for k, v in p.items()},
                "The parameters are multiplied. Subtract rate * gradient from them.",
            ),
            Mistake(lambda p, g, rate: {k: -rate * g[k] for k, v in p.items()}, "This is only the step. Add it to the parameters."),
            Mistake(
                lambda p, g, rate: {k: rate * (v - g[k]) for k, v in p.items()},
                "The rate multiplies the parameters as well. It belongs to the gradient alone.",
            ),
            Mistake(lambda p, g, rate: dict(p), "Nothing moves: the parameters come back unchanged."),
        ),
    ),
    Exercise(
        name="numeric_gradient",
        lesson=10,
        task="The slope of loss(w) at each number of w, by trying: a little more, a little less, divided by the distance.",
        solution=numeric_gradient,
        inputs=lambda rng: [(_cube, rng.normal(size=(2, 3)), 1e-2), (_wave, rng.normal(size=4), 1e-2),
                            (_cube, rng.normal(size=3) * 3, 0.1)],
        tolerance=1e-6,
        hints=(
            "Take one number of w at a time. `for place in np.ndindex(w.shape)` walks through all of them.",
            "Make two copies of w: one with that number `step` higher, one with it `step` lower.",
            "The slope: (loss(above) - loss(below)) / (2 * step).",
        ),
        mistakes=(
            Mistake(
                lambda loss, w, step: _quotients(loss, w, step, down=0),
                "Only one side is tried. Go `step` up and `step` down: the error is far smaller.",
            ),
            Mistake(
                lambda loss, w, step: _quotients(loss, w, step, up=0),
                "Only the lower side is tried. Go `step` up and `step` down: the error is far smaller.",
            ),
            Mistake(
                lambda loss, w, step: _quotients(loss, w, step, width=step),
                "The distance between the two points is 2 * step.",
            ),
            Mistake(
                lambda loss, w, step: _quotients(loss, w, step, width=1),
                "This is the difference of the losses. Divide it by the distance, 2 * step.",
            ),
            Mistake(
                lambda loss, w, step: -_quotients(loss, w, step),
                "The sign is reversed: above minus below.",
            ),
            Mistake(
                lambda loss, w, step: np.full_like(w, (loss(w + step) - loss(w - step)) / (2 * step)),
                "All numbers are moved at once. Move one at a time, and keep the others.",
            ),
            Mistake(
                lambda loss, w, step: _quotients(loss, w, step).ravel(),
                "The gradient is a flat list. It needs the shape of w.",
            ),
            Mistake(
                lambda loss, w, step: (loss(w + step) - loss(w - step)) / (2 * step),
                "All numbers are moved at once, which gives one slope. Move one at a time, and keep the others.",
            ),
            Mistake(
                _uncopied,
                "Every slope is 0. `above = w` makes no copy, only another name: write w.copy().",
            ),
            Mistake(
                _row_by_row,
                "The loop moves whole rows. `for place in np.ndindex(w.shape)` walks through the single numbers.",
            ),
        ),
    ),
]
