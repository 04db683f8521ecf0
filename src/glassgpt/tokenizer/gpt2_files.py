"""GPT-2's own pair of files: tokens with their ids as JSON, merges as lines of two visible tokens.

OpenAI calls them encoder.json and vocab.bpe, Hugging Face vocab.json and merges.txt; the content is the same.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import read_json, read_text
from glassgpt.tokenizer.bpe import BPEVocabulary, Pair
from glassgpt.tokenizer.files import LARGEST_FILE
from glassgpt.tokenizer.pre_tokenizer import from_visible, to_visible, unicode_to_bytes

HIGHEST_ID = 1 << 22


def read(vocab_path: Path, merges_path: Path) -> BPEVocabulary:
    """Read the two files, and the added_tokens.json that Hugging Face may have put next to them."""
    ids = check_ids(vocab_path, read_json(vocab_path, LARGEST_FILE))
    merges = check_merges(merges_path, _read_merge_lines(merges_path), ids, f"{merges_path}, line")
    # A token that no merge makes and that is not byte-encoded is special: `<|endoftext|>` and the like.
    made = {ids[left + right] for _, left, right in merges}
    special = {name: i for name, i in ids.items() if i not in made and _is_name(name)}
    added: dict[str, int] = {}
    added_path = vocab_path.parent / "added_tokens.json"
    if added_path.is_file():
        known = _special_names(vocab_path.parent / "special_tokens_map.json")
        for name, token_id in check_ids(added_path, read_json(added_path, LARGEST_FILE)).items():
            if name not in special:
                (special if name in known else added)[name] = token_id
    return build(vocab_path, ids, merged_pairs(ids, merges, f"{merges_path}, line"), special, added)


def build(
    path: Path,
    ids: Mapping[str, int],
    pairs: Mapping[Pair, int],
    special: Mapping[str, int],
    added: Mapping[str, int],
) -> BPEVocabulary:
    """A vocabulary from byte-encoded tokens and merges: the id that each pair of ids becomes, by rank."""
    by_id: dict[int, bytes] = {}
    named = special.keys() | added.keys()
    encoded = {name: token_id for name, token_id in ids.items() if name not in named}
    for (name, token_id), data in zip(encoded.items(), _bytes_of_tokens(path, list(encoded)), strict=True):
        if by_id.setdefault(token_id, data) != data:
            raise _assigned_twice(path, name, token_id)
    for name, token_id in {**special, **added}.items():
        if by_id.setdefault(token_id, name.encode()) != name.encode():
            raise _assigned_twice(path, name, token_id)
    missing = [byte for byte, char in enumerate(to_visible(bytes(range(256)))) if char not in ids]
    if missing:
        raise FileFormatError(
            f"{path} has no token for {len(missing)} of the 256 bytes, such as 0x{missing[0]:02x}; "
            "it is not a byte-level vocabulary"
        )
    tokens = tuple(by_id.get(i) for i in range(max(by_id) + 1))
    return BPEVocabulary(tokens, tuple(pairs), tuple(pairs.values()), dict(special), dict(added))


def _assigned_twice(path: Path, name: str, token_id: int) -> FileFormatError:
    return FileFormatError(
        f"{path}: id {token_id} is assigned to two tokens; {short_repr(name)} is the second"
    )


def merged_pairs(
    ids: Mapping[str, int], merges: Iterable[tuple[int, str, str]], place: str
) -> dict[Pair, int]:
    """The id that each pair of ids becomes, by rank; `merges` as (line, left, right), `place` for errors."""
    pairs: dict[Pair, int] = {}
    if not set(unicode_to_bytes()) <= ids.keys():
        return pairs  # `build` says which bytes are missing
    reachable = {ids[char] for char in unicode_to_bytes()}
    for number, left, right in merges:
        pair = (ids[left], ids[right])
        if pair[0] not in reachable or pair[1] not in reachable:
            part = left if pair[0] not in reachable else right
            raise FileFormatError(
                f"{place} {number}: no earlier merge makes {short_repr(part)}; the merges are out of order"
            )
        made = ids[left + right]
        reachable.add(made)
        pairs.setdefault(pair, made)
    return pairs


def check_ids(path: Path, data: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, each id a sensible integer."""
    if _all_sensible(data):  # in a few calls, because start-up waits for it
        return dict(data)
    for name, token_id in data.items():
        if type(token_id) is not int or not 0 <= token_id < HIGHEST_ID:
            raise FileFormatError(
                f"{path}: the id of {short_repr(name)} is {short_repr(token_id)}, "
                f"not an integer from 0 to {HIGHEST_ID - 1}"
            )
        if any("\ud800" <= char <= "\udfff" for char in name):
            raise FileFormatError(f"{path}: the token {short_repr(name)} contains a lone surrogate")
    return dict(data)


def _all_sensible(data: Mapping[str, Any]) -> bool:
    if not data or set(map(type, data.values())) != {int}:
        return False
    try:
        "".join(data).encode()  # fails for a lone surrogate
    except UnicodeEncodeError:
        return False
    return bool(min(data.values()) >= 0 and max(data.values()) < HIGHEST_ID)


