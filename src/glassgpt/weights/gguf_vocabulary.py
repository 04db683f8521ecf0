"""The tokenizer inside a GGUF file: tokens in the visible alphabet, their types, the merges.

llama.cpp calls byte-level BPE "gpt2", and GPT-2's way of cutting words "gpt-2". Tokenizers of bytes and of
characters are written as such a BPE too (with no merges, or those that join the bytes of one character), and
for ourselves as text under a key of our own. A model without a tokenizer has the vocabulary "none": llama.cpp
then evaluates ids, but cannot turn text into them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError
from glassgpt.files import parse_json
from glassgpt.weights.gguf_file import Setting, Value

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

OUR_KEY = "glassgpt.tokenizer.json"
PRE_TOKENIZERS = ("gpt-2", "default", "")  # files from before 2024 do not name one

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


def read_vocabulary(
    path: Path, settings: dict[str, Value], vocab_size: int
) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer, or None and why there is none."""
    ours = settings.get(OUR_KEY)
    if isinstance(ours, str):
        return _read_ours(path, ours), None
    model = settings.get("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return None, None
    if model != "gpt2":
        return None, f"not read: {str(model)[:40]!r} is not a byte-level BPE"
    pre = settings.get("tokenizer.ggml.pre", "")
    if pre not in PRE_TOKENIZERS:
        return None, f"not read: its pre-tokenizer is {str(pre)[:40]!r}, not GPT-2's"
    tokens, merges = settings.get("tokenizer.ggml.tokens"), settings.get("tokenizer.ggml.merges", [])
    if not isinstance(tokens, list) or not isinstance(merges, (list, np.ndarray)) or len(tokens) > vocab_size:
        raise FileFormatError(f"{path}: its tokens and merges do not fit {vocab_size:,} embeddings.")
    types = settings.get("tokenizer.ggml.token_type")
    kinds = types.tolist() if isinstance(types, np.ndarray) else [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise FileFormatError(f"{path} has {len(tokens):,} tokens but {len(kinds):,} types of them.")
    return _build(path, tokens, kinds, [str(merge) for merge in merges]), None


def _build(path: Path, tokens: list[str], kinds: list[int], merges: list[str]) -> Tokenizer:
    from glassgpt.tokenizer.bpe import BPETokenizer
    from glassgpt.tokenizer.gpt2_files import build, check_merges, merged_pairs
    from glassgpt.tokenizer.pre_tokenizer import unicode_to_bytes

    ids: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == _UNUSED:  # unused rows of the embedding
            continue
        if token in ids:
            raise FileFormatError(f"{path}: tokens {ids[token]} and {i} are both {token[:40]!r}.")
        ids[token] = i
    place = f"{path}, merge"
    pairs = check_merges(path, enumerate(merges, start=1), ids, place)
    merged = {left + right for _, left, right in pairs} | set(unicode_to_bytes())
    added = {token: i for token, i in ids.items() if kinds[i] == _USER_DEFINED and token not in merged}
    # A token that no merge makes can only be a special one, whatever its type.
    special = {token: i for token, i in ids.items() if token not in merged and token not in added}
    return BPETokenizer(build(path, ids, merged_pairs(ids, pairs, place), special, added))


def _read_ours(path: Path, text: str) -> Tokenizer:
    from glassgpt.tokenizer.tokenizer_json import parse

    return parse(path, parse_json(text, f"{OUR_KEY} in {path}"))


def vocabulary_settings(tokenizer: Tokenizer | None, config: Config) -> dict[str, Setting]:
    """The metadata of the vocabulary for llama.cpp."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model only {config.vocab_size:,} "
            "embeddings. Take the tokenizer that belongs to the model."
        )
    from glassgpt.tokenizer.bpe import BPETokenizer
    from glassgpt.tokenizer.gpt2_files import visible_merges, visible_tokens
    from glassgpt.tokenizer.pre_tokenizer import to_visible

    tokens = [f"[PAD{i}]" for i in range(config.vocab_size)]  # llama.cpp needs a token for every embedding
    kinds = [_UNUSED] * config.vocab_size
    merges: list[str] = []
    if isinstance(tokenizer, BPETokenizer):
        vocabulary = tokenizer.data
        named = dict.fromkeys(vocabulary.added, _USER_DEFINED) | dict.fromkeys(vocabulary.special, _CONTROL)
        for token, i in visible_tokens(vocabulary).items():
            tokens[i], kinds[i] = token, named.get(token, _NORMAL)
        merges = [" ".join(pair) for pair in visible_merges(vocabulary)]
    else:
        for i in range(tokenizer.vocab_size):
            tokens[i], kinds[i] = to_visible(tokenizer.token_bytes(i)), _NORMAL
        if tokenizer.eot_id is not None:
            tokens[tokenizer.eot_id] = tokenizer.token_bytes(tokenizer.eot_id).decode()
            kinds[tokenizer.eot_id] = _CONTROL
        merges = _character_merges(
            [token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL]
        )
    settings: dict[str, Setting] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
    if not isinstance(tokenizer, BPETokenizer):
        settings[OUR_KEY] = tokenizer.files()["tokenizer.json"]
    bos = tokenizer.eot_id if config.bos_token_id is None else config.bos_token_id
    eos = tokenizer.eot_id if config.eos_token_id is None else config.eos_token_id
    if bos is not None:
        settings["tokenizer.ggml.bos_token_id"] = bos
    if eos is not None:
        settings["tokenizer.ggml.eos_token_id"] = eos
    return settings


def _character_merges(tokens: list[str]) -> list[str]:
    """Merges by which llama.cpp joins the bytes of one character, and never bytes of two.

    A character is its first byte and the others in order; each beginning of it takes on one byte more. The
    pieces on the way are not in the vocabulary, and need not be: llama.cpp looks up only what is left.
    """
    steps = [f"{token[:i]} {token[i]}" for token in tokens for i in range(1, len(token))]
    return sorted(dict.fromkeys(steps), key=len)
