"""`gpt.attribute(text, target)`: the tokens, or the parts of the model, that a next token's logit comes from.

To tokens: input x gradient, integrated gradients (Sundararajan et al. 2017) and attention rollout (Abnar &
Zuidema 2020). To parts of the model: direct logit attribution, which decomposes the final residual stream
into what the embedding, each head and each MLP wrote to it (nostalgebraist 2020; Elhage et al. 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from glassgpt.backends.choose import is_torch_installed
from glassgpt.errors import NEEDS_TORCH, SettingError, UserError, short_repr
from glassgpt.inspect.arrays import AnyArray, to_float64
from glassgpt.inspect.edits.intervene import encode_token, unmodified_trace
from glassgpt.inspect.figures.display import Displayable
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.taps import check_index
from glassgpt.inspect.traces.activations import Activations
from glassgpt.inspect.traces.indexing import Array
from glassgpt.inspect.traces.trace import Trace

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure
    from glassgpt.generate.prompt import Prompt
    from glassgpt.inspect.traceable_model import TraceableModel


# A token, as text or id; two, for the difference of their logits; or None, for the most likely token.
Target = str | int | tuple[str | int, str | int] | None
TokenMethod = Literal["input_x_gradient", "integrated_gradients", "attention_rollout"]
DirectMethod = Literal["direct_logit_attribution"]


@dataclass(frozen=True, eq=False)
class TokenAttribution(Displayable):
    """How much each token of the text contributes to the target's logit, (T,)."""

    trace: Trace
    method: str
    target: int
    position: int  # the target is predicted here
    scores: Array  # of a causal model, 0 for later tokens
    logit: float
    # Of integrated gradients only:
    baseline: float | None = None  # the logit with all token embeddings zero
    convergence_delta: float | None = None  # |sum of scores - (logit - baseline)| / |logit - baseline|
    n_steps: int | None = None  # gradients computed
    foil: int | None = None  # scores, logit and baseline are the target's less those of this token

    def figure(self) -> Figure:
        from glassgpt.inspect.figures.plots import plot_token_attribution

        return plot_token_attribution(self)

    def __repr__(self) -> str:
        text = _name(self)
        delta = "" if self.convergence_delta is None else f", convergence delta {self.convergence_delta:.2%}"
        return f"TokenAttribution({self.method!r}, {text}, {len(self.scores)} tokens{delta})"


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
    foil: int | None = None  # every number is the target's less that of this token

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
        from glassgpt.inspect.figures.plots import plot_direct_logit_attribution

        return plot_direct_logit_attribution(self)

    def __repr__(self) -> str:
        return f"DirectLogitAttribution({_name(self)}, total {self.total:.4f}, logit {self.logit:.4f})"


def _name(result: TokenAttribution | DirectLogitAttribution) -> str:
    text = result.trace.vocabulary.text
    return repr(text(result.target)) + ("" if result.foil is None else f" - {text(result.foil)!r}")


def attribute(
    gpt: TraceableModel,
    text: Prompt | Trace,
    target: Target = None,
    method: str = "integrated_gradients",
    position: int = -1,
) -> TokenAttribution | DirectLogitAttribution:
    """See `GPT.attribute`."""
    if not isinstance(method, str) or method not in METHODS:
        raise SettingError(f"method {short_repr(method)} is not one of {', '.join(METHODS)}.")
    trace = unmodified_trace(gpt, text)
    position = check_index("position", position, len(trace))
    if not isinstance(target, tuple):
        return METHODS[method](gpt, trace, resolve_target(gpt, trace, target, position), position)
    if method == "attention_rollout" or len(target) != 2:
        raise SettingError(
            f"target {short_repr(target)}: a difference is of two tokens, and attention_rollout depends on "
            "none."
        )
    token, foil = (resolve_target(gpt, trace, each, position) for each in target)
    return subtract(*(METHODS[method](gpt, trace, each, position) for each in (token, foil)))


def subtract(
    first: TokenAttribution | DirectLogitAttribution, second: TokenAttribution | DirectLogitAttribution
) -> TokenAttribution | DirectLogitAttribution:
    """The attribution of the difference of two logits: every method here is linear in the logit."""
    if isinstance(first, DirectLogitAttribution):
        assert isinstance(second, DirectLogitAttribution)
        parts = ("wte", "wpe", "heads", "mlps", "attn_bias", "ln_f_bias", "logit")
        differences = {name: getattr(first, name) - getattr(second, name) for name in parts}
        return dataclasses.replace(first, **differences, foil=second.target)
    assert isinstance(second, TokenAttribution)
    result = dataclasses.replace(
        first, scores=first.scores - second.scores, logit=first.logit - second.logit, foil=second.target
    )
    if first.baseline is None or second.baseline is None or first.n_steps is None or second.n_steps is None:
        return result
    baseline = first.baseline - second.baseline
    explained = result.logit - baseline
    error = abs(float(result.scores.sum(dtype=np.float64)) - explained)
    delta = error / abs(explained) if explained else error
    n_steps = first.n_steps + second.n_steps
    return dataclasses.replace(result, baseline=baseline, convergence_delta=delta, n_steps=n_steps)


