"""Model -> what its heads and neurons do: `gpt.heads()` on texts made for it, `glassgpt.atlas` over a corpus.

Read attention_kinds.py (what a head attends to), then head_scores.py.
"""
