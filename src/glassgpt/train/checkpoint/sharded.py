"""Sharded checkpoints: each rank writes its shards (torch's DCP), and any number of ranks can read them.

    step-00000400/
        shard-00001-model-00001-of-00001.safetensors   of each rank; the header has the offset of each shard
        rest.safetensors                               what is not sharded: RNG states, step counts
        DONE                                           written last: the size and checksum of every file

No rank ever has more than its own shards in memory. When reading, DCP finds what a rank needs in the files,
which may come from more or fewer ranks, sharded differently. The fused `c_attn.weight` is stored as
(C, 3, C), so that the heads of a rank are one contiguous shard; everything else keeps its shape.
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
from glassgpt.files import atomic_write, file_crc32
from glassgpt.train.distributed.parallelize import interleaving, shard, unshard
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.weights.run_checkpoint import DONE, REST, check_files, read_done

# Parameters, or optimizer state: the parameter's name and the tensor.
NamedTensors = Mapping[str, tuple[str, Tensor]]


def write_shards(
    folder: Path,
    tensors: NamedTensors,
    rest: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    group: ProcessGroup,
) -> contextlib.ExitStack:
    """Write a checkpoint under a temporary name, all ranks together. On the main rank, closing the returned
    stack renames it into place; an error removes it."""
    check_finite(tensors, folder.name, group)
    state = {key: to_stored(name, value) for key, (name, value) in tensors.items()}
    with contextlib.ExitStack() as stack:
        name = str(stack.enter_context(atomic_write(folder, folder=True))) if group.is_main else ""
        part = Path(group.all_gather_object(name)[0])
        try:
            save(state, storage_writer=HuggingFaceStorageWriter(str(part), save_distributed=True))
        except CheckpointException as error:  # raised on all ranks; the first failure says why
            raise next(iter(error.failures.values()))[0] from None
        if group.is_main:
            (part / REST).write_bytes(safetensors.torch.save(dict(rest), dict(metadata)))
        group.barrier()
        own_files = sorted(part.glob("*.safetensors"))[group.rank :: group.world_size]
        sums: dict[str, list[int]] = {}
        for of_rank in group.all_gather_object(
            {file.name: [file.stat().st_size, file_crc32(file)] for file in own_files}
        ):
            sums |= of_rank
        if group.is_main:
            (part / DONE).write_text(json.dumps({"files": sums}) + "\n", "utf-8")
        return stack.pop_all()


def read_shards(
    folder: Path, like: NamedTensors, group: ProcessGroup
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """This rank's shards of a checkpoint, and its metadata. `like` has a parameter that is sharded as wanted
    for each `model.NAME` and `optimizer.NUMBER.INDEX`."""
    for problem in filter(None, group.all_gather_object(find_damage(folder, group))):
        raise FileFormatError(problem)
    with safetensors.safe_open(folder / REST, framework="pt") as file:
        metadata = file.metadata()
        rest = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    reader = HuggingFaceStorageReader(str(folder))
    targets: dict[str, tuple[str, Tensor]] = {}
    for key, stored in reader.read_metadata().state_dict_metadata.items():
        if key not in rest:
            name, as_here = like[key if key.startswith("model.") else key.rpartition(".")[0]]
            targets[key] = (name, torch.empty_like(as_here, dtype=cast(Any, stored).properties.dtype))
    into = {key: to_stored(name, value.detach()) for key, (name, value) in targets.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process: as intended
        load(into, storage_reader=reader, no_dist=group.mesh is None)
    for key, (name, value) in targets.items():
        rest[key] = value if is_contiguous_shard(name, value) else shard(name, into[key], value)
    return rest, metadata


def is_contiguous_shard(name: str, value: Tensor) -> bool:
    return interleaving(name, value)[1] == 1 or value.ndim > 1


def to_stored(name: str, value: Tensor) -> Tensor:
    """A parameter in its stored shape, however it is sharded; only interleaved biases are copied."""
    if not is_contiguous_shard(name, value):
        return unshard(name, value)  # a rank's heads are not contiguous in it; but it is small
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


def check_finite(tensors: NamedTensors, checkpoint: str, group: ProcessGroup) -> None:
    bad = ""
    for name, value in tensors.values():
        local = value.to_local() if isinstance(value, DTensor) else value
        if not local.isfinite().all():
            bad = (
                f"{name} is not finite, so {checkpoint} was not saved. "
                "Use --resume to continue from the last one."
            )
            break
    for problem in filter(None, group.all_gather_object(bad)):
        raise NonFiniteLossError(problem)


def find_damage(folder: Path, group: ProcessGroup) -> str:
    """What is wrong with this rank's part of the files; empty if nothing is."""
    try:
        files = read_done(folder)
        check_files(folder, {name: files[name] for name in sorted(files)[group.rank :: group.world_size]})
    except FileFormatError as error:
        return str(error)
    except OSError as error:
        return f"{folder} is damaged ({error})."
    return ""