def tokens_seen(trace: Trace, position: int) -> list[int]:
    """What a prediction depends on: without a causal mask, on the whole text."""
    return trace.tokens[: position + 1] if trace.config.is_causal else trace.tokens


def resolve_target(gpt: TraceableModel, trace: Trace, target: str | int | None, position: int) -> int:
    """The target's id: the id given, the token of the text given, or the most likely token."""
    if target is None:
        return int(trace.p_at(position).argmax())
    if isinstance(target, str):
        return encode_token(gpt, "target", target)
    if (
        isinstance(target, bool)
        or not isinstance(target, int | np.integer)
        or not 0 <= target < gpt.config.vocab_size
    ):
        raise SettingError(
            f"target {short_repr(target)} is not a token id of this model (0 to {gpt.config.vocab_size - 1})."
        )
    return int(target)


def attribute_by_gradients(
    method: str, gpt: TraceableModel, trace: Trace, target: int, position: int
) -> TokenAttribution:
    if not is_torch_installed():
        raise UserError(
            f"{method} {NEEDS_TORCH} Without it there are attention_rollout and direct_logit_attribution."
        )
    from glassgpt.inspect.attribution import gradients

    attribution: TokenAttribution = getattr(gradients, method)(gpt.torch_model, trace, target, position)
    return attribution


def attention_rollout(gpt: TraceableModel, trace: Trace, target: int, position: int) -> TokenAttribution:
    """Attention, averaged over heads and multiplied through all layers, with 1/2 for the residual connection.

    It does not depend on the target; the scores sum to one.
    """
    rolled = np.zeros(len(trace))
    rolled[position] = 1
    for layer in reversed(range(trace.config.n_layer)):
        rolled = (rolled + rolled @ trace.attention[layer].mean(axis=0, dtype=np.float64)) / 2
    logit = float(trace.logits_at(position)[target])
    return TokenAttribution(trace, "attention_rollout", target, position, rolled.astype(np.float32), logit)


def direct_logit_attribution(
    gpt: TraceableModel, trace: Trace, target: int, position: int
) -> DirectLogitAttribution:
    """All that is written to the residual stream, through ln_f and onto the target's row of the head."""
    forward = make_forward(gpt.model)
    precise = forward.at_least_float32()
    if precise is not forward:  # of half precision, once more: it is too coarse for sums
        again = Activations(precise, tokens_seen(trace, position))
        read, logit = again.read, float(again.logits_at(position)[target])
    else:
        read, logit = trace.tensors, float(trace.logits_at(position)[target])
    config = precise.config
    last = f"h.{config.n_layer - 1}.resid_post"
    final = to_float64(read([last])[last][position])  # (C,)
    scale = 1 / np.sqrt(final.var() + config.layer_norm_epsilon)
    row = to_float64(precise.head_row(target))  # (C,)
    ln_f_weight, ln_f_bias = map(to_float64, precise.final_norm_parameters())
    direction = ln_f_weight * row * scale  # (C,)
    direction -= direction.mean()  # ln_f subtracts the mean of what it reads

    def contribution(part: AnyArray) -> Array:
        """What a part of the stream, (..., C), adds to the logit."""
        added: Array = to_float64(part) @ direction
        return added

    heads, mlps, biases = [], [], []
    for layer in range(config.n_layer):
        steps = read([f"h.{layer}.attn.z", f"h.{layer}.mlp.proj"])
        z = to_float64(steps[f"h.{layer}.attn.z"][:, position])  # (H, D)
        weight, bias = precise.attention_output(layer)
        per_head = contribution(weight).reshape(config.n_head, config.d_head)  # of each of its dimensions
        heads.append((z * per_head).sum(axis=1))  # (H,)
        biases.append(contribution(bias))
        mlps.append(contribution(steps[f"h.{layer}.mlp.proj"][position]))
    embeddings = read(["wte", "wpe"])
    return DirectLogitAttribution(
        trace,
        target,
        position,
        wte=float(contribution(embeddings["wte"][position])),
        wpe=float(contribution(embeddings["wpe"][position])),
        heads=np.stack(heads).astype(np.float32),
        mlps=np.stack(mlps).astype(np.float32),
        attn_bias=np.stack(biases).astype(np.float32),
        ln_f_bias=float(ln_f_bias @ row),
        logit=logit,
    )


Method = Callable[["TraceableModel", Trace, int, int], "TokenAttribution | DirectLogitAttribution"]
METHODS: dict[str, Method] = {
    "input_x_gradient": partial(attribute_by_gradients, "input_x_gradient"),
    "integrated_gradients": partial(attribute_by_gradients, "integrated_gradients"),
    "attention_rollout": attention_rollout,
    "direct_logit_attribution": direct_logit_attribution,
}


def available_methods() -> list[str]:
    """The methods that work here: gradients need PyTorch."""
    by_gradients = () if is_torch_installed() else ("input_x_gradient", "integrated_gradients")
    return [name for name in METHODS if name not in by_gradients]
