"""How surprised the model is by what came next, without ever holding all logits at once.

The logits of a batch are by far its largest tensor (65,536 tokens x 50,257 words x 4 bytes: 13 GB). So the
head, the softmax and the loss are computed for a stretch of tokens at a time, together with their gradients:
what is kept is only as large as the hidden vectors and the head's weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.model import GPT2

STRETCH = 4096  # tokens whose logits are held at once
IGNORED = -1  # a target that does not count: padding, or the question when only the answer is learned


def summed_loss(model: GPT2, ids: Tensor, targets: Tensor, run_block: Any = None) -> Tensor:
    """The sum of -log p(target) over all tokens that count, in nats, (B, T) and (B, T) -> ()."""
    ways = {} if run_block is None else {"run_block": run_block}
    x = model.hidden(ids, **ways)  # (B, T, C)
    weight = model.wte.weight if model.lm_head is None else model.lm_head.weight  # (V, C)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    loss: Tensor = _HeadAndLoss.apply(x.flatten(0, 1), weight, targets.flatten())  # type: ignore[no-untyped-call]
    return loss


class _HeadAndLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device, dtype=torch.float32)
        learning = any(ctx.needs_input_grad)
        grad_x = torch.empty_like(x) if learning else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if learning else None
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), STRETCH):
                some = slice(start, start + STRETCH)
                logits = F.linear(x[some], weight).float()  # (stretch, V)
                wanted = targets[some]
                counts = (wanted != IGNORED)[:, None]  # (stretch, 1)
                losses = F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
                total += losses
                if grad_x is None or grad_weight is None:
                    continue
                # d loss / d logits = softmax - 1 at the target
                grad = torch.softmax(logits, dim=-1, out=logits)
                grad.scatter_add_(1, wanted.clamp(min=0)[:, None], torch.full_like(grad[:, :1], -1.0))
                grad = (grad * counts).to(x.dtype)
                grad_x[some] = grad @ weight
                grad_weight += grad.t() @ x[some]
        if grad_weight is not None:
            ctx.save_for_backward(grad_x, grad_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * upstream[0], grad_weight * upstream[0], None
