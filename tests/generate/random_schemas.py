"""Random JSON schemas whose every text is short, so that a generation always comes to its end."""

from __future__ import annotations

import random
from typing import Any

WORDS = ["name", "age", "tags", "city", "é", "x y", "is_ok", "price", "日本", 'a"b', "from", "kind"]


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kinds = [_string, _integer, _number, _enum, _const, _boolean, _pattern, _date]
    if depth:
        kinds += [_object, _object, _array, _any_of, _tuple]
    if depth == 2:  # a reference is looked up from the root
        kinds.append(_ref)
    return rng.choice(kinds)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(4)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(12)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-500, 500)
    if rng.random() < 0.3:
        return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randrange(2, 99)}
    return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1, 2000)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": rng.randrange(1, 50)}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample([*WORDS, 1, 2.5, None, True, {"a": [1]}], rng.randrange(1, 5))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice(["fixed", 7, None, False, {"k": "v"}, [1, "é"]])}


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null"])}


def _pattern(rng: random.Random, depth: int) -> dict[str, Any]:
    patterns = ["^[a-c]{2,5}$", "^[0-9]{3}-[0-9]{2}$", "^(on|off)$", "^é{1,4}x?$", "^[A-Z][a-z]{1,6}$"]
    return {"type": "string", "pattern": rng.choice(patterns)}


def _date(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "format": rng.choice(["date", "ipv4", "uuid"])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(3)
    most = low + rng.randrange(3)
    return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": low, "maxItems": most}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(2)]}


def _ref(rng: random.Random, depth: int) -> dict[str, Any]:
    return {
        "$defs": {"part": random_schema(rng, 0)},
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/part"}, "two": {"$ref": "#/$defs/part"}},
        "required": ["one"],
        "additionalProperties": False,
    }
