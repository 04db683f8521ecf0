"""Resume a run from its newest checkpoint that is not damaged."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import torch
from torch import Tensor
from torch.optim import Optimizer

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.model import GPT2
from glassgpt.train.checkpoint.run_folder import clean_up, config_mismatch, list_checkpoints
from glassgpt.train.checkpoint.save import Identity, list_parameters, parameter_names, rng_key
from glassgpt.train.checkpoint.sharded import NamedTensors, read_shards
from glassgpt.train.distributed.parallelize import shard
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.settings import SETTINGS
from glassgpt.train.variants.stream_memory import StreamMemory
from glassgpt.weights.run_checkpoint import STATE, check_files, is_sharded, read_done


def load_run_checkpoint(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    group: ProcessGroup | None = None,
    data: Identity | None = None,
    stream_memory: StreamMemory | None = None,
) -> tuple[int, tuple[float, int] | None]:
    """Restore the state of the last save; returns its step (0 if there is none) and the best so far."""
    group = ProcessGroup() if group is None else group
    if group.is_main:
        clean_up(out)
    group.barrier()
    checkpoints = list_checkpoints(out)
    if not checkpoints:
        return 0, None
    like = {f"model.{name}": (name, value) for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        pairs = zip(parameter_names(model, optimizer), list_parameters(optimizer), strict=True)
        like |= {f"optimizer.{number}.{index}": pair for index, pair in enumerate(pairs)}
    state, metadata = read_newest(checkpoints, like, group)
    check_identity(out, json.loads(metadata.get("data", "null")), data)
    weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
    try:
        model.load_state_dict(
            weights | {k: shard(k, weights[k], v) for k, v in model.state_dict().items() if k in weights}
        )
    except RuntimeError:  # a checkpoint without a config in its metadata
        raise config_mismatch(out) from None
    for number, optimizer in enumerate(optimizers):
        restored: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith(f"optimizer.{number}."):
                place, key = name.rsplit(".", 1)
                if place not in like:
                    raise FileFormatError(
                        f"{out / SETTINGS} names other optimizers than the run's checkpoints. "
                        "Restore it, or start a new run."
                    )
                parameter, as_here = like[place]
                restored.setdefault(int(place.rsplit(".", 1)[1]), {})[key] = shard(parameter, value, as_here)
        optimizer.load_state_dict({"state": restored, "param_groups": optimizer.state_dict()["param_groups"]})
    if stream_memory is not None:
        stream_memory.load_state(state)
    scaler.load_state_dict(json.loads(metadata["scaler"]))
    if rng_key("cpu", group.rank) not in state:  # there were fewer ranks: seed this one anew
        torch.manual_seed(int(metadata["step"]) * 1009 + group.rank)
    else:
        torch.set_rng_state(state[rng_key("cpu", group.rank)])
        if rng_key("cuda", group.rank) in state and model.wte.weight.is_cuda:
            torch.cuda.set_rng_state(state[rng_key("cuda", group.rank)], model.wte.weight.device)
    best = json.loads(metadata["best"])
    group.barrier()  # no rank writes to the folder while another still reads
    return int(metadata["step"]), None if best is None else (best[0], best[1])


def check_identity(out: Path, saved: Identity | None, present: Identity | None) -> None:
    """A run resumes with the tokens it would have seen, or not at all."""
    if saved is None or present is None:
        return
    differing = {
        name: f"{name} was {saved[name]} and is {value}"
        for name, value in present.items()
        if saved.get(name, value) != value
    }
    if "data" in differing or "checksum" in differing:  # the former is quick to find, the latter thorough
        differing.pop("checksum", None)
        differing = {**differing, "data": "--data has different tokens"}
    if differing:
        raise SettingError(
            f"{out} was not trained on this data: {', '.join(differing.values())}. Use what it started with, "
            f"or start a new run from its weights with --init-from {out}."
        )


def read_newest(
    checkpoints: Sequence[Path], like: NamedTensors, group: ProcessGroup
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The newest checkpoint that is intact; a warning names each damaged one."""
    for folder in reversed(checkpoints):
        try:
            if is_sharded(folder):
                return read_shards(folder, like, group)
            return read_training_state(folder)
        except FileFormatError as error:
            warnings.warn(f"{error} Resuming from the one before it.", stacklevel=2)
    raise FileFormatError(
        f"no checkpoint in {checkpoints[0].parent} is intact. Remove that folder to start over, or restore "
        "it."
    )


def read_training_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of an unsharded checkpoint, and its metadata."""
    try:
        check_files(folder, read_done(folder))
        with safetensors.safe_open(folder / STATE, framework="pt") as file:
            metadata = file.metadata()
            check_metadata(metadata)
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (
        OSError,
        safetensors.SafetensorError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{folder} is damaged ({error}).") from None


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise one of the errors that `read_training_state` expects if anything is wrong."""
    int(metadata["step"])
    best, scaler, data = (json.loads(metadata.get(name, "null")) for name in ("best", "scaler", "data"))
    if best is not None:
        float(best[0]), int(best[1])
    if not isinstance(scaler, dict) or not isinstance(data, dict | None):
        raise ValueError("its metadata is not what was saved")
