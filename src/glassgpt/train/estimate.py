"""Estimate the needs of a run before it starts: memory is counted, speed measured with a few passes."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from glassgpt.model import GPT2
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.micro_batch import (
    AutoMicroBatch,
    activation_bytes,
    free_memory,
    largest_fitting,
    micro_batch_size,
    out_of_memory,
    total_memory,
)
from glassgpt.train.objectives.objective import Batch
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import backward_micro_batches

TRIAL_SHARE = 0.1  # of a run, at most: a short run should not wait long for its estimate


@dataclass(frozen=True)
class Estimate:
    settings: TrainSettings  # as given, or with a smaller micro-batch size (`auto_micro_batch`)
    largest_micro_batch: int  # that fits: tried on a GPU, estimated elsewhere
    parameters: int
    weights: int  # bytes, as are the next three
    gradients: int
    optimizer: int
    activations: int  # estimated from what each block stores for its backward pass
    tokens_per_step: int
    tokens_per_s: float
    peak_flops: float  # measured on this device's matrix products
    flops_per_token: float

    @property
    def memory(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    def mfu(self, tokens_per_s: float | None = None) -> float:
        """Model FLOPs utilization: the fraction of the device's measured peak; by default that of the
        trial."""
        speed = self.tokens_per_s if tokens_per_s is None else tokens_per_s
        return speed * self.flops_per_token / self.peak_flops

    @property
    def peak(self) -> dict[str, float]:
        """The values from which the MFU is computed later on."""
        return {"peak_flops": self.peak_flops, "flops_per_token": self.flops_per_token}

    def seconds(self, steps: int) -> float:
        return steps * self.tokens_per_step / self.tokens_per_s


def estimate_training(model: GPT2, settings: TrainSettings, tokens: Tensor, seconds: float = 2.0) -> Estimate:
    """Count parameters and bytes, and time a few micro-batches. Changes neither weights nor random states."""
    config = model.config
    n = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    hidden = sum(p.numel() for name, p in model.named_parameters() if name.startswith("h.") and p.ndim == 2)
    # AdamW stores two values for each trained parameter, Muon one.
    optimizer = 8 * trained if settings.optimizer == "adamw" else 8 * (trained - hidden) + 4 * hidden
    gradients = 4 * trained
    device = model.wte.weight.device
    reserved = optimizer + (gradients if device.type == "cpu" else 0)
    largest = largest_micro_batch(model, settings, tokens, reserved)
    micro_batch = AutoMicroBatch(settings)
    size = micro_batch_size(settings)
    if 0 < largest < size and device.type == "cuda" and not settings.auto_micro_batch:
        raise out_of_memory(settings, largest)
    needed = activation_bytes(config, settings, size, device.type)
    if device.type == "cpu" and not settings.auto_micro_batch and needed > total_memory():
        # The system would not refuse the allocation but kill the program.
        raise out_of_memory(settings, max(1, largest))
    if 0 < largest < size and settings.auto_micro_batch:
        micro_batch.settings = dataclasses.replace(settings, micro_batch_size=largest)
    # A product of (1, in) with (in, out) is 2 in out operations, and its backward pass twice that. The head
    # is a product with wte; attention adds two products with context / 2 keys on average, forward.
    products = hidden + config.vocab_size * config.n_embd
    attention = config.n_layer * settings.context * config.n_embd
    tokens_per_s = micro_batch.run(
        model, lambda size: measure_throughput(model, settings, tokens[:size], seconds)
    )
    settings = micro_batch.settings
    return Estimate(
        settings=settings,
        largest_micro_batch=largest,
        parameters=n,
        weights=4 * n,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(config, settings, micro_batch_size(settings), device.type),
        tokens_per_step=settings.batch_size * settings.context,
        tokens_per_s=tokens_per_s,
        peak_flops=measure_peak_flops(device, settings.precision),
        flops_per_token=6.0 * (products + attention),
    )


def largest_micro_batch(model: GPT2, settings: TrainSettings, tokens: Tensor, reserved: int) -> int:
    """The largest micro-batch size that fits next to `reserved` bytes for the optimizers; 0 if 1 does not.

    On a GPU about five real passes are tried. Elsewhere it is estimated, since the system would not refuse
    memory but kill the program.
    """
    device = model.wte.weight.device
    if device.type != "cuda":
        free = free_memory(device) - reserved
        return largest_fitting(
            settings.batch_size, lambda n: activation_bytes(model.config, settings, n) < free * 0.9
        )
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    # A compiled step takes less memory, not more.
    loss_module = parallelize(model, dataclasses.replace(settings, compile=False))

    def fits(size: int) -> bool:
        batch = Batch.from_tokens(tokens[:size].to(device))
        try:
            reservation = torch.empty(reserved, dtype=torch.uint8, device=device)
            backward_micro_batches(batch, size, loss_module, scaler, ProcessGroup())
            del reservation
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    with torch.random.fork_rng([device]):
        model.train()
        return largest_fitting(settings.batch_size, fits)


def measure_throughput(model: GPT2, settings: TrainSettings, tokens: Tensor, seconds: float) -> float:
    """Tokens per second of repeated forward and backward passes over one micro-batch."""
    device = model.wte.weight.device
    batch = Batch.from_tokens(tokens.to(device))
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.train()
        loss_module = parallelize(model, settings)

        def run_once() -> None:
            loss, _ = backward_micro_batches(batch, len(batch), loss_module, scaler, ProcessGroup())
            loss.item()  # waits for a GPU

        run_once()  # the first one is slower: it may compile
        enough = TRIAL_SHARE * settings.steps * settings.batch_size / len(batch)
        started, done = time.perf_counter(), 0
        while done < 2 or (done < enough and time.perf_counter() - started < seconds):
            run_once()
            done += 1
        elapsed = time.perf_counter() - started
    model.zero_grad(set_to_none=True)
    return done * batch.ids.numel() / elapsed


def measure_peak_flops(device: torch.device, precision: str) -> float:
    """FLOP/s of a large matrix product of random values on this device."""
    dtype = torch.float32 if precision == "auto" else getattr(torch, precision.replace("float8", "bfloat16"))
    side = 8192 if device.type == "cuda" else 1024
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best
