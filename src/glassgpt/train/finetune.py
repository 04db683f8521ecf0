"""Tuning: a trained model learns the manner of one text. Every number that `train` asks for is picked here.

The end of the text is held out. It says when to stop (a small text is soon learned by heart, and then the
held-out part becomes less likely again) and how much was gained. Whenever it is likelier than ever before,
the model is written, so what lies on the disk is always the best so far. These looks are as coarse as the
learning (bfloat16 where that is quick); what is told at the end is measured in float32, before and after.
At each look all else is saved beside it: a tuning that was cut goes on from there, with the same steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.errors import NonFiniteLossError, SettingError, UserError
from glassgpt.files import alone_in, settle, writing
from glassgpt.model import GPT2, load_model
from glassgpt.ranges import TRAINING_SEEDS, check_number, check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.checkpoint.run_folder import LOG, checkpoints, read_records, step_of
from glassgpt.train.data.find_files import divide, find_sources
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.readers import read_pieces
from glassgpt.train.data.shards import Part, Shards
from glassgpt.train.environment import pick_precision
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.finetune_state import STATE, check_same, clear, damaged, empty, state_folder
from glassgpt.train.loop import evaluate, train_loop
from glassgpt.train.lora import add_lora, choose_ranks, merged_state_dict
from glassgpt.train.memory import activation_bytes, free_memory, micro_batch_size
from glassgpt.train.settings import TrainSettings, settings_from_dict
from glassgpt.weights import Checkpoint, save_checkpoint

MOST_SECONDS = 60 * 60 * 24 * 366  # a year
UNIT = 1 << 26  # bytes of text read in one go
HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1 << 15  # tokens: more would not make the figure better, only each look slower
TOKENS_A_STEP = 4096
CACHED_TOKENS = 1024  # at once on a CPU, whose caches hold that much: a sixth faster than 4,096, measured
STEPS_AN_EPOCH = 16  # at least, where the text is short: fewer, larger steps would learn less
EPOCHS = 4  # at most, except that of a short text there are up to
MOST_EPOCHS = 12  # for the sake of
LEAST_STEPS = 200
LOOKS = 16  # at the held-out part, at most
LOOKING = 0.1  # of the time may be spent on them, as long as there are at least
FEWEST_LOOKS = 4
LOOK = 0.025  # of the time, at most, for one: on a slow machine only some of the windows are looked at
SLACK = 0.1  # of the time: moving the weights is not in the trial, and other programs want the device, too
FIRST_LOOK = 10  # steps between looks at least: the first steps of AdamW are taken half blind
PATIENCE = 3  # looks without a new best before it is over

# The peak rates for a width of 192, as measured on a model of that width (docs/tuning.md). That they fall
# with the square of the width is a choice. It gives what is usual for GPT-2 small (3e-5), and a line was too
# hot for 12 blocks of 512: six updates at 1.9e-4 raised the held-out perplexity from 23.6 to 31.6.
RATE_WIDTH = 192
FULL_RATE = 5e-4
LORA_RATE = 1e-2
# Where all weights are learned the blocks' matrices move by Muon, whose steps fit matrices of any width.
# After 20 updates of the shipped model 0.0015 and 0.003 gained more than AdamW, 0.006 less: docs/tuning.md
MUON_RATE = 2e-3


def read_text(files: Iterable[str | Path], tokenizer: Tokenizer) -> Shards:
    """All texts as one row of tokens, each document after an `<|endoftext|>`, as `prepare` writes them."""
    eot = [] if tokenizer.eot_id is None else [tokenizer.eot_id]
    parts: list[np.ndarray] = []
    starts: list[int] = []
    length = 0
    for unit in divide(find_sources(files), UNIT):
        for piece in read_pieces(unit, UNIT, lambda n: None, tokenizer.eot_id, tokenizer.vocab_size):
            text = piece.content
            ids = tokenizer.encode_array(text) if isinstance(text, str) else text
            if piece.begins:
                starts.append(length)
                parts.append(np.array(eot, np.uint32))
                length += len(eot)
            parts.append(ids.astype(np.uint32))
            length += len(ids)
    return Shards.of(np.concatenate([np.zeros(0, np.uint32), *parts]), starts)


def split(tokens: Shards, context: int) -> tuple[Part, Part]:
    """What is learned, and the end, which is held out: at least one window each."""
    window = context + 1
    if len(tokens) < 2 * window:
        raise SettingError(
            f"the text has {len(tokens):,} tokens; two windows of {window:,} are the least to learn from one "
            "and check with the other. Give more text."
        )
    held_out = max(window, min(int(len(tokens) * HELD_OUT_SHARE), HELD_OUT_MOST))
    cut = len(tokens) - held_out
    return Part(tokens, 0, cut), Part(tokens, cut, len(tokens))


def held_out_windows(held_out: Part, settings: TrainSettings) -> list[Tensor]:
    """All windows of the held-out part, in batches; one that would run over its end is left out."""
    loader = Loader(held_out, settings.context, 1, shuffle=False)
    whole = [
        i for i, s in enumerate(loader.starts(0, loader.windows)) if s + settings.context < len(held_out)
    ]
    rows = micro_batch_size(settings)
    batches = torch.cat([loader.batch(i) for i in whole]).split(rows)  # type: ignore[no-untyped-call]
    return list(batches)


def pick_settings(
    config: Config, n_tokens: int, *, lora: bool, precision: str = "float32", seed: int = 0
) -> TrainSettings:
    """Everything but the time there is: see `within_time`."""
    context = min(config.n_positions, 1024)
    rows = power_of_two(min(TOKENS_A_STEP / context, n_tokens / context / STEPS_AN_EPOCH))
    tokens = max(EPOCHS * n_tokens, min(MOST_EPOCHS * n_tokens, LEAST_STEPS * rows * context))
    steps = max(1, tokens // (rows * context))
    rate = (LORA_RATE if lora else FULL_RATE) * min(1.0, RATE_WIDTH / config.n_embd) ** 2
    return paced(
        TrainSettings(
            steps=steps, batch_size=rows, context=context, lr=rate,
            optimizer="adamw" if lora else "muon", matrix_lr=None if lora else MUON_RATE,
            weight_decay=0.0 if lora else 0.01, precision=precision, seed=seed,
            auto_micro_batch=True, keep_checkpoints=1,
        )
    )  # fmt: skip


def paced(settings: TrainSettings, looks: int = LOOKS) -> TrainSettings:
    """What depends on the number of steps."""
    steps = settings.steps
    eval_every = min(steps, max(FIRST_LOOK, -(-steps // looks)))
    return dataclasses.replace(
        settings,
        warmup_steps=min(50, -(-steps // 5)),  # gently: a trained model is soon upset
        eval_every=eval_every,
        save_every=eval_every,
    )


def within_time(
    settings: TrainSettings, plan: Estimate, held_out_tokens: int, seconds: float
) -> TrainSettings:
    """As many steps as there is time for, and as many looks at the held-out part."""
    look = look_seconds(plan, held_out_tokens)
    looks = max(FEWEST_LOOKS, min(LOOKS, int(LOOKING * seconds / look)))
    learning = max(0.5 * seconds, (1 - SLACK) * seconds - looks * look)
    steps = int(learning * plan.tokens_per_s / plan.tokens_per_step)
    return paced(dataclasses.replace(settings, steps=max(1, min(settings.steps, steps))), looks)


def look_seconds(plan: Estimate, held_out_tokens: int) -> float:
    """A look is a forward pass, a third of the work to learn from as many tokens."""
    return held_out_tokens / 3 / plan.tokens_per_s


def with_micro_batch(
    settings: TrainSettings, config: Config, free: int, most_tokens: float = math.inf
) -> TrainSettings:
    """The largest micro-batch whose activations take at most half of the free memory."""
    micro = settings.batch_size
    while micro > 1 and (
        micro * settings.context > most_tokens or activation_bytes(config, settings, micro) > free / 2
    ):
        micro //= 2
    return dataclasses.replace(settings, micro_batch_size=micro)


def some_of(windows: list[Tensor], plan: Estimate, seconds: float) -> list[Tensor]:
    """Every so many-th batch of windows, so that a look at them takes its share of the time and no more."""
    tokens = sum(batch[:, 1:].numel() for batch in windows)
    return windows[:: max(1, math.ceil(look_seconds(plan, tokens) / (LOOK * seconds)))]


def power_of_two(at_most: float) -> int:
    return 1 << max(0, int(at_most).bit_length() - 1)


@dataclass
class Tuning:
    """A tuning that is ready to begin, and what came of it."""

    model: GPT2
    checkpoint: Checkpoint  # where it starts from
    text: Part
    held_out: Part
    windows: list[Tensor]
    settings: TrainSettings
    plan: Estimate
    seconds: float  # that are left to learn and look
    before: float  # the held-out loss in float32, nats per token
    best: float  # of all looks
    best_step: int = 0
    steps: int = 0
    looks_without: int = 0  # a new best, since the last one
    asked: float = 0.0  # seconds for everything, as a person said
    identity: dict[str, Any] = field(default_factory=dict)  # what it must have in common to go on
    resumed: bool = False
    finished: bool = False  # so that there is nothing to go on with

    @property
    def epochs(self) -> float:
        return self.steps * self.plan.tokens_per_step / len(self.text)

    @property
    def looked_at(self) -> int:
        """Tokens of the held-out part that are guessed at each look, and before and after."""
        return sum(batch[:, 1:].numel() for batch in self.windows)

    def look(self, step: int, val_loss: float) -> bool:
        """Whether it is the best so far. A look because somebody stops it does not count against it."""
        scheduled = step % self.settings.eval_every == 0 or step == self.settings.steps
        self.looks_without += scheduled and step > self.settings.warmup_steps
        if val_loss >= self.best:
            return False
        self.best, self.best_step, self.looks_without = val_loss, step, 0
        return True

    def recall(self, records: Iterable[Mapping[str, Any]], upto: int) -> None:
        """What was found in earlier looks, from the log."""
        self.best, self.best_step, self.looks_without, self.steps = self.before, 0, 0, upto
        for record in records:
            if record["step"] <= upto and isinstance(record.get("val_loss"), float):
                self.look(record["step"], record["val_loss"])

    def save(self, folder: Path, left: float) -> None:
        """What it takes to go on besides a checkpoint. What was picked by the clock would be picked otherwise
        another time."""
        values = {
            "identity": self.identity, "config": self.model.config.to_dict(), "before": self.before,
            "settings": self.settings.to_dict(), "plan": dataclasses.asdict(self.plan),
            "seconds": float(self.asked), "left": max(0.0, float(left)),
        }  # fmt: skip
        with writing(folder / STATE) as part:
            part.write_text(json.dumps(values, indent=1) + "\n", "utf-8")

    def expected(self) -> float:
        """Seconds of learning and looking, as far as the trial can tell."""
        looks = self.settings.steps // self.settings.eval_every
        return self.plan.seconds(self.settings.steps) + looks * look_seconds(self.plan, self.looked_at)


def prepare_tuning(
    checkpoint: Checkpoint,
    files: Iterable[str | Path],
    device: torch.device,
    *,
    lora: bool = False,
    seconds: float = 600.0,
    seed: int = 0,
    saved: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> Tuning:
    """Read the text, pick the settings, try a few steps, and measure where it starts from.

    With `saved`, which a tuning into `out` left, all of that is as it was then.
    """
    check_number("seconds", seconds, 0, MOST_SECONDS, "600 is usual", above=True)
    check_whole("seed", seed, 0, TRAINING_SEEDS)
    if checkpoint.tokenizer is None:
        why_not = checkpoint.notes.get("tokenizer")
        reason = "has no tokenizer" if why_not is None else f"has no tokenizer that can be read ({why_not})"
        raise SettingError(
            f"{checkpoint.source} {reason}, so no text can be cut for it. Name a folder with one."
        )
    begun = time.monotonic()
    config = checkpoint.config
    if device.type == "cpu":  # where attention with dropout is not fused: see `activation_bytes`
        config = dataclasses.replace(config, attn_pdrop=0.0)
    tokens = read_text(files, checkpoint.tokenizer)
    tokens.check_ids(config.vocab_size)
    text, held_out = split(tokens, min(config.n_positions, 1024))
    identity = {"text": tokens.identity, "--model": fingerprint(checkpoint), "--lora": lora, "--seed": seed}
    if saved is not None:
        assert out is not None, "a tuning that goes on is named by its folder"
        check_same(out, saved["identity"], identity)
        return recalled(checkpoint, text, held_out, device, saved, out, seconds, begun)
    settings = pick_settings(config, len(text), lora=lora, precision=pick_precision(device), seed=seed)
    if settings.steps * settings.batch_size * settings.context <= EPOCHS * len(text):
        # Too seldom to learn it by heart; dropout would only make learning slower.
        config = dataclasses.replace(config, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    model = learner(checkpoint, config, device, lora, seed)
    most = CACHED_TOKENS if device.type == "cpu" else math.inf
    settings = with_micro_batch(settings, config, free_memory(device), most)
    plan = estimate_training(
        model, settings, Loader(text, settings.context, settings.batch_size, seed).batch(0)
    )
    windows = some_of(held_out_windows(held_out, plan.settings), plan, seconds)
    measuring = time.monotonic()
    before = measured(model, windows, plan.settings)
    # It is measured once more at the end.
    left = max(0.5 * seconds, seconds - (time.monotonic() - begun) - (time.monotonic() - measuring))
    tuning = Tuning(
        model, checkpoint, text, held_out, windows, settings, plan, left, before, best=before,
        asked=seconds, identity=identity,
    )  # fmt: skip
    tuning.settings = within_time(plan.settings, plan, tuning.looked_at, left)
    return tuning


def recalled(
    checkpoint: Checkpoint,
    text: Part,
    held_out: Part,
    device: torch.device,
    saved: Mapping[str, Any],
    out: Path,
    seconds: float,
    begun: float,
) -> Tuning:
    """The tuning as it was saved. The time until then counts, and so does the time since `begun`."""
    try:
        settings = settings_from_dict(saved["settings"])
        plan = Estimate(**{**saved["plan"], "settings": settings_from_dict(saved["plan"]["settings"])})
        config = Config.from_dict(saved["config"])
        windows = some_of(held_out_windows(held_out, plan.settings), plan, saved["seconds"])
        lora, seed = saved["identity"]["--lora"], saved["identity"]["--seed"]
    except (UserError, KeyError, TypeError):
        raise damaged(out) from None
    model = learner(checkpoint, config, device, lora, seed)
    left = saved["left"] + (seconds - saved["seconds"]) - (time.monotonic() - begun)
    return Tuning(
        model, checkpoint, text, held_out, windows, settings, plan, max(0.0, left), saved["before"],
        best=saved["before"], asked=seconds, identity=saved["identity"], resumed=True,
    )  # fmt: skip


def learner(checkpoint: Checkpoint, config: Config, device: torch.device, lora: bool, seed: int) -> GPT2:
    """The model that learns, with the dropout of `config`."""
    start = dataclasses.replace(checkpoint, config=config)
    model = load_model(start, device="cpu", dtype="float32").requires_grad_(True)
    if lora:
        add_lora(model, choose_ranks(config), seed)
    return model.to(device)


def fingerprint(checkpoint: Checkpoint) -> str:
    """Tells models apart by their config and their vectors; no two that learned have the same."""
    made = hashlib.sha256(json.dumps(checkpoint.config.to_dict()).encode())
    for name in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
        made.update(np.ascontiguousarray(checkpoint.tensors[name], np.float32).tobytes())
    return made.hexdigest()


def measured(model: GPT2, windows: list[Tensor], settings: TrainSettings) -> float:
    """The held-out loss in float32, whatever the model learns in."""
    return evaluate(model, windows, dataclasses.replace(settings, precision="float32"))


def tune(
    tuning: Tuning, out: Path, seconds: float, stop: Callable[[], bool] = lambda: False
) -> Iterator[dict[str, Any]]:
    """Learn, and write the model to `out` whenever it is better than ever; a record for each step.

    It ends when the steps are done, the time is over, or the held-out part has not become likelier for some
    time. `out` is not written if nothing made it likelier than it was before. If `stop()` ends it, or a kill,
    or any mishap, what it takes to go on stays beside `out`.
    """
    settings, device = tuning.settings, tuning.model.wte.weight.device
    loader = Loader(tuning.text, settings.context, settings.batch_size, settings.seed)
    folder = state_folder(out)
    with ExitStack() as stack:
        stack.enter_context(alone_in(folder, "tune"))
        settle(out)
        if not tuning.resumed:
            empty(folder)
        deadline = time.monotonic() + seconds
        tuning.save(folder, seconds)

        def batches(first: int) -> Iterator[Tensor]:
            tuning.recall(read_records(folder / LOG), first)
            if tuning.best_step == first > 0:  # a kill may have come between the save and the writing
                write(tuning, out)
            return stack.enter_context(loader.prefetch(first, device=device))

        found = checkpoints(folder)
        tuning.recall(read_records(folder / LOG), step_of(found[-1]) if found else 0)
        if tuning.looks_without < PATIENCE:
            steps = train_loop(
                tuning.model, batches, tuning.windows, folder, settings,
                lambda: stop() or time.monotonic() > deadline, data=loader.identity,
            )  # fmt: skip
            with closing(steps):
                yield from looking(tuning, steps, out, deadline)
        over = tuning.steps >= settings.steps or tuning.looks_without >= PATIENCE
        if over or not stop():
            tuning.finished = True
            clear(folder)


def looking(
    tuning: Tuning, records: Iterable[dict[str, Any]], out: Path, deadline: float
) -> Iterator[dict[str, Any]]:
    """The records, while the model is written whenever a look says so."""
    try:
        for record in records:
            tuning.steps = record["step"]
            if "micro_batch_size" in record:  # memory ran out
                tuning.settings = dataclasses.replace(
                    tuning.settings, micro_batch_size=record["micro_batch_size"]
                )
            if "val_loss" in record:
                if tuning.look(tuning.steps, record["val_loss"]):
                    write(tuning, out)
                tuning.save(state_folder(out), deadline - time.monotonic())
            yield record
            if tuning.looks_without >= PATIENCE:
                return
    except NonFiniteLossError as error:
        clear(state_folder(out))  # it would come to the same
        kept = "nothing was written" if tuning.best_step == 0 else f"the best so far is kept in {out}"
        raise NonFiniteLossError(
            f"{str(error).partition(';')[0]}; {kept}. Try another --seed, or another --model."
        ) from None


def write(tuning: Tuning, out: Path) -> None:
    """The model as it stands, as a folder that `generate` and Hugging Face load."""
    tensors = {name: tensor.numpy() for name, tensor in merged_state_dict(tuning.model).items()}
    start = tuning.checkpoint
    save_checkpoint(Checkpoint(start.config, tensors, start.tokenizer, source=str(out)), out)
