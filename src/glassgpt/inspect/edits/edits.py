"""Edits to the forward pass: ablation, activation patching, steering vectors.

An edit is a small dataclass and the only description of itself: its `kind` and its fields are also its JSON
(edit_data.py), the server's schema and what the page sends. `bind` makes hooks, one per step it changes, once
the model and the text are known; several edits compose in the order given.

While text is generated, the prompt is the text that an edit is bound to, and what the edit takes from it (a
mean, the size of a vector) holds for the later tokens: the first generated token has the probabilities that
`gpt.intervene` shows for the prompt. An edit without positions applies to later tokens as well; only a patch
replaces values of the prompt alone.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError, StepIndexError, short_repr
from glassgpt.inspect.arrays import AnyArray, at_least_float32, copy, like, norm
from glassgpt.inspect.forward import Forward
from glassgpt.inspect.taps import check_index, dims_of, resolve_name, shape_of
from glassgpt.inspect.traces.trace import Trace

How = Literal["zero", "mean"]
Vector = tuple[float, ...]  # in JSON; in Python any array
PYTHON_ONLY = {"python_only": True}  # metadata of a field that has no JSON form


class Hook(Protocol):
    """Changes a step's tensor, which has its batch dimension."""

    def __call__(self, x: AnyArray, start: int = 0) -> AnyArray:
        """`start` is the position of the first token of `x`: 0 for the text that the edit is bound to, which
        comes first and whole, and more for later tokens of a text that is generated."""
        ...


@dataclass(frozen=True)
class EditContext:
    """The model and the text that an edit is bound to."""

    forward: Forward
    tokens: Sequence[int]
    trace: Callable[[Any], Trace]  # of a text, of token ids, or of a trace
    token_id: Callable[[str | int], int]  # of a token given as text
    length: int | None = None  # the most tokens that the text may grow to; None if it is complete

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

    def index(self, config: Config, tokens: int, length: int | None = None) -> tuple[Any, ...]:
        """Into the step's tensor with its batch dimension. Positions are the second to last dimension; a
        negative one counts from the end of the `tokens`, which may grow to `length`."""
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
            most = tokens if length is None else length
            index[-2] = [
                check_index("position", position, tokens if _is_negative(position) else most)
                for position in self.positions
            ]
        return tuple(index)


def _is_negative(position: object) -> bool:
    return isinstance(position, int) and position < 0


def part_from(index: tuple[Any, ...], start: int, x: AnyArray) -> tuple[Any, ...] | None:
    """A step's index for the tokens of `x`, whose first is at position `start`; None if it names none."""
    if not isinstance(index[-2], list):
        return index
    here = [position - start for position in index[-2] if start <= position < start + x.shape[-2]]
    return (*index[:-2], here, index[-1]) if here else None


def replace_part(x: AnyArray, index: tuple[Any, ...], value: AnyArray | float) -> AnyArray:
    """A copy with that part replaced: a tap's tensor may be in use elsewhere."""
    x = copy(x)
    x[index] = value
    return x


def make_ablation(part: StepSlice, how: How, reference: Any, context: EditContext) -> Hook:
    """Zero ablation, or mean ablation over all positions of this text (or of `reference`)."""
    if how not in ("zero", "mean"):
        raise SettingError(f"how is {short_repr(how)}; use 'zero' or 'mean'.")
    index = part.index(context.config, len(context.tokens), context.length)
    all_positions = (*index[:-2], slice(None), index[-1])
    value: AnyArray | float | None = 0.0 if how == "zero" else None
    if how == "mean" and reference is not None:
        other = context.trace(reference).tensors([part.step])[part.step][None]
        value = mean_over_positions(other[all_positions])

    def hook(x: AnyArray, start: int = 0) -> AnyArray:
        nonlocal value
        if how == "mean" and reference is None and start == 0:
            value = mean_over_positions(x[all_positions])
        here = part_from(index, start, x)
        if here is None:
            return x
        return replace_part(x, here, value if isinstance(value, float) else like(value, x))

    return hook


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
        )  # of the prompt only: the other text has no later tokens
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

        def check_fit(shape: Sequence[int]) -> None:
            if tuple(shape) != tuple(value.shape):
                raise SettingError(
                    f"a patch of {tuple(value.shape[1:])} does not fit {self.step}, {tuple(shape[1:])}. "
                    "Pass as many positions as source_positions, and for attention texts of the same length."
                )

        # Now, not in the pass: there an error would be that of all texts that are computed together.
        check_fit(np.broadcast_to(0, (1, *shape_of(context.config, step, len(context.tokens))))[index].shape)

        def hook(x: AnyArray, start: int = 0) -> AnyArray:
            if start:
                return x
            check_fit(x[index].shape)
            return replace_part(x, index, like(value, x))

        return {step: hook}

    def describe(self) -> str:
        head = "" if self.head is None else f" head {self.head}"
        where = "" if self.positions is None else f" at {list(self.positions)}"
        return f"{self.step}{head}{where} patched"


@dataclass(frozen=True, eq=False)
class Steer(Edit):
    """Add a steering vector times a strength at a step such as `h.3.resid_post`, at all or some positions."""

    kind = "steer"

    step: str
    vector: Any = field(metadata={"json_type": Vector})  # (C,) or (M,), as wide as the step
    strength: float = 1.0
    positions: tuple[int, ...] | None = None

    def bind(self, context: EditContext) -> dict[str, Hook]:
        step = resolve_name(context.config, self.step)
        index = StepSlice(step, positions=self.positions).index(
            context.config, len(context.tokens), context.length
        )
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

        def hook(x: AnyArray, start: int = 0) -> AnyArray:
            here = part_from(index, start, x)
            return x if here is None else replace_part(x, here, x[here] + like(added, x))

        return {step: hook}

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
        index = StepSlice(step, positions=self.positions).index(
            context.config, len(context.tokens), context.length
        )
        row = at_least_float32(context.forward.head_row(token))
        direction = row / max(float(norm(row)), 1e-12)

        size: AnyArray = 0.0

        def hook(x: AnyArray, start: int = 0) -> AnyArray:
            nonlocal size
            if start == 0:
                size = strength * norm(x).mean()
            here = part_from(index, start, x)
            return x if here is None else replace_part(x, here, x[here] + like(size * direction, x))

        return {step: hook}

    def describe(self) -> str:
        return f"h.{self.layer}.resid_post + {self.strength:g} × token {self.token!r}"


def check_finite(what: str, value: object) -> float:
    if isinstance(value, int | np.floating | float) and not isinstance(value, bool):
        largest = sys.float_info.max
        if -largest <= value <= largest:  # float() of an integer beyond it is an error
            return float(value)
    raise SettingError(f"{what} is {short_repr(value)}; use a finite number.")


class EditTap:
    """A tap that applies hooks. `start` is the position of the first token that the pass reads."""

    def __init__(self, hooks: Mapping[str, Sequence[Hook]]) -> None:
        self.hooks = hooks
        self.start = 0

    def __call__(self, name: str, x: AnyArray) -> AnyArray:
        for hook in self.hooks.get(name, ()):
            x = hook(x, self.start)
        return x


def compose(edits: Sequence[Edit], context: EditContext) -> tuple[EditTap, set[str]]:
    """One tap that applies all edits, and the steps it changes."""
    hooks: dict[str, list[Hook]] = {}
    for edit in edits:
        for step, hook in edit.bind(context).items():
            hooks.setdefault(step, []).append(hook)
    return EditTap(hooks), set(hooks)
