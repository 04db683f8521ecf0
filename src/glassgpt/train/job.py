"""From what a person asks for to a run that is ready to begin: its settings, its model, its data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from glassgpt.config import SIZES, Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.model import GPT2, load_model
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.loader import Loader
from glassgpt.train.memory import rows_at_once
from glassgpt.train.parallel import check_plan
from glassgpt.train.run import SETTINGS, checkpoints, read_config, read_settings
from glassgpt.train.session import quick_precision
from glassgpt.train.settings import RECIPES, TrainSettings
from glassgpt.train.shards import (
    INDEX,
    Part,
    Progress,
    Shards,
    check_hashes,
    quietly,
    train_and_held_out,
)
from glassgpt.train.team import group_of
from glassgpt.weights import load_checkpoint
from glassgpt.weights.safe import writing

MAY_CHANGE = ("save_every", "keep", "skip_bad_steps", "micro_rows", "auto")  # when a run goes on


@dataclass(frozen=True, kw_only=True)
class Request:
    """All that is asked of a run, as the flags of `glassgpt train` say it."""

    data: str
    out: Path
    settings: TrainSettings
    shape: str = "6x384x6"
    start: str | None = None
    recipe: str | None = None
    dropout: float = 0.1
    attention_dropout: float | None = None  # as the rest
    parallel: str = "ddp"
    tensor: int | None = None
    resume: bool = False


@dataclass(frozen=True)
class Job:
    """A run that is ready to begin, or to go on, in one process of `world`."""

    out: Path
    settings: TrainSettings
    begun: bool  # whether there is a checkpoint to go on from
    model: GPT2
    tokenizer: Tokenizer | None
    tokens: int  # in the data to learn from
    loader: Loader
    held_out: list[Tensor]
    device: torch.device
    mesh: DeviceMesh | None
    parallel: str

    @property
    def rank(self) -> int:
        return 0 if self.mesh is None else self.mesh.get_rank()

    @property
    def world(self) -> int:
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that speaks and writes."""
        return self.rank == 0

    @property
    def facts(self) -> dict[str, Any]:
        """What a tracker should know of the run."""
        return {**self.settings.to_dict(), "model": self.model.config.to_dict(), "tokens": self.tokens}

    def batches(self, step: int) -> AbstractContextManager[Iterator[Tensor]]:
        """This process's part of every batch from a step on."""
        return self.loader.prefetch(step, *group_of(self.mesh), self.device)

    def write_settings(self, **changes: Any) -> None:
        with writing(self.out / SETTINGS) as part:
            part.write_text(json.dumps({**self.settings.to_dict(), **changes}, indent=2) + "\n", "utf-8")

    def write_beginning(self) -> None:
        """What the folder of a run holds before its first save."""
        if not self.leads:
            return
        self.write_settings()
        if self.tokenizer is not None and not self.begun:
            self.tokenizer.save(self.out)


def checked(request: Request) -> tuple[Request, bool]:
    """The request with the settings that hold, and whether its run has begun already."""
    out = request.out
    settings = with_recipe(request.settings, request.recipe)
    begun = bool(checkpoints(out))
    # torchrun repeats the command when it starts the processes again after one has died. Where there are
    # several machines not all are told so: there --resume is given from the start.
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    many = "TORCHELASTIC_RUN_ID" in os.environ
    if begun and not request.resume and not again:
        raise SettingError(
            f"{out} holds a run already. Add --resume to go on with it, or name another --out."
        )
    if request.resume and not begun and not many:
        raise SettingError(f"{out} holds no checkpoint to go on from. Leave out --resume to begin.")
    if begun:
        settings = same_settings(settings, out)
    check_plan(request.parallel, settings, request.tensor)
    return dataclasses.replace(request, settings=settings), begun


def prepare_job(
    request: Request,
    begun: bool,
    device: torch.device,
    mesh: DeviceMesh | None = None,
    progress: Progress = quietly,
) -> Job:
    """Open the data and make the model, in each of the run's processes."""
    leads = mesh is None or mesh.get_rank() == 0
    settings = request.settings
    if settings.precision == "auto":
        settings = dataclasses.replace(settings, precision=quick_precision(device))
    shards, held_out = train_and_held_out(request.data)
    if begun and leads and (Path(request.data).expanduser() / INDEX).is_file():
        for _, difference in check_hashes(Path(request.data).expanduser(), progress):
            if difference:
                raise FileFormatError(difference)
    tokenizer = tokenizer_of(request.data)
    torch.manual_seed(settings.seed)
    model = GPT2(read_config(request.out)) if begun else fresh_model(request, tokenizer)
    if settings.context > model.config.n_positions:
        raise SettingError(
            f"context {settings.context} is longer than the model's {model.config.n_positions} positions."
        )
    for part in (shards, held_out):
        part.check_ids(model.config.vocab_size, progress if leads else quietly)
    return Job(
        out=request.out, settings=settings, begun=begun, model=model.to(device), tokenizer=tokenizer,
        tokens=len(shards), loader=Loader(shards, settings.context, settings.rows, settings.seed),
        held_out=held_out_batches(held_out, settings), device=device, mesh=mesh, parallel=request.parallel,
    )  # fmt: skip


