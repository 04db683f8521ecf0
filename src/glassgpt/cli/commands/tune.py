"""`glassgpt tune my.txt`: a model learns to write like a text of yours."""

from __future__ import annotations

import json as jsonlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import duration, live_metrics, note_stopping, show_estimate
from glassgpt.cli.parse import flag
from glassgpt.errors import SettingError
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole
from glassgpt.train.finetune_state import is_interrupted, read_state

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer
    from glassgpt.train.data.shards import Part
    from glassgpt.train.finetune import Tuning

PROMPT_TOKENS = 12
MINUTES, MOST_MINUTES = 10.0, 60 * 24 * 366  # unless told, and a year


def command(
    files: Annotated[
        Positional[tuple[str, ...]],
        flag("your text: files, folders or patterns, of all kinds that prepare reads", "FILE...", default=""),
    ],
    *,
    model: Annotated[str, flag("the model to start from", "MODEL")] = "default",
    out: Annotated[
        str | None, flag("the folder for the tuned model", "DIR", short="-o", default="FILE-tuned")
    ] = None,
    lora: Annotated[
        bool, flag("learn a thin correction, at most 2% of the numbers: less memory", default="")
    ] = False,
    minutes: Annotated[float | None, flag("the most time to take, in all", "N", default="10")] = None,
    prompt: Annotated[
        str | None, flag("begin the samples with this", "TEXT", default="from the held-out part")
    ] = None,
    seed: Annotated[int, flag("decides the order of the text", "N")] = 0,
    device: Annotated[str | None, flag("cpu, cuda, cuda:1, mps", "NAME", default="the best there is")] = None,
    resume: Annotated[bool, flag("go on with a tuning that was cut, exactly", default="")] = False,
    force: Annotated[bool, flag("replace the model that is there", default="")] = False,
    dry_run: Annotated[bool, flag("show the plan and stop", default="")] = False,
    json: Annotated[bool, flag("print the figures as one line of JSON", default="")] = False,
) -> int:
    """Fine-tune a model on your own text. The end of the text is held out: it says when to stop and how much
    was gained. Everything else is picked. Ctrl-C keeps the best so far; --resume goes on after it, or after a
    kill."""
    if not files:
        raise SettingError("tune: FILE... is missing. See glassgpt tune --help")
    if minutes is not None:
        check_number("--minutes", minutes, 0, MOST_MINUTES, "10 is usual", above=True)
    check_whole("--seed", seed, 0, TRAINING_SEEDS)
    if resume and force:
        raise SettingError("--resume goes on with what is there and --force replaces it: leave one out.")
    target = free_target(files, out, model, resume, force)
    saved = read_state(target) if resume else None
    seconds = 60.0 * (MINUTES if minutes is None else minutes)
    if saved is not None and minutes is None:
        seconds = saved["seconds"]

    from glassgpt.model.torch_backend import choose_device
    from glassgpt.train.data.find_files import find_sources
    from glassgpt.train.finetune import measured, prepare_tuning, tune
    from glassgpt.train.interrupt import stop_on_signals
    from glassgpt.train.report.samples import on_one_line, sample
    from glassgpt.weights import load_checkpoint

    begun = time.monotonic()
    where = choose_device(device)
    find_sources(files)  # a missing file is noticed before a model is fetched
    checkpoint = load_checkpoint(model)
    with terminal.waiting("reading the text, trying a few steps, measuring the held-out part"):
        tuning = prepare_tuning(
            checkpoint, files, where, lora=lora, seconds=seconds, seed=seed, saved=saved, out=target
        )
    tell_plan(tuning, where.type)
    if dry_run:
        return 0
    assert checkpoint.tokenizer is not None
    if prompt is None:
        prompt = opening(tuning.held_out, checkpoint.tokenizer)
    written = [on_one_line(sample(tuning.model, checkpoint.tokenizer, prompt))]

    with (
        stop_on_signals(on_request=note_stopping) as stop,
        live_metrics("tuning", tuning.settings.steps) as show,
    ):
        for record in tune(tuning, target, tuning.seconds, stop):
            show(record)
    if stop():
        kept = "" if tuning.best_step == 0 else f"; the best so far is kept in {target}"
        terminal.note(f"stopped after {tuning.steps} steps{kept}")
        if not tuning.finished:
            terminal.note("go on with the same command and --resume")
    if tuning.best_step == 0:
        terminal.note(
            "the held-out part did not become likelier than it was before, so nothing was written. "
            "Give more text or more --minutes."
        )
        return 1
    from glassgpt.model import load_model

    with terminal.waiting("measuring what was gained"):
        tuned = load_model(load_checkpoint(str(target)), device=str(where), dtype="float32")
        after = measured(tuned, tuning.windows, tuning.settings)
        written.append(on_one_line(sample(tuned, checkpoint.tokenizer, prompt)))
    report(tuning, after, target, time.monotonic() - begun, written, json)
    return 0


