"""A run's folder: `training.safetensors` holds all it takes to go on exactly; beside it the model to use.

Both are written under a temporary name and renamed, so a kill at any moment leaves the last complete save.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from glassgpt.errors import FileFormatError
from glassgpt.model import GPT2
from glassgpt.weights.safe import writing

STATE = "training.safetensors"


def save_run(out: Path, model: GPT2, optimizers: Sequence[Optimizer], step: int) -> None:
    """Everything after `step` steps: weights, the optimizers' memory, the state of the random numbers."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    state: dict[str, Tensor] = {f"model.{name}": value for name, value in weights.items()}
    for number, optimizer in enumerate(optimizers):
        for index, memory in optimizer.state_dict()["state"].items():
            state |= {
                f"optimizer.{number}.{index}.{key}": torch.as_tensor(value).cpu()
                for key, value in memory.items()
            }
    state["rng.cpu"] = torch.get_rng_state()
    if model.wte.weight.is_cuda:
        state["rng.cuda"] = torch.cuda.get_rng_state(model.wte.weight.device)
    with writing(out / STATE) as part:
        save_file(state, part, {"step": str(step)})
    with writing(out / "model.safetensors") as part:
        save_file(weights, part, {"format": "pt"})
    with writing(out / "config.json") as part:
        part.write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", "utf-8")


def load_run(out: Path, model: GPT2, optimizers: Sequence[Optimizer]) -> int:
    """Put everything back as it was at the last save and return its step; 0 if there is none."""
    if not (out / STATE).exists():
        return 0
    device = model.wte.weight.device
    try:
        with safetensors.safe_open(out / STATE, framework="pt") as file:
            step = int(file.metadata()["step"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{out / STATE} is damaged ({error}). Remove it to begin anew.") from None
    model.load_state_dict({name[6:]: value for name, value in state.items() if name.startswith("model.")})
    for number, optimizer in enumerate(optimizers):
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith(f"optimizer.{number}."):
                index, key = name.split(".")[2:]
                memory.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(state["rng.cpu"])
    if "rng.cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["rng.cuda"], device)
    return step
