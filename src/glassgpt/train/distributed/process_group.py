"""The processes that train one model together: how they find each other, what they tell each other.

torchrun starts them. How the model is divided among them is in `parallel.py`.
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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.distributed.parallelize import Surprise, parallelize
from glassgpt.train.loss import IGNORED
from glassgpt.train.step import PLAIN, Way

Said = TypeVar("Said")


class Team:
    """The processes that train a model together, seen from one of them. Without a mesh it is alone."""

    def __init__(
        self, model: GPT2, mesh: DeviceMesh | None = None, plan: str = "ddp", way: Way = PLAIN
    ) -> None:
        self.mesh = mesh
        self.rank = 0 if mesh is None else dist.get_rank()
        self.world = 1 if mesh is None else dist.get_world_size()
        self.group, self.groups = group_of(mesh)
        self.divides = mesh is not None and plan != "ddp"  # the weights: no process has all of them
        self.surprise = Surprise(model, way) if mesh is None else parallelize(model, plan, mesh, way)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def mine(self, batch: Tensor) -> Tensor:
        """This process's rows of a batch that all have, as the loader would divide it."""
        return batch[len(batch) * self.group // self.groups : len(batch) * (self.group + 1) // self.groups]

    def evened(self, batch: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) of this process's part of `rows` rows.

        Where the rows do not divide evenly, a row that counts for nothing is added: sharded weights are
        gathered by all processes together, so all must make the same number of passes. Of a group that has
        the same rows each counts only its own stretch of them.
        """
        inputs, targets = batch[:, :-1], batch[:, 1:]
        missing = -(-rows // self.groups) - len(batch) if self.groups > 1 else 0
        if missing > 0:
            blank = inputs.new_zeros(missing, inputs.shape[1])
            inputs, targets = torch.cat([inputs, blank]), torch.cat([targets, blank + IGNORED])
        if self.world > self.groups:
            size = self.world // self.groups
            stretch = torch.arange(targets.shape[1], device=batch.device) * size // targets.shape[1]
            targets = targets.masked_fill(stretch != self.rank % size, IGNORED)
        return inputs, targets

    @contextlib.contextmanager
    def accumulating(self, more: bool) -> Iterator[None]:
        """While more micro-batches of an update follow, whole gradients need not be exchanged.

        Sharded ones are: to keep them whole until the last would cost the memory that sharding saves.
        """
        if more and isinstance(self.surprise, DistributedDataParallel):
            with self.surprise.no_sync():
                yield
        else:
            yield

    def total(self, value: Tensor) -> Tensor:
        """The sum of every process's value."""
        if self.mesh is not None:
            dist.all_reduce(value)
        return value

    def sum(self, value: float) -> float:
        if self.mesh is None:
            return value
        return self.total(torch.tensor(value, dtype=torch.float64, device=self.mesh.device_type)).item()

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return self.sum(float(here)) > 0

    def mean_and_clip(self, tokens: Tensor, limit: float) -> Tensor:
        """Turn the summed gradient into a mean over tokens, no longer than `limit`; its norm before that."""
        for parameter in self.surprise.parameters():
            grad = parameter.grad
            # What all of a group hold and each found a part of is summed here, once in an update.
            if isinstance(grad, DTensor) and grad.placements != parameter.placements:  # type: ignore[attr-defined]
                parameter.grad = grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        grads = [parameter.grad for parameter in self.surprise.parameters() if parameter.grad is not None]
        norm = get_total_norm(grads)
        norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm) / tokens
        factor = (limit / (norm + 1e-6)).clamp(max=1.0) / tokens
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        return norm

    def evaluated(self) -> None:
        """Drop what was gathered: after a forward pass with no backward pass nothing else would."""
        if isinstance(self.surprise, FSDPModule):
            self.surprise.reshard()

    def gathered(self, value: Tensor) -> list[Tensor]:
        """The value of each process, in the order of their ranks."""
        if self.mesh is None:
            return [value]
        sent = value.to(self.mesh.device_type)
        parts = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(parts, sent)
        return [part.to(value.device) for part in parts]

    def heard(self, value: Said) -> list[Said]:
        """What each process says, in the order of their ranks."""
        if self.mesh is None:
            return [value]
        said: list[Said] = [value] * self.world
        dist.all_gather_object(said, value)
        return said

    def wait(self) -> None:
        """Until all are here."""
        self.any(False)


def group_of(mesh: DeviceMesh | None) -> tuple[int, int]:
    """Which of how many groups this process is in: those of a group have the same rows of a batch."""
    return (0, 1) if mesh is None else (mesh["data"].get_local_rank(), mesh["data"].size())


@contextlib.contextmanager
def joined(device: torch.device, tensor: int | None = 1) -> Iterator[tuple[torch.device, DeviceMesh | None]]:
    """Join the other processes if torchrun started this one: the device to use, and the mesh of all.

    torchrun says in the environment who this process is (RANK of WORLD_SIZE; LOCAL_RANK on its machine).
    `tensor` processes next to each other (None: all) form a group that shares every layer.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield device, None
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= torch.cuda.device_count():
            raise SettingError(
                f"process {device.index} of this machine has no GPU: there are {torch.cuda.device_count()}. "
                "Give torchrun --nproc-per-node as many, or train with --device cpu."
            )
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise SettingError(f"many processes train on cuda or cpu, not on {device.type}. Add --device cpu.")
    backend = "nccl" if device.type == "cuda" else "gloo"
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # On one machine torchrun keeps its store when it starts dead processes again (torch 2.13): without a
        # prefix they would read the addresses of the dead and wait for them. Several machines do not agree on
        # this count; their launch files ask for a new store instead.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, device_id=device if device.type == "cuda" else None
    )
    try:
        yield device, made_mesh(device, world, tensor)
    except BaseException:
        dist.destroy_process_group()
        raise
    dist.barrier()  # nobody leaves while another may still be spoken to


def made_mesh(device: torch.device, world: int, tensor: int | None) -> DeviceMesh:
    if tensor == 1:
        return init_device_mesh(device.type, (world,), mesh_dim_names=("data",))
    size = world if tensor is None else tensor
    if size < 1 or world % size:
        raise SettingError(
            f"{world} processes do not make groups of {size}. Give --tensor a divisor of {world}."
        )
    mesh = init_device_mesh(device.type, (world // size, size), mesh_dim_names=("data", "tensor"))
    mesh._flatten("all")  # so that the norm of a gradient is one sum over all, the same in every process
    # What two axes divide is gathered in two steps when it is saved. torch warns of that in every process.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    return mesh


def leave() -> NoReturn:
    """End a process of many whose work is done and written.

    At once: while Python takes itself apart, threads of gloo and FSDP2 (torch 2.13) now and then abort the
    process, and torchrun would count a finished run as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
