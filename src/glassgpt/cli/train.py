"""`glassgpt train --data SHARDS --out RUN --steps N`: a model from scratch, or one that learns on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag
from glassgpt.config import SIZES, Config
from glassgpt.errors import SettingError
from glassgpt.train.settings import RECIPES, TrainSettings

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from glassgpt.model import GPT2
    from glassgpt.tokenizer import Tokenizer
    from glassgpt.train.plan import Plan
    from glassgpt.train.shards import Part, Shards

SAMPLE_TOKENS = 60


def command(
    *,
    data: Annotated[str, flag("a folder made by prepare, or nanoGPT's or llm.c's .bin files", "DIR")],
    out: Annotated[str, flag("the run's folder, which is also the model", "RUN")],
    settings: OmitArgPrefixes[TrainSettings],
    shape: Annotated[
        str, flag("blocks x width x heads, or a published size such as gpt2", "SHAPE")
    ] = "6x384x6",
    start: Annotated[str | None, flag("learn on from this model's weights", "MODEL", default="")] = None,
    recipe: Annotated[
        str | None, flag("published settings: gpt1, gpt2; other flags go before them", "NAME", default="")
    ] = None,
    dropout: Annotated[float, flag("of embeddings, attention and residuals", "X")] = 0.1,
    prompt: Annotated[str | None, flag("begin the samples with this", "TEXT", default="")] = None,
    device: Annotated[str | None, flag("cpu, cuda, cuda:1, mps", "NAME", default="the best there is")] = None,
    parallel: Annotated[
        str, flag("how torchrun's processes share the work: ddp (whole models), fsdp (shares of one)", "NAME")
    ] = "ddp",
    resume: Annotated[bool, flag("go on with the run in RUN, exactly", default="")] = False,
    dry_run: Annotated[bool, flag("show the plan and stop", default="")] = False,
) -> int:
    """Train a GPT-2. It can be stopped at any time (Ctrl-C saves first) and goes on exactly with --resume."""
    from glassgpt.model.backend import choose_device
    from glassgpt.train.parallel import check_plan, joined, leave
    from glassgpt.train.run import checkpoints

    run = Path(out)
    settings = with_recipe(settings, recipe)
    begun = bool(checkpoints(run))
    # torchrun repeats the command when it starts the processes again after one has died. Where there are
    # several machines not all are told so: there --resume is given from the start.
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    many = "TORCHELASTIC_RUN_ID" in os.environ
    if begun and not resume and not again:
        raise SettingError(
            f"{run} holds a run already. Add --resume to go on with it, or name another --out."
        )
    if resume and not begun and not many:
        raise SettingError(f"{run} holds no checkpoint to go on from. Leave out --resume to begin.")
    if begun:
        settings = same_settings(settings, run)
    check_plan(parallel, settings)
    with joined(choose_device(device)) as (where, mesh):
        code = prepared_run(
            data, run, settings, shape, start, dropout, prompt, where, mesh, parallel, begun, dry_run
        )
    if mesh is not None:
        leave()
    return code


def prepared_run(
    data: str,
    run: Path,
    settings: TrainSettings,
    shape: str,
    start: str | None,
    dropout: float,
    prompt: str | None,
    where: torch.device,
    mesh: DeviceMesh | None,
    parallel: str,
    begun: bool,
    dry_run: bool,
) -> int:
    """The run, in each of its processes. The first one (or only one) speaks and writes."""
    import torch

    from glassgpt.train.loader import Loader
    from glassgpt.train.loop import train
    from glassgpt.train.plan import make_plan
    from glassgpt.train.shards import train_and_held_out

    rank, world = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    leads = rank == 0
    shards, held_out = train_and_held_out(data)
    tokenizer = tokenizer_of(data)
    torch.manual_seed(settings.seed)
    if begun:
        from glassgpt.model import GPT2

        model = GPT2(Config.load(run)).to(where)
    else:
        model = fresh_model(start, shape, dropout, settings, tokenizer).to(where)
    if settings.context > model.config.n_positions:
        raise SettingError(
            f"context {settings.context} is longer than the model's {model.config.n_positions} positions."
        )
    loader = Loader(shards, settings.context, settings.rows, settings.seed)
    windows = held_out_batches(held_out, settings)
    if mesh is None:
        with terminal.waiting("trying a few steps"):
            plan = make_plan(model, settings, loader.batch(0))
        show_plan(plan, settings, len(shards), where.type)
    elif leads:
        terminal.note(f"{world} processes on {where.type} ({parallel}) share {settings.rows} rows a step")
    if dry_run:
        return 0
    if not begun and leads:
        run.mkdir(parents=True, exist_ok=True)
        (run / "settings.json").write_text(json.dumps(settings.to_dict(), indent=2) + "\n", "utf-8")
        if tokenizer is not None:
            tokenizer.save(run)

    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(stopping_kindly(alone=mesh is None))
        if leads:
            advance = stack.enter_context(terminal.progress("training", settings.steps))
        done = 0
        for record in train(
            model,
            lambda step: stack.enter_context(loader.prefetch(step, rank, world, where)),
            windows,
            run,
            settings,
            lambda: bool(asked),
            mesh,
            parallel,
        ):
            if not leads:
                continue
            advance(record["step"] - done)
            done = record["step"]
            if "val_loss" in record:
                tell(record)
                if tokenizer is not None and parallel == "ddp":  # one process has no whole model otherwise
                    terminal.note(f"    {sample(model, tokenizer, prompt)}")
    if leads and done < settings.steps:
        terminal.note(f"stopped and saved; go on with --resume, or use it: glassgpt generate --model {run}")
    elif leads:
        terminal.note(f"done: glassgpt generate --model {run}")
    return 0


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
    """The run's own settings. A flag that contradicts them is a mistake, as the run would not be the same."""
    try:
        saved = json.loads((run / "settings.json").read_text("utf-8"))
        settings = TrainSettings(**saved)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{run / 'settings.json'} cannot be read ({error}). Begin a new run.") from None
    for name, value in given.to_dict().items():
        if value not in (saved.get(name), default_of(name)):
            raise SettingError(
                f"{name} {value} differs from the run's {saved.get(name)}. "
                "Leave it out to go on, or begin a new run."
            )
    return settings


