"""From what a person asks for to a run that is ready to begin: its settings, its model, its data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from glassgpt.config import SIZES, Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import atomic_write
from glassgpt.generate.text import belongs
from glassgpt.model import GPT2, load_model
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.checkpoint.run_folder import list_checkpoints, read_run_config
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import (
    INDEX,
    Shards,
    Split,
    check_hashes,
    open_splits,
)
from glassgpt.train.distributed.parallelize import check_plan
from glassgpt.train.distributed.process_group import group_of
from glassgpt.train.environment import quick_precision
from glassgpt.train.memory import rows_at_once, total_memory
from glassgpt.train.settings import SETTINGS, TrainSettings, read_settings
from glassgpt.weights import Checkpoint, load_checkpoint, load_config

MOST_BLOCKS = 1_000  # the deepest that was published (DeepNet, 2022)
MOST_WIDTH = 65_536  # four times those of the largest models
SHAPE, DROPOUT = "6x384x6", 0.1  # unless told
MAY_CHANGE = ("save_every", "keep", "skip_bad_steps", "micro_rows", "auto")  # when a run goes on


@dataclass(frozen=True, kw_only=True)
class Request:
    """All that is asked of a run, as the flags of `glassgpt train` say it. None: nothing was said.

    A run that goes on keeps what it began with. What is said then must agree with it; so the settings are
    those of `read_settings`, with changes.
    """

    data: str
    out: Path
    settings: TrainSettings
    shape: str | None = None  # 6x384x6
    start: str | None = None
    dropout: float | None = None  # 0.1
    attention_dropout: float | None = None  # as the rest
    parallel: str = "ddp"
    tensor: int | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1, "0.1 is usual, 0 is none", below=True)
        if self.tensor is not None:
            check_whole("tensor", self.tensor, 1, 2**31 - 1)
        if self.shape is not None:
            shaped(self.shape)


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
    origin: Mapping[str, Any]  # what the run's folder says of its beginning, besides the settings

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
        with atomic_write(self.out / SETTINGS) as part:
            values = {**self.settings.to_dict(), **self.origin, **changes}
            part.write_text(json.dumps(values, indent=2) + "\n", "utf-8")

    def write_beginning(self) -> None:
        """What the folder of a run holds before its first save."""
        if not self.leads:
            return
        self.write_settings()
        if self.tokenizer is not None and not self.begun:
            self.tokenizer.save(self.out)


def goes_on(out: Path, resume: bool) -> bool:
    """Whether this is a run that has begun already."""
    begun = bool(list_checkpoints(out))
    # torchrun repeats the command when it starts the processes again after one has died. Where there are
    # several machines not all are told so: there --resume is given from the start.
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    many = "TORCHELASTIC_RUN_ID" in os.environ
    if begun and not resume and not again:
        raise SettingError(
            f"{out} holds a run already. Add --resume to go on with it, or name another --out."
        )
    if resume and not begun and not many:
        raise SettingError(f"{out} holds no checkpoint to go on from. Leave out --resume to begin.")
    return begun


def checked(request: Request) -> tuple[Request, bool]:
    """The request with the settings that hold, and whether its run has begun already."""
    begun = goes_on(request.out, request.resume)
    settings = request.settings
    if begun:
        settings = same_settings(settings, request.out)
        check_model(request, read_run_config(request.out))
    check_plan(request.parallel, settings, request.tensor)
    return dataclasses.replace(request, settings=settings), begun


def prepare_job(
    request: Request,
    begun: bool,
    device: torch.device,
    mesh: DeviceMesh | None = None,
    progress: Progress = no_progress,
) -> Job:
    """Open the data and make the model, in each of the run's processes."""
    leads = mesh is None or mesh.get_rank() == 0
    settings = request.settings
    if settings.precision == "auto":
        settings = dataclasses.replace(settings, precision=quick_precision(device))
    shards, held_out = open_splits(request.data)
    if begun and leads and (Path(request.data).expanduser() / INDEX).is_file():
        for _, difference in check_hashes(Path(request.data).expanduser(), progress):
            if difference:
                raise FileFormatError(difference)
    tokenizer = tokenizer_of(request.data)
    torch.manual_seed(settings.seed)
    model = GPT2(read_run_config(request.out)) if begun else fresh_model(request, tokenizer)
    if settings.context > model.config.n_positions:
        raise SettingError(
            f"context {settings.context} is longer than the model's {model.config.n_positions} positions."
        )
    for part in (shards, held_out):
        part.check_ids(model.config.vocab_size, progress if leads else no_progress)
    return Job(
        out=request.out, settings=settings, begun=begun, model=model.to(device), tokenizer=tokenizer,
        tokens=len(shards), loader=Loader(shards, settings.context, settings.rows, settings.seed),
        held_out=held_out_batches(held_out, settings), device=device, mesh=mesh, parallel=request.parallel,
        origin=read_settings(request.out)[1] if begun else {"start": request.start},
    )  # fmt: skip


def same_settings(given: TrainSettings, run: Path) -> TrainSettings:
    """Those given, which must be the run's own, as it would not be the same run otherwise; how often it is
    saved and what it puts up with may change."""
    saved = read_settings(run)[0]
    if given.precision == "auto":  # the folder says what that became when the run began
        given = dataclasses.replace(given, precision=saved.precision)
    for name, value in given.to_dict().items():
        if name not in MAY_CHANGE and value != getattr(saved, name):
            raise contradiction(name, value, getattr(saved, name))
    return given


