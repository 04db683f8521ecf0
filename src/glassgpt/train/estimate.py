"""Before a run starts: what it will take. Memory is counted, speed is measured in a short trial."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from glassgpt.model import GPT2
from glassgpt.train.distributed.process_group import Team
from glassgpt.train.loop import learn
from glassgpt.train.memory import (
    Pieces,
    activation_bytes,
    free_memory,
    largest,
    rows_at_once,
    too_many,
    total_memory,
)
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import Way


@dataclass(frozen=True)
class Plan:
    settings: TrainSettings  # as given, or with fewer rows at once if memory asked for it (`auto`)
    largest_micro_batch: int  # rows at once that fit: tried on a GPU, estimated elsewhere
    parameters: int
    weights: int  # bytes, and so the next three
    gradients: int
    optimizer: int
    activations: int  # an estimate, from what each block keeps for its backward pass
    tokens_per_step: int
    tokens_per_s: float
    peak_flops: float  # of this device's matrix products, measured
    flops_per_token: float

    @property
    def memory(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def utilisation(self) -> float:
        """The share of the device's measured peak that the trial reached."""
        return self.mfu(self.tokens_per_s)

    def mfu(self, tokens_per_s: float) -> float:
        """The share of the device's measured peak that so many tokens a second are (MFU)."""
        return tokens_per_s * self.flops_per_token / self.peak_flops

    @property
    def peak(self) -> dict[str, float]:
        """What it takes to know the share of the peak later on."""
        return {"peak_flops": self.peak_flops, "flops_per_token": self.flops_per_token}

    def seconds(self, steps: int) -> float:
        return steps * self.tokens_per_step / self.tokens_per_s


def make_plan(model: GPT2, settings: TrainSettings, batch: Tensor, seconds: float = 2.0) -> Plan:
    """Count, and try a few micro-batches. Neither weights nor random numbers are touched."""
    config = model.config
    n = sum(parameter.numel() for parameter in model.parameters())
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    hidden = sum(p.numel() for name, p in model.named_parameters() if name.startswith("h.") and p.ndim == 2)
    # AdamW remembers two numbers for each parameter that is learned, Muon one.
    memory = 8 * learned if settings.muon_lr is None else 8 * (learned - hidden) + 4 * hidden
    gradients = 4 * learned
    device = model.wte.weight.device
    most = largest_micro_batch(model, settings, batch, memory + (gradients if device.type == "cpu" else 0))
    pieces = Pieces(settings)
    if 0 < most < rows_at_once(settings) and device.type == "cuda" and not settings.auto:
        raise too_many(settings, most)
    at_once = activation_bytes(config, settings, rows_at_once(settings), device.type)
    if device.type == "cpu" and not settings.auto and at_once > total_memory():
        raise too_many(settings, max(1, most))  # here the system would not say no, but end the program
    if 0 < most < rows_at_once(settings) and settings.auto:
        pieces.settings = dataclasses.replace(settings, micro_rows=most)
    # A product of (1, in) with (in, out) is 2 in out operations, and its backward pass twice that. The head
    # is a product with wte; attention adds two products with context / 2 keys on average, forward.
    products = hidden + config.vocab_size * config.n_embd
    attention = config.n_layer * settings.context * config.n_embd
    tokens_per_s = pieces.attempt(model, lambda now: trial(model, now, batch[: rows_at_once(now)], seconds))
    settings = pieces.settings
    return Plan(
        settings=settings,
        largest_micro_batch=most,
        parameters=n,
        weights=4 * n,
        gradients=gradients,
        optimizer=memory,
        activations=activation_bytes(config, settings, rows_at_once(settings), device.type),
        tokens_per_step=settings.rows * settings.context,
        tokens_per_s=tokens_per_s,
        peak_flops=measured_peak(device, settings.precision),
        flops_per_token=6.0 * (products + attention),
    )


def largest_micro_batch(model: GPT2, settings: TrainSettings, batch: Tensor, plan_bytes: int) -> int:
    """The most rows at once that fit beside the `plan_bytes` of optimizers; 0 if not even one does.

    On a GPU this is tried out with real steps, five or so; elsewhere it is estimated, since a CPU's memory
    does not say no: the system ends the program instead.
    """
    device = model.wte.weight.device
    if device.type != "cuda":
        free = free_memory(device) - plan_bytes
        return largest(settings.rows, lambda n: activation_bytes(model.config, settings, n) < free * 0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    # A compiled step takes less memory, not more.
    team = Team(model, way=Way.of(dataclasses.replace(settings, compile=False), model))

    def fits(rows: int) -> bool:
        alone = dataclasses.replace(settings, rows=rows, micro_rows=None)
        try:
            held = torch.empty(plan_bytes, dtype=torch.uint8, device=device)
            learn(batch[:rows].to(device), alone, scaler, team)
            del held
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    with torch.random.fork_rng([device]):
        model.train()
        return largest(settings.rows, fits)


def trial(model: GPT2, settings: TrainSettings, batch: Tensor, seconds: float) -> float:
    """Tokens per second of forward and backward passes."""
    device = model.wte.weight.device
    batch = batch.to(device)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        model.train()
        team = Team(model, way=Way.of(settings, model))
        learn(batch, settings, scaler, team)[0].item()  # the first one is slower: it may compile
        begun, done = time.perf_counter(), 0
        while done < 2 or time.perf_counter() - begun < seconds:
            learn(batch, settings, scaler, team)[0].item()  # asked for, so that a GPU has done it
            done += 1
        taken = time.perf_counter() - begun
    model.zero_grad(set_to_none=True)
    return done * batch[:, 1:].numel() / taken


def measured_peak(device: torch.device, precision: str) -> float:
    """Operations per second of a large matrix product here, on numbers that are not zero."""
    dtype = torch.float32 if precision == "auto" else getattr(torch, precision.replace("float8", "bfloat16"))
    side = 8192 if device.type == "cuda" else 1024
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2.0 * side**3 / best
