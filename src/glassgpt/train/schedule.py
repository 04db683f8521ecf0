"""The learning-rate schedule: linear warmup, then cosine decay, warmup-stable-decay or constant."""

from __future__ import annotations

import math

from glassgpt.train.settings import TrainSettings

DECAY_START = 0.8  # of wsd: stable until the last fifth (Hu et al., 2024)


def lr_ratio(settings: TrainSettings, step: int) -> float:
    """The learning rate at a step, as a fraction of its peak."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = min(1.0, (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps))
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "wsd":
        decay = 1.0 - settings.min_lr_ratio
        return 1.0 if progress < DECAY_START else 1.0 - decay * (progress - DECAY_START) / 0.2
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))
