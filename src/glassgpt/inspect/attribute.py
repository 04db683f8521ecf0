"""`gpt.attribute(text, target)`: the tokens, or the parts of the model, that a next token's logit comes from.

To tokens: input x gradient, integrated gradients (Sundararajan et al. 2017) and attention rollout (Abnar &
Zuidema 2020). To parts of the model: direct logit attribution, which decomposes the final residual stream
into what the embedding, each head and each MLP wrote to it (nostalgebraist 2020; Elhage et al. 2021).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from glassgpt.errors import SettingError
from glassgpt.inspect.activations import Activations
from glassgpt.inspect.display import Displayable
from glassgpt.inspect.indexing import Array
from glassgpt.inspect.intervene import unmodified_trace
from glassgpt.inspect.taps import check_index
from glassgpt.inspect.trace import Trace
from glassgpt.model.fast_path import is_unmodified
from glassgpt.model.gpt2 import GPT2, Attention, Block, Projection

if TYPE_CHECKING:
    from glassgpt.gpt import GPT, Prompt
    from glassgpt.inspect.svg import Figure

TOLERANCE = 0.002  # where integrated gradients stop: a fifth of the documented 1 %
MAX_STEPS = 1000
MAX_COPY_BYTES = 4 * 2**30  # of a copy of the model in float64
MAX_GRAPH_BYTES = 512 * 2**20  # of the autograd graph of one batch of points


@dataclass(frozen=True, eq=False)
class TokenAttribution(Displayable):
    """How much each token of the text contributes to the target's logit, (T,)."""

    trace: Trace
    method: str
    target: int
    position: int  # the target is predicted here
    scores: Array  # 0 for later tokens, which this position cannot attend to
    logit: float
    # Of integrated gradients only:
    baseline: float | None = None  # the logit with all token embeddings zero
    convergence_delta: float | None = None  # |sum of scores - (logit - baseline)| / |logit - baseline|
    n_steps: int | None = None  # gradients computed

    def figure(self) -> Figure:
        from glassgpt.inspect.plots import plot_token_attribution

        return plot_token_attribution(self)

    def __repr__(self) -> str:
        text = self.trace.vocabulary.text(self.target)
        delta = "" if self.convergence_delta is None else f", convergence delta {self.convergence_delta:.2%}"
        return f"TokenAttribution({self.method!r}, {text!r}, {len(self.scores)} tokens{delta})"


@dataclass(frozen=True, eq=False)
class DirectLogitAttribution(Displayable):
    """The target's logit as a sum over all that is written to the residual stream, at the scale of ln_f."""

    trace: Trace
    target: int
    position: int
    wte: float  # the token embedding
    wpe: float  # the position embedding
    heads: Array  # (n_layer, n_head)
    mlps: Array  # (n_layer,), including their biases
    attn_bias: Array  # (n_layer,): the bias of attention's output projection, which belongs to no head
    ln_f_bias: float
    logit: float  # as the model computed it

    method = "direct_logit_attribution"

    @property
    def embedding(self) -> float:
        return self.wte + self.wpe

    @property
    def biases(self) -> float:
        """The biases of attention's output projections and of ln_f."""
        return float(self.attn_bias.sum(dtype=np.float64)) + self.ln_f_bias

    @property
    def total(self) -> float:
        """The sum of all parts, which is the logit."""
        parts = self.heads.sum(dtype=np.float64) + self.mlps.sum(dtype=np.float64)
        return float(self.embedding + parts + self.biases)

    def figure(self) -> Figure:
        from glassgpt.inspect.plots import plot_direct_logit_attribution

        return plot_direct_logit_attribution(self)

    def __repr__(self) -> str:
        text = self.trace.vocabulary.text(self.target)
        return f"DirectLogitAttribution({text!r}, total {self.total:.4f}, logit {self.logit:.4f})"


def attribute(
    gpt: GPT,
    text: Prompt | Trace,
    target: str | int | None = None,
    method: str = "integrated_gradients",
    position: int = -1,
) -> TokenAttribution | DirectLogitAttribution:
    """See `GPT.attribute`."""
    if method not in METHODS:
        raise SettingError(f"method {method!r} is not one of {', '.join(METHODS)}.")
    trace = unmodified_trace(gpt, text)
    position = check_index("position", position, len(trace))
    token = resolve_target(gpt, trace, target, position)
    return METHODS[method](gpt.torch_model, trace, token, position)


