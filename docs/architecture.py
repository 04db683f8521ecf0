"""Draws architecture.svg: the rooms of the package and which of them imports which, read from the source.

    python docs/architecture.py [-o docs/architecture.svg]

The order is that of the import-linter contract in pyproject.toml, from the bottom up.
tests/test_architecture.py checks that the committed drawing is current.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from glassgpt.figures.svg import MONO, SANS, circle, document, element, escape, path, rect, text
from glassgpt.files import write_text_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "glassgpt"

BASE = "base"  # the modules below the first room, which every room may use, drawn as one
FIRST = "tokenizer"
# When an import happens; of several imports of a room the last kind here is drawn.
KINDS = ("for type checkers only", "inside functions only", "at module level")
TYPES, FUNCTION, MODULE = range(3)
ROOMS = {
    BASE: ("", "the shape of a model; safe file access; errors; drawings"),
    "tokenizer": ("text ↔ ids", "byte-level BPE: a readable one, a fast one, a trainer"),
    "model": ("ids → logits", "GPT-2 itself, its KV cache, its relatives"),
    "backends": ("who computes", "C++ for CPUs, torch on any device, numpy"),
    "weights": ("files ↔ tensors", "one module per format, the hub, the shipped models"),
    "generate": ("logits → text", "sampling, the engine, beam search"),
    "inspect": ("model → insight", "traces, interventions, attribution"),
    "verify": ("glassgpt verify", "every mode against the float32 reference"),
    "tasks": ("text → task", "translation, summaries, classification"),
    "gpt": ("glassgpt.load", "the Python API: a loaded model"),
    "train": ("text → weights", "data, the loop, distributed, checkpoints, report"),
    "evaluate": ("model → metrics", "the paper's tasks, perplexity, harness"),
    "music": ("MIDI ↔ events", "performances, sound, piano rolls"),
    "course": ("twelve lessons", "exercises that check themselves"),
    "http": ("any server", "limits, Host checks, errors"),
    "explorer": ("the web page", "routes, schemas, page/"),
    "serve": ("the HTTP server", "OpenAI's API, models, metrics"),
    "cli": ("the command line", "commands/ and helpers"),
}
GROUPS = {  # color -> what the rooms are for, and which
    "#7d92b3": ("shared by all", (BASE,)),
    "#ffbe5c": (
        "running a model",
        ("tokenizer", "model", "backends", "weights", "generate", "tasks", "gpt"),
    ),
    "#5fd4c4": ("studying and training one", ("inspect", "verify", "train", "evaluate", "music", "course")),
    "#ff8fa3": ("interfaces", ("http", "explorer", "serve", "cli")),
}

WIDTH, LEFT, TOP = 1100, 28, 96
STEP_X, STEP_Y, BOX, TALL = 50, 42, 92, 28
INK, SOFT, LINE, NIGHT = "#e6eefb", "#93a9c7", "#3d5578", "#14243e"
NIGHT_SKY = (
    '<linearGradient id="night" x1="0" y1="0" x2="1" y2="1"><stop stop-color="#0e1a2e"/>'
    '<stop offset="1" stop-color="#1a2f4f"/></linearGradient>'
)


def order() -> list[str]:
    """The modules and packages from the bottom layer up, as pyproject.toml orders them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "rooms")
    names = [name.strip(" ()") for layer in reversed(contract["layers"]) for name in layer.split("|")]
    return [name for name in names if is_module(name)]


def base_modules() -> list[str]:
    return order()[: order().index(FIRST)]


def layers() -> list[str]:
    """The rooms from the bottom layer up."""
    rooms = list(dict.fromkeys(room_of(f"glassgpt.{name}") for name in order()))
    assert rooms == list(ROOMS), f"describe the rooms of pyproject.toml in docs/architecture.py: {rooms}"
    return rooms


@cache
def room_of(module: str) -> str:
    """The room of a module; the package itself is the Python API, its command is the command line."""
    name = module.split(".")[1] if "." in module else "gpt"
    if name == "__main__":
        return "cli"
    return BASE if name in base_modules() else name


def edges() -> dict[tuple[str, str], int]:
    """(room, imported room) -> when a module imports it, as an index of `KINDS`."""
    kinds: dict[tuple[str, str], int] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file == PACKAGE / "__init__.py":  # hands names on, from whatever room has them
            continue
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        room = room_of(".".join(parts).removesuffix(".__init__"))
        for module, kind in imports(ast.parse(file.read_text("utf-8"))):
            target = room_of(module)
            if target != room:
                kinds[room, target] = max(kinds.get((room, target), TYPES), kind)
    return kinds


