"""KL divergence, computed here for interventions, `eval --compare` and the Explorer alike."""

from __future__ import annotations

import torch
from torch import Tensor


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension; tokens with p = 0 add nothing."""
    terms = torch.where(log_p > -torch.inf, log_p.exp() * (log_p - log_q), 0.0)
    return terms.sum(dim=-1).clamp(min=0)  # rounding may make it slightly negative
