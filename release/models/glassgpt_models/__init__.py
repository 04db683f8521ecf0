"""The models that ship with GlassGPT; glassgpt.weights.registry finds this folder."""
