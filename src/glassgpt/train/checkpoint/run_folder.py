"""A run's folder: the model as it stands, ready to use, and checkpoints to go on from exactly.

    RUN/config.json, model.safetensors            the model after the last save
    RUN/log.jsonl                                 a record for each step
    RUN/checkpoints/step-00000400/
        training.safetensors                      weights, optimizers, random numbers: all it takes to go on
        DONE                                      written last: the size and checksum of the file beside it

Where processes hold shares of the model, a checkpoint is in their shares, too: see `sharded.py`.

Everything is written under a temporary name and renamed: a kill at any moment leaves the last complete save.
A checkpoint that was damaged later is noticed by its checksum, named, and passed over for the one before it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import torch
from torch import Tensor
from torch.optim import Optimizer

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, NonFiniteLossError, SettingError, UserError
from glassgpt.files import checksum, flush, remove, unfinished, writing
from glassgpt.model import GPT2
from glassgpt.train.checkpoint.asynchronous import Saver
from glassgpt.train.checkpoint.sharded import REST, Held, is_divided, read_shares, write_shares
from glassgpt.train.distributed.parallelize import shard, unshard
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.settings import SETTINGS
from glassgpt.weights.tensorfile import Outgoing, size_of, write_tensors

STATE = "training.safetensors"
LOG = "log.jsonl"
CHECKPOINT = re.compile(r"step-(\d{8,})")

# What decides which tokens a run sees in which order, as `Loader.identity` gives it.
Identity = Mapping[str, int | str]


def save_run(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    step: int,
    val_loss: float | None,
    best: tuple[float, int] | None,
    keep: int,
    saver: Saver,
    group: ProcessGroup | None = None,
    data: Identity | None = None,
) -> tuple[float, int] | None:
    """Keep everything after `step` steps; the lowest validation loss so far and its step.

    Of many processes all call this. Where they hold shares of the model, each writes its own into the
    checkpoint before this returns, and the weights are gathered one by one for the first one to write as a
    model. All else that is written the saver writes, while the loop goes on.
    """
    group = ProcessGroup() if group is None else group
    saver.wait()
    state: dict[str, Tensor] = {}

    def put(name: str, value: Tensor, parameter: str = "") -> None:
        value = unshard(parameter, value)
        if group.is_main:
            small = value.ndim == 0  # and so not worth pinned memory, and here at once
            state[name] = value.detach().to("cpu", copy=True) if small else saver.copy(name, value)

    held = {f"model.{name}": (name, value) for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        moved = names_of(model, optimizer)
        for index, memory in optimizer.state_dict()["state"].items():
            for key, value in memory.items():
                held[f"optimizer.{number}.{index}.{key}"] = (moved[index], torch.as_tensor(value))
    for key, (name, value) in held.items():
        if not group.sharded or key.startswith("model.") or value.ndim == 0:
            put(key, value, name)
    for kind, value in random_states(model).items():
        for rank, of_rank in enumerate(group.all_gather(value)):
            put(rng_name(kind, rank), of_rank)
    if val_loss is not None and math.isfinite(val_loss) and (best is None or val_loss < best[0]):
        best = (val_loss, step)
    facts = {
        "step": str(step), "best": json.dumps(best), "scaler": json.dumps(scaler.state_dict()),
        "data": json.dumps(data), "config": json.dumps(model.config.to_dict()),
    }  # fmt: skip
    shares = None
    if group.sharded:
        divided = {key: pair for key, pair in held.items() if pair[1].ndim > 0}
        rest = {key: value for key, value in state.items() if key not in divided}
        shares = write_shares(checkpoint_folder(out, step), divided, rest, facts, group)
    if group.is_main:
        kept = None if best is None else best[1]
        saver.start(lambda: write_run(out, model.config, state, facts, step, kept, keep, shares))
    return best


def write_run(
    out: Path,
    config: Config,
    state: Mapping[str, Tensor],
    facts: Mapping[str, str],
    step: int,
    best: int | None,
    keep: int,
    shares: contextlib.ExitStack | None = None,
) -> None:
    """Write a save, then remove the checkpoints that it makes superfluous.

    With `shares` the checkpoint is written already and leaving them gets it into place.
    """
    with contextlib.ExitStack() if shares is None else shares:
        write_model(out, config, state, facts, step, plain=shares is None)
    remove_superfluous(out, step, best, keep)


def remove_superfluous(out: Path, step: int, best: int | None, keep: int) -> None:
    """Of the checkpoints up to this step, keep the newest ones and the best."""
    # One of a later step was found damaged when this run went on from an earlier one: it does not count.
    upto = [folder for folder in checkpoints(out) if folder <= checkpoint_folder(out, step)]
    for old in upto[:-keep]:
        if best is None or old != checkpoint_folder(out, best):
            (old / "DONE").unlink()  # first: a kill between the two leaves nothing that looks complete
            shutil.rmtree(old)


def write_model(
    out: Path,
    config: Config,
    state: Mapping[str, Tensor],
    facts: Mapping[str, str],
    step: int,
    plain: bool,
) -> None:
    """Write the model as it stands, and `plain`ly in one file all it takes to go on."""
    tensors = [outgoing(name, value) for name, value in sorted(state.items())]
    for tensor in tensors:
        if tensor.dtype.kind != "u" and not np.isfinite(tensor.array()).all():
            raise NonFiniteLossError(
                f"{tensor.name} is not finite after step {step}, so nothing was saved. {way_on(out)}"
            )
    # The checkpoint comes last: wherever there is one to go on from, all it needs besides is there.
    with writing(out / "config.json") as part:
        part.write_text(json.dumps(config.to_dict(), indent=2) + "\n", "utf-8")
    weights = [
        Outgoing(t.name[6:], t.shape, t.dtype, t.array) for t in tensors if t.name.startswith("model.")
    ]
    with writing(out / "model.safetensors", needs=size_of(weights)) as part:
        write_tensors(part, weights, {"format": "pt"})
    if (out / LOG).exists():
        flush(out / LOG)
    if not plain:
        return
    with writing(checkpoint_folder(out, step), folder=True, needs=size_of(tensors)) as part:
        write_tensors(part / STATE, tensors, facts)
        done = {"bytes": (part / STATE).stat().st_size, "crc32": checksum(part / STATE)}
        (part / "DONE").write_text(json.dumps(done) + "\n", "utf-8")


def outgoing(name: str, value: Tensor) -> Outgoing:
    array = (
        value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # numpy has none of its own
        if value.dtype == torch.bfloat16
        else value.numpy()
    )
    return Outgoing(name, array.shape, array.dtype, lambda: array)


def tidy(out: Path) -> None:
    """Remove what a kill left half-written. Only in a folder where nobody is writing now.

    A folder that is written anew is first moved aside. If the kill fell between that and the move of the new
    one, nothing has its name: the new one takes it, or else the old one.
    """
    inside = out / "checkpoints"
    left = unfinished(inside)
    moved_aside = {name for name, path in left if path.suffix == ".old"}
    for suffix in (".part", ".old"):
        for name, path in left:
            nameless = name in moved_aside and not (inside / name).exists()
            if nameless and path.suffix == suffix and (path / "DONE").exists():
                path.rename(inside / name)
    for folder in (out, inside):
        for _, path in unfinished(folder):
            remove(path)
    for folder in inside.glob("step-*"):
        if CHECKPOINT.fullmatch(folder.name) and not (folder / "DONE").exists():
            remove(folder)


def load_run(
    out: Path,
    model: GPT2,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler,
    group: ProcessGroup | None = None,
    data: Identity | None = None,
) -> tuple[int, tuple[float, int] | None]:
    """Put everything back as it was at the last save; its step (0 if there is none) and the best so far."""
    group = ProcessGroup() if group is None else group
    if group.is_main:
        tidy(out)
    group.barrier()
    found = checkpoints(out)
    if not found:
        return 0, None
    held = {f"model.{name}": (name, value) for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        moved = zip(names_of(model, optimizer), parameters_of(optimizer), strict=True)
        held |= {f"optimizer.{number}.{index}": pair for index, pair in enumerate(moved)}
    state, facts = read_newest(found, held, group)
    check_identity(out, json.loads(facts.get("data", "null")), data)
    weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
    try:
        model.load_state_dict(
            weights | {k: shard(k, weights[k], v) for k, v in model.state_dict().items() if k in weights}
        )
    except RuntimeError:  # by a checkpoint from before it kept its config
        raise other_config(out) from None
    for number, optimizer in enumerate(optimizers):
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith(f"optimizer.{number}."):
                place, key = name.rsplit(".", 1)
                if place not in held:
                    raise FileFormatError(
                        f"{out / SETTINGS} names other optimizers than the run's checkpoints are of. "
                        "Restore it, or begin anew."
                    )
                parameter, like = held[place]
                memory.setdefault(int(place.rsplit(".", 1)[1]), {})[key] = shard(parameter, value, like)
        optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
    scaler.load_state_dict(json.loads(facts["scaler"]))
    if rng_name("cpu", group.rank) not in state:  # there were fewer processes: it begins a row of its own
        torch.manual_seed(int(facts["step"]) * 1009 + group.rank)
    else:
        torch.set_rng_state(state[rng_name("cpu", group.rank)])
        if rng_name("cuda", group.rank) in state and model.wte.weight.is_cuda:
            torch.cuda.set_rng_state(state[rng_name("cuda", group.rank)], model.wte.weight.device)
    best = json.loads(facts["best"])
    group.barrier()  # nobody writes to the folder while another still reads
    return int(facts["step"]), None if best is None else (best[0], best[1])


def check_identity(out: Path, saved: Identity | None, present: Identity | None) -> None:
    """A run goes on with the tokens it would have seen, or not at all."""
    if saved is None or present is None:
        return
    differing = {
        name: f"{name} was {saved[name]} and is {value}"
        for name, value in present.items()
        if saved.get(name, value) != value
    }
    if "data" in differing or "checksum" in differing:  # the former is quick to find, the latter thorough
        differing.pop("checksum", None)
        differing = {**differing, "data": "the tokens of --data are others"}
    if differing:
        raise SettingError(
            f"{out} did not learn from this data: {', '.join(differing.values())}. Name what it began with, "
            f"or begin a new run from its weights with --init-from {out}."
        )


def read_config(out: Path) -> Config:
    """The config of the run in `out`, as its newest checkpoint has it: with another number of heads, say, the
    same weights would be another model."""
    config = Config.load(out)
    mine = json.dumps(config.to_dict())
    for folder in reversed(checkpoints(out)):
        try:
            with safetensors.safe_open(folder / (REST if is_divided(folder) else STATE), "pt") as file:
                facts = file.metadata()
        except (OSError, safetensors.SafetensorError):
            continue  # `load_run` says more of it
        if facts is not None and facts.get("config", mine) != mine:
            raise other_config(out)
        break
    return config


def other_config(out: Path) -> FileFormatError:
    return FileFormatError(
        f"{out / 'config.json'} is of another model than the run's checkpoints. Restore it, or begin anew."
    )


def way_on(out: Path) -> str:
    """What to do about a run that cannot go on as it is."""
    if checkpoints(out):
        return "Go on with --resume from the save before it."
    return "Nothing was saved before it: begin anew with a lower --lr."


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """In the order in which its state counts them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def names_of(model: GPT2, optimizer: Optimizer) -> list[str]:
    """Of the parameters it moves, in the same order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters_of(optimizer)]


def random_states(model: GPT2) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if model.wte.weight.is_cuda:
        states["cuda"] = torch.cuda.get_rng_state(model.wte.weight.device)
    return states


def rng_name(kind: str, rank: int) -> str:
    return f"rng.{kind}" if rank == 0 else f"rng.{kind}.{rank}"


def read_newest(
    found: Sequence[Path], held: Held, group: ProcessGroup
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The newest checkpoint that is whole; damaged ones are named in a warning."""
    for folder in reversed(found):
        try:
            if is_divided(folder):
                return read_shares(folder, held, group)
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
            facts = file.metadata()
            check_facts(facts)
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
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