def pairs_at_once(ids: Mapping[str, int], merges: list[Any]) -> dict[Pair, int] | None:
    """The same for merges that are all lists of two tokens, but faster; None if anything is wrong."""
    if set(map(type, merges)) != {list} or set(map(len, merges)) != {2} or "" in ids:
        return None
    lefts, rights = [merge[0] for merge in merges], [merge[1] for merge in merges]
    try:
        left, right = list(map(ids.__getitem__, lefts)), list(map(ids.__getitem__, rights))
        made = list(map(ids.__getitem__, map(operator.add, lefts, rights)))
        when = dict(zip(reversed(made), range(len(made) - 1, -1, -1), strict=True))  # id -> its first merge
        when |= dict.fromkeys((ids[char] for char in unicode_to_bytes()), -1)
        late = any(map(operator.ge, map(when.__getitem__, left), range(len(left)))) or any(
            map(operator.ge, map(when.__getitem__, right), range(len(right)))
        )
    except (KeyError, TypeError):
        return None
    pairs = dict(zip(zip(left, right, strict=True), made, strict=True))
    has_spaces = " " in "".join(lefts) or " " in "".join(rights)
    return None if late or has_spaces or len(pairs) != len(made) else pairs


def check_merges(
    path: Path, lines: Iterable[tuple[int, str]], ids: Mapping[str, int], place: str
) -> list[tuple[int, str, str]]:
    """Merges as (line, left, right), with all parts and results in the vocabulary."""
    merges = []
    for number, line in lines:
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise FileFormatError(
                f"{place} {number}: a merge is two tokens with one space between, not {line[:80]!r}"
            )
        if left not in ids or right not in ids or left + right not in ids:
            token = next(token for token in (left, right, left + right) if token not in ids)
            raise FileFormatError(
                f"{place} {number}: {short_repr(token)} is not in the vocabulary of {path.parent}"
            )
        merges.append((number, left, right))
    return merges


def _read_merge_lines(path: Path) -> Iterable[tuple[int, str]]:
    for number, line in enumerate(read_text(path, LARGEST_FILE).split("\n"), start=1):
        line = line.removesuffix("\r")
        if line and not (number == 1 and line.startswith("#version")):
            yield number, line


def _is_name(token: str) -> bool:
    """Whether a token that no merge makes is a name, not encoded bytes."""
    alphabet = unicode_to_bytes()
    return token not in alphabet and (token.isascii() or any(char not in alphabet for char in token))


def _bytes_of_tokens(path: Path, names: list[str]) -> list[bytes]:
    """The bytes of byte-encoded tokens: all in one call, which is ten times as fast as one by one."""
    joined = "\n".join(names)
    if not set(joined) - {"\n"} <= unicode_to_bytes().keys() or joined.count("\n") >= max(1, len(names)):
        return [_token_bytes(path, name) for name in names]
    separator = "\u0100"  # not a byte
    table = {ord(char): byte for char, byte in unicode_to_bytes().items()} | {ord("\n"): separator}
    return [part.encode("latin-1") for part in joined.translate(table).split(separator)] if names else []


def _token_bytes(path: Path, name: str) -> bytes:
    try:
        return from_visible(name)
    except KeyError as error:
        raise FileFormatError(
            f"{path}: token {short_repr(name)} contains {error.args[0]!r}, which does not encode a byte; "
            "this is not a byte-level vocabulary"
        ) from None


def _special_names(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    names = set()
    for value in read_json(path, LARGEST_FILE).values():
        for one in value if isinstance(value, list) else [value]:
            name = one.get("content") if isinstance(one, dict) else one
            if isinstance(name, str):
                names.add(name)
    return names


def visible_tokens(vocabulary: BPEVocabulary) -> dict[str, int]:
    """Byte-encoded token -> id; special and added tokens that no merge makes by their names."""
    names = {token_id: name for name, token_id in {**vocabulary.special, **vocabulary.added}.items()}
    for token_id in (*vocabulary.byte_ids, *vocabulary.merged):
        names.pop(token_id, None)
    return {
        names[i] if i in names else to_visible(token): i
        for i, token in enumerate(vocabulary.tokens)
        if token is not None
    }


def visible_merges(vocabulary: BPEVocabulary) -> list[tuple[str, str]]:
    """The merges as pairs of visible tokens."""
    visible = ["" if token is None else to_visible(token) for token in vocabulary.tokens]
    return [(visible[left], visible[right]) for left, right in vocabulary.merges]


def write(vocabulary: BPEVocabulary) -> dict[str, str]:
    """The content of vocab.json and merges.txt."""
    merges = "".join(f"{left} {right}\n" for left, right in visible_merges(vocabulary))
    return {
        "vocab.json": json.dumps(visible_tokens(vocabulary), ensure_ascii=False) + "\n",
        "merges.txt": "#version: 0.2\n" + merges,
    }
