"""Random damage to values, JSON and bytes."""

from __future__ import annotations

import json
import random
from typing import Any

DEEP = "[" * 3000 + "]" * 3000
INTEGERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**25, -(10**25), 7, 10**9]
FLOATS = [0.0, -1.0, 1e-300, 1e30, 1e308, float("nan"), float("inf"), float("-inf"), 0.5]
STRINGS = ["", " ", "nosuch", "../..", "\u0000", "x" * 5000, "nan", "🙂", "\ud800", "true", "-", "1e400"]


def value(rng: random.Random) -> Any:
    """A value of any type."""
    return rng.choice(
        [
            None, True, False, [], {}, [[]], {"": None}, [1, 2, 3], ["a"], {"a": {"a": {}}},
            rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(STRINGS),
        ]
    )  # fmt: skip


def slots(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    stack = [node]
    while stack and len(found) < 5000:
        current = stack.pop()
        items = (
            current.items()
            if isinstance(current, dict)
            else enumerate(current)
            if isinstance(current, list)
            else ()
        )
        for key, inner in items:
            found.append((current, key))
            stack.append(inner)
    return found


def json_text(rng: random.Random, text: str) -> str:
    """The JSON with a few values replaced, removed or added; sometimes not JSON at all."""
    if rng.random() < 0.1:
        return rng.choice(
            ["", "{", "null", "[]", "1", DEEP, '{"a":' * 3000, "\ufeff" + text, text + text, "{}"]
        )
    try:
        node = json.loads(text)
    except ValueError:
        return text
    for _ in range(rng.choice([1, 1, 2, 5])):
        known = slots(node)
        if not known:
            break
        container, key = rng.choice(known)
        kind = rng.random()
        if kind < 0.65:
            container[key] = value(rng)
        elif kind < 0.85:
            del container[key]
        elif isinstance(container, dict):
            container[rng.choice(["extra", "quantization_config", "__class__", ""])] = value(rng)
    return json.dumps(node)


def data(rng: random.Random, raw: bytes) -> bytes:
    """The bytes with some changed, removed, doubled or truncated, most often at either end."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not raw:
            return raw
        at = rng.choice([rng.randrange(len(raw)), min(len(raw) - 1, rng.randrange(300)), len(raw) - 1])
        kind = rng.randrange(6)
        if kind == 0:
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        elif kind == 1:
            raw = raw[:at]
        elif kind == 2:
            raw = raw[:at] + raw[at + rng.randrange(1, 40) :]
        elif kind == 3:
            raw = raw[: at + rng.randrange(1, 40)] + raw[at:]
        elif kind == 4:
            raw = (
                raw[:at]
                + rng.choice([b"\0" * 64, b"\xff" * 64, b"\xed\xa0\x80", b"\r\n", b'"', b"{" * 500])
                + raw[at:]
            )
        else:
            raw = rng.choice([b"", b"\0", b"PK\x03\x04", b"\x1f\x8b", b"<!DOCTYPE html><html></html>", raw])
    return raw
