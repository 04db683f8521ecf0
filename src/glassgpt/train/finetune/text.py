"""Fine-tuning on a text: the end of the text is the validation split."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassgpt.config import Config
from glassgpt.model import GPT2
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.data.find_files import WHOLE, Reading
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Split
from glassgpt.train.estimate import Estimate, estimate_training
from glassgpt.train.finetune.settings import (
    CPU_MICRO_BATCH_TOKENS,
    EPOCHS,
    choose_micro_batch,
    choose_settings,
    make_eval_windows,
    read_tokens,
    sample_windows,
    split_tokens,
)
from glassgpt.train.micro_batch import free_memory
from glassgpt.train.objectives.objective import Objective
from glassgpt.train.precision import pick_precision
from glassgpt.train.report.samples import generate_sample
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import Checkpoint

PROMPT_TOKENS = 12


@dataclass(frozen=True)
class TextData:
    """The tokens of a text, as `run.FinetuneData`."""

    start: Checkpoint
    train: Split
    valid: Split
    digest: str
    task: None = None
    unit: str = "tokens"
    notes: Sequence[str] = ()

    def choose_settings(
        self, config: Config, device: torch.device, lora: bool, seed: int
    ) -> tuple[TrainSettings, Config]:
        settings = choose_settings(
            config, len(self.train), lora=lora, precision=pick_precision(device), seed=seed
        )
        if settings.steps * settings.batch_size * settings.context <= EPOCHS * len(self.train):
            # Too few epochs to overfit; dropout would only slow the training down.
            config = dataclasses.replace(config, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
        return settings, config

    def add_head(self, model: GPT2, seed: int) -> None:
        return None

    def estimate(self, model: GPT2, settings: TrainSettings) -> Estimate:
        device = model.wte.weight.device
        max_tokens = CPU_MICRO_BATCH_TOKENS if device.type == "cpu" else math.inf
        settings = choose_micro_batch(settings, model.config, free_memory(device), max_tokens)
        return estimate_training(model, settings, self.batches(settings).batch(0))

    def batches(self, settings: TrainSettings) -> Loader:
        return Loader(self.train, settings.context, settings.batch_size, settings.seed)

    def eval_batches(self, plan: Estimate, seconds: float) -> list[Tensor]:
        return sample_windows(make_eval_windows(self.valid, plan.settings), plan, seconds)

    def objective(self, model: GPT2, settings: TrainSettings) -> Objective | None:
        return None

    def write_sample(self, model: GPT2, prompt: str | None) -> str:
        tokenizer = self.start.tokenizer
        assert tokenizer is not None, "prepare_run has refused it"
        return generate_sample(
            model, tokenizer, choose_prompt(self.valid, tokenizer) if prompt is None else prompt
        )


def read_text_data(checkpoint: Checkpoint, files: Iterable[str | Path], reading: Reading = WHOLE) -> TextData:
    config = checkpoint.config
    assert checkpoint.tokenizer is not None, "prepare_run has refused it"
    tokens = read_tokens(files, checkpoint.tokenizer, reading)
    tokens.check_ids(config.vocab_size)
    return TextData(checkpoint, *split_tokens(tokens, min(config.n_positions, 1024)), tokens.identity)


def choose_prompt(val_split: Split, tokenizer: Tokenizer) -> str | None:
    """The first words of the validation split, on which the model is never trained; None if it has none."""
    ids = [id for id in val_split.read(0, PROMPT_TOKENS).tolist() if id != tokenizer.eot_id]
    text = tokenizer.decode(ids).strip("\ufffd")  # it may start or end within a character
    return text if text.strip() else None
