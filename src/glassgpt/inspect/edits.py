"""What one may change inside the model: switch a part off, put another prompt's numbers in, push a direction.

An edit is a small value. `bind` turns it into functions, one for each step it changes, once the model and the
text are known; several edits compose in the order given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.errors import PlaceError, SettingError
from glassgpt.inspect.taps import checked_index, letters
from glassgpt.inspect.trace import Trace
from glassgpt.model.gpt2 import GPT2, Tap

How = Literal["zero", "mean"]
Change = Callable[[Tensor], Tensor]  # what a step holds, with the batch axis in front


@dataclass(frozen=True)
class Scene:
    """What an edit is bound to."""

    model: GPT2
    tokens: Sequence[int]
    trace: Callable[[Any], Trace]  # of a text, of ids, or of what is a trace already

    @property
    def config(self) -> Config:
        return self.model.config


class Edit(ABC):
    """One change to the forward pass."""

    @abstractmethod
    def bind(self, scene: Scene) -> dict[str, Change]:
        """Which steps change, and how."""

    @abstractmethod
    def describe(self) -> str:
        """A few words."""


@dataclass(frozen=True)
class Place:
    """A part of what a step holds: some positions, one head, one column; None means all of them."""

    step: str
    head: int | None = None
    column: int | None = None
    positions: tuple[int, ...] | None = None

    def index(self, config: Config, tokens: int) -> tuple[Any, ...]:
        """Into the step's tensor with its batch axis. Positions are the last axis but one of every step."""
        shape = letters(config, self.step)
        if self.step == "logits":
            raise PlaceError(
                "logits are the answer itself and cannot be edited. Edit ln_f or an earlier step."
            )
        index: list[Any] = [slice(None)] * (1 + len(shape))
        if self.head is not None:
            if "H" not in shape:
                raise PlaceError(f"{self.step} is not divided into heads. Leave head out, or use h.N.attn.z.")
            head = checked_index("head", self.head, config.n_head)
            index[1] = slice(head, head + 1)
        if self.column is not None:
            size = {"M": config.d_mlp, "C": config.n_embd, "D": config.d_head}[shape[-1]]
            column = checked_index("neuron", self.column, size)
            index[-1] = slice(column, column + 1)
        if self.positions is not None:
            index[-2] = [checked_index("position", position, tokens) for position in self.positions]
        return tuple(index)


def in_place(x: Tensor, index: tuple[Any, ...], value: Tensor | float) -> Tensor:
    """A copy with that part replaced: what a tap is shown may be shared with others."""
    x = x.clone()
    x[index] = value
    return x


def ablation(place: Place, how: How, reference: Any, scene: Scene) -> Change:
    """The part set to zero, or to its mean over all positions of this text (or of `reference`)."""
    if how not in ("zero", "mean"):
        raise SettingError(f"how is {how!r}; use 'zero' or 'mean'.")
    index = place.index(scene.config, len(scene.tokens))
    everywhere = (*index[:-2], slice(None), index[-1])
    if how == "zero":
        return lambda x: in_place(x, index, 0.0)
    if reference is None:
        return lambda x: in_place(x, index, x[everywhere].mean(dim=-2, keepdim=True))
    other = scene.trace(reference).tensors([place.step])[place.step][None]
    mean = other[everywhere].mean(dim=-2, keepdim=True)
    return lambda x: in_place(x, index, mean.to(x))


@dataclass(frozen=True)
class AblateHead(Edit):
    """Switch off one head: what it hands on becomes zero, or the mean over positions."""

    layer: int
    head: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = None  # a text whose mean to use; else the mean of this text

    def bind(self, scene: Scene) -> dict[str, Change]:
        layer = checked_index("layer", self.layer, scene.config.n_layer)
        place = Place(f"h.{layer}.attn.z", head=self.head, positions=self.positions)
        return {place.step: ablation(place, self.how, self.reference, scene)}

    def describe(self) -> str:
        return f"head {self.layer}.{self.head} set to {self.how}"


@dataclass(frozen=True)
class AblateNeuron(Edit):
    """Switch off one neuron of an MLP, after its bend."""

    layer: int
    neuron: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = None

    def bind(self, scene: Scene) -> dict[str, Change]:
        layer = checked_index("layer", self.layer, scene.config.n_layer)
        place = Place(f"h.{layer}.mlp.gelu", column=self.neuron, positions=self.positions)
        return {place.step: ablation(place, self.how, self.reference, scene)}

    def describe(self) -> str:
        return f"neuron {self.layer}.{self.neuron} set to {self.how}"


@dataclass(frozen=True)
class _AblatePart(Edit):
    """What a part adds to the residual stream becomes zero, or its mean over positions."""

    layer: int
    how: How = "zero"
    positions: tuple[int, ...] | None = None
    reference: Any = None

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]: ...

    def bind(self, scene: Scene) -> dict[str, Change]:
        layer = checked_index("layer", self.layer, scene.config.n_layer)
        places = [Place(f"h.{layer}.{part}", positions=self.positions) for part in self.parts]
        return {place.step: ablation(place, self.how, self.reference, scene) for place in places}

    def describe(self) -> str:
        return f"{type(self).__name__.removeprefix('Ablate')} {self.layer} set to {self.how}"


