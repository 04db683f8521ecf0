"""Every number that decides how a training run goes. A run keeps its settings in `settings.json`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from glassgpt.errors import SettingError

PRECISIONS = ("auto", "float32", "bfloat16", "float16", "float8")
SCHEDULES = ("cosine", "wsd", "constant")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    steps: int  # updates of the weights in the whole run
    rows: int = 16  # windows of text in one update
    micro_rows: int | None = None  # windows computed at once; None: all of an update's
    auto: bool = False  # where memory runs out, halve micro_rows and go on with the same update
    context: int = 256  # tokens in a window
    lr: float = 1e-3  # the peak rate of AdamW
    muon_lr: float | None = None  # set it to move the blocks' matrices by Muon, at this rate
    weight_decay: float = 0.1  # on matrices only
    beta2: float = 0.95  # AdamW's memory for the size of gradients
    schedule: str = "cosine"  # after the warm-up: cosine, wsd (steady, then a line down) or constant
    warmup: int = 100  # steps in which the rate rises in a line
    floor: float = 0.05  # the share of the peak rate at the end
    clip: float = 1.0  # the largest norm a gradient keeps
    precision: str = "auto"  # of the passes: float32, bfloat16, float16, float8; auto: as suits the device
    compile: bool = False  # let torch compile the blocks
    recompute: bool = False  # keep no activations within blocks (checkpointing): less memory, a third slower
    z_loss: float = 0.0  # keeps the softmax's sum near 1 (PaLM: 1e-4); the loss that is told stays plain
    label_smoothing: float = 0.0  # the share of each target given to all tokens; the loss stays plain, too
    seed: int = 0  # decides the first weights, the order of the data and dropout
    eval_every: int = 200  # steps between looks at the held-out text
    eval_rows: int = 64  # held-out windows, the same every time
    save_every: int = 200  # steps between checkpoints
    keep: int = 3  # checkpoints that stay, besides the best
    skip_bad_steps: int = 0  # steps in a row whose loss may be no finite number; they move nothing
    deterministic: bool = False  # on a GPU: sums in a fixed order, so that runs can be repeated bit for bit

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "context", "eval_every", "eval_rows", "save_every", "keep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingError(f"{name} is {value!r}; write a whole number of at least 1.")
        if self.micro_rows is not None and (self.micro_rows < 1 or self.rows % self.micro_rows):
            raise SettingError(
                f"micro_rows {self.micro_rows} does not divide rows {self.rows}. "
                f"Choose one of {', '.join(str(n) for n in range(1, self.rows + 1) if self.rows % n == 0)}."
            )
        for name in ("warmup", "skip_bad_steps"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} is {getattr(self, name)}; write 0 or more steps.")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError(f"{name} is {getattr(self, name)}; write a number above 0.")
        if not 0 <= self.z_loss < math.inf:
            raise SettingError(f"z_loss is {self.z_loss}; write 0 (off) or a small number such as 1e-4.")
        if not 0 <= self.label_smoothing < 1:
            raise SettingError(f"label_smoothing is {self.label_smoothing}; write a share from 0 to below 1.")
        for name, choices in (("precision", PRECISIONS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in choices:
                raise SettingError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}.")

    def rate(self, step: int) -> float:
        """The share of the peak learning rate at a step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "wsd":  # steady until the last fifth (Hu et al., 2024)
            return 1.0 if progress < 0.8 else 1.0 - (1.0 - self.floor) * (progress - 0.8) / 0.2
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# What the papers say. GPT (Radford et al., 2018): Adam at 2.5e-4, 2,000 steps of warm-up, cosine to 0, batch
# 64 x 512. GPT-2 (2019): context 1,024, batch 512; its rate was tuned by hand and not published, so this is
# GPT-3's for 125 million parameters.
RECIPES: dict[str, dict[str, Any]] = {
    "gpt1": {"rows": 64, "context": 512, "lr": 2.5e-4, "warmup": 2000, "floor": 0.0, "weight_decay": 0.01,
             "beta2": 0.999},
    "gpt2": {"rows": 512, "context": 1024, "lr": 6e-4, "warmup": 2000, "floor": 0.1, "weight_decay": 0.1},
}  # fmt: skip
