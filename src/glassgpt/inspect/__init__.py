"""Model -> insight.

Read taps.py (the steps by name) and forward.py (the pass that shows them), then traces/ (what one text
computes), edits/ (ablation, patching, steering), attribution/ (what a logit comes from), parameters/ (weights
and their tally) and figures/ (how results render themselves).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.attribution.attribute import DirectLogitAttribution, TokenAttribution
    from glassgpt.inspect.edits.edit_data import edit_from_dict
    from glassgpt.inspect.edits.edits import (
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
    from glassgpt.inspect.edits.intervene import Intervention
    from glassgpt.inspect.parameters.tally import Tally
    from glassgpt.inspect.traces.lens import Lens, TokenLoss
    from glassgpt.inspect.traces.trace import Trace

_MODULE_OF = {
    "AblateAttention": "edits.edits",
    "AblateBlock": "edits.edits",
    "AblateHead": "edits.edits",
    "AblateMLP": "edits.edits",
    "AblateNeuron": "edits.edits",
    "DirectLogitAttribution": "attribution.attribute",
    "Edit": "edits.edits",
    "Intervention": "edits.intervene",
    "Lens": "traces.lens",
    "Patch": "edits.edits",
    "Steer": "edits.edits",
    "SteerToken": "edits.edits",
    "Tally": "parameters.tally",
    "TokenAttribution": "attribution.attribute",
    "TokenLoss": "traces.lens",
    "Trace": "traces.trace",
    "edit_from_dict": "edits.edit_data",
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
