"""Edits as plain data, for the server and for files: {"kind": "head", "layer": 2, "head": 5, ...}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgpt.errors import SettingError
from glassgpt.inspect.edits import (
    AblateAttention,
    AblateBlock,
    AblateHead,
    AblateMLP,
    AblateNeuron,
    Edit,
    Patch,
    SteerToken,
    finite,
)
from glassgpt.inspect.trace import Trace

_KINDS: dict[str, tuple[type[Edit], dict[str, str]]] = {  # kind -> class, key in the data -> field
    "head": (AblateHead, {"layer": "layer", "head": "head", "how": "how"}),
    "neuron": (AblateNeuron, {"layer": "layer", "neuron": "neuron", "how": "how"}),
    "attn": (AblateAttention, {"layer": "layer", "how": "how"}),
    "mlp": (AblateMLP, {"layer": "layer", "how": "how"}),
    "block": (AblateBlock, {"layer": "layer", "how": "how"}),
    "patch": (
        Patch,
        {"tap": "step", "source": "source", "head": "head", "source_positions": "source_positions"},
    ),
    "steer": (SteerToken, {"layer": "layer", "token": "token", "strength": "strength"}),
}
_NEEDED = {"layer", "head", "neuron", "tap", "source", "token"}
_WHOLE = {"layer", "head", "neuron", "token"}


def edit_from_dict(values: Mapping[str, Any], sources: Mapping[str, Trace] | None = None) -> Edit:
    """An edit from plain data: {"kind": "head", "layer": 2, "head": 5, "how": "mean"}.

    Kinds are head, neuron, attn, mlp, block, patch and steer; all may have "positions". A patch names its
    source by a key of `sources`, or gives it as a text or token ids.
    """
    if not isinstance(values, Mapping) or values.get("kind") not in _KINDS:
        kind = values.get("kind") if isinstance(values, Mapping) else values
        raise SettingError(f"an edit of kind {kind!r} is not known. Kinds are {', '.join(_KINDS)}.")
    made, keys = _KINDS[values["kind"]]
    keys = {**keys, "positions": "positions"}
    unknown = sorted(set(values) - set(keys) - {"kind"})
    if unknown:
        raise SettingError(
            f"an edit of kind {values['kind']!r} has no {unknown[0]!r}. It may have {', '.join(keys)}."
        )
    optional = {"head"} if made is Patch else set()
    missing = [key for key in keys if key in _NEEDED - optional and key not in values]
    if missing:
        raise SettingError(f"an edit of kind {values['kind']!r} needs {missing[0]!r}.")
    fields = {keys[key]: _value(key, value) for key, value in values.items() if key != "kind"}
    if made is Patch and isinstance(fields["source"], str) and sources is not None:
        if fields["source"] not in sources:
            raise SettingError(f"the source {fields['source']!r:.80} of a patch is not known.")
        fields["source"] = sources[fields["source"]]
    return made(**fields)


def _value(key: str, value: Any) -> Any:
    if key in _WHOLE and (isinstance(value, bool) or not isinstance(value, int)):
        if key == "head" and value is None:
            return None
        raise SettingError(f"{key} is {value!r:.80}; write a whole number.")
    if key.endswith("positions") and value is not None:
        if not isinstance(value, list | tuple) or any(
            isinstance(i, bool) or not isinstance(i, int) for i in value
        ):
            raise SettingError(f"{key} is {value!r:.80}; write a list of whole numbers.")
        return tuple(value)
    if key == "tap" and not isinstance(value, str):
        raise SettingError(f"tap is {value!r:.80}; name a step, such as h.0.attn.z.")
    if key == "how" and value not in ("zero", "mean"):
        raise SettingError(f"how is {value!r:.80}; use 'zero' or 'mean'.")
    return finite(key, value) if key == "strength" else value
