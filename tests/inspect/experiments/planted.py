"""A model with an induction circuit whose weights are set by hand (Olsson et al. 2022): head 0.1 writes each
token's predecessor into the stream; head 1.2 looks for the token whose predecessor is the current one, and
writes it to the output. All other heads and both MLPs only make noise."""

from __future__ import annotations

import numpy as np
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.gpt import GPT
from glassgpt.model import GPT2

V, P, D = 20, 24, 24
CONFIG = Config(vocab_size=V, n_positions=P, n_embd=96, n_layer=2, n_head=4, tie_word_embeddings=False)
TOKEN, POSITION, PREDECESSOR, OUTPUT = (
    slice(s, s + n) for s, n in ((0, V), (V, P), (V + P, V), (2 * V + P, V))
)
PREVIOUS_TOKEN_HEAD, INDUCTION_HEAD = (0, 1), (1, 2)


def make() -> GPT:
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    with torch.no_grad():
        for parameter in model.h.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.01)
        model.wte.weight.zero_()[:, TOKEN] = torch.eye(V)
        model.wpe.weight.zero_()[:, POSITION] = torch.eye(P)
        model.lm_head.weight.zero_()[:, OUTPUT] = torch.eye(V)
        before = torch.eye(P, D).roll(1, dims=0)  # row p is key p - 1
        before[0] = 0
        set_head(model, PREVIOUS_TOKEN_HEAD, (POSITION, before), (POSITION, torch.eye(P, D)), PREDECESSOR)
        same = torch.eye(V, D)
        set_head(model, INDUCTION_HEAD, (TOKEN, same), (PREDECESSOR, same), OUTPUT)
    return GPT(TorchBackend(model.eval().requires_grad_(False)), name="planted")


def set_head(
    model: GPT2,
    which: tuple[int, int],
    q: tuple[slice, torch.Tensor],
    k: tuple[slice, torch.Tensor],
    out: slice,
) -> None:
    layer, head = which
    attention = model.h[layer].attn
    columns = [slice(part * 96 + head * D, part * 96 + (head + 1) * D) for part in range(3)]
    for (reads, matrix), where in zip((q, k, (TOKEN, torch.eye(V, D))), columns, strict=True):
        attention.c_attn.weight[:, where] = 0
        attention.c_attn.weight[reads, where] = 2 * matrix
    attention.c_proj.weight[head * D : (head + 1) * D] = 0
    attention.c_proj.weight[head * D : head * D + V, out] = torch.eye(V) / 4


def pairs(
    count: int = 6, length: int = 12, seed: int = 0
) -> tuple[list[list[int]], list[list[int]], list[int], list[int]]:
    """Texts "... A B ... A", the same without the first A, the answers B, and others."""
    rng = np.random.default_rng(seed)
    clean, corrupted, answers, others = [], [], [], []
    for _ in range(count):
        ids = [int(i) for i in rng.permutation(V)[: length + 1]]
        at = int(rng.integers(1, length - 3))
        text = [*ids[: length - 1], ids[at]]
        clean.append(text)
        corrupted.append([*text[:at], ids[length], *text[at + 1 :]])
        answers.append(text[at + 1])
        others.append(text[at - 1])
    return clean, corrupted, answers, others
