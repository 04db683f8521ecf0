"""docs/architecture.md is true: the drawing is current, and every file and function in its walks exists."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "glassgpt"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
HOPS = sorted(set(re.findall(r"`([\w/]+\.(?:py|js))(?::([\w.]+))?`", PAGE.partition("## Generate")[2])))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.edges = functools.cache(module.edges)  # reads every file of the package
    return module


@functools.cache
def defined_in(path: Path) -> set[str]:
    return definitions(ast.parse(path.read_text("utf-8")))


def definitions(tree: ast.AST, prefix: str = "") -> set[str]:
    """`load`, `GPT.stream`, `install.trace`: functions, classes, and what is defined inside them."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names |= {prefix + node.name} | definitions(node, f"{prefix}{node.name}.")
        else:
            names |= definitions(node, prefix)
    return names


def test_the_drawing_is_current(script: ModuleType) -> None:
    drawn = script.draw()
    committed = (ROOT / "docs" / "architecture.svg").read_text("utf-8")
    assert committed == drawn, "run: python docs/architecture.py"


def test_every_import_in_the_drawing_leads_up(script: ModuleType) -> None:
    place = {room: number for number, room in enumerate(script.layers())}
    edges = script.edges()
    assert len(edges) > 30
    assert [edge for edge in edges if place[edge[0]] <= place[edge[1]]] == []
    assert edges["train", "model"] == script.MODULE
    assert edges["cli", "explorer"] == script.FUNCTION, "explore needs FastAPI"


def test_there_are_seven_walks() -> None:
    assert re.findall(r"^## ([\w ]+)", PAGE, re.M) == [
        "Generate", "Train", "Tune", "A served request", "Explore", "Compose", "Convert",
    ]  # fmt: skip
    assert len(HOPS) > 50


def test_training_enters_the_command_line_once() -> None:
    walk = PAGE.partition("## Train")[2].partition("## ")[0]
    assert len(re.findall(r"`cli/", walk)) == 1


def test_a_served_request_takes_at_most_22_hops() -> None:
    walk = PAGE.partition("## A served request")[2].partition("## ")[0]
    assert len(re.findall(r"^\d+\. ", walk, re.M)) <= 22


@pytest.mark.parametrize(("file", "name"), HOPS, ids=lambda part: part or "whole file")
def test_every_hop_exists(file: str, name: str) -> None:
    path = SOURCE / file
    assert path.is_file(), f"docs/architecture.md names {file}"
    if not name:
        return
    if path.suffix == ".js":
        pattern = rf"(?:function {name}|^  (?:async )?{name})\("
        found = re.search(pattern, path.read_text("utf-8"), re.M) is not None
    else:
        found = name in defined_in(path)
    assert found, f"docs/architecture.md names {file}:{name}, which is not defined there"
