"""`gpt.attribute(text, target)`: what the score of a next token is owed to.

Four answers. Of the tokens read: gradient times input, integrated gradients (Sundararajan et al. 2017) and
attention rollout (Abnar & Zuidema 2020). Of the parts of the model: direct logit attribution, which takes the
final stream apart into what the embedding, each head and each MLP wrote into it (nostalgebraist 2020; Elhage
et al. 2021).
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
from glassgpt.inspect.activations import Live
from glassgpt.inspect.display import Shown
from glassgpt.inspect.indexing import Array
from glassgpt.inspect.intervene import fresh
from glassgpt.inspect.taps import checked_index
from glassgpt.inspect.trace import Trace
from glassgpt.model.fast_path import is_unmodified
from glassgpt.model.gpt2 import GPT2, Attention, Block, Projection

if TYPE_CHECKING:
    from glassgpt.gpt import GPT, Prompt
    from glassgpt.inspect.svg import Picture

GAP = 0.002  # integrated gradients stop here: a fifth of the 1 % that one may rely on
MOST_POINTS = 1000
COPY_BYTES = 4 * 2**30  # a copy of the model in float64 may be so large
GRAPH_BYTES = 512 * 2**20  # how much memory the gradients of several points at once may take


@dataclass(frozen=True, eq=False)
class TokenScores(Shown):
    """How much each token of the text has to do with the score of the target, (T,)."""

    trace: Trace
    method: str
    target: int
    position: int  # the target is scored as the token after this one
    scores: Array  # 0 for tokens after the position, which it cannot see
    logit: float
    baseline: float | None = None  # integrated: the logit when no token is known
    gap: float | None = None  # integrated: |sum of scores - (logit - baseline)| / |logit - baseline|
    points: int | None = None  # integrated: how many gradients it took

    def picture(self) -> Picture:
        from glassgpt.inspect.plots import of_token_scores

        return of_token_scores(self)

    def __repr__(self) -> str:
        text = self.trace.vocabulary.text(self.target)
        gap = "" if self.gap is None else f", gap {self.gap:.2%}"
        return f"TokenScores({self.method!r}, {text!r}, {len(self.scores)} tokens{gap})"


@dataclass(frozen=True, eq=False)
class DirectLogit(Shown):
    """The target's logit as a sum over all that wrote into the final stream, with the last norm's scale."""

    trace: Trace
    target: int
    position: int
    token: float  # the token's own embedding
    place: float  # its position embedding
    heads: Array  # (n_layer, n_head)
    mlps: Array  # (n_layer,), with their biases
    attn_bias: Array  # (n_layer,): the bias of attention's projection belongs to no head
    norm_bias: float  # the bias of the last norm
    logit: float  # what the model itself computed

    method = "direct"

    @property
    def embedding(self) -> float:
        return self.token + self.place

    @property
    def rest(self) -> float:
        """The biases."""
        return float(self.attn_bias.sum(dtype=np.float64)) + self.norm_bias

    @property
    def total(self) -> float:
        """The sum of everything, which is the logit."""
        parts = self.heads.sum(dtype=np.float64) + self.mlps.sum(dtype=np.float64)
        return float(self.embedding + parts + self.rest)

    def picture(self) -> Picture:
        from glassgpt.inspect.plots import of_direct

        return of_direct(self)

    def __repr__(self) -> str:
        text = self.trace.vocabulary.text(self.target)
        return f"DirectLogit({text!r}, total {self.total:.4f}, logit {self.logit:.4f})"


def attribute(
    gpt: GPT,
    text: Prompt | Trace,
    target: str | int | None = None,
    method: str = "integrated",
    position: int = -1,
) -> TokenScores | DirectLogit:
    """See `GPT.attribute`."""
    if method not in METHODS:
        raise SettingError(f"method {method!r} is not one of {', '.join(METHODS)}.")
    trace = fresh(gpt, text)
    position = checked_index("position", position, len(trace))
    token = chosen(gpt, trace, target, position)
    return METHODS[method](gpt.torch_model, trace, token, position)


def chosen(gpt: GPT, trace: Trace, target: str | int | None, position: int) -> int:
    """The target's id: given, or the token of that text, or the one the model holds most likely."""
    if target is None:
        return int(trace.p_at(position).argmax())
    if isinstance(target, str):
        ids = gpt.encode(target)
        if len(ids) != 1:
            raise SettingError(
                f"target {target!r} is {len(ids)} tokens. Name one token (most begin with a space) or its id."
            )
        return ids[0]
    if (
        isinstance(target, bool)
        or not isinstance(target, int | np.integer)
        or not 0 <= target < gpt.config.vocab_size
    ):
        raise SettingError(
            f"target {target!r} is no token id of this model, 0 to {gpt.config.vocab_size - 1}."
        )
    return int(target)


