"""A run in its folder: what `glassgpt.train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG, checkpoint_path
from glassgpt.train.settings import TrainSettings, read_settings

if TYPE_CHECKING:
    from glassgpt.gpt import GPT


@dataclass(frozen=True)
class Run:
    path: Path
    steps_done: int = 0  # by the call that returned it

    @cached_property
    def settings(self) -> TrainSettings:
        return read_settings(self.path)[0]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """log.jsonl: a record for each step, with `step`, `loss`, `lr`, `grad_norm`, `tokens_per_s` and,
        where the model was evaluated, `val_loss`."""
        return read_log(self.path / LOG)

    @property
    def step(self) -> int:
        return int(self.records[-1]["step"]) if self.records else 0

    @property
    def finished(self) -> bool:
        """Whether all of its steps are done. If not, `resume=True` continues it."""
        return checkpoint_path(self.path, self.settings.steps).exists()

    @property
    def loss(self) -> float | None:
        """The training loss of the last step."""
        return self.records[-1]["loss"] if self.records else None

    @property
    def val_loss(self) -> float | None:
        """The held-out loss of the last evaluation."""
        return next((r["val_loss"] for r in reversed(self.records) if "val_loss" in r), None)

    def load(self, **options: Any) -> GPT:
        """The trained model; options as for `glassgpt.load`."""
        from glassgpt.gpt import load

        return load(str(self.path), **options)