def contradiction(name: str, value: object, of_run: object) -> SettingError:
    return SettingError(
        f"{name} {value} differs from the run's {of_run}. Leave it out to go on, or begin a new run."
    )


def check_model(request: Request, config: Config) -> None:
    """Refuse what is asked of a model that is there already and is another one."""
    if request.shape is not None and sides(shaped(request.shape)) != sides(config):
        raise contradiction("shape", request.shape, shape_of(config))
    for name, dropout, of_run in (
        ("dropout", request.dropout, config.resid_pdrop),
        ("attention_dropout", request.attention_dropout, config.attn_pdrop),
    ):
        if dropout is not None and dropout != of_run:
            raise contradiction(name, dropout, of_run)
    if request.start is None:
        return
    origin = read_settings(request.out)[1]
    if "start" not in origin:
        if sides(load_config(request.start)) != sides(config):
            raise contradiction("start", request.start, f"model of {shape_of(config)}")
    elif origin["start"] is None:
        raise contradiction("start", request.start, "beginning from random weights")
    elif not same_place(request.start, origin["start"]):
        raise contradiction("start", request.start, origin["start"])


def sides(config: Config) -> tuple[int, int, int]:
    return config.n_layer, config.n_embd, config.n_head


def shape_of(config: Config) -> str:
    return "x".join(map(str, sides(config)))


def same_place(one: str, other: str) -> bool:
    return one == other or Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def tokenizer_of(data: str) -> Tokenizer | None:
    return Tokenizer.load(data) if (Path(data).expanduser() / "tokenizer.json").is_file() else None


def held_out_batches(held_out: Shards | Split, settings: TrainSettings) -> list[Tensor]:
    rows = rows_at_once(settings)
    loader = Loader(held_out, settings.context, rows, shuffle=False)
    return [loader.batch(i) for i in range(max(1, settings.eval_rows // rows))]


def fresh_model(request: Request, tokenizer: Tokenizer | None) -> GPT2:
    start, shape = request.start, SHAPE if request.shape is None else request.shape
    dropout = DROPOUT if request.dropout is None else request.dropout
    inside = dropout if request.attention_dropout is None else request.attention_dropout
    if start is not None:
        checkpoint = load_checkpoint(start)
        if request.shape is not None and sides(shaped(shape)) != sides(checkpoint.config):
            raise SettingError(
                f"shape {shape} differs from {shape_of(checkpoint.config)} of {start}. "
                "Leave out --shape or --start."
            )
        if tokenizer is not None:
            check_vocabulary(tokenizer, checkpoint, start)
        config = dataclasses.replace(
            checkpoint.config, embd_pdrop=dropout, attn_pdrop=inside, resid_pdrop=dropout
        )
        model = load_model(dataclasses.replace(checkpoint, config=config), device="cpu", dtype="float32")
        return model.requires_grad_(True)
    # nanoGPT's and llm.c's files do not say whose tokens they hold; they are GPT-2's.
    vocab_size = Config().vocab_size if tokenizer is None else tokenizer.vocab_size
    eot = None if tokenizer is None else tokenizer.eot_id
    config = dataclasses.replace(
        shaped(shape), vocab_size=vocab_size,
        n_positions=max(request.settings.context, positions_of(shape)),
        embd_pdrop=dropout, attn_pdrop=inside, resid_pdrop=dropout, bos_token_id=eot, eos_token_id=eot,
    )  # fmt: skip
    weights, memory = 4 * config.n_parameters, total_memory()
    if weights > memory:
        raise SettingError(
            f"a model of shape {shape} with {config.n_positions:,} positions has {config.n_parameters:,} "
            f"parameters, {weights / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB of "
            "memory. Choose a smaller --shape or --context."
        )
    return GPT2(config)


def check_vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint, start: str) -> None:
    """Refuse data that was cut with another tokenizer than the model's, as far as that is known."""
    why_not = checkpoint.notes.get("tokenizer")
    if why_not is not None:
        raise SettingError(
            f"the tokenizer of {start} cannot be read ({why_not.rstrip('.')}): it is not known whether the "
            "data was cut with it. Put the model's own tokenizer.json beside its weights."
        )
    if checkpoint.tokenizer is None:  # weights alone: the sizes must do
        size = checkpoint.config.vocab_size
        if not belongs(tokenizer, size):
            raise SettingError(
                f"the data was cut with a tokenizer of {tokenizer.vocab_size:,} tokens, and {start} has "
                f"{size:,}. Prepare it again with the model's own."
            )
    elif tokenizer.hash != checkpoint.tokenizer.hash:
        raise SettingError(
            f"the data was cut with another vocabulary than {start}'s. "
            f"Prepare it again with --tokenizer {start}."
        )


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
    check_whole("the number of blocks in shape", n_layer, 1, MOST_BLOCKS)
    check_whole("the width in shape", n_embd, 1, MOST_WIDTH)
    return Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head)


def positions_of(shape: str) -> int:
    """A published size keeps its 1,024 positions; another has as many as it is trained with."""
    return SIZES[shape].n_positions if shape in SIZES else 1
