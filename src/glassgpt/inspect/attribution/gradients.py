"""Attribution to tokens by gradients, which only torch has: input x gradient and integrated gradients."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassgpt.inspect.attribution.attribute import TokenAttribution, tokens_seen
from glassgpt.inspect.torch_forward import at_least_float32, head_row
from glassgpt.inspect.traces.indexing import Array
from glassgpt.inspect.traces.trace import Trace
from glassgpt.model.gpt2 import GPT2

TOLERANCE = 0.002  # where integrated gradients stop: a fifth of the documented 1 %
MAX_STEPS = 1000
MAX_COPY_BYTES = 4 * 2**30  # of a copy of the model in float64
MAX_GRAPH_BYTES = 512 * 2**20  # of the autograd graph of one batch of points
MAX_KEPT_BYTES = 128 * 2**20  # of a graph that a trace keeps for the next target


class TargetLogit:
    """The logit of one token at a position, as a function of the token embeddings."""

    def __init__(self, model: GPT2, ids: list[int], target: int, position: int) -> None:
        self.model = model
        self.position = position
        self.row = head_row(model, target)
        self.x = model.wte.weight[torch.tensor(ids, device=model.wte.weight.device)].detach()  # (T, C)
        self.wpe = 0.0 if model.wpe is None else model.wpe.weight[: len(ids)].detach()  # (T, C)
        per_point = 4 * len(ids) * model.config.n_layer * (8 * model.config.n_embd + 3 * model.config.d_mlp)
        self.graph_bytes = per_point  # of autograd, for one point
        self.batch_size = max(1, min(32, MAX_GRAPH_BYTES // per_point))

    def __call__(self, points: Tensor) -> Tensor:
        """(B, T, C) token embeddings -> (B,) logits."""
        return self.final_vector(points) @ self.row

    def final_vector(self, points: Tensor) -> Tensor:
        """(B, T, C) token embeddings -> (B, C), what the head reads. The same as GPT2.hidden after wte."""
        x = points + self.wpe
        for block in self.model.h:
            x = block(x, None, None, None, None)
        final: Tensor = self.model.ln_f(x[:, self.position])
        return final

    def _batches(self, alphas: Array) -> tuple[Tensor, ...]:
        return torch.split(torch.tensor(alphas).to(self.x), self.batch_size)

    def rounding_error(self, logits: Array) -> float:
        """The rounding error of such logits: a smaller difference means nothing."""
        return float(8 * torch.finfo(self.x.dtype).eps * np.abs(logits).max(initial=1.0))

    def at(self, alphas: Array) -> Tensor:
        """Logits with every token embedding scaled by alpha, (n,), in float64."""
        with torch.no_grad():
            batches = [self(a[:, None, None] * self.x) for a in self._batches(alphas)]
        return to_float64(torch.cat(batches))

    def gradients(self, alphas: Array) -> Tensor:
        """Input x gradient of each token at those points of the path, (n, T), in float64."""
        found = []
        for batch in self._batches(alphas):
            points = (batch[:, None, None] * self.x).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self(points).sum(), points)
            found.append(self.times_embeddings(gradient))
        return torch.cat(found)

    def times_embeddings(self, gradient: Tensor) -> Tensor:
        """(B, T, C) -> (B, T): along each token's embedding."""
        return (to_float64(gradient) * to_float64(self.x)).sum(dim=-1)


@dataclass(frozen=True)
class KeptPass:
    """A forward pass with its autograd graph: the gradients of other targets need only the way back."""

    position: int
    points: Tensor  # (1, T, C)
    final: Tensor  # (1, C)


