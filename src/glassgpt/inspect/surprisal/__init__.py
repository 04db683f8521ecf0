"""Text -> how surprising each token and word was: `gpt.score(texts)`, `glassgpt score FILE`.

Read distributions.py (the numbers of each position), then scored_text.py (tokens, words and other spans).
"""
