"""A checkpoint of which each process writes what it holds (torch's DCP), to be read by any number of them.

    step-00000400/
        shard-00001-model-00001-of-00001.safetensors   from each process; the header says which part of each
                                                       tensor it holds
        rest.safetensors                               what is not divided: random numbers, counts of steps
        DONE                                           written last: the size and checksum of every file

No process ever holds more than its own share. A process that reads asks for what it is to hold, and DCP finds
it in the files: they may come from more or fewer processes, divided in another way. The one thing that is
stored in another shape is the fused `c_attn.weight`: as (C, 3, C), so that a process's heads are one piece.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Shard

from glassgpt.errors import FileFormatError, NonFiniteLossError
from glassgpt.files import checksum, writing
from glassgpt.train.distributed.parallelize import interleaving, shard, unshard
from glassgpt.train.distributed.process_group import ProcessGroup

REST = "rest.safetensors"

# Parameters, or an optimizer's memory of them: the parameter's name and the tensor.
Held = Mapping[str, tuple[str, Tensor]]


def write_shares(
    folder: Path, held: Held, rest: Mapping[str, Tensor], facts: Mapping[str, str], group: ProcessGroup
) -> contextlib.ExitStack:
    """Write a checkpoint under a temporary name, all processes together. The first one gets it into place by
    leaving the `with` of what is returned; an error there removes it."""
    check_finite(held, folder.name, group)
    state = {key: laid(name, value) for key, (name, value) in held.items()}
    with contextlib.ExitStack() as stack:
        made = str(stack.enter_context(writing(folder, folder=True))) if group.is_main else ""
        part = Path(group.all_gather_object(made)[0])
        try:
            save(state, storage_writer=HuggingFaceStorageWriter(str(part), save_distributed=True))
        except CheckpointException as error:  # raised in all processes; the first failure says why
            raise next(iter(error.failures.values()))[0] from None
        if group.is_main:
            (part / REST).write_bytes(safetensors.torch.save(dict(rest), dict(facts)))
        group.barrier()
        mine = sorted(part.glob("*.safetensors"))[group.rank :: group.world_size]
        sums: dict[str, list[int]] = {}
        for of_rank in group.all_gather_object({file.name: summed(file) for file in mine}):
            sums |= of_rank
        if group.is_main:
            (part / "DONE").write_text(json.dumps({"files": sums}) + "\n", "utf-8")
        return stack.pop_all()


def is_divided(folder: Path) -> bool:
    return (folder / REST).exists() or any(folder.glob("shard-*"))


def read_shares(folder: Path, held: Held, group: ProcessGroup) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What each process is to hold of a checkpoint, and its facts. `held` has a parameter that lies as wanted
    for each `model.NAME` and `optimizer.NUMBER.INDEX`."""
    for problem in filter(None, group.all_gather_object(damage(folder, group))):
        raise FileFormatError(problem)
    with safetensors.safe_open(folder / REST, framework="pt") as file:
        facts = file.metadata()
        rest = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    reader = HuggingFaceStorageReader(str(folder))
    wanted: dict[str, tuple[str, Tensor]] = {}
    for key, stored in reader.read_metadata().state_dict_metadata.items():
        if key not in rest:
            name, like = held[key if key.startswith("model.") else key.rpartition(".")[0]]
            wanted[key] = (name, torch.empty_like(like, dtype=cast(Any, stored).properties.dtype))
    into = {key: laid(name, value.detach()) for key, (name, value) in wanted.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process: as intended
        load(into, storage_reader=reader, no_dist=group.mesh is None)
    for key, (name, value) in wanted.items():
        rest[key] = value if lies_as_stored(name, value) else shard(name, into[key], value)
    return rest, facts


def lies_as_stored(name: str, value: Tensor) -> bool:
    return interleaving(name, value)[1] == 1 or value.ndim > 1


def laid(name: str, value: Tensor) -> Tensor:
    """A parameter in the shape in which it is stored, however it is divided; no copy but of dealt biases."""
    if not lies_as_stored(name, value):
        return unshard(name, value)  # a process's heads are not one piece of it; but it is small
    if not name.endswith(".c_attn.weight"):
        return value
    rows, columns = value.shape
    if not isinstance(value, DTensor):
        return value.view(rows, 3, columns // 3)
    local = value.to_local()
    return DTensor.from_local(
        local.view(local.shape[0], 3, local.shape[1] // 3), value.device_mesh,
        [Shard(2) if place == Shard(1) else place for place in value.placements],
        run_check=False, shape=torch.Size((rows, 3, columns // 3)), stride=(columns, columns // 3, 1),
    )  # fmt: skip


def check_finite(held: Held, what: str, group: ProcessGroup) -> None:
    bad = ""
    for name, value in held.values():
        local = value.to_local() if isinstance(value, DTensor) else value
        if not local.isfinite().all():
            bad = (
                f"{name} is not finite, so {what} was not saved. Go on with --resume from the one before it."
            )
            break
    for problem in filter(None, group.all_gather_object(bad)):
        raise NonFiniteLossError(problem)


def summed(file: Path) -> list[int]:
    return [file.stat().st_size, checksum(file)]


def damage(folder: Path, group: ProcessGroup) -> str:
    """What is wrong with this process's files; nothing if they are what was saved."""
    try:
        sums = json.loads((folder / "DONE").read_text("utf-8"))["files"]
        for name in sorted(sums)[group.rank :: group.world_size]:
            if summed(folder / name) != sums[name]:
                return f"{folder / name} is damaged: it is not what was saved."
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{folder} is damaged ({error})."
    return ""
