"""The processes that train one model together, as torchrun starts them, and the collectives between them.

How the model is divided among them is in `parallelize.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from glassgpt.errors import SettingError

T = TypeVar("T")


class ProcessGroup:
    """All processes of a run, seen from one of them. Without a mesh there is one process."""

    def __init__(self, mesh: DeviceMesh | None = None, sharded: bool = False) -> None:
        self.mesh = mesh
        self.sharded = sharded and mesh is not None  # weights: no process holds all of them
        self.rank = 0 if mesh is None else dist.get_rank()
        self.world_size = 1 if mesh is None else dist.get_world_size()
        self.data_parallel_rank, self.data_parallel_size = data_parallel(mesh)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files and reports."""
        return self.rank == 0

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.mesh is not None:
            dist.all_reduce(value)
        return value

    def sum(self, value: float) -> float:
        if self.mesh is None:
            return value
        return self.all_reduce(torch.tensor(value, dtype=torch.float64, device=self.mesh.device_type)).item()

    def any(self, value: bool) -> bool:
        """Whether it is true in any process."""
        return self.sum(float(value)) > 0

    def all_gather(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor, by rank."""
        if self.mesh is None:
            return [value]
        sent = value.to(self.mesh.device_type)
        outputs = [torch.empty_like(sent) for _ in range(self.world_size)]
        dist.all_gather(outputs, sent)
        return [tensor.to(value.device) for tensor in outputs]

    def all_gather_object(self, value: T) -> list[T]:
        """Every process's object, by rank."""
        if self.mesh is None:
            return [value]
        outputs: list[T] = [value] * self.world_size
        dist.all_gather_object(outputs, value)
        return outputs

    def barrier(self) -> None:
        self.any(False)

    def local_sequences(self, batch_size: int) -> slice:
        """This process's sequences of a batch, as the loader divides it."""
        rank, size = self.data_parallel_rank, self.data_parallel_size
        return slice(batch_size * rank // size, batch_size * (rank + 1) // size)

    def local_batch_size(self, batch_size: int) -> int:
        """How many sequences every process computes. If the batch does not divide evenly, some are padding:
        sharded weights are gathered by all processes together, so all must run the same number of passes."""
        return -(-batch_size // self.data_parallel_size)


def data_parallel(mesh: DeviceMesh | None) -> tuple[int, int]:
    """The data-parallel rank and size. Processes that share layers (tp) have the same sequences."""
    return (0, 1) if mesh is None else (mesh["data"].get_local_rank(), mesh["data"].size())


@contextlib.contextmanager
def init_distributed(
    device: torch.device, tensor_parallel_size: int | None = 1
) -> Iterator[tuple[torch.device, DeviceMesh | None]]:
    """Join the other processes if torchrun started this one: the device to use, and the mesh of all.

    torchrun describes this process in the environment (RANK of WORLD_SIZE; LOCAL_RANK on its machine).
    `tensor_parallel_size` neighboring processes (None: all) form a group that shares every layer.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield device, None
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= torch.cuda.device_count():
            raise SettingError(
                f"process {device.index} of this machine has no GPU: there are {torch.cuda.device_count()}. "
                "Give torchrun that --nproc-per-node, or train with --device cpu."
            )
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise SettingError(f"several processes train on cuda or cpu, not on {device.type}. Add --device cpu.")
    if not dist.is_initialized():  # a program may train more than once
        init_process_group(device)
    try:
        yield device, make_mesh(device, dist.get_world_size(), tensor_parallel_size)
    except BaseException:
        dist.destroy_process_group()
        raise
    dist.barrier()  # no process leaves while another may still need it


def init_process_group(device: torch.device) -> None:
    store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # On one machine torchrun keeps its store when it restarts dead processes (torch 2.13): without a
        # prefix they would read the addresses of the dead and wait for them. Several machines do not agree on
        # this count; their launch files ask for a new store instead.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        device_id=device if device.type == "cuda" else None,
    )


def make_mesh(device: torch.device, world_size: int, tensor_parallel_size: int | None) -> DeviceMesh:
    if tensor_parallel_size == 1:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("data",))
    size = world_size if tensor_parallel_size is None else tensor_parallel_size
    if size < 1 or world_size % size:
        raise SettingError(
            f"{world_size} processes cannot form groups of {size}. "
            f"Choose a --tensor-parallel-size that divides {world_size}."
        )
    mesh = init_device_mesh(device.type, (world_size // size, size), mesh_dim_names=("data", "tensor"))
    mesh._flatten("all")  # so that a gradient's norm is one sum over all, the same in every process
    # A tensor sharded on two axes is gathered in two steps when it is saved. torch warns of that in every
    # process.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    return mesh


def exit_process() -> NoReturn:
    """End a process of a distributed run whose work is done and written.

    Immediately: while Python finalizes, threads of gloo and FSDP2 (torch 2.13) sometimes abort the process,
    and torchrun would count a finished run as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
