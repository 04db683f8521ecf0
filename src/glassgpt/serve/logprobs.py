"""Tokens as text, and log-probabilities in the shape of OpenAI's completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgpt.generate.detokenizer import IdStream
from glassgpt.generate.generation import Alternatives

if TYPE_CHECKING:
    from glassgpt.tokenizer import DecodeStream, Tokenizer


class TokenTexts:
    r"""The text of every token, each different: they are keys of a JSON object.

    Bytes that are not whole characters are written as OpenAI does, `bytes:\xe2\x80`. A token without text, or
    with the text of another, is named by its id.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self._texts: list[str] = []
        seen: set[str] = set()
        for token in range(vocab_size):
            text = self._text(token)
            if text in seen or not text:
                text = f"token_id:{token}"
            seen.add(text)
            self._texts.append(text)

    def _text(self, token: int) -> str:
        if self.tokenizer is None:
            return f" {token}"
        if token >= self.tokenizer.vocab_size:
            return ""
        data = self.tokenizer.decode_bytes([token])
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def __getitem__(self, token: int) -> str:
        return self._texts[token]

    def stream(self) -> DecodeStream | IdStream:
        return IdStream() if self.tokenizer is None else self.tokenizer.stream()

    def decode(self, ids: Sequence[int]) -> str:
        if self.tokenizer is not None:
            return self.tokenizer.decode(ids)
        return "".join(f" {token}" for token in ids)


class TokenOffsets:
    """Where each token of a text begins in it, in characters; within a character, where that begins."""

    def __init__(self, texts: TokenTexts, start: int = 0) -> None:
        self._stream = texts.stream()
        self._at = start

    def push(self, token: int) -> int:
        at = self._at
        self._at += len(self._stream.push(token))
        return at


def make_logprobs(
    texts: TokenTexts,
    tokens: Sequence[int],
    logprobs: Sequence[float | None],
    alternatives: Sequence[Alternatives | None] | None,
    offsets: Sequence[int],
) -> dict[str, Any]:
    """A choice's `logprobs`. The token itself is always among the alternatives, with the same number."""
    top: list[dict[str, float] | None] = []
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        if logprob is None:
            top.append(None)
            continue
        ranked = None if alternatives is None else alternatives[i]
        entry = {texts[other]: value for other, value in ([] if ranked is None else ranked)}
        entry.setdefault(texts[token], logprob)
        top.append(entry)
    return {
        "tokens": [texts[token] for token in tokens],
        "token_logprobs": list(logprobs),
        "top_logprobs": top,
        "text_offset": list(offsets),
    }


def make_prompt_logprobs(
    texts: TokenTexts,
    tokens: Sequence[int],
    logprobs: Sequence[float | None],
    alternatives: Sequence[Alternatives | None] | None,
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token id, with the rank of those that were asked for."""
    entries: list[dict[str, Any] | None] = []
    for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        if logprob is None:
            entries.append(None)
            continue
        ranked = None if alternatives is None else alternatives[i]
        entry: dict[str, Any] = {}
        for rank, (other, value) in enumerate([] if ranked is None else ranked, start=1):
            entry[str(other)] = {"logprob": value, "rank": rank, "decoded_token": texts[other]}
        own = {"logprob": logprob, "rank": None, "decoded_token": texts[token]}
        entry.setdefault(str(token), own)
        entries.append(entry)
    return entries
