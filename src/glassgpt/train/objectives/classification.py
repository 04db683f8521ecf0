"""GPT-1's way to classify (Radford et al., 2018): a linear head on the final vector of an extract token.

The loss is that of the label and, weighted, that of the text itself: the auxiliary objective of the paper
(section 3.2), which keeps the language model in shape while the head is learned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.model import GPT2
from glassgpt.train.objectives.loss import IGNORE_INDEX, head_and_loss
from glassgpt.train.objectives.objective import Batch, LanguageModeling, Objective
from glassgpt.train.settings import TrainSettings

HEAD = "score"  # the name of the head in the model, as transformers calls it


def add_head(model: GPT2, classes: int, seed: int = 0) -> GPT2:
    """A linear head without a bias, `model.score`, that is trained and saved with the model."""
    score = nn.Linear(model.config.n_embd, classes, bias=False)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(score.weight, std=model.config.initializer_range, generator=generator)
    model.add_module(HEAD, score.to(model.wte.weight.device))
    return model


def set_head(model: GPT2, score: NDArray[Any]) -> None:
    """Give a model the head of a checkpoint."""
    add_head(model, len(score))
    with torch.no_grad():
        model.score.weight.copy_(torch.from_numpy(score))  # type: ignore[operator, union-attr]


def extract(hidden: Tensor, ids: Tensor, extract_id: int) -> Tensor:
    """The final vector (B, C) at the first extract token of each sequence."""
    at = (ids == extract_id).int().argmax(dim=1)  # (B)
    return hidden[torch.arange(len(ids), device=ids.device), at]


@dataclass(frozen=True)
class Classification(Objective):
    """The negative log-likelihood of each label, and `lm_weight` times that of a text's average token."""

    score: nn.Module  # the model's own head
    extract_id: int
    lm_weight: float = 0.5
    language_modeling: LanguageModeling = field(default_factory=LanguageModeling)

    @classmethod
    def from_settings(
        cls, settings: TrainSettings, model: GPT2, extract_id: int, lm_weight: float
    ) -> Classification:
        return cls(
            model.get_submodule(HEAD), extract_id, lm_weight, LanguageModeling.from_settings(settings, model)
        )

    def __call__(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.score.weight  # type: ignore[assignment]
        vectors = extract(hidden, batch.ids, self.extract_id)  # (B, C)
        logits = F.linear(vectors.to(weight.dtype), weight)  # (B, classes)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")  # (B)
        loss, count = (losses * batch.mask).sum(), batch.mask.sum()
        if self.lm_weight and torch.is_grad_enabled():  # evaluations score the labels alone
            loss = loss + self.lm_weight * count * self.text_loss(hidden, head_weight, batch)
        return loss, count

    def text_loss(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> Tensor:
        """The mean loss of the texts' tokens up to the extract token."""
        after = (batch.ids == self.extract_id).int().cumsum(dim=1)  # (B, T): 0 within the text
        counts = (after[:, 1:] == 0) & batch.mask[:, None]  # (B, T - 1)
        targets = batch.ids[:, 1:].masked_fill(~counts, IGNORE_INDEX)
        total = head_and_loss(
            hidden[:, :-1].flatten(0, 1), head_weight, targets.flatten(),
            self.language_modeling.cross_entropy,
        )  # fmt: skip
        return total / counts.sum().clamp(min=1)
