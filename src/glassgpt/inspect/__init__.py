"""Model -> insight. Read taps.py (the steps by name), activations.py and trace.py, then edits.py and
intervene.py, attribute.py, and plots.py for how it all looks; tally.py and verify.py stand by themselves."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.attribute import DirectLogit, TokenScores
    from glassgpt.inspect.edit_data import edit_from_dict
    from glassgpt.inspect.edits import (
        AblateAttention,
        AblateBlock,
        AblateHead,
        AblateMLP,
        AblateNeuron,
        Edit,
        Patch,
        Steer,
        SteerToken,
    )
    from glassgpt.inspect.intervene import Intervention
    from glassgpt.inspect.lens import Lens, Surprise
    from glassgpt.inspect.tally import Tally
    from glassgpt.inspect.trace import Trace

_HOME = {
    "AblateAttention": "edits",
    "AblateBlock": "edits",
    "AblateHead": "edits",
    "AblateMLP": "edits",
    "AblateNeuron": "edits",
    "DirectLogit": "attribute",
    "Edit": "edits",
    "Intervention": "intervene",
    "Lens": "lens",
    "Patch": "edits",
    "Steer": "edits",
    "SteerToken": "edits",
    "Surprise": "lens",
    "Tally": "tally",
    "TokenScores": "attribute",
    "Trace": "trace",
    "edit_from_dict": "edit_data",
}
__all__ = [
    "AblateAttention",
    "AblateBlock",
    "AblateHead",
    "AblateMLP",
    "AblateNeuron",
    "DirectLogit",
    "Edit",
    "Intervention",
    "Lens",
    "Patch",
    "Steer",
    "SteerToken",
    "Surprise",
    "Tally",
    "TokenScores",
    "Trace",
    "edit_from_dict",
]


def __getattr__(name: str) -> Any:
    # Late: the tally needs no torch, and `glassgpt info` must not wait for it.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.inspect.{_HOME[name]}"), name)
    raise AttributeError(f"module 'glassgpt.inspect' has no attribute {name!r}")