def exact(model: GPT2) -> GPT2:
    """The model in float32 or better: half precision is too coarse for sums and gradients."""
    return model if model.wte.weight.element_size() >= 4 else copy.deepcopy(model).float()


@torch.no_grad()
def matrix_of(projection: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """Its matrix (width, out) and its bias; if it is more than a matrix (LoRA's has a correction beside it),
    from what it makes of each unit vector."""
    if is_unmodified(projection, Projection):
        return projection.weight, projection.bias  # type: ignore[return-value]
    like = next(projection.parameters())
    bias = projection(torch.zeros(1, 1, width).to(like))[0, 0]  # (out,)
    return projection(torch.eye(width).to(like)[None])[0] - bias, bias


def head_row(model: GPT2, token: int) -> Tensor:
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight
    return weight[token].detach()  # (C,)


class Score:
    """The logit of one token after one position, as a function of the token embeddings."""

    def __init__(self, model: GPT2, ids: list[int], target: int) -> None:
        self.model = model
        self.row = head_row(model, target)
        self.x = model.wte.weight[torch.tensor(ids, device=model.wte.weight.device)].detach()  # (T, C)
        self.places = model.wpe.weight[: len(ids)].detach()  # (T, C)
        per_point = 4 * len(ids) * model.config.n_layer * (8 * model.config.n_embd + 3 * model.config.d_mlp)
        self.together = max(1, min(32, GRAPH_BYTES // per_point))

    def __call__(self, points: Tensor) -> Tensor:
        """(B, T, C) token embeddings -> (B,) logits. The same parts as GPT2.hidden, begun after wte."""
        x = points + self.places
        for block in self.model.h:
            x = block(x, None, None, None, None)
        last = self.model.ln_f(x[:, -1])  # (B, C)
        found: Tensor = last @ self.row
        return found

    def _pieces(self, alphas: Array) -> tuple[Tensor, ...]:
        return torch.split(torch.tensor(alphas).to(self.x), self.together)

    def noise(self, logits: Array) -> float:
        """What rounding does to such logits: no difference below this means anything."""
        return float(8 * torch.finfo(self.x.dtype).eps * np.abs(logits).max(initial=1.0))

    def at(self, alphas: Array) -> Tensor:
        """Logits with every token embedding scaled by alpha, (n,), in float64."""
        with torch.no_grad():
            pieces = [self(a[:, None, None] * self.x) for a in self._pieces(alphas)]
        return double(torch.cat(pieces))

    def gradients(self, alphas: Array) -> Tensor:
        """Gradient times input of each token at those points of the way, (n, T), in float64."""
        found = []
        for piece in self._pieces(alphas):
            points = (piece[:, None, None] * self.x).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self(points).sum(), points)
            found.append((double(gradient) * double(self.x)).sum(dim=-1))
        return torch.cat(found)


def gradient(model: GPT2, trace: Trace, target: int, position: int) -> TokenScores:
    """The slope of the logit along each token's embedding."""
    score = Score(exact(model), trace.tokens[: position + 1], target)
    one = np.ones(1)
    scores = padded(score.gradients(one)[0], len(trace))
    return TokenScores(trace, "gradient", target, position, scores, float(score.at(one)))


def integrated(model: GPT2, trace: Trace, target: int, position: int) -> TokenScores:
    """The slope, summed along the way from "no token is known" (embeddings zero) to the text.

    On every stretch of the way the sum must be the difference of the logits at its ends, which is known; a
    stretch where it is not is halved. So the gap is small, and the points lie where they are needed.
    """
    ids = trace.tokens[: position + 1]
    score = Score(exact(model), ids, target)
    nodes, weights = np.polynomial.legendre.leggauss(4)
    done = torch.zeros(position + 1, dtype=torch.float64)
    error, points = 0.0, 0
    edges = np.linspace(0, 1, 5)
    values = score.at(edges).numpy()
    if score.noise(values) > GAP * abs(values[-1] - values[0]) and 8 * model.config.n_parameters < COPY_BYTES:
        # Text and baseline score so alike that float32 cannot tell the difference to a percent.
        score = Score(copy.deepcopy(model).cpu().double(), ids, target)
        values = score.at(edges).numpy()
    start, end = float(values[0]), float(values[-1])
    allowed, noise = GAP * abs(end - start), score.noise(values)
    waiting = list(zip(edges[:-1], edges[1:], values[:-1], values[1:], strict=True))
    while waiting:
        left = np.array([stretch[0] for stretch in waiting])
        width = np.array([stretch[1] for stretch in waiting]) - left
        alphas = left[:, None] + width[:, None] * (nodes + 1) / 2  # (stretches, 4)
        slopes = score.gradients(alphas.ravel())  # (stretches * 4, T)
        factors = torch.from_numpy(width[:, None] * weights / 2)  # (stretches, 4)
        sums = (slopes.view(len(waiting), 4, -1) * factors[:, :, None]).sum(dim=1)  # (stretches, T)
        points += alphas.size
        errors = sums.sum(dim=1).numpy() - np.array([s[3] - s[2] for s in waiting])
        # A stretch may be off by its share of the way, so all together are off by no more than allowed.
        fine = (np.abs(errors) <= np.maximum(allowed * width, noise)) | (points >= MOST_POINTS)
        done += sums[torch.from_numpy(fine)].sum(dim=0)
        error += float(errors[fine].sum())
        halved = [stretch for stretch, ok in zip(waiting, fine, strict=True) if not ok]
        middles = [(a + b) / 2 for a, b, _, _ in halved]
        between = score.at(np.array(middles)).numpy() if halved else np.array([])
        waiting = []
        for (a, b, at_a, at_b), middle, at_middle in zip(halved, middles, between, strict=True):
            waiting += [(a, middle, at_a, at_middle), (middle, b, at_middle, at_b)]
    scores = padded(done, len(trace))
    difference = abs(end - start)
    gap = abs(float(scores.sum(dtype=np.float64)) - (end - start)) / difference if difference else abs(error)
    return TokenScores(trace, "integrated", target, position, scores, end, start, gap, points)


def rollout(model: GPT2, trace: Trace, target: int, position: int) -> TokenScores:
    """Attention followed down all layers: half of each stream passes by, half is the mean of the heads.

    It knows nothing of the target; the scores are shares and sum to one.
    """
    reach = np.zeros(len(trace))
    reach[position] = 1
    for layer in reversed(range(trace.config.n_layer)):
        reach = (reach + reach @ trace.attention[layer].mean(axis=0, dtype=np.float64)) / 2
    logit = float(trace.logits_at(position)[target])
    return TokenScores(trace, "rollout", target, position, reach.astype(np.float32), logit)


def direct(model: GPT2, trace: Trace, target: int, position: int) -> DirectLogit:
    """All that wrote into the final stream, through the last norm and onto the target's row of the head."""
    plain = exact(model)
    live = Live(plain, trace.tokens[: position + 1])
    n_layer, D = plain.config.n_layer, plain.config.d_head
    final = double(live.streams()[-1, -1])  # (C,)
    scale = torch.rsqrt(final.var(correction=0) + plain.config.layer_norm_epsilon)
    row = double(head_row(plain, target))  # (C,)
    along = double(plain.ln_f.weight) * row * scale  # (C,)

    def share(part: Tensor) -> Tensor:
        """What a part of the stream, (..., C), adds to the logit: the norm takes its mean away and scales."""
        part = double(part)
        return (part - part.mean(dim=-1, keepdim=True)) @ along

    heads, mlps, biases = [], [], []
    for layer in range(n_layer):
        block = plain.h[layer]
        assert isinstance(block, Block)
        attention = block.attn
        assert isinstance(attention, Attention)
        seen = live.read([f"h.{layer}.attn.z", f"h.{layer}.mlp.proj"])
        z = double(seen[f"h.{layer}.attn.z"][:, -1])  # (H, D)
        weight, bias = matrix_of(attention.c_proj, final.numel())
        out = double(weight).reshape(-1, D, final.numel())  # (H, D, C)
        heads.append(share(torch.einsum("hd,hdc->hc", z, out)))
        biases.append(share(bias))
        mlps.append(share(seen[f"h.{layer}.mlp.proj"][-1]))
    begin = live.read(["wte", "wpe"])
    norm_bias = double(plain.ln_f.bias) @ row
    if plain is model:
        logit = float(trace.logits_at(position)[target])
    else:
        logit = float(torch.cat(list(live.final_logits()))[-1, target])
    return DirectLogit(
        trace,
        target,
        position,
        token=float(share(begin["wte"][-1])),
        place=float(share(begin["wpe"][-1])),
        heads=_host(torch.stack(heads)),
        mlps=_host(torch.stack(mlps)),
        attn_bias=_host(torch.stack(biases)),
        norm_bias=float(norm_bias),
        logit=logit,
    )


Method = Callable[[GPT2, Trace, int, int], "TokenScores | DirectLogit"]
METHODS: dict[str, Method] = {
    "gradient": gradient,
    "integrated": integrated,
    "rollout": rollout,
    "direct": direct,
}


def padded(scores: Tensor, tokens: int) -> Array:
    """Tokens that come later have nothing to do with it."""
    found = np.zeros(tokens, np.float32)
    found[: len(scores)] = scores.numpy()
    return found


def double(values: Tensor) -> Tensor:
    """On the host, where every device's numbers can be added up in float64."""
    return values.detach().cpu().double()


def _host(values: Tensor) -> Array:
    return values.float().numpy()
