"""A run's folder: the model as it stands, ready to use, and checkpoints to go on from exactly.

    RUN/config.json, model.safetensors            the model after the last save
    RUN/log.jsonl                                 a record for each step
    RUN/checkpoints/step-00000400/
        training.safetensors                      weights, optimizers, random numbers: all it takes to go on
        DONE                                      written last: the size and checksum of the file beside it

Everything is written under a temporary name and renamed: a kill at any moment leaves the last complete save.
A checkpoint that was damaged later is noticed by its checksum, named, and passed over for the one before it.
"""

from __future__ import annotations

import json
import shutil
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from glassgpt.errors import FileFormatError
from glassgpt.model import GPT2
from glassgpt.train.parallel import Team, share, whole
from glassgpt.weights.safe import writing

STATE = "training.safetensors"


def save_run(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    step: int,
    val_loss: float | None,
    best: tuple[float, int] | None,
    keep: int,
    team: Team | None = None,
) -> tuple[float, int] | None:
    """Keep everything after `step` steps; the lowest validation loss so far and its step.

    Of many processes all call this, as weights of which each holds a share are gathered one by one; the first
    one writes. So the files of every run are alike, and it can go on with any number of processes.
    """
    team = Team(model) if team is None else team
    weights: dict[str, Tensor] = {}

    def put(into: dict[str, Tensor], name: str, value: Tensor) -> None:
        value = whole(value)
        if team.leads:
            into[name] = value.detach().cpu().contiguous()

    for name, value in model.state_dict().items():
        put(weights, name, value)
    state: dict[str, Tensor] = {f"model.{name}": value for name, value in weights.items()}
    for number, optimizer in enumerate(optimizers):
        for index, memory in optimizer.state_dict()["state"].items():
            for key, value in memory.items():
                put(state, f"optimizer.{number}.{index}.{key}", torch.as_tensor(value))
    for kind, value in random_states(model).items():
        for rank, of_rank in enumerate(team.gathered(value)):
            put(state, rng_name(kind, rank), of_rank)
    if val_loss is not None and (best is None or val_loss < best[0]):
        best = (val_loss, step)
    if not team.leads:
        return best
    facts = {"step": str(step), "best": json.dumps(best), "scaler": json.dumps(scaler.state_dict())}
    # The checkpoint comes last: wherever there is one to go on from, its config is there to go on with.
    with writing(out / "config.json") as part:
        part.write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", "utf-8")
    with writing(out / "model.safetensors") as part:
        save_file(weights, part, {"format": "pt"})
    folder = checkpoint_folder(out, step)
    with writing(folder, folder=True) as part:
        save_file(state, part / STATE, facts)
        done = {"bytes": (part / STATE).stat().st_size, "crc32": checksum(part / STATE)}
        (part / "DONE").write_text(json.dumps(done) + "\n", "utf-8")
    kept = {checkpoint_folder(out, best[1])} if best is not None else set()
    for old in checkpoints(out)[:-keep]:
        if old not in kept:
            shutil.rmtree(old)
    return best


def load_run(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    team: Team | None = None,
) -> tuple[int, tuple[float, int] | None]:
    """Put everything back as it was at the last save; its step (0 if there is none) and the best so far."""
    found = checkpoints(out)
    if not found:
        return 0, None
    state, facts = read_newest(found)
    team = Team(model) if team is None else team
    weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
    model.load_state_dict(
        weights | {k: share(weights[k], v) for k, v in model.state_dict().items() if k in weights}
    )
    for number, optimizer in enumerate(optimizers):
        memory: dict[int, dict[str, Tensor]] = {}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for name, value in state.items():
            if name.startswith(f"optimizer.{number}."):
                index, key = name.split(".")[2:]
                memory.setdefault(int(index), {})[key] = share(value, parameters[int(index)])
        optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
    scaler.load_state_dict(json.loads(facts["scaler"]))
    if (
        rng_name("cpu", team.rank) not in state
    ):  # the run had fewer processes: this one begins a row of its own
        torch.manual_seed(int(facts["step"]) * 1009 + team.rank)
    else:
        torch.set_rng_state(state[rng_name("cpu", team.rank)])
        if rng_name("cuda", team.rank) in state and model.wte.weight.is_cuda:
            torch.cuda.set_rng_state(state[rng_name("cuda", team.rank)], model.wte.weight.device)
    best = json.loads(facts["best"])
    team.wait()  # nobody writes to the folder while another still reads
    return int(facts["step"]), None if best is None else (best[0], best[1])


def random_states(model: GPT2) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if model.wte.weight.is_cuda:
        states["cuda"] = torch.cuda.get_rng_state(model.wte.weight.device)
    return states


def rng_name(kind: str, rank: int) -> str:
    return f"rng.{kind}" if rank == 0 else f"rng.{kind}.{rank}"


def read_newest(found: Sequence[Path]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The newest checkpoint that is whole; damaged ones are named in a warning."""
    for folder in reversed(found):
        try:
            return read_checkpoint(folder)
        except FileFormatError as error:
            warnings.warn(f"{error} Going on from the one before it.", stacklevel=2)
    raise FileFormatError(
        f"no checkpoint in {found[0].parent} is whole. Remove that folder to begin anew, or restore it."
    )


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        done = json.loads((folder / "DONE").read_text("utf-8"))
        if (folder / STATE).stat().st_size != done["bytes"] or checksum(folder / STATE) != done["crc32"]:
            raise FileFormatError(f"{folder / STATE} is damaged: it is not what was saved.")
        with safetensors.safe_open(folder / STATE, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{folder} is damaged ({error}).") from None


def checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(folder for folder in (out / "checkpoints").glob("step-*") if (folder / "DONE").exists())


def checkpoint_folder(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while part := handle.read(1 << 24):
            value = zlib.crc32(part, value)
    return value
