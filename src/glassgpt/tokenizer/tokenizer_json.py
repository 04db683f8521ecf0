"""Hugging Face's tokenizer.json, for the byte-level BPE that GPT-2 is, and ours for characters,
bytes and music.

Parts of a tokenizer.json that would change the ids in a way we do not have are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import read_json
from glassgpt.tokenizer.base import Tokenizer
from glassgpt.tokenizer.bpe import BPETokenizer, BPEVocabulary
from glassgpt.tokenizer.char_level import OUR_KEY, detect_char_level, read_char_level
from glassgpt.tokenizer.events import KINDS as EVENT_KINDS
from glassgpt.tokenizer.events import read_events
from glassgpt.tokenizer.files import LARGEST_FILE
from glassgpt.tokenizer.gpt2_files import (
    build,
    check_ids,
    check_merges,
    merged_pairs,
    pairs_at_once,
    visible_merges,
    visible_tokens,
)
from glassgpt.tokenizer.pre_tokenizer import END_OF_TEXT


def read(path: Path) -> Tokenizer:
    """Open a tokenizer.json: Hugging Face's or ours."""
    return parse(path, read_json(path, LARGEST_FILE))


def parse(path: Path, data: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the object in a tokenizer.json describes."""
    if OUR_KEY in data:
        return (read_events if data[OUR_KEY] in EVENT_KINDS else read_char_level)(path, data)
    char_level = detect_char_level(data)
    return BPETokenizer(_read_bpe(path, data)) if char_level is None else char_level


def _read_bpe(path: Path, data: dict[str, Any]) -> BPEVocabulary:
    model = data.get("model")
    if not isinstance(model, dict) or "vocab" not in model or "merges" not in model:
        raise FileFormatError(f"{path} has no model with vocab and merges; it is not a BPE tokenizer.json")
    _refuse_other_kinds(path, data, model)
    if not isinstance(model["vocab"], dict) or not isinstance(model["merges"], list):
        raise FileFormatError(f"{path}: model.vocab must be an object and model.merges a list")
    ids = check_ids(path, model["vocab"])
    place = f"{path}, merge"
    special, added = _named_tokens(path, data.get("added_tokens"))
    pairs = pairs_at_once(ids, model["merges"])
    if pairs is None:  # in another form, or with a mistake, which is found line by line
        merges = check_merges(path, _read_merge_lines(place, model["merges"]), ids, place)
        pairs = merged_pairs(ids, merges, place)
    return build(path, ids, pairs, special, added)


def _refuse_other_kinds(path: Path, data: dict[str, Any], model: dict[str, Any]) -> None:
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise FileFormatError(f"{path}: the model is {short_repr(kind)}; only byte-level BPE is supported")
    for key in (
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "byte_fallback",
        "ignore_merges",
    ):
        if model.get(key):
            raise FileFormatError(
                f"{path}: model.{key} is {short_repr(model[key])}; GPT-2's BPE has none, "
                "so it is not supported"
            )
    normalizer = data.get("normalizer")
    if normalizer is not None:
        raise FileFormatError(
            f"{path}: the normalizer {short_repr(_kind(normalizer))} is not supported; GPT-2's has none"
        )
    cutter = data.get("pre_tokenizer")
    if _kind(cutter) != "ByteLevel":
        raise FileFormatError(
            f"{path}: the pre-tokenizer {short_repr(_kind(cutter))} is not supported; GPT-2's is 'ByteLevel'"
        )
    assert isinstance(cutter, dict)
    if not cutter.get("use_regex", True):
        raise FileFormatError(f"{path}: the pre-tokenizer 'ByteLevel' with use_regex false is not supported")
    if cutter.get("add_prefix_space", True):
        raise FileFormatError(
            f"{path}: the pre-tokenizer 'ByteLevel' with add_prefix_space true is not supported"
        )


def _kind(part: object) -> str:
    return str(part.get("type")) if isinstance(part, dict) else "none"


def _read_merge_lines(place: str, merges: list[Any]) -> Iterable[tuple[int, str]]:
    for number, merge in enumerate(merges, start=1):
        if type(merge) is list and len(merge) == 2 and type(merge[0]) is type(merge[1]) is str:
            yield number, f"{merge[0]} {merge[1]}"
        elif isinstance(merge, str):
            yield number, merge
        else:
            raise FileFormatError(f"{place} {number} is {short_repr(merge)}; it must be two tokens")


def _named_tokens(path: Path, entries: object) -> tuple[dict[str, int], dict[str, int]]:
    """Special tokens (only where the caller allows them) and added ones (found in every text)."""
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    for entry in entries if isinstance(entries, list) else []:
        name = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise FileFormatError(f"{path}: an added token without content: {short_repr(entry)}")
        (token_id,) = check_ids(path, {name: entry.get("id")}).values()
        for option in ("lstrip", "rstrip", "single_word"):
            if entry.get(option):
                raise FileFormatError(
                    f"{path}: added token {short_repr(name)} with {option} is not supported"
                )
        (special if entry.get("special") else added)[name] = token_id
    return special, added


def layout(
    tokens: Mapping[str, int], merges: Iterable[tuple[str, str]], named: Iterable[tuple[str, int, bool]]
) -> dict[str, Any]:
    """A tokenizer.json of visible tokens and merges, and of named ones as (name, id, whether special)."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, **flags, "special": special}
            for name, i, special in sorted(named, key=lambda token: token[1])
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokens,
            "merges": list(merges),
        },
    }


def write(vocabulary: BPEVocabulary) -> dict[str, str]:
    """tokenizer.json, and the tokenizer_config.json that transformers' AutoTokenizer asks for."""
    named = [(name, i, True) for name, i in vocabulary.special.items()]
    named += [(name, i, False) for name, i in vocabulary.added.items()]
    content = layout(visible_tokens(vocabulary), visible_merges(vocabulary), named)
    config: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    if END_OF_TEXT in vocabulary.special:
        config |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }
