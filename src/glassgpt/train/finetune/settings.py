"""The choices of fine-tuning: the validation split, the settings, the steps that the time allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.document_parts import read_document_parts
from glassgpt.train.data.find_files import WHOLE, Reading, divide, find_sources
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Shards, Split
from glassgpt.train.estimate import Estimate
from glassgpt.train.micro_batch import activation_bytes, micro_batch_size
from glassgpt.train.settings import TrainSettings

UNIT = 1 << 26  # bytes of text per unit
MAX_TOKENS = 1 << 27  # all are in memory, twice for a moment: 1 GiB
VAL_FRACTION = 0.1
MAX_VAL_TOKENS = 1 << 15  # more would not make the figure better, only each evaluation slower
TOKENS_PER_STEP = 4096
CPU_MICRO_BATCH_TOKENS = 1024  # fits a CPU's caches: a sixth faster than 4,096, measured
MIN_STEPS_PER_EPOCH = 16  # with a short text: fewer, larger steps would learn less
EPOCHS = 4  # at most, unless these are fewer than MIN_STEPS
MAX_EPOCHS = 12  # of a short text
MIN_STEPS = 200
EVAL_TIME = 0.1  # fraction of the time for evaluations, unless that is too short for MIN_EVALS
MIN_EVALS, MAX_EVALS = 4, 16
ONE_EVAL_TIME = 0.025  # fraction of the time for one: a slow machine evaluates only some of the windows
SLACK = 0.1  # fraction of the time: the trial has no optimizer step, and other programs also use the device
MIN_EVAL_INTERVAL = 10  # steps: the first steps of AdamW have poor estimates of its moments

# The peak learning rates for a width of 192, as measured on a model of that width (docs/tuning.md). That they
# fall with the square of the width is a choice: it gives the usual rate for GPT-2 small (3e-5). If they fell
# linearly, the rate would be too high for 12 blocks of 512: six updates at 1.9e-4 raised the perplexity from
# 23.6 to 31.6.
LR_WIDTH = 192
FULL_LR = 5e-4
LORA_LR = 1e-2
# If all weights are trained, Muon updates the blocks' matrices, with steps that fit matrices of any width.
# After 20 updates of the shipped model 0.0015 and 0.003 gained more than AdamW, 0.006 less: docs/tuning.md
MUON_LR = 2e-3


def read_tokens(files: Iterable[str | Path], tokenizer: Tokenizer, reading: Reading = WHOLE) -> Shards:
    """All texts as one token stream, each document after an `<|endoftext|>`, as `prepare` writes them.

    At most MAX_TOKENS: `prepare` and `train` are for longer texts, and a few compressed kilobytes can be
    gigabytes."""
    eot = [] if tokenizer.eot_id is None else [tokenizer.eot_id]
    parts: list[np.ndarray] = []
    starts: list[int] = []
    length = 0
    for unit in divide(find_sources(files, reading=reading), UNIT):
        for piece in read_document_parts(unit, UNIT, lambda n: None, tokenizer.eot_id, tokenizer.vocab_size):
            text = piece.content
            ids = tokenizer.encode_array(text) if isinstance(text, str) else text
            if piece.starts_document:
                starts.append(length)
                parts.append(np.array(eot, np.uint32))
                length += len(eot)
            parts.append(ids.astype(np.uint32))
            length += len(ids)
            if length > MAX_TOKENS:
                raise SettingError(
                    f"the text has more than {MAX_TOKENS:,} tokens, too many for memory. Use a part of it, "
                    "or glassgpt prepare and glassgpt train --init-from."
                )
    return Shards.from_array(np.concatenate([np.zeros(0, np.uint32), *parts]), starts)


def split_tokens(tokens: Shards, context: int) -> tuple[Split, Split]:
    """The train split, and the end of the text as the val split: at least one window each."""
    window = context + 1
    if len(tokens) < 2 * window:
        raise SettingError(
            f"the text has {len(tokens):,} tokens; two windows of {window:,} are the minimum, one to train "
            "on and one to validate with. Use more text."
        )
    n_val = max(window, min(int(len(tokens) * VAL_FRACTION), MAX_VAL_TOKENS))
    cut = len(tokens) - n_val
    return Split(tokens, 0, cut), Split(tokens, cut, len(tokens))


def make_eval_windows(val: Split, settings: TrainSettings) -> list[Tensor]:
    """All complete windows of the val split, in batches."""
    loader = Loader(val, settings.context, 1, shuffle=False)
    starts = loader.window_starts(0, loader.windows_per_epoch)
    complete = [i for i, start in enumerate(starts) if start + settings.context < len(val)]
    windows = torch.cat([loader.batch(i) for i in complete])
    return list(windows.split(micro_batch_size(settings)))  # type: ignore[no-untyped-call]


def sample_windows(windows: list[Tensor], plan: Estimate, seconds: float) -> list[Tensor]:
    """Every n-th batch of windows, so that one evaluation takes no more than its fraction of the time."""
    tokens = sum(batch[:, 1:].numel() for batch in windows)
    return windows[:: max(1, math.ceil(eval_seconds(plan, tokens) / (ONE_EVAL_TIME * seconds)))]


def choose_settings(
    config: Config, n_tokens: int, *, lora: bool, precision: str = "float32", seed: int = 0
) -> TrainSettings:
    """The settings that do not depend on the available time; for the others see `fit_to_time`."""
    context = min(config.n_positions, 1024)
    batch_size = floor_power_of_two(min(TOKENS_PER_STEP / context, n_tokens / context / MIN_STEPS_PER_EPOCH))
    tokens = max(EPOCHS * n_tokens, min(MAX_EPOCHS * n_tokens, MIN_STEPS * batch_size * context))
    steps = max(1, tokens // (batch_size * context))
    lr = (LORA_LR if lora else FULL_LR) * min(1.0, LR_WIDTH / config.n_embd) ** 2
    return schedule(
        TrainSettings(
            steps=steps, batch_size=batch_size, context=context, lr=lr,
            optimizer="adamw" if lora else "muon", matrix_lr=None if lora else MUON_LR,
            weight_decay=0.0 if lora else 0.01, precision=precision, seed=seed,
            auto_micro_batch=True, keep_checkpoints=1,
        )
    )  # fmt: skip


def schedule(settings: TrainSettings, evals: int = MAX_EVALS) -> TrainSettings:
    """Fit the warmup and the evaluations to the number of steps."""
    steps = settings.steps
    eval_every = min(steps, max(MIN_EVAL_INTERVAL, -(-steps // evals)))
    return dataclasses.replace(
        settings,
        warmup_steps=min(50, -(-steps // 5)),  # gently: large first steps would harm a trained model
        eval_every=eval_every,
        save_every=eval_every,
    )


def fit_to_time(settings: TrainSettings, plan: Estimate, eval_tokens: int, seconds: float) -> TrainSettings:
    """Reduce the steps and the evaluations to those that there is time for."""
    each = eval_seconds(plan, eval_tokens)
    evals = max(MIN_EVALS, min(MAX_EVALS, int(EVAL_TIME * seconds / each)))
    training = max(0.5 * seconds, (1 - SLACK) * seconds - evals * each)
    steps = int(training * plan.tokens_per_s / plan.tokens_per_step)
    return schedule(dataclasses.replace(settings, steps=max(1, min(settings.steps, steps))), evals)


def eval_seconds(plan: Estimate, eval_tokens: int) -> float:
    """An evaluation is a forward pass: a third of the work of training on the same number of tokens."""
    return eval_tokens / 3 / plan.tokens_per_s


def choose_micro_batch(
    settings: TrainSettings, config: Config, free: int, max_tokens: float = math.inf
) -> TrainSettings:
    """The largest micro-batch whose activations take at most half of the free memory."""
    micro = settings.batch_size
    while micro > 1 and (
        micro * settings.context > max_tokens or activation_bytes(config, settings, micro) > free / 2
    ):
        micro //= 2
    return dataclasses.replace(settings, micro_batch_size=micro)


def floor_power_of_two(at_most: float) -> int:
    return 1 << max(0, int(at_most).bit_length() - 1)
