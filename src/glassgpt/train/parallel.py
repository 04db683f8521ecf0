"""Many processes, one model. Everything that knows of them is here; the model knows nothing of it.

The processes are torchrun's. Each of them trains on its own rows of every batch:

    ddp    each holds the whole model; gradients are summed when they are made (DistributedDataParallel)
    fsdp   each holds a share of every weight, gradient and optimizer memory; a block's weights are gathered
           when it is their turn and dropped again (FSDP2, `fully_shard`)

Of a sum over tokens it does not matter which process had which. So the loss is the sum over all tokens of
an update divided by their number, in one process or in many.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.loss import IGNORED, PLAIN, Way, summed_loss
from glassgpt.train.settings import TrainSettings

PLANS = ("ddp", "fsdp")


def check_plan(plan: str, settings: TrainSettings) -> None:
    if plan not in PLANS:
        raise SettingError(f"parallel {plan!r} is not one of {', '.join(PLANS)}.")
    # Muon orthogonalises whole matrices; torch's, given shares, ends elsewhere (by 2e-3 after five steps).
    if plan == "fsdp" and settings.muon_lr is not None:
        raise SettingError(
            "muon_lr moves whole matrices, and fsdp holds shares. Leave it out, or choose ddp."
        )
    if plan == "fsdp" and settings.precision == "float16":
        raise SettingError("float16's scaling is not for shares of gradients. With fsdp choose bfloat16.")


class Surprise(nn.Module):
    """From ids to the summed loss in one call: what is wrapped, so that a wrapper sees the head used, too.

    The tied head reads `wte` outside of any module's forward; within this one, sharded weights are whole.
    """

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor, way: Way = PLAIN) -> Tensor:
        return summed_loss(self.model, ids, targets, way)


def parallelize(model: GPT2, plan: str, mesh: DeviceMesh) -> nn.Module:
    """The model's loss as a module that keeps the processes of the mesh together. The model's parameters are
    afterwards those an optimizer should move."""
    surprise = Surprise(model)
    if plan == "ddp":
        return DistributedDataParallel(surprise, process_group=mesh.get_group())
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(surprise, mesh=mesh)  # what is in no block: embeddings (so the head) and the last norm
    return surprise


class Team:
    """The processes that train a model together, seen from one of them. Without a mesh it is alone."""

    def __init__(self, model: GPT2, mesh: DeviceMesh | None = None, plan: str = "ddp") -> None:
        self.mesh = mesh
        self.rank = 0 if mesh is None else mesh.get_local_rank()
        self.world = 1 if mesh is None else mesh.size()
        self.surprise = Surprise(model) if mesh is None else parallelize(model, plan, mesh)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def mine(self, batch: Tensor) -> Tensor:
        """This process's rows of a batch that all have, as the loader would divide it."""
        return batch[len(batch) * self.rank // self.world : len(batch) * (self.rank + 1) // self.world]

    def evened(self, batch: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) of this process's part of `rows` rows.

        Where the rows do not divide evenly, a row that counts for nothing is added: sharded weights are
        gathered by all processes together, so all must make the same number of passes.
        """
        inputs, targets = batch[:, :-1], batch[:, 1:]
        missing = -(-rows // self.world) - len(batch) if self.world > 1 else 0
        if missing > 0:
            blank = inputs.new_zeros(missing, inputs.shape[1])
            inputs, targets = torch.cat([inputs, blank]), torch.cat([targets, blank + IGNORED])
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
            dist.all_reduce(value, group=self.mesh.get_group())
        return value

    def sum(self, value: float) -> float:
        if self.mesh is None:
            return value
        return self.total(torch.tensor(value, dtype=torch.float64, device=self.mesh.device_type)).item()

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return self.sum(float(here)) > 0

    def clip(self, limit: float) -> float:
        """Shorten the gradient to `limit` at most; its norm before."""
        norm = clip_grad_norm_(self.surprise.parameters(), limit)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

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
        dist.all_gather(parts, sent, group=self.mesh.get_group())
        return [part.to(value.device) for part in parts]

    def wait(self) -> None:
        """Until all are here."""
        self.any(False)


def whole(value: Tensor) -> Tensor:
    """All of a tensor of which each process may hold a share: to be asked for by all of them."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def share(value: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, what this process holds of one that lies as `like` does. Others need not help."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[tuple[torch.device, DeviceMesh | None]]:
    """Join the other processes if torchrun started this one: the device to use, and the mesh of all.

    torchrun says in the environment who this process is (RANK of WORLD_SIZE; LOCAL_RANK on its machine).
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
        yield device, init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("data",))
    except BaseException:
        dist.destroy_process_group()
        raise
    dist.barrier()  # nobody leaves while another may still be spoken to


def leave() -> NoReturn:
    """End a process of many whose work is done and written.

    At once: while Python takes itself apart, threads of gloo and FSDP2 (torch 2.13) now and then abort the
    process, and torchrun would count a finished run as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
