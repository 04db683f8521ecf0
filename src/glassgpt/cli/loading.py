"""Loading a model for a command, with a spinner meanwhile, and the options that such commands share."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import glassgpt
from glassgpt.cli import progress_bar
from glassgpt.cli.parser.options import Flag
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.gpt import GPT

# The options of every command that runs a model.
Model = Annotated[str, Flag("a name (default, tiny, gpt2, owner/name), a folder or a file", "MODEL")]
Device = Annotated[str | None, Flag("cpu, cuda, cuda:1, mps", "NAME", default="the best available")]
Dtype = Annotated[
    str | None,
    Flag("float32, bfloat16, float16; on a CPU also int8, int4", "NAME", default="depends on the device"),
]

# Multiply-adds per step below which a second CPU thread costs more in synchronization than it saves, and
# ruins the speed when another program wants that core (measured on two busy cores: 337 tokens/s became 30).
SINGLE_THREAD_WORK = 30_000_000


def load(
    model: str, device: str | None, dtype: str | None, batch_size: int = 1, draft: str | None = None
) -> GPT:
    """Load the model for decoding steps of about `batch_size` sequences."""
    with waiting_for(model, f"loading {model}"):
        gpt = glassgpt.load(model, device=device, dtype=dtype, draft=draft, progress=progress_bar.progress)
    torch = sys.modules.get("torch")  # if it computes, it was imported
    small = batch_size * gpt.config.n_parameters < SINGLE_THREAD_WORK
    if torch is not None and small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return gpt


def waiting_for(model: str, what: str) -> AbstractContextManager[None]:
    """A spinner, except for a model that may have to be downloaded: the download has a progress bar."""
    from glassgpt.weights import shipped_names

    local = model in shipped_names() or Path(model).exists()
    return progress_bar.spinner(what) if local else nullcontext()


def default_model(name: str, recipe: str) -> str:
    """A shipped model, if this installation has it."""
    from glassgpt.weights import shipped_names

    if name not in shipped_names():
        raise UserError(
            f"the model {name} is not part of this installation. Type: pip install glassgpt-models, "
            f"or make it ({recipe}), or give --model."
        )
    return name