class AblateAttention(_AblatePart):
    """Switch off a block's attention, all heads and the bias."""

    parts = ("attn.proj",)


class AblateMLP(_AblatePart):
    """Switch off a block's MLP."""

    parts = ("mlp.proj",)


class AblateBlock(_AblatePart):
    """Switch off a whole block: the stream passes it by."""

    parts = ("attn.proj", "mlp.proj")


@dataclass(frozen=True)
class Patch(Edit):
    """Put what a step holds for another prompt in its place: all of it, or one head, or some positions."""

    step: str
    source: Any  # a Trace, a text or token ids
    head: int | None = None
    positions: tuple[int, ...] | None = None
    source_positions: tuple[int, ...] | None = None  # where in the other prompt; the same if left out

    def bind(self, scene: Scene) -> dict[str, Change]:
        source = scene.trace(self.source)
        index = Place(self.step, self.head, positions=self.positions).index(scene.config, len(scene.tokens))
        there = self.positions if self.source_positions is None else self.source_positions
        if source.config.shapes() != scene.config.shapes():
            raise SettingError(
                "the source of a patch is a trace of another shape of model. Trace it with this one."
            )
        if self.positions is None and self.source_positions is None and len(source) != len(scene.tokens):
            raise SettingError(
                f"the text has {len(scene.tokens)} tokens and the source of the patch {len(source)}. "
                "Use texts of the same length, or say which positions."
            )
        taken = Place(self.step, self.head, positions=there).index(scene.config, len(source))
        value = source.tensors([self.step])[self.step][None][taken]

        def change(x: Tensor) -> Tensor:
            part = x[index].shape
            if part != value.shape:
                raise SettingError(
                    f"a patch of shape {tuple(value.shape[1:])} does not fit {self.step}, {tuple(part[1:])}. "
                    "Name as many positions as source_positions, and for attention texts of the same length."
                )
            return in_place(x, index, value.to(x))

        return {self.step: change}

    def describe(self) -> str:
        head = "" if self.head is None else f" head {self.head}"
        where = "" if self.positions is None else f" at {list(self.positions)}"
        return f"{self.step}{head}{where} patched"


@dataclass(frozen=True, eq=False)
class Steer(Edit):
    """Add a vector times a strength at a step, for instance `h.3.resid_post`, at all positions or at some."""

    step: str
    vector: Any  # as long as the step is wide
    strength: float = 1.0
    positions: tuple[int, ...] | None = None

    def bind(self, scene: Scene) -> dict[str, Change]:
        index = Place(self.step, positions=self.positions).index(scene.config, len(scene.tokens))
        vector = torch.as_tensor(np.asarray(self.vector, dtype=np.float32))
        width = {"C": scene.config.n_embd, "M": scene.config.d_mlp}.get(letters(scene.config, self.step)[-1])
        if "H" in letters(scene.config, self.step) or tuple(vector.shape) != (width,):
            raise SettingError(
                f"a vector of shape {tuple(vector.shape)} cannot be added at {self.step}. "
                f"Use {scene.config.n_embd} numbers at a step such as h.0.resid_post."
            )
        added = finite("strength", self.strength) * vector
        return {self.step: lambda x: in_place(x, index, x[index] + added.to(x))}

    def describe(self) -> str:
        return f"{self.step} + {self.strength:g} × vector"


@dataclass(frozen=True)
class SteerToken(Edit):
    """Push the stream after a block towards a token: along that token's row of the head.

    Strength 1 adds as much as the stream there is long on average; -1 pushes away.
    """

    layer: int
    token: int
    strength: float = 1.0
    positions: tuple[int, ...] | None = None

    def bind(self, scene: Scene) -> dict[str, Change]:
        layer = checked_index("layer", self.layer, scene.config.n_layer)
        token = checked_index("token id", self.token, scene.config.vocab_size)
        strength = finite("strength", self.strength)
        step = f"h.{layer}.resid_post"
        index = Place(step, positions=self.positions).index(scene.config, len(scene.tokens))
        head = scene.model.wte if scene.model.lm_head is None else scene.model.lm_head
        direction = head.weight[token].detach().float()
        direction = direction / direction.norm().clamp(min=1e-12)

        def change(x: Tensor) -> Tensor:
            size = strength * x.float().norm(dim=-1).mean()
            return in_place(x, index, x[index] + (size * direction).to(x))

        return {step: change}

    def describe(self) -> str:
        return f"h.{self.layer}.resid_post + {self.strength:g} × token {self.token}"


def finite(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"{what} is {value!r}; write a number.")
    return float(value)


def compose(edits: Sequence[Edit], scene: Scene) -> tuple[Tap, set[str]]:
    """One tap that makes all changes, and the steps it touches."""
    changes: dict[str, list[Change]] = {}
    for edit in edits:
        for step, change in edit.bind(scene).items():
            changes.setdefault(step, []).append(change)

    def tap(name: str, x: Tensor) -> Tensor:
        for change in changes.get(name, ()):
            x = change(x)
        return x

    return tap, set(changes)