def input_x_gradient(model: GPT2, trace: Trace, target: int, position: int) -> TokenAttribution:
    """The gradient of the logit along each token's embedding."""
    logit = TargetLogit(at_least_float32(model), tokens_seen(trace, position), target, position)
    kept = trace.gradient_pass
    if not isinstance(kept, KeptPass) or kept.position != position:
        points = logit.x[None].clone().requires_grad_()
        with torch.enable_grad():
            kept = KeptPass(position, points, logit.final_vector(points))
    keep = trace.keeps_steps and logit.graph_bytes <= MAX_KEPT_BYTES
    trace.gradient_pass = kept if keep else None
    with torch.enable_grad():
        value = (kept.final @ logit.row)[0]
        (gradient,) = torch.autograd.grad(value, kept.points, retain_graph=keep)
    scores = pad_scores(logit.times_embeddings(gradient)[0], len(trace))
    return TokenAttribution(trace, "input_x_gradient", target, position, scores, float(value.detach()))


def integrated_gradients(model: GPT2, trace: Trace, target: int, position: int) -> TokenAttribution:
    """The gradient, integrated along the path from the baseline (all token embeddings zero) to the text.

    On every interval of the path the integral must equal the known difference of the logits at its ends; an
    interval where it does not is halved. So the convergence delta is small, with points where they matter.
    """
    ids = tokens_seen(trace, position)
    logit = TargetLogit(at_least_float32(model), ids, target, position)
    nodes, weights = np.polynomial.legendre.leggauss(4)
    done = torch.zeros(len(ids), dtype=torch.float64)
    error, n_steps = 0.0, 0
    edges = np.linspace(0, 1, 5)
    values = logit.at(edges).numpy()
    too_coarse = logit.rounding_error(values) > TOLERANCE * abs(values[-1] - values[0])
    if too_coarse and 8 * model.config.n_parameters < MAX_COPY_BYTES:
        # The two logits are so close that float32 cannot resolve a percent of their difference.
        logit = TargetLogit(copy.deepcopy(model).cpu().double(), ids, target, position)
        values = logit.at(edges).numpy()
    start, end = float(values[0]), float(values[-1])
    allowed, noise = TOLERANCE * abs(end - start), logit.rounding_error(values)
    intervals = list(zip(edges[:-1], edges[1:], values[:-1], values[1:], strict=True))
    while intervals:
        left = np.array([interval[0] for interval in intervals])
        width = np.array([interval[1] for interval in intervals]) - left
        alphas = left[:, None] + width[:, None] * (nodes + 1) / 2  # (intervals, 4)
        gradients = logit.gradients(alphas.ravel())  # (intervals * 4, T)
        factors = torch.from_numpy(width[:, None] * weights / 2)  # (intervals, 4)
        sums = (gradients.view(len(intervals), 4, -1) * factors[:, :, None]).sum(dim=1)  # (intervals, T)
        n_steps += alphas.size
        errors = sums.sum(dim=1).numpy() - np.array([at_b - at_a for _, _, at_a, at_b in intervals])
        # The error allowed is proportional to the width, so the sum over all intervals stays within it.
        converged = (np.abs(errors) <= np.maximum(allowed * width, noise)) | (n_steps >= MAX_STEPS)
        done += sums[torch.from_numpy(converged)].sum(dim=0)
        error += float(errors[converged].sum())
        halved = [interval for interval, ok in zip(intervals, converged, strict=True) if not ok]
        middles = [(a + b) / 2 for a, b, _, _ in halved]
        between = logit.at(np.array(middles)).numpy() if halved else np.array([])
        intervals = []
        for (a, b, at_a, at_b), middle, at_middle in zip(halved, middles, between, strict=True):
            intervals += [(a, middle, at_a, at_middle), (middle, b, at_middle, at_b)]
    scores = pad_scores(done, len(trace))
    difference = abs(end - start)
    delta = (
        abs(float(scores.sum(dtype=np.float64)) - (end - start)) / difference if difference else abs(error)
    )
    return TokenAttribution(
        trace, "integrated_gradients", target, position, scores, end, start, delta, n_steps
    )


def pad_scores(scores: Tensor, n_tokens: int) -> Array:
    """Zero for tokens that the position does not see."""
    padded = np.zeros(n_tokens, np.float32)
    padded[: len(scores)] = scores.numpy()
    return padded


def to_float64(values: Tensor) -> Tensor:
    """On the CPU: not every device has float64."""
    return values.detach().cpu().double()
