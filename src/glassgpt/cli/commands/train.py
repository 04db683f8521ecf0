"""`glassgpt train --data SHARDS --out RUN --steps N`: parse the flags, show the run, hand over to the
library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import show_estimate
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes
from glassgpt.cli.reporter import TerminalReporter, stop_and_say_so
from glassgpt.config.variants import VariantOptions
from glassgpt.train.settings import RunOptions, TrainSettings, read_settings, with_recipe

if TYPE_CHECKING:
    from glassgpt.train.run import Run
    from glassgpt.train.trainer import Trainer


def defaults(typed: Mapping[str, Any]) -> dict[str, Any]:
    """When a run is resumed or a recipe named, their settings replace the defaults of the signature."""
    recipe = typed.get("recipe")
    if "out" in typed:
        from glassgpt.train.preflight import check_resume

        run, resume = Path(typed["out"]), typed.get("resume", False)
        if (resume or (run / "checkpoints").exists()) and check_resume(run, resume):
            return {"settings": with_recipe(read_settings(run)[0], recipe)}
    if recipe is None or "steps" not in typed:  # that --steps is missing comes first
        return {}
    return {"settings": with_recipe(TrainSettings(steps=1), recipe)}


def command(
    *,
    data: Annotated[
        str | None,
        Flag("folder written by prepare, or .bin files of nanoGPT or llm.c; not needed with --resume", "DIR"),
    ] = None,
    out: Annotated[str, Flag("folder of the run, which is also the model", "RUN")],
    settings: OmitArgPrefixes[TrainSettings],
    run: OmitArgPrefixes[RunOptions],
    variant: OmitArgPrefixes[VariantOptions],
    init_from: Annotated[str | None, Flag("initialize from this model's weights", "MODEL")] = None,
    recipe: Annotated[
        str | None, Flag("published settings, gpt1 or gpt2; other flags override them", "NAME")
    ] = None,
    dry_run: Annotated[bool, Flag("show the estimate and exit")] = False,
) -> int:
    """Train a GPT-2. Ctrl-C saves a checkpoint and stops; --resume continues exactly where it stopped."""
    from glassgpt.train.preflight import check_train_inputs

    check_train_inputs(data, Path(out), run.resume)
    import torch.distributed

    from glassgpt.train.distributed.process_group import exit_process
    from glassgpt.train.trainer import RunConfig, run_training

    config = RunConfig(
        **vars(run), **vars(variant), data=data, out=Path(out), settings=settings, init_from=init_from,
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