def free_target(
    files: tuple[str, ...],
    out: str | None,
    model: str = "default",
    resume: bool = False,
    force: bool = False,
) -> Path:
    """Where the tuned model goes: where nothing is yet, where a tuning goes on, or by force over a model."""
    from glassgpt.files import check_target, followed, settle
    from glassgpt.weights.registry import refuse_foreign_files

    name = Path(files[0]).expanduser().resolve().name.split(".")[0]
    if not name or any(sign in name for sign in "*?["):
        name = "text"
    target = Path(f"{name}-tuned") if out is None else Path(out).expanduser()
    target = followed(target)
    check_target(target, [Path(given) for given in (*files, model) if Path(given).exists()])
    settle(target)
    if resume:
        return target
    if is_interrupted(target) and not force:
        raise SettingError(
            f"{target} is of a tuning that was cut. Go on with the same command and --resume, or name "
            "another folder with --out, or add --force to begin anew."
        )
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not force:
            raise SettingError(
                f"{target} exists already. Name another folder with --out, or add --force to replace it."
            )
        refuse_foreign_files(target)
    return target


def opening(held_out: Part, tokenizer: Tokenizer) -> str | None:
    """The first words of the held-out part, which the model has never seen; None if there are none."""
    ids = [id for id in held_out.read(0, PROMPT_TOKENS).tolist() if id != tokenizer.eot_id]
    text = tokenizer.decode(ids).strip("\ufffd")  # it may begin or end within a character
    return text if text.strip() else None


def tell_plan(tuning: Tuning, device: str) -> None:
    from glassgpt.train.lora import count_trainable_parameters
    from glassgpt.train.memory import free_memory

    learned, all_of_it = count_trainable_parameters(tuning.model), tuning.checkpoint.config.n_parameters
    show_estimate(tuning.plan, tuning.settings, len(tuning.text), device)
    terminal.note(
        f"learning {learned:,} numbers ({learned / all_of_it:.1%} of the model) from {len(tuning.text):,} "
        f"tokens, in batches of {tuning.settings.batch_size} (micro-batch size "
        f"{tuning.settings.micro_batch_size}), at a rate of {tuning.settings.lr:.1e}; "
        f"{len(tuning.held_out):,} tokens are held out, "
        f"{tuning.looked_at:,} of them looked at every {tuning.settings.eval_every} updates: "
        f"{duration(tuning.expected())} at most"
    )
    if tuning.plan.memory > free_memory(tuning.model.wte.weight.device) + tuning.plan.weights:
        terminal.note("note: that is more memory than is free. Try --lora, or a smaller --model.")


def report(tuning: Tuning, loss: float, out: Path, seconds: float, written: list[str], json: bool) -> None:
    before, after = math.exp(tuning.before), math.exp(loss)
    if json:
        from glassgpt.train.lora import count_trainable_parameters

        figures = {
            "out": str(out),
            "perplexity_before": round(before, 3),
            "perplexity_after": round(after, 3),
            "held_out_tokens": tuning.looked_at,
            "learned_parameters": count_trainable_parameters(tuning.model),
            "parameters": tuning.checkpoint.config.n_parameters,
            "best_step": tuning.best_step,
            "steps": tuning.steps,
            "epochs": round(tuning.epochs, 2),
            "seconds": round(seconds, 1),
        }
        print(jsonlib.dumps(figures))
        return
    table = terminal.table("", ">perplexity", "sample")
    for name, perplexity, text in zip(("before", "after"), (before, after), written, strict=True):
        table.add_row(name, f"{perplexity:.2f}", terminal.harmless(text))
    table.columns[2].no_wrap = False
    terminal.show(table)
    terminal.note(
        f"{after / before - 1:+.1%} on the held-out part, best after step {tuning.best_step} of "
        f"{tuning.steps} ({tuning.epochs:.1f} epochs), {duration(seconds)}"
    )
    terminal.note(f"done: glassgpt generate --model {out}")