def resolve_target(gpt: GPT, trace: Trace, target: str | int | None, position: int) -> int:
    """The target's id: the id given, the token of the text given, or the most likely token."""
    if target is None:
        return int(trace.p_at(position).argmax())
    if isinstance(target, str):
        ids = gpt.encode(target)
        if len(ids) != 1:
            raise SettingError(
                f"target {target!r} is {len(ids)} tokens. Pass one token (most start with a space) or its id."
            )
        return ids[0]
    if (
        isinstance(target, bool)
        or not isinstance(target, int | np.integer)
        or not 0 <= target < gpt.config.vocab_size
    ):
        raise SettingError(
            f"target {target!r} is not a token id of this model (0 to {gpt.config.vocab_size - 1})."
        )
    return int(target)


def at_least_float32(model: GPT2) -> GPT2:
    """The model in float32 or better: half precision is too coarse for sums and gradients."""
    return model if model.wte.weight.element_size() >= 4 else copy.deepcopy(model).float()


@torch.no_grad()
def weight_and_bias(projection: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """The weight (width, out) and bias of a linear layer; of one that is more than a matrix (LoRA), computed
    from the unit vectors."""
    if is_unmodified(projection, Projection):
        return projection.weight, projection.bias  # type: ignore[return-value]
    like = next(projection.parameters())
    bias = projection(torch.zeros(1, 1, width).to(like))[0, 0]  # (out,)
    return projection(torch.eye(width).to(like)[None])[0] - bias, bias


def head_row(model: GPT2, token: int) -> Tensor:
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight
    return weight[token].detach()  # (C,)


class TargetLogit:
    """The logit of one token at the last position, as a function of the token embeddings."""

    def __init__(self, model: GPT2, ids: list[int], target: int) -> None:
        self.model = model
        self.row = head_row(model, target)
        self.x = model.wte.weight[torch.tensor(ids, device=model.wte.weight.device)].detach()  # (T, C)
        self.wpe = 0.0 if model.wpe is None else model.wpe.weight[: len(ids)].detach()  # (T, C)
        per_point = 4 * len(ids) * model.config.n_layer * (8 * model.config.n_embd + 3 * model.config.d_mlp)
        self.batch_size = max(1, min(32, MAX_GRAPH_BYTES // per_point))

    def __call__(self, points: Tensor) -> Tensor:
        """(B, T, C) token embeddings -> (B,) logits. The same as GPT2.hidden after wte."""
        x = points + self.wpe
        for block in self.model.h:
            x = block(x, None, None, None, None)
        last = self.model.ln_f(x[:, -1])  # (B, C)
        logits: Tensor = last @ self.row
        return logits

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
            found.append((to_float64(gradient) * to_float64(self.x)).sum(dim=-1))
        return torch.cat(found)


def input_x_gradient(model: GPT2, trace: Trace, target: int, position: int) -> TokenAttribution:
    """The gradient of the logit along each token's embedding."""
    logit = TargetLogit(at_least_float32(model), trace.tokens[: position + 1], target)
    one = np.ones(1)
    scores = pad_scores(logit.gradients(one)[0], len(trace))
    return TokenAttribution(trace, "input_x_gradient", target, position, scores, float(logit.at(one)))


def integrated_gradients(model: GPT2, trace: Trace, target: int, position: int) -> TokenAttribution:
    """The gradient, integrated along the path from the baseline (all token embeddings zero) to the text.

    On every interval of the path the integral must equal the known difference of the logits at its ends; an
    interval where it does not is halved. So the convergence delta is small, with points where they matter.
    """
    ids = trace.tokens[: position + 1]
    logit = TargetLogit(at_least_float32(model), ids, target)
    nodes, weights = np.polynomial.legendre.leggauss(4)
    done = torch.zeros(position + 1, dtype=torch.float64)
    error, n_steps = 0.0, 0
    edges = np.linspace(0, 1, 5)
    values = logit.at(edges).numpy()
    too_coarse = logit.rounding_error(values) > TOLERANCE * abs(values[-1] - values[0])
    if too_coarse and 8 * model.config.n_parameters < MAX_COPY_BYTES:
        # The two logits are so close that float32 cannot resolve a percent of their difference.
        logit = TargetLogit(copy.deepcopy(model).cpu().double(), ids, target)
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


def attention_rollout(model: GPT2, trace: Trace, target: int, position: int) -> TokenAttribution:
    """Attention, averaged over heads and multiplied through all layers, with 1/2 for the residual connection.

    It does not depend on the target; the scores sum to one.
    """
    rolled = np.zeros(len(trace))
    rolled[position] = 1
    for layer in reversed(range(trace.config.n_layer)):
        rolled = (rolled + rolled @ trace.attention[layer].mean(axis=0, dtype=np.float64)) / 2
    logit = float(trace.logits_at(position)[target])
    return TokenAttribution(trace, "attention_rollout", target, position, rolled.astype(np.float32), logit)


def direct_logit_attribution(model: GPT2, trace: Trace, target: int, position: int) -> DirectLogitAttribution:
    """All that is written to the residual stream, through ln_f and onto the target's row of the head."""
    precise = at_least_float32(model)
    activations = Activations(precise, trace.tokens[: position + 1])
    n_layer, D = precise.config.n_layer, precise.config.d_head
    final = to_float64(activations.residuals()[-1, -1])  # (C,)
    scale = torch.rsqrt(final.var(correction=0) + precise.config.layer_norm_epsilon)
    row = to_float64(head_row(precise, target))  # (C,)
    direction = to_float64(precise.ln_f.weight) * row * scale  # (C,)

    def contribution(part: Tensor) -> Tensor:
        """What a part of the stream, (..., C), adds to the logit: ln_f subtracts its mean and scales it."""
        part = to_float64(part)
        return (part - part.mean(dim=-1, keepdim=True)) @ direction

    heads, mlps, biases = [], [], []
    for layer in range(n_layer):
        block = precise.h[layer]
        assert isinstance(block, Block)
        attention = block.attn
        assert isinstance(attention, Attention)
        steps = activations.read([f"h.{layer}.attn.z", f"h.{layer}.mlp.proj"])
        z = to_float64(steps[f"h.{layer}.attn.z"][:, -1])  # (H, D)
        weight, bias = weight_and_bias(attention.c_proj, final.numel())
        out = to_float64(weight).reshape(-1, D, final.numel())  # (H, D, C)
        heads.append(contribution(torch.einsum("hd,hdc->hc", z, out)))
        biases.append(contribution(bias))
        mlps.append(contribution(steps[f"h.{layer}.mlp.proj"][-1]))
    embeddings = activations.read(["wte", "wpe"])
    ln_f_bias = to_float64(precise.ln_f.bias) @ row
    if precise is model:
        logit = float(trace.logits_at(position)[target])
    else:
        logit = float(torch.cat(list(activations.final_logits()))[-1, target])
    return DirectLogitAttribution(
        trace,
        target,
        position,
        wte=float(contribution(embeddings["wte"][-1])),
        wpe=float(contribution(embeddings["wpe"][-1])),
        heads=_to_numpy(torch.stack(heads)),
        mlps=_to_numpy(torch.stack(mlps)),
        attn_bias=_to_numpy(torch.stack(biases)),
        ln_f_bias=float(ln_f_bias),
        logit=logit,
    )


Method = Callable[[GPT2, Trace, int, int], "TokenAttribution | DirectLogitAttribution"]
METHODS: dict[str, Method] = {
    "input_x_gradient": input_x_gradient,
    "integrated_gradients": integrated_gradients,
    "attention_rollout": attention_rollout,
    "direct_logit_attribution": direct_logit_attribution,
}


def pad_scores(scores: Tensor, n_tokens: int) -> Array:
    """Zero for the tokens after the position."""
    padded = np.zeros(n_tokens, np.float32)
    padded[: len(scores)] = scores.numpy()
    return padded


def to_float64(values: Tensor) -> Tensor:
    """On the CPU: not every device has float64."""
    return values.detach().cpu().double()


def _to_numpy(values: Tensor) -> Array:
    return values.float().numpy()
