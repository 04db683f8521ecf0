"""The modes that look into the torch model, and name the block where a fault begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from glassgpt.backends.protocol import Backend
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.inspect.arrays import to_float64
from glassgpt.model import GPT2, Cache
from glassgpt.verify.modes import STEPS
from glassgpt.verify.reference import Texts, Values, next_logprobs


def torch_model(backend: Backend) -> GPT2:
    assert isinstance(backend, TorchBackend)
    return backend.model


@torch.inference_mode()
def plain_pass(model: GPT2, texts: Texts) -> list[Values]:
    """Each text by itself, without a cache, by the fused attention kernel."""
    seen: list[Values] = []
    for text in texts:
        values = dict(unpadded(watched(model, ids_of(model, [text])), [slice(None)])[0])
        if len(text) > 1:
            values["logprobs"] = next_logprobs(values["logits"], text)
        seen.append(values)
    return seen


def alone(backend: Backend, texts: Texts) -> list[Values]:
    """The plain pass, block by block."""
    return plain_pass(torch_model(backend), texts)


@torch.inference_mode()
def explicit(backend: Backend, texts: Texts) -> list[Values]:
    """The same with a tap: scores, mask, softmax and weighted sum one after another."""
    model, seen = torch_model(backend), []
    for text in texts:
        caught: dict[str, Tensor] = {}

        def catch(name: str, values: Tensor, caught: dict[str, Tensor] = caught) -> Tensor:
            if name.endswith("resid_post") or name == "logits":
                caught[name] = values
            return values

        model(ids_of(model, [text]), tap=catch)
        seen.append(unpadded(caught, [slice(None)])[0])
    return seen


@torch.inference_mode()
def cached(backend: Backend, texts: Texts) -> list[Values]:
    """Most of a text in one pass, then token by token, looking back through the cache."""
    model, seen = torch_model(backend), []
    for text in texts:
        cache = Cache.empty(model.config, 1, len(text), model.wte.weight.device, model.wte.weight.dtype)
        first = max(1, len(text) - STEPS)
        pieces = [watched(model, ids_of(model, [text[:first]]), cache=cache)]
        for position in range(first, len(text)):
            where = torch.tensor([[position]], device=model.wte.weight.device)
            pieces.append(watched(model, ids_of(model, [text[position : position + 1]]), where, cache))
        joined = {place: torch.cat([piece[place] for piece in pieces], dim=1) for place in pieces[0]}
        seen.append(unpadded(joined, [slice(None)])[0])
    return seen


@torch.inference_mode()
def batched(backend: Backend, texts: Texts) -> list[Values]:
    """The longest text four times over in one batch; all rows must come out the same."""
    model = torch_model(backend)
    longest = max(texts, key=len)
    rows = unpadded(watched(model, ids_of(model, [longest] * len(texts))), [slice(None)] * len(texts))
    by_itself = plain_pass(model, [text for text in texts if text is not longest])
    together = {place: np.stack([row[place] for row in rows]) for place in rows[0]}  # (rows, T, C)
    return [together if text is longest else by_itself.pop(0) for text in texts]


def left_padded(backend: Backend, texts: Texts) -> list[Values]:
    """Texts of unequal lengths in one batch, all ending together."""
    return padded(torch_model(backend), texts, left=True)


def right_padded(backend: Backend, texts: Texts) -> list[Values]:
    """Texts of unequal lengths in one batch, all beginning together."""
    return padded(torch_model(backend), texts, left=False)


@torch.inference_mode()
def padded(model: GPT2, texts: Texts, left: bool) -> list[Values]:
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), np.int64)
    positions = np.full((len(texts), longest), -1, np.int64)
    parts = []
    for row, text in enumerate(texts):
        part = slice(longest - len(text), longest) if left else slice(0, len(text))
        ids[row, part], positions[row, part] = text, np.arange(len(text))
        parts.append(part)
    device = model.wte.weight.device
    caught = watched(model, torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device))
    return unpadded(caught, parts)


# Watching.


def watched(
    model: GPT2, ids: Tensor, positions: Tensor | None = None, cache: Cache | None = None
) -> dict[str, Tensor]:
    """Run the model and catch the output of each block. Hooks, not taps: a tap would switch the kernel."""
    caught: dict[str, Tensor] = {}

    def keep(place: str) -> Callable[[object, object, Tensor], None]:
        return lambda module, args, output: caught.__setitem__(place, output)

    hooks = [block.register_forward_hook(keep(f"h.{i}.resid_post")) for i, block in enumerate(model.h)]
    try:
        caught["logits"] = model(ids, positions, cache)
    finally:
        for hook in hooks:
            hook.remove()
    return caught


def ids_of(model: GPT2, rows: Texts) -> Tensor:
    return torch.tensor([list(row) for row in rows], device=model.wte.weight.device)


def unpadded(caught: Mapping[str, Tensor], parts: Sequence[slice]) -> list[Values]:
    """Take each row's own tokens out of a batch: one dict of (T, C) for each row."""
    host = {place: to_float64(values) for place, values in caught.items()}
    return [{place: values[row, part] for place, values in host.items()} for row, part in enumerate(parts)]
