"""Objectives other than language modeling go through the same loop: resume, micro-batches, precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.forward import LossModule
from glassgpt.train.loop import evaluate, train_loop
from glassgpt.train.objectives import objective
from glassgpt.train.objectives.objective import Batch, LanguageModeling, Objective
from glassgpt.train.settings import TrainSettings

SETTINGS = TrainSettings(
    steps=10, batch_size=6, context=16, lr=1e-2, optimizer="muon", warmup_steps=2, eval_every=5, save_every=4,
    precision="float32",
)  # fmt: skip
CLASSES = 3


class Completion:
    """Batches whose targets count only in the second part of a sequence, whose length varies."""

    def __call__(self, step: int) -> Iterator[Batch]:
        while True:
            yield self.batch(step)
            step += 1

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        prompt = torch.randint(0, 23, (6, 9), generator=generator)
        start = prompt[:, -1:] + torch.arange(1, 9)  # the completion counts up
        tokens = torch.cat([prompt, start % 23], dim=1)  # (B, T + 1)
        batch = Batch.from_tokens(tokens)
        lengths = torch.randint(2, 9, (6, 1), generator=generator)
        position = torch.arange(16)
        return dataclasses.replace(batch, mask=(position >= 8) & (position < 8 + lengths))


@dataclasses.dataclass(frozen=True)
class Classification(Objective):
    """A head on the hidden state of the last token: one target for a sequence."""

    score: nn.Linear

    def __call__(self, hidden: Tensor, head_weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.score(hidden[:, -1].to(self.score.weight.dtype))  # (B, classes)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")  # (B)
        return (losses * batch.mask).sum(), batch.mask.sum()


class Labelled(Completion):
    """Sequences of one of three kinds of token, of which some have no label."""

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        labels = torch.randint(0, CLASSES, (6,), generator=generator)
        ids = torch.randint(0, 7, (6, 16), generator=generator) + 7 * labels[:, None]
        return Batch(ids, labels, torch.rand(6, generator=generator) < 0.8)


CASES: dict[str, tuple[type[Completion], Callable[[GPT2], Objective | None]]] = {
    "completion": (Completion, lambda model: None),
    "classification": (Labelled, lambda model: Classification(model.score)),
}


def fresh(dropout: float = 0.1) -> GPT2:
    torch.manual_seed(3)
    model = GPT2(
        Config(
            vocab_size=23, n_positions=16, n_embd=32, n_layer=2, n_head=2,
            embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout,
        )
    )  # fmt: skip
    model.score = nn.Linear(32, CLASSES)
    return model


def run(
    case: str, out: Path, settings: TrainSettings = SETTINGS, stop: int = 0, dropout: float = 0.1
) -> GPT2:
    batches, objective = CASES[case]
    model = fresh(dropout)
    held_out = [batches().batch(1000), batches().batch(1001)]
    for record in train_loop(model, batches(), held_out, out, settings, objective=objective(model)):
        if record["step"] == stop:
            break
    return model


def difference(one: GPT2, other: GPT2) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("case", CASES)
def test_it_learns(tmp_path: Path, case: str) -> None:
    settings = dataclasses.replace(SETTINGS, steps=60, eval_every=100, save_every=100)
    batches, objective = CASES[case]
    held_out = [batches().batch(1000)]
    untrained = fresh()
    before = evaluate(untrained, held_out, settings, objective(untrained))
    model = run(case, tmp_path, settings)
    assert evaluate(model, held_out, settings, objective(model)) < before / 2


@pytest.mark.parametrize("case", CASES)
def test_resuming_is_exact(tmp_path: Path, case: str) -> None:
    full = run(case, tmp_path / "whole")
    run(case, tmp_path / "cut", stop=6)
    torch.manual_seed(999)
    assert difference(full, run(case, tmp_path / "cut")) == 0


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_give_the_same_update(tmp_path: Path, case: str) -> None:
    """The mean is over the targets of the batch, though some micro-batches have more of them than others. In
    float64 (and so without Muon, which rounds to bfloat16), where another order of summation shows in the
    15th digit of a gradient, and AdamW divides a gradient near zero by its own size."""
    settings = dataclasses.replace(SETTINGS, optimizer="adamw", matrix_lr=None, steps=3)

    def trained(name: str, size: int) -> GPT2:
        torch.set_default_dtype(torch.float64)
        try:
            changed = dataclasses.replace(settings, micro_batch_size=size)
            return run(case, tmp_path / name, changed, dropout=0.0)
        finally:
            torch.set_default_dtype(torch.float32)

    assert difference(trained("one", 6), trained("two", 2)) < 1e-10


@pytest.mark.parametrize("case", CASES)
def test_precision_and_checkpointing_are_not_the_objectives_business(tmp_path: Path, case: str) -> None:
    settings = dataclasses.replace(SETTINGS, precision="bfloat16")
    plain = run(case, tmp_path / "plain", settings)
    again = run(case, tmp_path / "again", dataclasses.replace(settings, activation_checkpointing=True))
    assert difference(plain, again) == 0
    assert difference(plain, run(case, tmp_path / "float32")) > 0


def test_the_prompt_does_not_count() -> None:
    """Another prediction target where the mask is off changes neither loss nor gradient."""
    model, batch = fresh(dropout=0.0), Completion().batch(0)
    module = parallelize(model, SETTINGS)
    results = []
    for targets in (batch.targets, torch.where(batch.mask, batch.targets, 0)):
        model.zero_grad()
        loss, count = module(batch.ids, targets, batch.mask)
        loss.backward()
        results.append((loss.item(), count.item(), model.wte.weight.grad.clone()))
    assert results[0][:2] == results[1][:2]
    assert results[0][1] == batch.mask.sum()
    assert torch.equal(results[0][2], results[1][2])
    logits = model(batch.ids)
    expected = F.cross_entropy(logits[batch.mask], batch.targets[batch.mask], reduction="sum")
    assert results[0][0] == pytest.approx(expected.item(), rel=1e-5)


def test_padding_does_not_count() -> None:
    model, batch = fresh(dropout=0.0).eval(), Completion().batch(0)
    module = parallelize(model, SETTINGS)
    padded = batch.pad(9)
    assert len(padded) == 9
    for one, other in zip(
        module(batch.ids, batch.targets, batch.mask),
        module(padded.ids, padded.targets, padded.mask),
        strict=True,
    ):
        assert one.item() == pytest.approx(other.item(), rel=1e-6)
    assert batch.pad(6) is batch


def test_a_batch_without_targets_has_no_loss(tmp_path: Path) -> None:
    class Empty(Completion):
        def batch(self, step: int) -> Batch:
            batch = super().batch(step)
            return dataclasses.replace(batch, mask=torch.zeros_like(batch.mask))

    model = fresh()
    records = list(train_loop(model, Empty(), [Empty().batch(0)], tmp_path, SETTINGS))
    assert {record["loss"] for record in records} == {0.0}
    assert records[-1]["val_loss"] == 0
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_tensor_parallelism_needs_a_target_per_token() -> None:
    class Mesh:
        def size(self) -> int:
            return 2

        def get_local_rank(self) -> int:
            return 0

    module = LossModule(fresh(), LanguageModeling(), tensor_mesh=Mesh())  # type: ignore[arg-type]
    batch = Labelled().batch(0)
    with pytest.raises(SettingError, match="Choose --parallel fsdp"):
        module(batch.ids, batch.targets, batch.mask)


def test_an_evaluation_does_not_use_the_float8_head(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bool] = []
    monkeypatch.setattr(
        objective, "head_and_loss", lambda x, weight, targets, loss, float8: used.append(float8) or x.sum()
    )
    model = GPT2(Config(n_layer=1, n_embd=16, n_head=1, vocab_size=11, n_positions=8))
    module = LossModule(model, objective.LanguageModeling(float8_head=True))
    batch = objective.Batch.from_tokens(torch.randint(11, (2, 9)))
    module(batch.ids, batch.targets, batch.mask)
    with torch.no_grad():
        module(batch.ids, batch.targets, batch.mask)
    assert used == [True, False]
