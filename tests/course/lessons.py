"""The lessons' sources and stored notebooks, for the tests of all lessons."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

COURSE = Path(__file__).resolve().parents[2] / "course"
NAMES = sorted(path.stem for path in (COURSE / "source").glob("[0-9][0-9]-*.md"))
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b")


def builder() -> ModuleType:
    """course/build.py, which is a script beside the lessons."""
    spec = importlib.util.spec_from_file_location("course_build", COURSE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["course_build"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def stored(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((COURSE / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return cells


def output_text(output: dict[str, Any]) -> str:
    """What is seen of an output: printed text, words of a value, and the texts and numbers in a drawing."""
    if output["output_type"] == "stream":
        return "".join(output["text"])
    data = output["data"]
    return "".join(data["text/plain"]) + "\n" + drawn_text("".join(data.get("image/svg+xml", [])))


def drawn_text(svg: str) -> str:
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)", svg))


def same(one: str, other: str) -> bool:
    """Whether two outputs are equal up to rounding: 1 % of a number may differ, and what is below 1e-4 is
    rounding itself, which differs from processor to processor."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(close(a, b) for a, b in pairs)


def close(one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = float(one.replace(",", "")), float(other.replace(",", ""))
    return abs(a - b) <= 1e-4 + 0.01 * max(abs(a), abs(b))
