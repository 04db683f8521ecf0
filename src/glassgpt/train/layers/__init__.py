"""Layers that replace GPT-2's own while it is trained: LoRA, float8."""