def check_facts(facts: Mapping[str, str]) -> None:
    """Whatever is amiss with them raises one of the errors of reading."""
    int(facts["step"])
    best, scaler, data = (json.loads(facts.get(name, "null")) for name in ("best", "scaler", "data"))
    if best is not None:
        float(best[0]), int(best[1])
    if not isinstance(scaler, dict) or not isinstance(data, dict | None):
        raise ValueError("what it tells of the run is no object")


def checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    found = (folder for folder in (out / "checkpoints").glob("step-*") if CHECKPOINT.fullmatch(folder.name))
    return sorted((folder for folder in found if (folder / "DONE").exists()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def checkpoint_folder(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of one of a run's .jsonl files; none if there is no file.

    A last line that a kill cut in two is left out. Of others that are no record somebody should hear.
    """
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}. Restore or remove it.") from None
    read = [read_record(line) for line in lines]
    wrong = [number for number, record in enumerate(read, start=1) if record is None]
    if wrong and wrong != [len(lines)]:
        more = "" if len(wrong) == 1 else f" (nor are {len(wrong) - 1} others)"
        warnings.warn(f"{file}, line {wrong[0]} is no record of a step{more}: left out.", stacklevel=2)
    return [record for record in read if record is not None]


def read_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line, parse_constant=lambda word: None)  # NaN, which is no JSON
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53 else None


@contextlib.contextmanager
def staying(out: Path) -> Iterator[Callable[[], None]]:
    """Yields a check that `out` is still the folder it was. One that was removed would be made anew by the
    next save, without its tokenizer and its settings."""
    try:
        held = os.open(out, os.O_RDONLY)  # so that no other folder gets its number
    except OSError:  # Windows opens no folders, and removes none in use
        yield lambda: None
        return

    def check() -> None:
        try:
            same = os.path.samestat(os.stat(out), os.fstat(held))
        except OSError:
            same = False
        if not same:
            raise UserError(
                f"{out} was removed or replaced while the run was at work in it. Begin a new run."
            )

    try:
        yield check
    finally:
        os.close(held)
