"""The request bodies. A field that is unknown, of the wrong type or out of range is rejected by name."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from glassgpt.inspect.attribution.attribute import METHODS
from glassgpt.inspect.edits.edit_data import EDIT_KINDS, MAX_VECTOR, Positions, edit_fields
from glassgpt.inspect.edits.edits import Vector

# Checked before a text is tokenized; no language needs forty characters per token.
MAX_CHARACTERS = 20_000
MAX_IDS = 4_096  # the exact limit depends on the model; its error names it

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Ids = Annotated[list[TokenId], Field(max_length=MAX_IDS)]
TraceId = Annotated[str, Field(max_length=40)]


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelChoice(Schema):
    """A model, and perhaps a checkpoint of its training run."""

    model: Annotated[int, Field(ge=0, lt=1000)] = 0
    checkpoint: Index | None = None


class TraceRequest(ModelChoice):
    text: Text | None = None
    ids: Ids | None = None


class TokenizePartsRequest(ModelChoice):
    """A text in parts: typed text, and the ids of tokens that were picked."""

    parts: Annotated[list[Text | Ids], Field(max_length=1_000)]


class AppendRequest(Schema):
    token: TokenId


class CompareRequest(Schema):
    text: Text | None = None
    ids: Ids | None = None
    a: ModelChoice = ModelChoice(model=0)
    b: ModelChoice = ModelChoice(model=1)


# The types of an edit's fields (inspect/edits/edits.py), with the limits of a request.
EDIT_TYPES: dict[Any, Any] = {
    int: Index,
    float: Annotated[float, Field(ge=-1e6, le=1e6)],
    str: Annotated[str, Field(max_length=60)],
    Positions: Annotated[list[Index], Field(max_length=MAX_IDS)],
    Vector: Annotated[list[float], Field(max_length=MAX_VECTOR)],
    Any: TraceId,  # the source of a patch
}


def _edit_schema(kind: str) -> type[Schema]:
    edit = EDIT_KINDS[kind]
    fields: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, each in edit_fields(edit).items():
        bounded = EDIT_TYPES.get(each.type, each.type)
        fields[name] = (bounded | None if each.optional else bounded, ... if each.required else each.default)
    schema: type[Schema] = create_model(edit.__name__, __base__=Schema, __doc__=edit.__doc__, **fields)
    return schema


if TYPE_CHECKING:
    EditSchema = Schema
else:
    EditSchema = Annotated[reduce(or_, map(_edit_schema, EDIT_KINDS)), Field(discriminator="kind")]


class EditedRequest(Schema):
    edits: Annotated[list[EditSchema], Field(max_length=256)] = []

    def edits_as_dicts(self) -> list[dict[str, Any]]:
        return [edit.model_dump(exclude_none=True) for edit in self.edits]


class InterveneRequest(EditedRequest):
    id: TraceId
    position: Index | None = None
    only: Literal["next", "lens"] | None = (
        None  # a part of the response: the page asks for the quick one first
    )
    first: Index | None = None  # the columns of the lens; by default, all
    last: Index | None = None


class AttributeRequest(Schema):
    id: TraceId
    position: Index
    target: TokenId
    method: Literal[tuple(METHODS)] = "direct_logit_attribution"  # type: ignore[valid-type]


class GenerateRequest(ModelChoice, EditedRequest):
    ids: Ids
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.8
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=1024)] = 40


RequestKey = Annotated[str, Field(max_length=MAX_CHARACTERS)]  # "/path?query", or "/path {body}"


class BatchRequest(Schema):
    requests: Annotated[list[RequestKey], Field(min_length=1, max_length=100)]


class ExportRequest(ModelChoice):
    """What the exported page opens with (the URL's fragment), and the requests it can answer offline."""

    text: Text | None = None
    ids: Ids | None = None
    hash: Annotated[str, Field(max_length=MAX_CHARACTERS)] = ""
    requests: Annotated[list[RequestKey], Field(max_length=400)] = []
