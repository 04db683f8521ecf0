"""Every setting of a training run, in one place.

The flags of `glassgpt train` and the keyword arguments of `glassgpt.train` are the fields of `TrainSettings`,
which a run's `settings.json` records, and of `RunOptions`, which belong to one call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from glassgpt.config import ATTENTIONS
from glassgpt.errors import SettingError, UserError
from glassgpt.files import read_json
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole

MAX_STEPS = 10**9  # ten thousand times those of GPT-3
MAX_TOKENS = 2**27  # in a batch, and held out: their ids are in memory, a gigabyte
MUON_LR = 0.02  # Muon's own default

SETTINGS = "settings.json"
ORIGIN = ("init_from", "data", "prompt")  # what settings.json records in addition to the settings

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("auto", "float32", "bfloat16", "float16", "float8")
SCHEDULES = ("cosine", "wsd", "constant")


# The comment after a field is its help text on the command line.
@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    steps: int  # total number of optimizer steps; not needed with --resume
    batch_size: int = 16  # sequences per optimizer step, over all processes
    micro_batch_size: int | None = None  # sequences per forward pass (gradient accumulation); none: all
    auto_micro_batch: bool = False  # when memory runs out, halve the micro-batch size and retry the step
    context: int = 256  # sequence length in tokens
    optimizer: str = "adamw"  # adamw, or muon (for the matrices of the blocks, adamw for the rest)
    lr: float = 1e-3  # peak learning rate of AdamW
    matrix_lr: float | None = None  # peak learning rate of Muon; 0.02 with --optimizer muon
    weight_decay: float = 0.1  # weight decay, applied to matrices only
    beta2: float = 0.95  # AdamW's beta2
    schedule: str = "cosine"  # learning rate after warmup: cosine, wsd (warmup-stable-decay) or constant
    warmup_steps: int = 100  # steps of linear learning rate warmup
    min_lr_ratio: float = 0.05  # fraction of the peak learning rate at the end
    grad_clip: float = 1.0  # clip the gradient to this norm
    precision: str = "auto"  # auto, float32, bfloat16, float16 or float8; weights stay in float32
    compile: bool = False  # compile the model with torch.compile
    activation_checkpointing: bool = False  # recompute activations in the backward pass to save memory
    z_loss: float = 0.0  # weight of the z-loss (PaLM: 1e-4); not part of the reported loss
    label_smoothing: float = 0.0  # label smoothing; not part of the reported loss
    transpose: int = 0  # music: move each sequence by up to N semitones, up or down, at random
    seed: int = 0  # seed of the initial weights, the data order and dropout
    eval_every: int = 200  # evaluate every N steps
    eval_batches: int = 4  # validation batches per evaluation, always the same ones
    save_every: int = 200  # save a checkpoint every N steps
    keep_checkpoints: int = 3  # number of recent checkpoints to keep, in addition to the best
    skip_bad_steps: int = 0  # consecutive non-finite steps to skip before giving up
    deterministic: bool = False  # use deterministic algorithms on a GPU (slower)

    def __post_init__(self) -> None:
        for name in ("steps", "eval_every", "save_every", "keep_checkpoints"):
            check_whole(name, getattr(self, name), 1, MAX_STEPS)
        for name in ("warmup_steps", "skip_bad_steps"):
            check_whole(name, getattr(self, name), 0, MAX_STEPS)
        check_whole("context", self.context, 1, MAX_TOKENS)
        hint = f"{MAX_TOKENS:,} tokens in sequences of {self.context:,}"
        check_whole("batch_size", self.batch_size, 1, MAX_TOKENS // self.context, hint)
        hint = f"{MAX_TOKENS:,} tokens in batches of {self.batch_size:,} x {self.context:,}"
        limit = max(4, MAX_TOKENS // (self.batch_size * self.context))
        check_whole("eval_batches", self.eval_batches, 1, limit, hint)
        if self.micro_batch_size is not None:
            check_whole("micro_batch_size", self.micro_batch_size, 1, self.batch_size, "the batch size")
            if self.batch_size % self.micro_batch_size:
                size = self.micro_batch_size
                near = sorted(sorted(divisors(self.batch_size), key=lambda n: abs(n - size))[:10])
                raise SettingError(
                    f"micro_batch_size {size} does not divide batch_size {self.batch_size}. "
                    f"Choose one of {', '.join(map(str, near))}."
                )
        check_whole("transpose", self.transpose, 0, 12, "3 is the Music Transformer's")
        check_whole("seed", self.seed, 0, TRAINING_SEEDS)
        check_number("lr", self.lr, 0, 1000, "1e-3 is usual", above=True)
        if self.matrix_lr is not None:
            check_number("matrix_lr", self.matrix_lr, 0, 1000, f"{MUON_LR} is usual", above=True)
        check_number("weight_decay", self.weight_decay, 0, 1000, "0.1 is usual, 0 is none")
        check_number("beta2", self.beta2, 0, 1, "0.95 is usual", below=True)
        check_number("min_lr_ratio", self.min_lr_ratio, 0, 1, "0.05 is usual")
        check_number("grad_clip", self.grad_clip, 0, 10**9, "1 is usual, 1e9 is none", above=True)
        check_number("z_loss", self.z_loss, 0, 1000, "1e-4 is usual, 0 is none")
        check_number("label_smoothing", self.label_smoothing, 0, 1, "0.1 is usual, 0 is none", below=True)
        for name, choices in (
            ("optimizer", OPTIMIZERS), ("precision", PRECISIONS), ("schedule", SCHEDULES),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise SettingError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}.")
        if self.optimizer == "muon" and self.matrix_lr is None:
            object.__setattr__(self, "matrix_lr", MUON_LR)  # so that settings.json records it
        if self.optimizer != "muon" and self.matrix_lr is not None:
            raise SettingError(
                f"matrix_lr {self.matrix_lr} is the learning rate of Muon. Add --optimizer muon, or leave "
                "out --matrix-lr."
            )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run in addition to its settings; `glassgpt train` has a flag for each field.

    None means not given. A resumed run keeps its options, so those that are given must agree with them.
    """

    shape: str | None = None  # layers x width x heads, or a published size such as gpt2 (default: 6x384x6)
    dropout: float | None = None  # dropout of embeddings, attention and residuals (default: 0.1)
    # dropout of attention, if different; 0 is faster (default: that of --dropout)
    attention_dropout: float | None = None
    attention: str | None = field(  # its kind
        default=None,
        metadata={"help": f"{', '.join(ATTENTIONS)}: see docs/attention.md", "default": "causal"},
    )
    prompt: str | None = None  # prompt of the samples (default: a new document)
    device: str | None = None  # cpu, cuda, cuda:1, mps (default: the best available)
    parallel: str = "ddp"  # parallelism under torchrun: ddp, fsdp or tp (tensor parallelism)
    tensor_parallel_size: int | None = None  # processes that share a layer with --parallel tp (default: all)
    tensorboard: bool = False  # log to TensorBoard, in RUN/tensorboard
    tracker: tuple[str, ...] = ()  # log to an experiment tracker: wandb, trackio
    resume: bool = False  # resume the run in RUN from its last checkpoint


