"""What a request may say. A field that is unknown, of the wrong kind or out of range is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# Checked before a text is cut into tokens; forty characters a token are more than any language has.
MOST_CHARACTERS = 20_000
MOST_IDS = 4_096  # the exact limit depends on the model, and is told by name

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Place = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Ids = Annotated[list[TokenId], Field(max_length=MOST_IDS)]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Which(Shape):
    """A model, and perhaps a moment of its training."""

    model: Annotated[int, Field(ge=0, le=1)] = 0
    checkpoint: Place | None = None


class TraceWanted(Which):
    text: Text | None = None
    ids: Ids | None = None


class AppendWanted(Shape):
    token: TokenId


class CompareWanted(Shape):
    text: Text | None = None
    ids: Ids | None = None
    a: Which = Which(model=0)
    b: Which = Which(model=1)


How = Literal["zero", "mean"]
Places = Annotated[list[Place], Field(max_length=MOST_IDS)]


class EditShape(Shape):
    positions: Places | None = None  # where in the text; everywhere if left out


class HeadEdit(EditShape):
    kind: Literal["head"]
    layer: Place
    head: Place
    how: How = "zero"


class NeuronEdit(EditShape):
    kind: Literal["neuron"]
    layer: Place
    neuron: Place
    how: How = "zero"


class PartEdit(EditShape):
    kind: Literal["attn", "mlp", "block"]
    layer: Place
    how: How = "zero"


class PatchEdit(EditShape):
    kind: Literal["patch"]
    tap: Annotated[str, Field(max_length=60)]
    source: Annotated[str, Field(max_length=40)]
    head: Place | None = None
    source_positions: Places | None = None


class SteerEdit(EditShape):
    kind: Literal["steer"]
    layer: Place
    token: TokenId
    strength: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0


Edit = Annotated[HeadEdit | NeuronEdit | PartEdit | PatchEdit | SteerEdit, Field(discriminator="kind")]


class InterveneWanted(Shape):
    id: Annotated[str, Field(max_length=40)]
    edits: Annotated[list[Edit], Field(max_length=256)] = []
    token: Place | None = None


class AttributeWanted(Shape):
    id: Annotated[str, Field(max_length=40)]
    token: Place
    target: TokenId
    method: Literal["gradient", "integrated", "rollout", "direct"] = "direct"


class GenerateWanted(Which):
    ids: Ids
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.8
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=1024)] = 40


class ExportWanted(Which):
    """What the exported page shows first (the address's part after #), and the questions it can answer."""

    text: Text | None = None
    ids: Ids | None = None
    hash: Annotated[str, Field(max_length=MOST_CHARACTERS)] = ""
    questions: Annotated[list[Annotated[str, Field(max_length=MOST_CHARACTERS)]], Field(max_length=400)] = []