def with_recipe(settings: TrainSettings, recipe: str | None) -> TrainSettings:
    """The published settings, except where a flag says otherwise."""
    if recipe is None:
        return settings
    if recipe not in RECIPES:
        raise SettingError(f"recipe {recipe!r} is not one of {', '.join(RECIPES)}.")
    changed = {name for name, value in settings.to_dict().items() if value != default_of(name)}
    return dataclasses.replace(settings, **{k: v for k, v in RECIPES[recipe].items() if k not in changed})


def default_of(name: str) -> Any:
    return next(field.default for field in dataclasses.fields(TrainSettings) if field.name == name)


def same_settings(given: TrainSettings, run: Path) -> TrainSettings:
    """The run's own settings. A flag that contradicts them is a mistake, as the run would not be the same;
    how often it is saved and what it puts up with may change."""
    settings = read_settings(run)
    saved = settings.to_dict()
    changed = {
        name: value
        for name, value in given.to_dict().items()
        if value not in (saved.get(name), default_of(name))
    }
    for name, value in changed.items():
        if name not in MAY_CHANGE:
            raise SettingError(
                f"{name} {value} differs from the run's {saved.get(name)}. "
                "Leave it out to go on, or begin a new run."
            )
    return dataclasses.replace(settings, **changed)


def tokenizer_of(data: str) -> Tokenizer | None:
    return Tokenizer.load(data) if (Path(data).expanduser() / "tokenizer.json").is_file() else None


def held_out_batches(held_out: Shards | Part, settings: TrainSettings) -> list[Tensor]:
    rows = rows_at_once(settings)
    loader = Loader(held_out, settings.context, rows, shuffle=False)
    return [loader.batch(i) for i in range(max(1, settings.eval_rows // rows))]


def fresh_model(request: Request, tokenizer: Tokenizer | None) -> GPT2:
    start, shape, dropout = request.start, request.shape, request.dropout
    inside = dropout if request.attention_dropout is None else request.attention_dropout
    if start is not None:
        checkpoint = load_checkpoint(start)
        if (
            tokenizer is not None
            and checkpoint.tokenizer is not None
            and tokenizer.hash != checkpoint.tokenizer.hash
        ):
            raise SettingError(
                f"the data was cut with another vocabulary than {start}'s. "
                f"Prepare it again with --tokenizer {start}."
            )
        config = dataclasses.replace(
            checkpoint.config, embd_pdrop=dropout, attn_pdrop=inside, resid_pdrop=dropout
        )
        model = load_model(dataclasses.replace(checkpoint, config=config), device="cpu", dtype="float32")
        return model.requires_grad_(True)
    # nanoGPT's and llm.c's files do not say whose tokens they hold; they are GPT-2's.
    vocab_size = Config().vocab_size if tokenizer is None else tokenizer.vocab_size
    eot = None if tokenizer is None else tokenizer.eot_id
    return GPT2(
        dataclasses.replace(
            shaped(shape), vocab_size=vocab_size,
            n_positions=max(request.settings.context, positions_of(shape)),
            embd_pdrop=dropout, attn_pdrop=inside, resid_pdrop=dropout, bos_token_id=eot, eos_token_id=eot,
        )
    )  # fmt: skip


def shaped(shape: str) -> Config:
    if shape in SIZES:
        return SIZES[shape]
    try:
        n_layer, n_embd, n_head = (int(part) for part in shape.lower().split("x"))
    except ValueError:
        raise SettingError(
            f"shape {shape!r} is not understood. Write blocks x width x heads, such as 6x384x6, "
            f"or one of {', '.join(SIZES)}."
        ) from None
    return Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head)


def positions_of(shape: str) -> int:
    """A published size keeps its 1,024 positions; another has as many as it is trained with."""
    return SIZES[shape].n_positions if shape in SIZES else 1
