"""Edits to the forward pass: ablation, activation patching, steering vectors.

An edit is a small dataclass and the only description of itself: its `kind` and its fields are also its JSON
(edit_data.py), the server's schema and what the page sends. `bind` makes hooks, one per step it changes, once
the model and the text are known; several edits compose in the order given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError, StepIndexError
from glassgpt.inspect.arrays import AnyArray, at_least_float32, copy, like, norm
from glassgpt.inspect.forward import Forward, Tap
from glassgpt.inspect.taps import check_index, dims_of, resolve_name
from glassgpt.inspect.traces.trace import Trace

How = Literal["zero", "mean"]
Hook = Callable[[AnyArray], AnyArray]  # of a step's tensor, with its batch dimension

PYTHON_ONLY = {"python_only": True}  # metadata of a field that has no JSON form


@dataclass(frozen=True)
class EditContext:
    """The model and the text that an edit is bound to."""

    forward: Forward
    tokens: Sequence[int]
    trace: Callable[[Any], Trace]  # of a text, of token ids, or of a trace
    token_id: Callable[[str | int], int]  # of a token given as text

    @property
    def config(self) -> Config:
        return self.forward.config


class Edit(ABC):
    """One change to the forward pass."""

    kind: ClassVar[str]  # its name in JSON; an edit without one has no JSON form

    @abstractmethod
    def bind(self, context: EditContext) -> dict[str, Hook]:
        """A hook for each step that changes."""

    @abstractmethod
    def describe(self) -> str:
        """A short description."""


@dataclass(frozen=True)
class StepSlice:
    """A part of a step: some positions, one head, one column; None means all."""

    step: str
    head: int | None = None
    column: int | None = None
    positions: tuple[int, ...] | None = None

    def index(self, config: Config, tokens: int) -> tuple[Any, ...]:
        """Into the step's tensor with its batch dimension. Positions are the second to last dimension."""
        dims = dims_of(config, self.step)
        if self.step == "logits":
            raise StepIndexError("logits are the output and cannot be edited. Edit ln_f or an earlier step.")
        index: list[Any] = [slice(None)] * (1 + len(dims))
        if self.head is not None:
            if "H" not in dims:
                raise StepIndexError(f"{self.step} has no heads. Omit head, or use h.N.attn.z.")
            head = check_index("head", self.head, config.n_head)
            index[1] = slice(head, head + 1)
        if self.column is not None:
            size = {"M": config.d_mlp, "C": config.n_embd, "D": config.d_head}[dims[-1]]
            column = check_index("neuron", self.column, size)
            index[-1] = slice(column, column + 1)
        if self.positions is not None:
            index[-2] = [check_index("position", position, tokens) for position in self.positions]
        return tuple(index)


def replace_part(x: AnyArray, index: tuple[Any, ...], value: AnyArray | float) -> AnyArray:
    """A copy with that part replaced: a tap's tensor may be in use elsewhere."""
    x = copy(x)
    x[index] = value
    return x


def make_ablation(part: StepSlice, how: How, reference: Any, context: EditContext) -> Hook:
    """Zero ablation, or mean ablation over all positions of this text (or of `reference`)."""
    if how not in ("zero", "mean"):
        raise SettingError(f"how is {how!r}; use 'zero' or 'mean'.")
    index = part.index(context.config, len(context.tokens))
    all_positions = (*index[:-2], slice(None), index[-1])
    if how == "zero":
        return lambda x: replace_part(x, index, 0.0)
    if reference is None:
        return lambda x: replace_part(x, index, mean_over_positions(x[all_positions]))
    other = context.trace(reference).tensors([part.step])[part.step][None]
    mean = mean_over_positions(other[all_positions])
    return lambda x: replace_part(x, index, like(mean, x))


def mean_over_positions(x: AnyArray) -> AnyArray:
    return x.mean(-2, keepdims=True)  # torch takes numpy's name for it


@dataclass(frozen=True)
class AblateHead(Edit):
    """Ablate one attention head: its output `attn.z` becomes zero, or its mean over positions."""

    kind = "ablate_head"

    layer: int
    head: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = field(default=None, metadata=PYTHON_ONLY)  # a text for the mean; by default this text

    def bind(self, context: EditContext) -> dict[str, Hook]:
        layer = check_index("layer", self.layer, context.config.n_layer)
        part = StepSlice(f"h.{layer}.attn.z", head=self.head, positions=self.positions)
        return {part.step: make_ablation(part, self.how, self.reference, context)}

    def describe(self) -> str:
        return f"head {self.layer}.{self.head} set to {self.how}"


@dataclass(frozen=True)
class AblateNeuron(Edit):
    """Ablate one neuron of an MLP, after the activation function."""

    kind = "ablate_neuron"

    layer: int
    neuron: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = field(default=None, metadata=PYTHON_ONLY)

    def bind(self, context: EditContext) -> dict[str, Hook]:
        layer = check_index("layer", self.layer, context.config.n_layer)
        part = StepSlice(f"h.{layer}.mlp.gelu", column=self.neuron, positions=self.positions)
        return {part.step: make_ablation(part, self.how, self.reference, context)}

    def describe(self) -> str:
        return f"neuron {self.layer}.{self.neuron} set to {self.how}"


@dataclass(frozen=True)
class _AblateSublayer(Edit):
    """What a sublayer adds to the residual stream becomes zero, or its mean over positions."""

    layer: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = field(default=None, metadata=PYTHON_ONLY)

    steps: ClassVar[tuple[str, ...]]

    def bind(self, context: EditContext) -> dict[str, Hook]:
        layer = check_index("layer", self.layer, context.config.n_layer)
        parts = [StepSlice(f"h.{layer}.{step}", positions=self.positions) for step in self.steps]
        return {part.step: make_ablation(part, self.how, self.reference, context) for part in parts}

    def describe(self) -> str:
        return f"{type(self).__name__.removeprefix('Ablate')} {self.layer} set to {self.how}"


