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
from html import escape
from pathlib import Path

from glassgpt.files import write_text_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "glassgpt"

BASE = "base"  # the modules below the first room, which every room may use, drawn as one
FIRST = "tokenizer"
ROOMS = {
    BASE: ("", "the shape of a model; safe file access; error classes"),
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
    "http": ("any server", "limits, Host checks, errors"),
    "explorer": ("the web page", "routes, schemas, page/"),
    "serve": ("the HTTP server", "OpenAI's API, models, metrics"),
    "cli": ("the command line", "commands/ and helpers"),
}
GROUPS = {  # colour -> what the rooms are for, and which
    "#7d92b3": ("shared by all", (BASE,)),
    "#ffbe5c": (
        "running a model",
        ("tokenizer", "model", "backends", "weights", "generate", "tasks", "gpt"),
    ),
    "#5fd4c4": ("studying and training one", ("inspect", "verify", "train", "evaluate", "music")),
    "#ff8fa3": ("interfaces", ("http", "explorer", "serve", "cli")),
}

WIDTH, LEFT, TOP = 1000, 28, 96
STEP_X, STEP_Y, BOX, TALL = 53, 42, 92, 28
INK, SOFT, LINE = "#e6eefb", "#93a9c7", "#3d5578"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


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


def edges() -> dict[tuple[str, str], bool]:
    """(room, imported room) -> whether a module imports it at module level, and not only inside functions."""
    found: dict[tuple[str, str], bool] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == PACKAGE / "__init__.py":  # hands names on, from whatever room has them
            continue
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        room = room_of(".".join(parts).removesuffix(".__init__"))
        for module, at_module_level in imports(ast.parse(path.read_text("utf-8"))):
            target = room_of(module)
            if target != room:
                found[room, target] = found.get((room, target), False) or at_module_level
    return found


def imports(node: ast.AST, at_module_level: bool = True) -> Iterator[tuple[str, bool]]:
    """The modules of this package that a syntax tree imports, without those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module == "glassgpt":
            names = [f"glassgpt.{a.name}" if is_module(a.name) else "glassgpt" for a in child.names]
            names = [name for name, a in zip(names, child.names, strict=True) if a.name != "__version__"]
        else:
            names = [child.module or ""] if isinstance(child, ast.ImportFrom) else []
        yield from ((name, at_module_level) for name in names if name.split(".")[0] == "glassgpt")
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(child, at_module_level and not inside)


def is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def text(x: float, y: float, words: str, kind: str, anchor: str = "start", colour: str = SOFT) -> str:
    return (
        f'<text x="{x}" y="{y}" class="{kind}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def dot(x: float, y: float, filled: bool, colour: str, title: str = "") -> str:
    fill = colour if filled else "#14243e"
    inner = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<circle cx="{x}" cy="{y}" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="2">{inner}</circle>'
    )


def draw() -> str:
    """A staircase: from each room a line leads left to the columns of the rooms it imports."""
    rooms, used = layers(), edges()
    colour = {room: shade for shade, (_, names) in GROUPS.items() for room in names}
    place = {room: number for number, room in enumerate(rooms)}
    height = TOP + STEP_Y * len(rooms) + 62

    def left(room: str) -> float:
        return LEFT + STEP_X * place[room]

    def middle(room: str) -> float:
        return TOP + STEP_Y * place[room] + TALL / 2

    def column(room: str) -> float:
        return left(room) + STEP_X / 2 - 4

    parts = [
        f'<rect width="{WIDTH}" height="{height}" rx="16" fill="url(#night)"/>',
        text(LEFT, 44, "The rooms of GlassGPT", "title", colour=INK),
        text(LEFT, 68, "Each room imports only rooms above it.", "small"),
    ]
    for room in rooms:  # lines first: boxes and dots cover them
        importers = [one for one, other in used if other == room]
        imported = [other for one, other in used if one == room]
        if importers:
            end = max(middle(one) for one in importers)
            parts.append(
                f'<path d="M{column(room)} {middle(room)}V{end}" stroke="{LINE}" stroke-width="1.5"/>'
            )
        if imported:
            start = min(column(other) for other in imported)
            parts.append(
                f'<path d="M{start} {middle(room)}H{left(room)}" stroke="{LINE}" stroke-width="1.5"/>'
            )
    for (room, other), at_module_level in sorted(used.items()):
        title = f"{room} imports {other}" + ("" if at_module_level else ", inside functions only")
        parts.append(dot(column(other), middle(room), at_module_level, colour[room], title))
    for room in rooms:
        x, y = left(room), middle(room)
        name = "config …" if room == BASE else room
        what, more = ROOMS[room]
        what = ", ".join(sorted(base_modules())) if room == BASE else what
        parts += [
            f'<rect x="{x}" y="{y - TALL / 2}" width="{BOX}" height="{TALL}" rx="7" fill="#14243e"/>',
            f'<rect x="{x}" y="{y - TALL / 2}" width="{BOX}" height="{TALL}" rx="7" fill="{colour[room]}" '
            f'fill-opacity=".16" stroke="{colour[room]}" stroke-width="1.5"/>',
            text(x + BOX / 2, y + 5, name, "room", "middle", INK),
            text(x + BOX + 14, y - 3, what, "what", colour=INK),
            text(x + BOX + 14, y + 13, more, "small"),
        ]
    x = WIDTH - 210
    for number, (shade, (purpose, _)) in enumerate(GROUPS.items()):
        y = 44 + 24 * number
        parts += [
            f'<rect x="{x}" y="{y - 12}" width="18" height="14" rx="4" fill="{shade}" fill-opacity=".16" '
            f'stroke="{shade}" stroke-width="1.5"/>',
            text(x + 28, y, purpose, "small"),
        ]
    foot = height - 26
    parts += [
        dot(LEFT + 6, foot - 4, True, SOFT),
        text(LEFT + 20, foot, "imported at module level", "small"),
        dot(LEFT + 206, foot - 4, False, SOFT),
        text(LEFT + 220, foot, "imported inside functions, when needed", "small"),
    ]
    style = (
        f"text{{font-family:{SANS}}}.title{{font-size:20px;font-weight:600}}.what{{font-size:13.5px}}"
        f".small{{font-size:12.5px}}.room{{font-family:{MONO};font-size:13.5px;font-weight:600}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-labelledby="t d" fill="none">',
            '<title id="t">The rooms of GlassGPT</title>',
            f'<desc id="d">{escape(describe(rooms, used))}</desc>',
            f"<style>{style}</style>",
            '<defs><linearGradient id="night" x1="0" y1="0" x2="1" y2="1"><stop stop-color="#0e1a2e"/>'
            '<stop offset="1" stop-color="#1a2f4f"/></linearGradient></defs>',
            *parts,
            "</svg>",
        ]
    )


def describe(rooms: list[str], used: dict[tuple[str, str], bool]) -> str:
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
    given = parser.parse_args()
    write_text_files(given.out.parent, {given.out.name: draw() + "\n"})


if __name__ == "__main__":
    main()
