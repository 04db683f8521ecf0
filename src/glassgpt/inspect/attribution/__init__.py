"""What a logit comes from: attribute.py (rollout, direct logit attribution) and gradients.py (which needs
torch)."""
