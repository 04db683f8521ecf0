"""Save a run: everything that an exact resume needs, and the model, ready to use."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from glassgpt.config import Config
from glassgpt.errors import NonFiniteLossError
from glassgpt.files import atomic_write, file_crc32, fsync
from glassgpt.model import GPT2
from glassgpt.train.checkpoint.asynchronous import AsyncSaver
from glassgpt.train.checkpoint.run_folder import LOG, checkpoint_path, prune_checkpoints, suggest_recovery
from glassgpt.train.checkpoint.sharded import write_shards
from glassgpt.train.distributed.parallelize import unshard
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.variants.stream_memory import StreamMemory
from glassgpt.weights.run_checkpoint import DONE, STATE
from glassgpt.weights.safetensors_file import TensorToWrite, size_of, write_tensors

# The values that determine which tokens a run sees in which order: see `Loader.identity`.
Identity = Mapping[str, int | str]


def save_run_checkpoint(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    step: int,
    val_loss: float | None,
    best: tuple[float, int] | None,
    keep: int,
    saver: AsyncSaver,
    group: ProcessGroup | None = None,
    data: Identity | None = None,
    stream_memory: StreamMemory | None = None,
) -> tuple[float, int] | None:
    """Save the state after `step` steps; returns the lowest validation loss so far and its step.

    A collective: all ranks call it. If the model is sharded, each rank writes its shards before this returns,
    and the weights are gathered one by one for the main rank to write the model. Everything else is written
    by the saver while training continues.
    """
    group = ProcessGroup() if group is None else group
    saver.wait()
    state: dict[str, Tensor] = {}

    def add(key: str, value: Tensor, parameter: str = "") -> None:
        value = unshard(parameter, value)
        if group.is_main:
            # A scalar is not worth pinned memory.
            state[key] = value.detach().to("cpu", copy=True) if value.ndim == 0 else saver.copy(key, value)

    tensors = {f"model.{name}": (name, value) for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        names = parameter_names(model, optimizer)
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                tensors[f"optimizer.{number}.{index}.{key}"] = (names[index], torch.as_tensor(value))
    for key, (name, value) in tensors.items():
        if not group.sharded or key.startswith("model.") or value.ndim == 0:
            add(key, value, name)
    for kind, value in rng_states(model).items():
        for rank, of_rank in enumerate(group.all_gather(value)):
            add(rng_key(kind, rank), of_rank)
    if stream_memory is not None:
        for key, value in stream_memory.state().items():
            add(key, value)
    if val_loss is not None and math.isfinite(val_loss) and (best is None or val_loss < best[0]):
        best = (val_loss, step)
    metadata = {
        "step": str(step), "best": json.dumps(best), "scaler": json.dumps(scaler.state_dict()),
        "data": json.dumps(data), "config": json.dumps(model.config.to_dict()),
    }  # fmt: skip
    shards = None
    if group.sharded:
        sharded = {key: pair for key, pair in tensors.items() if pair[1].ndim > 0}
        rest = {key: value for key, value in state.items() if key not in sharded}
        shards = write_shards(checkpoint_path(out, step), sharded, rest, metadata, group)
    if group.is_main:
        best_step = None if best is None else best[1]
        saver.start(lambda: write_run(out, model.config, state, metadata, step, best_step, keep, shards))
    return best


def write_run(
    out: Path,
    config: Config,
    state: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    step: int,
    best: int | None,
    keep: int,
    shards: contextlib.ExitStack | None = None,
) -> None:
    """Write a save, then remove the checkpoints that are no longer kept.

    With `shards` the checkpoint is written already, and closing them renames it into place.
    """
    with contextlib.ExitStack() if shards is None else shards:
        write_model(out, config, state, metadata, step, sharded=shards is not None)
    prune_checkpoints(out, step, best, keep)


def write_model(
    out: Path,
    config: Config,
    state: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    step: int,
    sharded: bool,
) -> None:
    """Write the model, and the checkpoint unless its shards are written already."""
    tensors = [describe_tensor(name, value) for name, value in sorted(state.items())]
    for tensor in tensors:
        if tensor.dtype.kind != "u" and not np.isfinite(tensor.array()).all():
            raise NonFiniteLossError(
                f"{tensor.name} is not finite after step {step}, so nothing was saved. "
                f"{suggest_recovery(out)}"
            )
    # The checkpoint comes last: wherever there is one to resume from, everything else exists.
    with atomic_write(out / "config.json") as part:
        part.write_text(json.dumps(config.to_dict(), indent=2) + "\n", "utf-8")
    weights = [
        TensorToWrite(t.name[6:], t.shape, t.dtype, t.array) for t in tensors if t.name.startswith("model.")
    ]
    with atomic_write(out / "model.safetensors", needs=size_of(weights)) as part:
        write_tensors(part, weights, {"format": "pt"})
    if (out / LOG).exists():
        fsync(out / LOG)
    if sharded:
        return
    with atomic_write(checkpoint_path(out, step), folder=True, needs=size_of(tensors)) as part:
        write_tensors(part / STATE, tensors, metadata)
        done = {"bytes": (part / STATE).stat().st_size, "crc32": file_crc32(part / STATE)}
        (part / DONE).write_text(json.dumps(done) + "\n", "utf-8")


def describe_tensor(name: str, value: Tensor) -> TensorToWrite:
    array = (
        value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # numpy itself has no bfloat16
        if value.dtype == torch.bfloat16
        else value.numpy()
    )
    return TensorToWrite(name, array.shape, array.dtype, lambda: array)


def list_parameters(optimizer: Optimizer) -> list[Tensor]:
    """In the order in which the optimizer's state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def parameter_names(model: GPT2, optimizer: Optimizer) -> list[str]:
    """The names of the optimizer's parameters, in the same order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in list_parameters(optimizer)]


def rng_states(model: GPT2) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if model.wte.weight.is_cuda:
        states["cuda"] = torch.cuda.get_rng_state(model.wte.weight.device)
    return states


def rng_key(kind: str, rank: int) -> str:
    return f"rng.{kind}" if rank == 0 else f"rng.{kind}.{rank}"
