"""GPT-2 made of glass: run it, see inside it, train and tune it, serve it, check it."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's, for type checkers: its import takes 10 ms, before Ctrl-C has a handler
if TYPE_CHECKING:
    from typing import Any

    from glassgpt.evaluate.evaluate import evaluate
    from glassgpt.gpt import GPT, load
    from glassgpt.inspect.components.build_atlas import atlas
    from glassgpt.inspect.parameters.tally import tally
    from glassgpt.train.finetune.tune import tune
    from glassgpt.train.trainer import train

__version__ = "0.2.0"  # the one place: pyproject.toml and the docs read it here
__all__ = ["GPT", "__version__", "atlas", "evaluate", "load", "tally", "train", "tune"]

# Imported when first used, so that `import glassgpt` and `glassgpt --help` cost nothing.
_LAZY = {
    "GPT": "glassgpt.gpt",
    "atlas": "glassgpt.inspect.components.build_atlas",
    "load": "glassgpt.gpt",
    "tally": "glassgpt.inspect.parameters.tally",
    "tune": "glassgpt.train.finetune.tune",
}


def __getattr__(name: str) -> Any:
    if name in ("evaluate", "train"):  # packages that can be called
        return import_module(f"glassgpt.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")
