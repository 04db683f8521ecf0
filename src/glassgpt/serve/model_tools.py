"""A model as tools for an assistant (`glassgpt mcp`): functions with bounded inputs and plain results.

The docstrings and the fields' descriptions are what the assistant reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.inspect.edits.edits import (
    AblateAttention,
    AblateBlock,
    AblateHead,
    AblateMLP,
    AblateNeuron,
    Edit,
)

MAX_CHARACTERS = 20_000
MAX_NEW_TOKENS = 1000
MAX_TRACED = 256  # tokens: the attention of one layer is a table of their squares
MAX_K = 50

Text = Annotated[str, Field(max_length=MAX_CHARACTERS, description="the text so far")]
Count = Annotated[int, Field(ge=1, le=MAX_K, description="how many of the most likely tokens to list")]
Position = Annotated[int, Field(description="which token of the text predicts, from 0; -1 is the last")]


class ModelTools:
    """The tools of one model."""

    def __init__(self, gpt: GPT) -> None:
        self.gpt = gpt

    @property
    def all(self) -> list[Callable[..., dict[str, Any]]]:
        return [self.generate, self.next, self.score, self.trace, self.ablate, self.tokens]

    def generate(
        self,
        prompt: Text,
        max_new_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] = 100,
        temperature: Annotated[float, Field(ge=0, le=100, description="0 is greedy")] = 0.8,
        top_k: Annotated[int | None, Field(ge=0)] = 40,
        top_p: Annotated[float | None, Field(gt=0, le=1)] = None,
        stop: Annotated[list[str] | None, Field(max_length=16)] = None,
        seed: Annotated[int | None, Field(ge=0, description="makes the text repeatable")] = None,
    ) -> dict[str, Any]:
        """Continue a text with a GPT-2. It is a base model: it continues, and does not answer."""
        text = self.gpt.generate(
            prompt if prompt else None, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k,
            top_p=top_p, stop=stop or (), seed=seed,
        )  # fmt: skip
        return {
            "text": text.text, "tokens": len(text.tokens), "finish_reason": text.finish_reason,
            "seed": text.seed, "notes": text.notes,
        }  # fmt: skip

    def next(self, text: Text, k: Count = 10) -> dict[str, Any]:
        """The most likely next tokens after a text, with their probabilities."""
        found = self.gpt.next_ids(text if text else None, k)
        return {"next": [{**self._token(token), "probability": math.exp(logp)} for token, logp in found]}

    def score(self, text: Text) -> dict[str, Any]:
        """How surprising each token of a text is, given those before it: in bits, and the perplexity."""
        ids = self._ids(text, self.gpt.backend.context, 2)
        logits = self.gpt.logits([ids])[0, :-1].astype(np.float64)
        logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        bits = -logprobs[np.arange(len(ids) - 1), ids[1:]] / math.log(2)
        listed = [
            {**self._token(token), "bits": round(float(b), 4)} for token, b in zip(ids[1:], bits, strict=True)
        ]
        mean = float(bits.mean())
        return {"tokens": listed, "bits": float(bits.sum()), "perplexity": 2**mean}

    def trace(self, text: Text, position: Position = -1, k: Count = 5) -> dict[str, Any]:
        """Look inside the model: what each layer would predict at a position (logit lens), and the token that
        each attention head looks at most there."""
        ids = self._ids(text, MAX_TRACED)
        trace = self.gpt.trace(ids)
        at = self._position(position, len(ids))
        top, p = trace.lens_top_k(k, at, at)
        weights = trace.attention[:, :, at, : at + 1]  # (layers, heads, tokens)
        return {
            "token": self._token(ids[at]),
            "lens": [
                {
                    "after_layer": layer,
                    "predictions": [
                        {**self._token(int(token)), "probability": float(one)}
                        for token, one in zip(top[layer, 0], p[layer, 0], strict=True)
                    ],
                }
                for layer in range(len(top))
            ],
            "attention": [
                {
                    "layer": layer, "head": head, "position": int(row.argmax()), "weight": float(row.max()),
                    "token": self._text(ids[int(row.argmax())]),
                }
                for layer, heads in enumerate(weights) for head, row in enumerate(heads)
            ],
        }  # fmt: skip

    def ablate(
        self,
        text: Text,
        layer: Annotated[int, Field(ge=0, description="from 0")],
        part: Literal["head", "neuron", "attention", "mlp", "block"] = "head",
        number: Annotated[int | None, Field(ge=0, description="of the head or the neuron")] = None,
        how: Literal["zero", "mean"] = "zero",
        position: Position = -1,
        k: Count = 10,
    ) -> dict[str, Any]:
        """Switch a part of the model off, and see how its prediction changes: which tokens gain and lose, and
        the divergence (KL, nats)."""
        ids = self._ids(text, MAX_TRACED)
        self._position(position, len(ids))
        needs_number = part in ("head", "neuron")
        if needs_number != (number is not None):
            raise SettingError(f"number is that of a head or a neuron; for part {part!r} give "
                               + ("one." if needs_number else "none."))  # fmt: skip
        edit: Edit
        if part == "head":
            edit = AblateHead(layer, number, how)  # type: ignore[arg-type]
        elif part == "neuron":
            edit = AblateNeuron(layer, number, how)  # type: ignore[arg-type]
        else:
            edit = {"attention": AblateAttention, "mlp": AblateMLP, "block": AblateBlock}[part](layer, how)
        effect = self.gpt.intervene(ids, edit, position)
        return {
            "kl": effect.kl,
            "changes": [
                {"id": change.id, "text": change.text, "before": change.before, "after": change.after}
                for change in effect.top_changes(k)
            ],
        }

    def tokens(self, text: Text) -> dict[str, Any]:
        """How the model's tokenizer cuts a text into tokens."""
        ids = self.gpt.encode(text)
        return {"count": len(ids), "tokens": [self._token(token) for token in ids]}

    def _ids(self, text: str, most: int, least: int = 1) -> list[int]:
        ids = self.gpt.encode(text)
        most = min(most, self.gpt.backend.context)
        if not least <= len(ids) <= most:
            raise SettingError(f"the text has {len(ids)} tokens; give {least} to {most}.")
        return ids

    def _position(self, position: int, length: int) -> int:
        if not -length <= position < length:
            raise SettingError(f"position {position} is outside the text of {length} tokens.")
        return position % length

    def _text(self, token: int) -> str:
        return self.gpt.decode([token])

    def _token(self, token: int) -> dict[str, Any]:
        return {"id": int(token), "text": self._text(int(token))}
