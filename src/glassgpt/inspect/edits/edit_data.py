"""Edits as JSON, {"kind": "ablate_head", "layer": 2, "head": 5}, with the fields of the dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from glassgpt.errors import SettingError, short_repr
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
    Vector,
    check_finite,
)
from glassgpt.inspect.traces.trace import Trace

EDIT_KINDS: dict[str, type[Edit]] = {
    edit.kind: edit
    for edit in (AblateHead, AblateNeuron, AblateAttention, AblateMLP, AblateBlock, Patch, Steer, SteerToken)
}
Positions = tuple[int, ...]
MAX_VECTOR = 65_536  # numbers in a steering vector's JSON; the largest model's MLP has 6,400


@dataclasses.dataclass(frozen=True)
class EditField:
    """A field of an edit that has a JSON form."""

    type: Any  # int, float, str, Positions, Vector, a Literal, or Any for the source of a patch
    optional: bool  # may be null
    required: bool
    default: Any


def edit_fields(edit: type[Edit]) -> dict[str, EditField]:
    """The fields of an edit's JSON, read from its dataclass."""
    hints = get_type_hints(edit)
    found = {}
    for each in dataclasses.fields(edit):  # type: ignore[arg-type]  # every concrete edit is a dataclass
        if each.metadata.get("python_only"):
            continue
        if "json_type" in each.metadata:
            hints[each.name] = each.metadata["json_type"]
        types = [kind for kind in get_args(hints[each.name]) if kind is not type(None)]
        optional = type(None) in get_args(hints[each.name])
        required = each.default is dataclasses.MISSING
        found[each.name] = EditField(
            types[0] if optional else hints[each.name], optional, required, None if required else each.default
        )
    return found


def edit_from_dict(values: Mapping[str, Any], sources: Mapping[str, Trace] | None = None) -> Edit:
    """An edit from JSON data: {"kind": "ablate_head", "layer": 2, "head": 5, "how": "mean"}.

    The kinds are those of EDIT_KINDS. A patch names its source by a key of `sources`, or gives it as a text
    or token ids.
    """
    kind = values.get("kind") if isinstance(values, Mapping) else values
    if not isinstance(kind, str) or kind not in EDIT_KINDS:
        raise SettingError(f"unknown kind of edit {short_repr(kind)}. Use one of {', '.join(EDIT_KINDS)}.")
    edit = EDIT_KINDS[kind]
    known = edit_fields(edit)
    unknown = sorted(set(values) - set(known) - {"kind"})
    if unknown:
        raise SettingError(
            f"an edit of kind {kind!r} has no {short_repr(unknown[0])}. Its fields are {', '.join(known)}."
        )
    missing = [name for name, each in known.items() if each.required and name not in values]
    if missing:
        raise SettingError(f"an edit of kind {kind!r} needs {missing[0]!r}.")
    fields = {name: _parse(name, known[name], value) for name, value in values.items() if name != "kind"}
    if edit is Patch and isinstance(fields["source"], str) and sources is not None:
        if fields["source"] not in sources:
            raise SettingError(f"source {short_repr(fields['source'])} of the patch does not exist.")
        fields["source"] = sources[fields["source"]]
    return edit(**fields)


def _parse(name: str, field: EditField, value: Any) -> Any:
    if value is None and field.optional:
        return None
    if field.type is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise SettingError(f"{name} is {short_repr(value)}; use an integer.")
    if field.type == Positions:
        if not isinstance(value, list | tuple) or any(
            isinstance(i, bool) or not isinstance(i, int) for i in value
        ):
            raise SettingError(f"{name} is {short_repr(value)}; use a list of integers.")
        return tuple(value)
    if field.type == Vector:
        if not isinstance(value, list | tuple | np.ndarray) or len(value) > MAX_VECTOR:
            raise SettingError(f"{name} is {short_repr(value)}; use a list of numbers, one for each column.")
        return tuple(check_finite(f"a number of {name}", number) for number in value)
    if field.type is str and not isinstance(value, str):
        raise SettingError(f"{name} is {short_repr(value)}; use a string, such as 'h.0.attn.z'.")
    if get_origin(field.type) is Literal and value not in get_args(field.type):
        raise SettingError(
            f"{name} is {short_repr(value)}; use {' or '.join(map(repr, get_args(field.type)))}."
        )
    return check_finite(name, value) if field.type is float else value
