"""Model -> insight. Read taps.py (the steps by name), activations.py and trace.py, then edits.py and
intervene.py, attribute.py, and plots.py for the figures; tally.py and verify.py stand on their own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.attribute import DirectLogitAttribution, TokenAttribution
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
    from glassgpt.inspect.lens import Lens, TokenLoss
    from glassgpt.inspect.tally import Tally
    from glassgpt.inspect.trace import Trace

_MODULE_OF = {
    "AblateAttention": "edits",
    "AblateBlock": "edits",
    "AblateHead": "edits",
    "AblateMLP": "edits",
    "AblateNeuron": "edits",
    "DirectLogitAttribution": "attribute",
    "Edit": "edits",
    "Intervention": "intervene",
    "Lens": "lens",
    "Patch": "edits",
    "Steer": "edits",
    "SteerToken": "edits",
    "Tally": "tally",
    "TokenAttribution": "attribute",
    "TokenLoss": "lens",
    "Trace": "trace",
    "edit_from_dict": "edit_data",
}
__all__ = [
    "AblateAttention",
    "AblateBlock",
    "AblateHead",
    "AblateMLP",
    "AblateNeuron",
    "DirectLogitAttribution",
    "Edit",
    "Intervention",
    "Lens",
    "Patch",
    "Steer",
    "SteerToken",
    "Tally",
    "TokenAttribution",
    "TokenLoss",
    "Trace",
    "edit_from_dict",
]


def __getattr__(name: str) -> Any:
    # Lazy: the tally needs no torch, and `glassgpt info` should not wait for it.
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.inspect.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'glassgpt.inspect' has no attribute {name!r}")
