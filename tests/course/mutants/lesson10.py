"""Wrong and right solutions of lesson 10, written apart from the exercises' own."""

import math

import numpy as np


def soft(row):
    e = [math.exp(v - max(row)) for v in row]
    return [v / sum(e) for v in e]


def right_ones(logits, targets):
    return [soft(list(row))[t] for row, t in zip(logits, targets)]


def loss(logits, targets):
    return -sum(math.log(p) for p in right_ones(logits, targets)) / len(targets)


def loss_of_the_mean(logits, targets):
    return -math.log(sum(right_ones(logits, targets)) / len(targets))


def loss_in_bits(logits, targets):
    return loss(logits, targets) / math.log(2)


def loss_of_logits(logits, targets):
    return -float(np.mean([row[t] for row, t in zip(logits, targets)]))


def loss_of_everything(logits, targets):
    return -float(np.mean([np.log(soft(list(row))) for row in logits]))


def loss_of_the_best(logits, targets):
    return loss(logits, logits.argmax(axis=1))


def pulls(logits, targets):
    out = np.array([soft(list(row)) for row in logits])
    for row, t in zip(out, targets):
        row[t] -= 1
    return out


def without_one(logits, targets):
    return np.array([soft(list(row)) for row in logits]) / len(targets)


def raw_pulls(logits, targets):
    out = logits.copy()
    out[range(len(targets)), targets] -= 1
    return out / len(targets)


def everywhere(logits, targets):
    return np.array([[p - 1 for p in soft(list(row))] for row in logits]) / len(targets)


def back(x, w, d):
    return np.einsum("nm,cm->nc", d, w), np.einsum("nc,nm->cm", x, d), d.T @ np.ones(len(d))


def back_turned(x, w, d):
    dx, dw, db = back(x, w, d)
    return dx, dw.T, db


def back_mean(x, w, d):
    dx, dw, db = back(x, w, d)
    return dx, dw, db / len(d)


def back_whole(x, w, d):
    dx, dw, _ = back(x, w, d)
    return dx, dw, d.copy()


def back_wrong_axis(x, w, d):
    dx, dw, _ = back(x, w, d)
    return dx, dw, d @ np.ones(d.shape[1])


def back_exchanged(x, w, d):
    dx, dw, db = back(x, w, d)
    return dw, dx, db


def back_divided(x, w, d):
    dx, dw, db = back(x, w, d)
    return dx, dw / x.shape[0], db


def step(p, g, rate):
    new = {}
    for name in p:
        new[name] = p[name] + g[name] * -rate
    return new


def tries(loss, w, step=1e-4, up=1, down=1, distance=None):
    flat = w.ravel()
    out = []
    for i in range(flat.size):
        values = []
        for change in (up * step, -down * step):
            own = flat.copy()
            own[i] += change
            values.append(loss(own.reshape(w.shape)))
        out.append((values[0] - values[1]) / (distance or (up + down) * step))
    return np.array(out).reshape(w.shape)


MUTANTS = {
    "cross_entropy": [
        (lambda logits, targets: -loss(logits, targets), "sign is reversed"),
        (lambda logits, targets: loss(logits, targets) * len(targets), "sum over the rows"),
        (lambda logits, targets: -float(np.mean(right_ones(logits, targets))), "logarithm is missing"),
        (loss_of_the_mean, "before the logarithm"),
        (loss_in_bits, "bits"),
        (loss_of_logits, "logits themselves"),
        (loss_of_everything, "All tokens"),
        (loss_of_the_best, "most probable token is scored"),
    ],
    "cross_entropy_gradient": [
        (pulls, "divide by their number"),
        (lambda logits, targets: pulls(logits, targets) / -len(targets), "sign is reversed"),
        (without_one, "not subtracted"),
        (raw_pulls, "logits themselves"),
        (everywhere, "subtracted everywhere"),
        (lambda logits, targets: pulls(logits, targets) / len(logits[0]), "size of the vocabulary"),
    ],
    "linear_gradients": [
        (back_turned, "d_w is transposed"),
        (back_mean, "not their mean"),
        (back_whole, "shape of b"),
        (back_wrong_axis, "wrong axis"),
        (back_exchanged, "exchanged"),
        (back_divided, "divided by the number of rows"),
    ],
    "sgd_step": [
        (lambda p, g, rate: step(p, g, -rate), "uphill"),
        (lambda p, g, rate: step(p, g, 1), "rate is not used"),
        (lambda p, g, rate: step(p, g, 1 / rate), "divided by the rate"),
        (lambda p, g, rate: {k: p[k] - rate * (g[k] > 0) + rate * (g[k] < 0) for k in p}, "Only the sign"),
        (lambda p, g, rate: {k: -g[k] * rate for k in g}, "only the step"),
        (lambda p, g, rate: step(p, g, 0), "Nothing moves"),
    ],
    "numeric_gradient": [
        (lambda loss, w, step=1e-4: tries(loss, w, step, down=0), "Only one side"),
        (lambda loss, w, step=1e-4: tries(loss, w, step, up=0), "Only the lower side"),
        (lambda loss, w, step=1e-4: tries(loss, w, step, distance=step), "2 * step"),
        (lambda loss, w, step=1e-4: tries(loss, w, step, distance=1), "difference of the losses"),
        (lambda loss, w, step=1e-4: -1 * tries(loss, w, step), "sign is reversed"),
        (lambda loss, w, step=1e-4: tries(loss, w, step).reshape(-1), "flat list"),
    ],
}

OTHER_STYLE = {
    "cross_entropy": loss,
    "cross_entropy_gradient": lambda logits, targets: pulls(logits, targets) / len(targets),
    "linear_gradients": back,
    "sgd_step": step,
    "numeric_gradient": tries,
}