def divisors(n: int) -> list[int]:
    """The divisors of n, in ascending order."""
    low = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return low + [n // i for i in reversed(low) if i * i != n]


# From the papers. GPT (Radford et al., 2018): Adam at 2.5e-4, 2,000 warmup steps, cosine to 0, batch 64 x
# 512. GPT-2 (2019): context 1,024, batch 512; its learning rate was tuned by hand and not published, so this
# is GPT-3's for 125 million parameters.
RECIPES: dict[str, dict[str, Any]] = {
    "gpt1": {"batch_size": 64, "context": 512, "lr": 2.5e-4, "warmup_steps": 2000, "min_lr_ratio": 0.0,
             "weight_decay": 0.01, "beta2": 0.999, "eval_batches": 1},
    "gpt2": {"batch_size": 512, "context": 1024, "lr": 6e-4, "warmup_steps": 2000, "min_lr_ratio": 0.1,
             "weight_decay": 0.1, "eval_batches": 1},
}  # fmt: skip


def with_recipe(settings: TrainSettings, recipe: str | None) -> TrainSettings:
    """The settings, with the values that a paper published in place of those given."""
    if recipe is None:
        return settings
    if recipe not in RECIPES:
        raise SettingError(f"recipe {recipe!r} is not one of {', '.join(RECIPES)}.")
    changes = RECIPES[recipe]
    if settings.micro_batch_size is not None and changes["batch_size"] % settings.micro_batch_size:
        changes = {**changes, "micro_batch_size": None}
    return dataclasses.replace(settings, **changes)


def read_settings(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of a run, and the other values in its settings.json."""
    file = run / SETTINGS
    try:
        values = read_json(file)
        origin = {name: values.pop(name) for name in ORIGIN if name in values}
        for name, value in origin.items():
            if not isinstance(value, str | None):
                raise SettingError(f"{name} is {value!r}")
        return settings_from_dict(values), origin
    except UserError as error:
        raise SettingError(f"{file} cannot be read ({str(error).rstrip('.')}). Start a new run.") from None


def settings_from_dict(values: Mapping[str, Any]) -> TrainSettings:
    """Settings read from a file: names and types are checked."""
    hints = get_type_hints(TrainSettings)
    types = {field.name: hints[field.name] for field in dataclasses.fields(TrainSettings)}
    for name, value in values.items():
        if name not in types:
            raise SettingError(f"there is no setting {name!r}")
        if not has_type(value, types[name]):
            raise SettingError(f"{name} is {value!r}")
    if "steps" not in values:
        raise SettingError("steps is missing")
    return TrainSettings(**values)


def has_type(value: object, hint: Any) -> bool:
    kinds = get_args(hint) if get_args(hint) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) < 2**63
    return isinstance(value, kinds)