class AblateAttention(_AblateSublayer):
    """Ablate a block's attention: all heads and the bias."""

    kind = "ablate_attention"
    steps = ("attn.proj",)


class AblateMLP(_AblateSublayer):
    """Ablate a block's MLP."""

    kind = "ablate_mlp"
    steps = ("mlp.proj",)


class AblateBlock(_AblateSublayer):
    """Ablate a whole block: the residual stream passes through unchanged."""

    kind = "ablate_block"
    steps = ("attn.proj", "mlp.proj")


@dataclass(frozen=True)
class Patch(Edit):
    """Activation patching: a step's values from another prompt; all of them, one head, or some positions."""

    kind = "patch"

    step: str
    source: Any  # a Trace, a text or token ids
    head: int | None = None
    positions: tuple[int, ...] | None = None
    source_positions: tuple[int, ...] | None = None  # in the other prompt; by default the same

    def bind(self, context: EditContext) -> dict[str, Hook]:
        source = context.trace(self.source)
        step = resolve_name(context.config, self.step)
        index = StepSlice(step, self.head, positions=self.positions).index(
            context.config, len(context.tokens)
        )
        positions = self.positions if self.source_positions is None else self.source_positions
        if source.config.shapes() != context.config.shapes():
            raise SettingError(
                "the source of the patch is a trace of a model of another shape. Trace it with this model."
            )
        if self.positions is None and self.source_positions is None and len(source) != len(context.tokens):
            raise SettingError(
                f"the text has {len(context.tokens)} tokens, but the source of the patch has {len(source)}. "
                "Use texts of the same length, or pass positions."
            )
        there = StepSlice(step, self.head, positions=positions).index(context.config, len(source))
        value = source.tensors([step])[step][None][there]

        def hook(x: AnyArray) -> AnyArray:
            shape = x[index].shape
            if shape != value.shape:
                raise SettingError(
                    f"a patch of {tuple(value.shape[1:])} does not fit {self.step}, {tuple(shape[1:])}. "
                    "Pass as many positions as source_positions, and for attention texts of the same length."
                )
            return replace_part(x, index, like(value, x))

        return {step: hook}

    def describe(self) -> str:
        head = "" if self.head is None else f" head {self.head}"
        where = "" if self.positions is None else f" at {list(self.positions)}"
        return f"{self.step}{head}{where} patched"


@dataclass(frozen=True, eq=False)
class Steer(Edit):
    """Add a steering vector times a strength at a step such as `h.3.resid_post`, at all or some positions."""

    step: str
    vector: Any  # (C,) or (M,), as wide as the step
    strength: float = 1.0
    positions: tuple[int, ...] | None = None

    def bind(self, context: EditContext) -> dict[str, Hook]:
        step = resolve_name(context.config, self.step)
        index = StepSlice(step, positions=self.positions).index(context.config, len(context.tokens))
        vector = np.asarray(self.vector, dtype=np.float32)
        width = {"C": context.config.n_embd, "M": context.config.d_mlp}.get(
            dims_of(context.config, self.step)[-1]
        )
        if "H" in dims_of(context.config, self.step) or tuple(vector.shape) != (width,):
            raise SettingError(
                f"a vector of shape {tuple(vector.shape)} cannot be added at {self.step}. "
                f"Use {context.config.n_embd} values at a step such as h.0.resid_post."
            )
        added = check_finite("strength", self.strength) * vector
        return {step: lambda x: replace_part(x, index, x[index] + like(added, x))}

    def describe(self) -> str:
        return f"{self.step} + {self.strength:g} × vector"


@dataclass(frozen=True)
class SteerToken(Edit):
    """Steer the residual stream after a block towards a token: along its row of the head.

    Strength 1 adds a vector with the mean norm of the stream there; -1 steers away.
    """

    kind = "steer_token"

    layer: int
    token: int | str = field(metadata={"json_type": int})  # an id, or the text of one token: " sea"
    strength: float = 1.0
    positions: tuple[int, ...] | None = None

    def bind(self, context: EditContext) -> dict[str, Hook]:
        layer = check_index("layer", self.layer, context.config.n_layer)
        token = check_index("token id", context.token_id(self.token), context.config.vocab_size)
        strength = check_finite("strength", self.strength)
        step = f"h.{layer}.resid_post"
        index = StepSlice(step, positions=self.positions).index(context.config, len(context.tokens))
        row = at_least_float32(context.forward.head_row(token))
        direction = row / max(float(norm(row)), 1e-12)

        def hook(x: AnyArray) -> AnyArray:
            size = strength * norm(x).mean()
            return replace_part(x, index, x[index] + like(size * direction, x))

        return {step: hook}

    def describe(self) -> str:
        return f"h.{self.layer}.resid_post + {self.strength:g} × token {self.token!r}"


def check_finite(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"{what} is {value!r}; use a finite number.")
    return float(value)


def compose(edits: Sequence[Edit], context: EditContext) -> tuple[Tap, set[str]]:
    """One tap that applies all edits, and the steps it changes."""
    hooks: dict[str, list[Hook]] = {}
    for edit in edits:
        for step, hook in edit.bind(context).items():
            hooks.setdefault(step, []).append(hook)

    def tap(name: str, x: AnyArray) -> AnyArray:
        for hook in hooks.get(name, ()):
            x = hook(x)
        return x

    return tap, set(hooks)
