"""The training objective: hidden states and a batch in, the sum of the losses and their number out.

The loop knows only `Batch` and `Objective`. Language modeling is one objective, masked language
modeling another; so are a loss on the completion only and a classification head: see
`tests/train/test_objective.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from glassgpt.model import GPT2
from glassgpt.model.variants.memory import Memory
from glassgpt.train.objectives.loss import IGNORE_INDEX, CrossEntropy, cross_entropy_with_grad, head_and_loss
from glassgpt.train.settings import TrainSettings


@dataclass(frozen=True)
class Batch:
    """Sequences and what to predict about them: a target for each token (B, T), or for each sequence (B)."""

    ids: Tensor  # (B, T)
    targets: Tensor  # (B, T) or (B)
    mask: Tensor  # as targets, bool: whether a target counts
    memory: Memory | None = None  # of the tokens before these sequences, for a model that has one

    @classmethod
    def from_tokens(cls, tokens: Tensor) -> Batch:
        """Next-token prediction on rows of tokens (B, T + 1), as the loader reads them."""
        targets = tokens[:, 1:]
        return cls(tokens[:, :-1], targets, torch.ones_like(targets, dtype=torch.bool))

    def to(self, device: torch.device) -> Batch:
        return self.map(lambda tensor: tensor.to(device))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, sequences: slice) -> Batch:
        part = self.map(lambda tensor: tensor[sequences])
        return part if part.memory is None else replace(part, memory=part.memory.rows(sequences))

    def split(self, size: int) -> list[Batch]:
        """Micro-batches of `size` sequences."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def pad(self, size: int) -> Batch:
        """With sequences that do not count, up to `size`."""
        missing = size - len(self)
        if missing <= 0:
            return self
        return self.map(lambda tensor: torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, ids=function(self.ids), targets=function(self.targets), mask=function(self.mask))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """As `forward.LossModule` takes them."""
        tensors = (self.ids, self.targets, self.mask)
        return tensors if self.memory is None else (*tensors, self.memory)


class Objective(Protocol):
    """The sum of a batch's losses () and the number of targets () in it.

    Both are added up over micro-batches and processes and divided once: an update is the mean over all of its
    targets, however it was split. The parameters of an objective, such as a classification head, are modules
    registered on the model, so that they are optimized and saved with it. Derive from this class.
    """

    def prepare(self, batch: Batch) -> Batch:
        """The batch as the model sees it."""
        return batch

    def __call__(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """From the final hidden states (B, T, C) and the weight of the language model head (V, C)."""
        ...


@dataclass(frozen=True)
class LanguageModeling(Objective):
    """The negative log-likelihood of each target under the model's logits, in nats."""

    cross_entropy: CrossEntropy = cross_entropy_with_grad
    float8_head: bool = False

    @classmethod
    def from_settings(cls, settings: TrainSettings, model: GPT2) -> LanguageModeling:
        weight = model.wte.weight
        kernel = weight.is_cuda and weight.dtype != torch.float64 and find_spec("triton") is not None
        module = import_module(f"glassgpt.train.objectives.{'loss_kernel' if kernel else 'loss'}")
        return cls(
            partial(
                module.cross_entropy_with_grad,
                z_loss=settings.z_loss,
                label_smoothing=settings.label_smoothing,
            ),
            float8_head=settings.precision == "float8" and kernel and weight.shape[1] % 16 == 0,
        )

    def __call__(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        targets = batch.targets.masked_fill(~batch.mask, IGNORE_INDEX)  # (B, T)
        float8 = self.float8_head and torch.is_grad_enabled()  # evaluations stay exact
        loss = head_and_loss(hidden.flatten(0, 1), head_weight, targets.flatten(), self.cross_entropy, float8)
        return loss, batch.mask.sum()


@dataclass(frozen=True)
class MaskedLanguageModeling(Objective):
    """The negative log-likelihood of tokens that were hidden from the model (BERT, Devlin et al., 2018).

    Of 15 % of the tokens, 80 % are replaced by the mask token and 10 % by a random one; 10 % are left as they
    are, so that the model cannot rely on anything being what it seems. Targets are the tokens themselves, not
    those that follow. An evaluation draws the same tokens each time, without using the training's
    random numbers.
    """

    language_modeling: LanguageModeling
    mask_token_id: int
    fraction: float = 0.15
    masked: float = 0.8  # of these
    random: float = 0.1

    def prepare(self, batch: Batch) -> Batch:
        """Hide some of the ids; these are the targets."""
        generator = None
        if not torch.is_grad_enabled():
            generator = torch.Generator(batch.ids.device).manual_seed(int(batch.ids.sum()))
        draw = partial(torch.rand, batch.ids.shape, device=batch.ids.device, generator=generator)
        chosen = (draw() < self.fraction) & batch.mask  # (B, T)
        kind, token = draw(), (draw() * self.mask_token_id).long()  # the mask token is the last
        ids = torch.where(chosen & (kind < self.masked), self.mask_token_id, batch.ids)
        exchanged = chosen & (kind >= self.masked) & (kind < self.masked + self.random)
        return replace(batch, ids=torch.where(exchanged, token, ids), targets=batch.ids, mask=chosen)

    def __call__(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        x, targets = hidden[batch.mask], batch.targets[batch.mask]  # (N, C), (N): only hidden tokens count
        loss = head_and_loss(x, head_weight, targets, self.language_modeling.cross_entropy)
        return loss, batch.mask.sum()


def default_objective(settings: TrainSettings, model: GPT2) -> Objective:
    """Predict the next token, or masked tokens if the model has a mask token."""
    language_modeling = LanguageModeling.from_settings(settings, model)
    if model.config.mask_token_id is None:
        return language_modeling
    return MaskedLanguageModeling(language_modeling, model.config.mask_token_id)
