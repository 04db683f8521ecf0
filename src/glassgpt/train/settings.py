"""Every number that decides how a training run goes. A run keeps its settings in `settings.json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from glassgpt.errors import SettingError, UserError
from glassgpt.files import read_json
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole

MOST_STEPS = 10**9  # ten thousand times those of GPT-3
MOST_TOKENS = 2**27  # of an update, and held out: their ids are in memory, a gigabyte of them

SETTINGS = "settings.json"
ORIGIN = ("start",)  # what a run's settings.json says besides the settings: the model it began from

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
        for name in ("steps", "eval_every", "save_every", "keep"):
            check_whole(name, getattr(self, name), 1, MOST_STEPS)
        for name in ("warmup", "skip_bad_steps"):
            check_whole(name, getattr(self, name), 0, MOST_STEPS)
        check_whole("context", self.context, 1, MOST_TOKENS)
        for name in ("rows", "eval_rows"):
            hint = f"{MOST_TOKENS:,} tokens in windows of {self.context:,}"
            check_whole(name, getattr(self, name), 1, MOST_TOKENS // self.context, hint)
        if self.micro_rows is not None:
            check_whole("micro_rows", self.micro_rows, 1, self.rows, "those of an update")
            if self.rows % self.micro_rows:
                wanted = self.micro_rows
                near = sorted(sorted(divisors(self.rows), key=lambda n: abs(n - wanted))[:10])
                raise SettingError(
                    f"micro_rows {wanted} does not divide rows {self.rows}. "
                    f"Choose one of {', '.join(map(str, near))}."
                )
        check_whole("seed", self.seed, 0, TRAINING_SEEDS)
        check_number("lr", self.lr, 0, 1000, "1e-3 is usual", above=True)
        if self.muon_lr is not None:
            check_number("muon_lr", self.muon_lr, 0, 1000, "0.02 is usual, None is AdamW alone", above=True)
        check_number("weight_decay", self.weight_decay, 0, 1000, "0.1 is usual, 0 is none")
        check_number("beta2", self.beta2, 0, 1, "0.95 is usual", below=True)
        check_number("floor", self.floor, 0, 1, "0.05 is usual")
        check_number("clip", self.clip, 0, 10**9, "1 is usual, 1e9 is none", above=True)
        check_number("z_loss", self.z_loss, 0, 1000, "1e-4 is usual, 0 is none")
        check_number("label_smoothing", self.label_smoothing, 0, 1, "0.1 is usual, 0 is none", below=True)
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


def divisors(n: int) -> list[int]:
    """All of them, in order."""
    low = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return low + [n // i for i in reversed(low) if i * i != n]


# What the papers say. GPT (Radford et al., 2018): Adam at 2.5e-4, 2,000 steps of warm-up, cosine to 0, batch
# 64 x 512. GPT-2 (2019): context 1,024, batch 512; its rate was tuned by hand and not published, so this is
# GPT-3's for 125 million parameters.
RECIPES: dict[str, dict[str, Any]] = {
    "gpt1": {"rows": 64, "context": 512, "lr": 2.5e-4, "warmup": 2000, "floor": 0.0, "weight_decay": 0.01,
             "beta2": 0.999},
    "gpt2": {"rows": 512, "context": 1024, "lr": 6e-4, "warmup": 2000, "floor": 0.1, "weight_decay": 0.1},
}  # fmt: skip


def with_recipe(settings: TrainSettings, recipe: str | None) -> TrainSettings:
    """The settings with those that a paper published in their place."""
    if recipe is None:
        return settings
    if recipe not in RECIPES:
        raise SettingError(f"recipe {recipe!r} is not one of {', '.join(RECIPES)}.")
    changes = RECIPES[recipe]
    if settings.micro_rows is not None and changes["rows"] % settings.micro_rows:
        changes = {**changes, "micro_rows": None}
    return dataclasses.replace(settings, **changes)


def read_settings(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of a run, and what else its folder says of its beginning: older ones say nothing."""
    file = run / SETTINGS
    try:
        values = read_json(file)
        origin = {name: values.pop(name) for name in ORIGIN if name in values}
        if not all(isinstance(value, str | None) for value in origin.values()):
            raise SettingError(f"start is {origin['start']!r}")
        return settings_of(values), origin
    except UserError as error:
        raise SettingError(f"{file} cannot be read ({str(error).rstrip('.')}). Begin a new run.") from None


def settings_of(values: Mapping[str, Any]) -> TrainSettings:
    """Settings that were kept in a file, each of its own type."""
    hints = get_type_hints(TrainSettings)
    known = {field.name: hints[field.name] for field in dataclasses.fields(TrainSettings)}
    for name, value in values.items():
        if name not in known:
            raise SettingError(f"there is no setting {name!r}")
        if not is_of(value, known[name]):
            raise SettingError(f"{name} is {value!r}")
    if "steps" not in values:
        raise SettingError("there is no steps")
    return TrainSettings(**values)


def is_of(value: object, hint: Any) -> bool:
    kinds = get_args(hint) if get_args(hint) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) < 2**63
    return isinstance(value, kinds)
