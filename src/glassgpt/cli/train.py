"""`glassgpt train --data SHARDS --out RUN --steps N`: a model from scratch, or one that learns on."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag
from glassgpt.train.settings import TrainSettings

if TYPE_CHECKING:
    from glassgpt.train.job import Job
    from glassgpt.train.plan import Plan


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
    resume: Annotated[bool, flag("go on with the run in RUN, exactly", default="")] = False,
    dry_run: Annotated[bool, flag("show the plan and stop", default="")] = False,
) -> int:
    """Train a GPT-2. It can be stopped at any time (Ctrl-C saves first) and goes on exactly with --resume."""
    from glassgpt.model.backend import choose_device
    from glassgpt.train.job import Request, checked, prepare_job
    from glassgpt.train.team import joined, leave

    request, begun = checked(
        Request(
            data=data, out=Path(out), settings=settings, shape=shape, start=start, recipe=recipe,
            dropout=dropout, parallel=parallel, tensor=tensor, resume=resume,
        )
    )  # fmt: skip
    with joined(choose_device(device), tensor if parallel == "tp" else 1) as (where, mesh):
        job = prepare_job(request, begun, where, mesh)
        tell_plan(job)
        if not dry_run:
            carry_out(job, prompt)
    if mesh is not None:
        leave()
    return 0


def tell_plan(job: Job) -> None:
    from glassgpt.train.plan import make_plan

    if job.mesh is None:
        with terminal.waiting("trying a few steps"):
            plan = make_plan(job.model, job.settings, job.loader.batch(0))
        show_plan(plan, job.settings, job.tokens, job.device.type)
    elif job.leads:
        terminal.note(
            f"{job.world} processes on {job.device.type} ({job.parallel}) share "
            f"{job.settings.rows} rows a step"
        )


def carry_out(job: Job, prompt: str | None) -> None:
    """The run, in each of its processes. The first one (or only one) speaks and writes."""
    from glassgpt.train.loop import train
    from glassgpt.train.samples import sample

    job.write_beginning()
    done = 0
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(stopping_kindly(alone=job.mesh is None))
        if job.leads:
            advance = stack.enter_context(terminal.progress("training", job.settings.steps))
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
            if not job.leads:
                continue
            advance(record["step"] - done)
            done = record["step"]
            if "skipped" in record:
                terminal.note(
                    f"step {done:,} was skipped: loss {record['loss']}, gradient {record['grad_norm']}"
                )
            if "val_loss" in record:
                tell(record)
                # One process has no whole model otherwise.
                if job.tokenizer is not None and job.parallel == "ddp":
                    terminal.note(f"    {sample(job.model, job.tokenizer, prompt)}")
    if job.leads and done < job.settings.steps:
        terminal.note(
            f"stopped and saved; go on with --resume, or use it: glassgpt generate --model {job.out}"
        )
    elif job.leads:
        terminal.note(f"done: glassgpt generate --model {job.out}")


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
