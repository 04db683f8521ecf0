"""`glassgpt train --data SHARDS --out RUN --steps N`: a model from scratch, or one that learns on."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import duration, watching
from glassgpt.cli.parse import flag, parse_known
from glassgpt.cli.paths import resolve_path
from glassgpt.errors import SettingError, UserError
from glassgpt.train.settings import TrainSettings, read_settings, with_recipe

if TYPE_CHECKING:
    from glassgpt.train.estimate import Plan
    from glassgpt.train.trainer import Job


def defaults(words: Sequence[str]) -> dict[str, Any]:
    """Where a run goes on, or a recipe is named, their settings stand in for those of the signature."""
    said = parse_known(Said, words)
    if said is None:
        return {}
    run = None if said.out is None else Path(resolve_path("--out", said.out))
    begun = False
    if run is not None and (said.resume or (run / "checkpoints").exists()):
        from glassgpt.train.trainer import goes_on

        begun = goes_on(run, said.resume)
    if run is not None and begun:
        settings = read_settings(run)[0]
    elif said.recipe is None or said.steps is None:  # that --steps is missing comes first
        return {}
    else:
        settings = TrainSettings(steps=1)
    return {"settings": with_recipe(settings, said.recipe)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What decides the defaults of all else."""

    out: str | None = None
    steps: str | None = None
    recipe: str | None = None
    resume: bool = False


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What a person wants to see of the run; it learns the same whatever they are."""

    prompt: str | None  # of the samples
    tensorboard: bool
    trackers: tuple[str, ...]


def command(
    *,
    data: Annotated[str, flag("a folder made by prepare, or nanoGPT's or llm.c's .bin files", "DIR")],
    out: Annotated[str, flag("the run's folder, which is also the model", "RUN")],
    settings: OmitArgPrefixes[TrainSettings],
    shape: Annotated[
        str | None,
        flag("blocks x width x heads, or a published size such as gpt2", "SHAPE", default="6x384x6"),
    ] = None,
    start: Annotated[str | None, flag("learn on from this model's weights", "MODEL", default="")] = None,
    recipe: Annotated[
        str | None, flag("published settings: gpt1, gpt2; other flags go before them", "NAME", default="")
    ] = None,
    dropout: Annotated[
        float | None, flag("of embeddings, attention and residuals", "X", default="0.1")
    ] = None,
    attention_dropout: Annotated[
        float | None, flag("of attention, if other than that; 0 is faster", "X", default="")
    ] = None,
    prompt: Annotated[str | None, flag("begin the samples with this", "TEXT", default="")] = None,
    device: Annotated[str | None, flag("cpu, cuda, cuda:1, mps", "NAME", default="the best there is")] = None,
    parallel: Annotated[
        str,
        flag(
            "how torchrun's processes share the work: ddp (whole models), fsdp (shares of one), "
            "tp (heads of every layer)",
            "NAME",
        ),
    ] = "ddp",
    tensor: Annotated[
        int | None, flag("with --parallel tp: processes that share a layer", "N", default="all")
    ] = None,
    tensorboard: Annotated[bool, flag("curves for TensorBoard, in RUN/tensorboard", default="")] = False,
    log_to: Annotated[
        tuple[str, ...], flag("tell the run to a tracker, too: wandb, trackio", "NAME", default="")
    ] = (),
    resume: Annotated[bool, flag("go on with the run in RUN, exactly", default="")] = False,
    dry_run: Annotated[bool, flag("show the plan and stop", default="")] = False,
) -> int:
    """Train a GPT-2. It can be stopped at any time (Ctrl-C saves first) and goes on exactly with --resume."""
    from glassgpt.model.torch_backend import choose_device
    from glassgpt.train.distributed.process_group import joined, leave
    from glassgpt.train.report.trackers import check_trackers
    from glassgpt.train.trainer import Request, checked, prepare_job

    check_trackers(tensorboard, log_to)
    refuse_foreign_folder(Path(out))
    request, begun = checked(
        Request(
            data=data, out=Path(out), settings=settings, shape=shape, start=start, dropout=dropout,
            attention_dropout=attention_dropout, parallel=parallel, tensor=tensor,
            resume=resume,
        )
    )  # fmt: skip
    with joined(choose_device(device), tensor if parallel == "tp" else 1) as (where, mesh):
        job = prepare_job(request, begun, where, mesh, terminal.progress)
        plan = tell_plan(job)
        if plan is not None:
            job = dataclasses.replace(job, settings=plan.settings)
        if not dry_run:
            carry_out(job, plan, Wishes(prompt, tensorboard, log_to))
    if mesh is not None:
        leave()
    return 0


def refuse_foreign_folder(out: Path) -> None:
    """A run's files go into a new folder, an empty one, or one of a run: they replace nothing else."""
    from glassgpt.files import check_not_device, find_interrupted_writes

    check_not_device(out)
    if out.is_file():
        raise SettingError(f"--out {out} is a file. Name a folder.")
    ours = {"settings.json", "checkpoints", *(path.name for _, path in find_interrupted_writes(out))}
    held = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    foreign = sorted(name for name in held if not name.startswith("."))  # .DS_Store and its like
    if foreign and not ours & held:
        raise SettingError(
            f"--out {out} holds {foreign[0]!r}, which is no part of a run. Name another folder."
        )