def imports(node: ast.AST, kind: int = MODULE) -> Iterator[tuple[str, int]]:
    """The modules of this package that a syntax tree imports, and when."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module == "glassgpt":
            names = [f"glassgpt.{a.name}" if is_module(a.name) else "glassgpt" for a in child.names]
            names = [name for name, a in zip(names, child.names, strict=True) if a.name != "__version__"]
        else:
            names = [child.module or ""] if isinstance(child, ast.ImportFrom) else []
        yield from ((name, kind) for name in names if name.split(".")[0] == "glassgpt")
        inner = kind
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            inner = TYPES
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = min(kind, FUNCTION)
        yield from imports(child, inner)


def is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def dot(x: float, y: float, kind: int, color: str, title: str = "") -> str:
    """A full circle, an open one, or a point."""
    radius, fill = 1 if kind == TYPES else 4.5, NIGHT if kind == FUNCTION else color
    return circle(x, y, radius, fill=fill, stroke=color, stroke_width=2, tip=title)


def draw() -> str:
    """A staircase: from each room a line leads left to the columns of the rooms it imports."""
    rooms, used = layers(), edges()
    color = {room: shade for shade, (_, names) in GROUPS.items() for room in names}
    place = {room: number for number, room in enumerate(rooms)}
    height = TOP + STEP_Y * len(rooms) + 62

    def left(room: str) -> float:
        return LEFT + STEP_X * place[room]

    def middle(room: str) -> float:
        return TOP + STEP_Y * place[room] + TALL / 2

    def column(room: str) -> float:
        return left(room) + STEP_X / 2 - 4

    parts = [
        element("desc", escape(describe(rooms, used))),
        element("defs", NIGHT_SKY),
        rect(0, 0, WIDTH, height, rx=16, fill="url(#night)"),
        text(LEFT, 44, "The rooms of GlassGPT", "title"),
        text(LEFT, 68, "Each room imports only rooms above it.", "small"),
    ]
    for room in rooms:  # lines first: boxes and dots cover them
        importers = [one for one, other in used if other == room]
        imported = [other for one, other in used if one == room]
        if importers:
            end = max(middle(one) for one in importers)
            parts.append(path(f"M{column(room)} {middle(room)}V{end}", stroke=LINE, stroke_width=1.5))
        if imported:
            start = min(column(other) for other in imported)
            parts.append(path(f"M{start} {middle(room)}H{left(room)}", stroke=LINE, stroke_width=1.5))
    for (room, other), kind in sorted(used.items()):
        title = f"{room} imports {other}" + ("" if kind == MODULE else f", {KINDS[kind]}")
        parts.append(dot(column(other), middle(room), kind, color[room], title))
    for room in rooms:
        x, y = left(room), middle(room)
        name = "config …" if room == BASE else room
        what, details = ROOMS[room]
        what = ", ".join(sorted(base_modules())) if room == BASE else what
        box = (x, y - TALL / 2, BOX, TALL)
        parts += [
            rect(*box, rx=7, fill=NIGHT),
            rect(*box, rx=7, fill=color[room], fill_opacity=0.16, stroke=color[room], stroke_width=1.5),
            text(x + BOX / 2, y + 5, name, "room", "middle"),
            text(x + BOX + 14, y - 3, what, "what"),
            text(x + BOX + 14, y + 13, details, "small"),
        ]
    x = WIDTH - 210
    for number, (shade, (purpose, _)) in enumerate(GROUPS.items()):
        y = 44 + 24 * number
        parts += [
            rect(x, y - 12, 18, 14, rx=4, fill=shade, fill_opacity=0.16, stroke=shade, stroke_width=1.5),
            text(x + 28, y, purpose, "small"),
        ]
    foot = height - 26
    parts += [
        dot(LEFT + 6, foot - 4, MODULE, SOFT),
        text(LEFT + 20, foot, "imported at module level", "small"),
        dot(LEFT + 206, foot - 4, FUNCTION, SOFT),
        text(LEFT + 220, foot, "imported inside functions, when needed", "small"),
        dot(LEFT + 486, foot - 4, TYPES, SOFT),
        text(LEFT + 500, foot, "imported for type checkers only", "small"),
    ]
    style = (
        f"text{{font-family:{SANS};fill:{SOFT}}}.title{{font-size:20px;font-weight:600}}.what{{font-size:13.5px}}"
        f".small{{font-size:12.5px}}.room{{font-family:{MONO};font-size:13.5px;font-weight:600}}"
        f".title,.what,.room{{fill:{INK}}}"
    )
    return document(WIDTH, height, parts, "The rooms of GlassGPT", style=style, fill="none")


def describe(rooms: list[str], used: dict[tuple[str, str], int]) -> str:
    """The drawing in words, for those who cannot see it."""
    sentences = []
    for room in rooms:
        imported = [other for other in rooms if (room, other) in used]
        sentences.append(
            f"{room} imports {', '.join(imported)}." if imported else f"{room} imports no other room."
        )
    return " ".join(sentences)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("architecture.svg"))
    args = parser.parse_args()
    write_text_files(args.out.parent, {args.out.name: draw()})


if __name__ == "__main__":
    main()
