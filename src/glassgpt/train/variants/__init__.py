"""Training for variants of the model: the consecutive segments that a memory needs, and its state."""