def tokenizer_of(data: str) -> Tokenizer | None:
    from glassgpt.tokenizer import Tokenizer

    return Tokenizer.load(data) if (Path(data).expanduser() / "tokenizer.json").is_file() else None


def held_out_batches(held_out: Shards | Part, settings: TrainSettings) -> list[Any]:
    from glassgpt.train.loader import Loader

    rows = settings.rows if settings.micro_rows is None else settings.micro_rows
    loader = Loader(held_out, settings.context, rows, shuffle=False)
    return [loader.batch(i) for i in range(max(1, settings.eval_rows // rows))]


def fresh_model(
    start: str | None,
    shape: str,
    dropout: float,
    settings: TrainSettings,
    tokenizer: Tokenizer | None,
) -> GPT2:
    from glassgpt.model import GPT2, load_model
    from glassgpt.weights import load_checkpoint

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
            checkpoint.config, embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout
        )
        model = load_model(dataclasses.replace(checkpoint, config=config), device="cpu", dtype="float32")
        return model.requires_grad_(True)
    # nanoGPT's and llm.c's files do not say whose tokens they hold; they are GPT-2's.
    vocab_size = Config().vocab_size if tokenizer is None else tokenizer.vocab_size
    eot = None if tokenizer is None else tokenizer.eot_id
    return GPT2(
        dataclasses.replace(
            shaped(shape), vocab_size=vocab_size, n_positions=max(settings.context, positions_of(shape)),
            embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout, bos_token_id=eot, eos_token_id=eot,
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


def show_plan(plan: Plan, settings: TrainSettings, tokens: int, device: str) -> None:
    seen = settings.steps * plan.tokens_per_step
    made = terminal.table("plan", "")
    made.add_row("parameters", f"{plan.parameters:,}")
    made.add_row(
        "memory",
        f"about {terminal.size(plan.memory)}: weights {terminal.size(plan.weights)}, gradients "
        f"{terminal.size(plan.gradients)}, optimizer {terminal.size(plan.optimizer)}, "
        f"activations {terminal.size(plan.activations)}",
    )
    made.add_row("tokens", f"{plan.tokens_per_step:,} a step, {seen:,} in all ({seen / tokens:.2f} epochs)")
    made.add_row(
        "speed",
        f"{plan.tokens_per_s:,.0f} tokens/s on {device} "
        f"({plan.utilisation:.0%} of the {plan.peak_flops / 1e9:,.0f} GFLOP/s its products reach)",
    )
    made.add_row("time", duration(plan.seconds(settings.steps)))
    terminal.show(made, stream=sys.stderr)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def tell(record: dict[str, Any]) -> None:
    terminal.note(
        f"step {record['step']:,}  loss {record['loss']:.3f}  held out {record['val_loss']:.3f}  "
        f"rate {record['lr']:.1e}  gradient {record['grad_norm']:.2f}  {record['tokens_per_s']:,} tokens/s"
    )


def sample(model: GPT2, tokenizer: Tokenizer, prompt: str | None) -> str:
    """A few words from the model as it is now, on one line. Draws no random number of the training's."""
    from glassgpt.gpt import GPT
    from glassgpt.model import TorchBackend

    was = model.training
    try:
        text = GPT(TorchBackend(model), tokenizer).generate(prompt, max_new_tokens=SAMPLE_TOKENS, seed=1).text
    finally:
        model.train(was)
    return " ".join(f"{'' if prompt is None else prompt}{text}".split())


@contextlib.contextmanager
def stopping_kindly(alone: bool = True) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM asks the loop to finish its step and save; a second one ends the program at once.

    One of many processes gets every Ctrl-C twice, from the terminal and from torchrun, which itself ends
    those that take too long.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and alone:
            raise KeyboardInterrupt
        asked.append(number)
        if alone:
            terminal.note("stopping after this step; once more to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
