"""LoRA (Hu et al., 2021): freeze a matrix and train a low-rank update next to it.

The change that a matrix W (in, out) needs for a new style is close to one of low rank, so it is written as A
(in, r) times B (r, out) with a small r. Of the whole model only these and its vectors (biases and gains) are
trained: two percent of the parameters, and optimizer state for only those. At the end W + A B is a matrix
like any other: the tuned model has the same shape as the one it came from, and loads the same way.

The token embedding has an update as well: authors differ first of all in the words they use. With it, and the
same number of trained parameters, the gain was a sixth larger (docs/tuning.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.model.gpt2 import Projection

BaseLayer = Projection | nn.Embedding | nn.Linear
MAX_FRACTION = 0.02  # of the model's parameters that may be trained


class LoRALayer(nn.Module):
    """A frozen matrix and its low-rank update, of which one factor starts at zero, so that nothing changes at
    first. The bias is trained as usual."""

    def __init__(self, base_layer: BaseLayer, A: Tensor, B: Tensor) -> None:
        super().__init__()
        self.base_layer = base_layer
        base_layer.weight.requires_grad_(False)
        self.lora_A, self.lora_B = (nn.Parameter(factor.to(base_layer.weight.device)) for factor in (A, B))

    @torch.no_grad()
    def merge(self) -> Tensor:
        """W + A B.

        Summed in float64 and rounded once, on the CPU: so the bits do not depend on the number of threads or
        on the device it was trained on.
        """
        factors = (self.base_layer.weight, self.lora_A, self.lora_B)
        weight, a, b = (tensor.detach().cpu().double() for tensor in factors)
        return (weight + a @ b).to(self.base_layer.weight.dtype)


class LoRAProjection(LoRALayer):
    """A matrix of a block. x @ A is about as large as x: so one learning rate suits matrices of every
    width."""

    def __init__(self, base_layer: Projection, rank: int, generator: torch.Generator) -> None:
        n_in, n_out = base_layer.weight.shape
        normal = torch.randn(n_in, rank, generator=generator) / n_in**0.5
        super().__init__(base_layer, A=normal, B=torch.zeros(rank, n_out))

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = x @ self.lora_A @ self.lora_B  # (B, T, out)
        return torch.add(self.base_layer(x), update)


class LoRAEmbedding(LoRALayer):
    """The token embedding, which is also the head; if the head is untied, the head alone."""

    def __init__(self, base_layer: BaseLayer, rank: int, generator: torch.Generator) -> None:
        vocab_size, n_embd = base_layer.weight.shape
        normal = torch.randn(rank, n_embd, generator=generator) / n_embd**0.5
        super().__init__(base_layer, A=torch.zeros(vocab_size, rank), B=normal)

    @property
    def weight(self) -> Tensor:
        """As the head reads it, (V, C)."""
        return torch.addmm(self.base_layer.weight, self.lora_A, self.lora_B)

    def forward(self, ids: Tensor) -> Tensor:
        update: Tensor = F.embedding(ids, self.lora_A) @ self.lora_B  # (B, T, C)
        return torch.add(self.base_layer(ids), update)


class Ranks(NamedTuple):
    blocks: int  # of the four matrices in each block
    embedding: int  # of the token embedding, or the untied head; 0: only the blocks' matrices are trained


def choose_ranks(config: Config, fraction: float = MAX_FRACTION, blocks_only: bool = False) -> Ranks:
    """The largest rank with which at most `fraction` of the parameters are trained; the embedding gets the
    rest. Vectors are trained in full and are counted first.

    With `blocks_only` neither the embedding nor a vector is trained: the usual LoRA, which PEFT's files hold.
    """
    shapes = config.shapes()
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    blocks = sum(sum(shape) for name, shape in shapes.items() if name.startswith("h.") and len(shape) == 2)
    embedding = config.vocab_size + config.n_embd
    if blocks_only:
        vectors = embedding = 0
    budget = int(fraction * config.n_parameters) - vectors
    rank = budget // (blocks + embedding)
    if rank < 1:
        least = (vectors + blocks + embedding) / config.n_parameters
        raise SettingError(
            f"rank 1 already trains {least:.1%} of this small model's parameters, more than {fraction:.0%}. "
            "Leave out --lora."
        )
    return Ranks(rank, 0 if blocks_only else (budget - rank * blocks) // embedding)


def add_lora(model: GPT2, ranks: Ranks, seed: int = 0) -> GPT2:
    """Freeze the model except its vectors, and add a low-rank update to each matrix of its blocks (c_attn,
    c_fc, both c_proj) and to its head. Without a rank for the head, the vectors are frozen as well."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1 and ranks.embedding > 0)
    generator = torch.Generator().manual_seed(seed)
    for part in list(model.h.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Projection):
                setattr(part, name, LoRAProjection(child, ranks.blocks, generator))
    if ranks.embedding == 0:
        return model
    head = "wte" if model.lm_head is None else "lm_head"
    setattr(model, head, LoRAEmbedding(getattr(model, head), ranks.embedding, generator))
    return model


def merged_state_dict(model: GPT2) -> dict[str, Tensor]:
    """The model's tensors under their published names, updates merged. The model is not changed."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, LoRALayer):
            del state[f"{name}.lora_A"], state[f"{name}.lora_B"]
            state[f"{name}.base_layer.weight"] = module.merge()
    return {name.replace(".base_layer.", "."): tensor for name, tensor in state.items()}


def adapter_tensors(
    model: GPT2, base_vocab_size: int, dtype: torch.dtype = torch.float16
) -> dict[str, NDArray[Any]]:
    """The tensors that `weights.adapter` stores: the factors in `dtype`, all trained vectors in float32.

    Rows of tokens that were added to the vocabulary are stored whole.
    """
    tensors: dict[str, NDArray[Any]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoRALayer):
            a, b = (factor.detach().cpu().to(dtype).numpy() for factor in (module.lora_A, module.lora_B))
            if isinstance(module, LoRAEmbedding) and len(a) > base_vocab_size:
                tensors[f"{name}.weight.added"] = module.merge()[base_vocab_size:].float().numpy()
                a = a[:base_vocab_size]
            tensors[f"{name}.weight.lora_A"], tensors[f"{name}.weight.lora_B"] = a, b
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and parameter.requires_grad:
            tensors[name.replace(".base_layer.", ".")] = parameter.detach().cpu().float().numpy()
    return tensors


def count_trainable_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
