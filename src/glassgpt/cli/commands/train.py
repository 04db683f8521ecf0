"""`glassgpt train --data SHARDS --out RUN --steps N`: parse the flags, show the run, hand over to the
library."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import show_estimate
from glassgpt.cli.options import OmitArgPrefixes, flag
from glassgpt.cli.parse import parse_known
from glassgpt.cli.paths import resolve_path
from glassgpt.cli.reporter import TerminalReporter, stop_and_say_so
from glassgpt.train.settings import RunOptions, TrainSettings, read_settings, with_recipe

if TYPE_CHECKING:
    from glassgpt.train.run import Run
    from glassgpt.train.trainer import Trainer


NOT_REQUIRED = ("--steps",)  # though it has no default: --resume takes that of the run


def defaults(words: Sequence[str]) -> dict[str, Any]:
    """When a run is resumed or a recipe named, their settings replace the defaults of the signature."""
    given = parse_known(DefaultsFrom, words)
    if given is None:
        return {}
    run = None if given.out is None else Path(resolve_path("--out", given.out))
    resumed = False
    if run is not None and (given.resume or (run / "checkpoints").exists()):
        from glassgpt.train.preflight import check_resume

        resumed = check_resume(run, given.resume)
    if run is not None and resumed:
        settings = read_settings(run)[0]
    elif given.recipe is None or given.steps is None:  # that --steps is missing comes first
        return {}
    else:
        settings = TrainSettings(steps=1)
    return {"settings": with_recipe(settings, given.recipe)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DefaultsFrom:
    """The flags that decide the defaults of all others."""

    out: str | None = None
    steps: str | None = None
    recipe: str | None = None
    resume: bool = False


def command(
    *,
    data: Annotated[
        str | None,
        flag(
            "folder written by prepare, or .bin files of nanoGPT or llm.c; not needed with --resume",
            "DIR",
            default="",
        ),
    ] = None,
    out: Annotated[str, flag("folder of the run, which is also the model", "RUN")],
    settings: OmitArgPrefixes[TrainSettings],
    run: OmitArgPrefixes[RunOptions],
    init_from: Annotated[
        str | None, flag("initialize from this model's weights", "MODEL", default="")
    ] = None,
    recipe: Annotated[
        str | None, flag("published settings, gpt1 or gpt2; other flags override them", "NAME", default="")
    ] = None,
    no_absolute_positions: Annotated[
        bool, flag("relative: omit GPT-2's position embeddings", default="")
    ] = False,
    dry_run: Annotated[bool, flag("show the estimate and exit", default="")] = False,
) -> int:
    """Train a GPT-2. Ctrl-C saves a checkpoint and stops; --resume continues exactly where it stopped."""
    from glassgpt.train.preflight import check_train_inputs

    check_train_inputs(data, Path(out), run.resume)
    import torch.distributed

    from glassgpt.train.distributed.process_group import exit_process
    from glassgpt.train.trainer import RunConfig, run_training

    config = RunConfig(
        **vars(run), data=data, out=Path(out), settings=settings, init_from=init_from,
        absolute_positions=False if no_absolute_positions else None,
    )  # fmt: skip
    trained = run_training(config, TrainReporter(), stop_and_say_so, dry_run)
    is_distributed = torch.distributed.is_initialized()
    if trained is not None and not (is_distributed and torch.distributed.get_rank()):
        terminal.note(describe_end(trained))
    if is_distributed:
        exit_process()
    return 0


class TrainReporter(TerminalReporter):
    def show_plan(self, run: Trainer) -> None:
        if run.estimate is not None:
            show_estimate(run.estimate, run.settings, run.tokens, run.device.type, run.steps_left)
        else:
            self.info(
                f"{run.world_size} processes on {run.device.type} ({run.config.parallel}), "
                f"batch size {run.settings.batch_size}"
            )


def describe_end(run: Run) -> str:
    """How the run ended, and what to do next."""
    from glassgpt.config import Config

    command = "generate" if Config.load(run.path).is_causal else 'fill "Once ___ a time"'
    use = f"glassgpt {command} --model {run.path}"
    if not run.finished:
        return f"stopped and saved; continue with --resume, or use it: {use}"
    if run.steps_done:
        return f"done: {use}"
    return (
        f"the run is finished: all of its {run.settings.steps:,} steps were already done. Use it: {use}; or "
        f"start another run from it: --init-from {run.path} --out OTHER"
    )
