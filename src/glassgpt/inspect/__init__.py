"""Model -> insight.

Read taps.py (the steps by name) and forward.py (the pass that shows them), then traces/ (what one text
computes), edits/ (ablation, patching, steering), attribution/ (what a logit comes from), batches/ (many
texts), experiments/ (sweeps, path patching), parameters/ (weights and their tally) and figures/ (how results
render themselves).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.inspect.attribution.attribute import DirectLogitAttribution, TokenAttribution
    from glassgpt.inspect.batches.decompose import Decomposition, LogitAttribution
    from glassgpt.inspect.batches.metrics import (
        ContinuationLoss,
        KLDivergence,
        Logit,
        LogitDifference,
        LogProbability,
        Metric,
        Probability,
    )
    from glassgpt.inspect.batches.named_array import NamedArray
    from glassgpt.inspect.batches.traces import Traces
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
    from glassgpt.inspect.experiments.contrast import SteeringVector
    from glassgpt.inspect.experiments.sites import Head
    from glassgpt.inspect.experiments.sweep_result import SweepResult
    from glassgpt.inspect.parameters.tally import Tally
    from glassgpt.inspect.traces.lens import Lens, TokenLoss
    from glassgpt.inspect.traces.trace import Trace

_MODULE_OF = {
    "AblateAttention": "edits.edits",
    "AblateBlock": "edits.edits",
    "AblateHead": "edits.edits",
    "AblateMLP": "edits.edits",
    "AblateNeuron": "edits.edits",
    "ContinuationLoss": "batches.metrics",
    "Decomposition": "batches.decompose",
    "DirectLogitAttribution": "attribution.attribute",
    "Edit": "edits.edits",
    "Head": "experiments.sites",
    "Intervention": "edits.intervene",
    "KLDivergence": "batches.metrics",
    "Lens": "traces.lens",
    "LogProbability": "batches.metrics",
    "Logit": "batches.metrics",
    "LogitAttribution": "batches.decompose",
    "LogitDifference": "batches.metrics",
    "Metric": "batches.metrics",
    "NamedArray": "batches.named_array",
    "Patch": "edits.edits",
    "Probability": "batches.metrics",
    "Steer": "edits.edits",
    "SteerToken": "edits.edits",
    "SteeringVector": "experiments.contrast",
    "SweepResult": "experiments.sweep_result",
    "Tally": "parameters.tally",
    "TokenAttribution": "attribution.attribute",
    "TokenLoss": "traces.lens",
    "Trace": "traces.trace",
    "Traces": "batches.traces",
    "edit_from_dict": "edits.edit_data",
}
__all__ = [
    "AblateAttention",
    "AblateBlock",
    "AblateHead",
    "AblateMLP",
    "AblateNeuron",
    "ContinuationLoss",
    "Decomposition",
    "DirectLogitAttribution",
    "Edit",
    "Head",
    "Intervention",
    "KLDivergence",
    "Lens",
    "LogProbability",
    "Logit",
    "LogitAttribution",
    "LogitDifference",
    "Metric",
    "NamedArray",
    "Patch",
    "Probability",
    "Steer",
    "SteerToken",
    "SteeringVector",
    "SweepResult",
    "Tally",
    "TokenAttribution",
    "TokenLoss",
    "Trace",
    "Traces",
    "edit_from_dict",
]


def __getattr__(name: str) -> Any:
    # Lazy: the tally needs no torch, and `glassgpt info` should not wait for it.
    if name in _MODULE_OF:
        from importlib import import_module

        return getattr(import_module(f"glassgpt.inspect.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'glassgpt.inspect' has no attribute {name!r}")