def tell_plan(job: Job) -> Plan | None:
    """Show what the run will take, where one process can try it; the plan."""
    from glassgpt.train.estimate import make_plan

    if job.mesh is None:
        with terminal.spinner("trying a few steps"):
            plan = make_plan(job.model, job.settings, job.loader.batch(0))
        show_plan(plan, plan.settings, job.tokens, job.device.type)
        return plan
    if job.leads:
        terminal.note(
            f"{job.world} processes on {job.device.type} ({job.parallel}) share "
            f"{job.settings.rows} rows a step"
        )
    return None


def carry_out(job: Job, plan: Plan | None, wishes: Wishes) -> None:
    """The run, in each of its processes. The first one (or only one) speaks and writes."""
    from glassgpt.files import lock_folder
    from glassgpt.train.loop import train

    done = 0
    with contextlib.ExitStack() as stack:
        if job.leads:
            stack.enter_context(lock_folder(job.out / "checkpoints", "train"))
        job.write_beginning()
        asked = stack.enter_context(stopping_kindly(alone=job.mesh is None))
        tell = stack.enter_context(telling(job, plan, wishes)) if job.leads else lambda record: None
        for record in train(
            job.model,
            lambda step: stack.enter_context(job.batches(step)),
            job.held_out,
            job.out,
            job.settings,
            lambda: bool(asked),
            job.mesh,
            job.parallel,
            job.loader.identity,
        ):
            done = record["step"]
            tell(record)
    if job.leads:
        terminal.note(last_words(job, done))


def last_words(job: Job, done: int) -> str:
    """What became of the run, and what one can do with it now."""
    from glassgpt.train.checkpoint.run_folder import checkpoint_path

    steps, use = job.settings.steps, f"glassgpt generate --model {job.out}"
    if done == steps:
        return f"done: {use}"
    if done == 0 and checkpoint_path(job.out, steps).exists():
        return (
            f"the run is finished: all of its {steps:,} steps are done, and none was added. Use it: {use}; "
            f"or learn on from it in another run: --start {job.out} --out OTHER"
        )
    return f"stopped and saved; go on with --resume, or use it: {use}"


@contextlib.contextmanager
def telling(job: Job, plan: Plan | None, wishes: Wishes) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields what to do with each record: show it, add what the model writes, tell all who listen.

    At the end, also at a bad one, there is a report.
    """
    from glassgpt.train.environment import write_session
    from glassgpt.train.report.html import write_report
    from glassgpt.train.report.samples import generate_sample, to_one_line
    from glassgpt.train.report.trackers import open_trackers

    listeners: list[Callable[[dict[str, Any]], None]] = []
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(watching("training", job.settings.steps))

        def tell(record: dict[str, Any]) -> None:
            if not listeners:  # only now is it known after which step the run goes on
                first = record["step"] - 1
                write_session(job.out, first, job.device, job.world, **({} if plan is None else plan.peak))
                heard = open_trackers(
                    job.out, job.facts, first, wishes.tensorboard, wishes.trackers, terminal.note
                )
                listeners.append(stack.enter_context(heard))
            if plan is not None:
                record["mfu"] = round(plan.mfu(record["tokens_per_s"]), 4)
            show(record)
            if "skipped" in record:
                terminal.note(
                    f"step {record['step']:,} was skipped: loss {record['loss']}, "
                    f"gradient {record['grad_norm']}"
                )
            if "micro_rows" in record:
                job.write_settings(micro_rows=record["micro_rows"])
                terminal.note(f"memory ran out: going on with {record['micro_rows']} rows at once")
            # One process has no whole model otherwise.
            if "val_loss" in record and job.tokenizer is not None and job.parallel == "ddp":
                record["sample"] = generate_sample(job.model, job.tokenizer, wishes.prompt)
                terminal.note(f"    {terminal.sanitize(to_one_line(record['sample']), sys.stderr)}")
            listeners[0](record)

        try:
            yield tell
        finally:
            try:
                if listeners and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                    terminal.note(f"how it went: {write_report(job.out)}")
            except (OSError, UserError) as error:  # the run itself is saved
                terminal.note(f"no report: {error}")


def show_plan(plan: Plan, settings: TrainSettings, tokens: int, device: str) -> None:
    from glassgpt.train.memory import rows_at_once

    seen = settings.steps * plan.tokens_per_step
    made = terminal.table("plan", "")
    made.add_row("parameters", f"{plan.parameters:,}")
    made.add_row(
        "memory",
        f"about {terminal.size(plan.memory)}: weights {terminal.size(plan.weights)}, gradients "
        f"{terminal.size(plan.gradients)}, optimizer {terminal.size(plan.optimizer)}, "
        f"activations {terminal.size(plan.activations)}",
    )
    at_once, most = rows_at_once(settings), plan.largest_micro_batch
    made.add_row(
        "rows",
        f"{settings.rows} a step, {at_once} at once; "
        + (f"up to {most} fit" if most else "not even one fits: try --recompute or a smaller --shape")
        + ("" if device == "cuda" else " (estimated)"),
    )
    made.add_row("tokens", f"{plan.tokens_per_step:,} a step, {seen:,} in all ({seen / tokens:.2f} epochs)")
    made.add_row(
        "speed",
        f"{plan.tokens_per_s:,.0f} tokens/s on {device} in {settings.precision} "
        f"({plan.utilisation:.0%} of the {plan.peak_flops / 1e9:,.0f} GFLOP/s its products reach)",
    )
    made.add_row("time", duration(plan.seconds(settings.steps)))
    terminal.show(made, stream=sys.stderr)


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
