"""The page's files: small, without URLs of other hosts, and with the names of inspect's steps and edits."""

from __future__ import annotations

import re
from pathlib import Path

import glassgpt
from glassgpt.explorer.routes.export import EXPORTED_STEPS
from glassgpt.explorer.routes.trace import ATTENTION_STEPS, HEAD_STEPS, MLP_STEPS
from glassgpt.inspect.edits.edit_data import EDIT_KINDS, edit_fields
from glassgpt.inspect.taps import BLOCK_STEPS

PAGE = Path(glassgpt.__file__).parent / "explorer" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg"))
CODE_LIMIT = 300_000  # bytes before compression; the comments, a sixth of it, are not code
LINES = 350


def code(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*(//.*)?\n", "", text, flags=re.MULTILINE)


def loaded(name: str, known: set[Path]) -> set[Path]:
    """A module and those it imports at once; `import(...)` loads the others when they are needed."""
    path = (PAGE / name).resolve()
    if path not in known:
        known.add(path)
        for other in re.findall(
            r'^import [^;]*?"(\./[^"]+|\.\./[^"]+)";$', path.read_text("utf-8"), re.MULTILINE
        ):
            loaded(str(path.parent / other), known)
    return known


def test_the_page_is_small() -> None:
    modules = loaded("main.js", set())
    assert len(modules) > 20
    at_once = [path for path in FILES if path.suffix != ".js" or path.resolve() in modules]
    later = {path.name for path in set(FILES) - set(at_once)}
    assert later >= {"export.js", "offline.js", "cache.js", "tally.js", "compare.js", "family.js"}
    assert not later & {"strip.js", "tower.js", "block.js", "heads.js", "next.js"}
    assert sum(len(code(path.read_text("utf-8")).encode()) for path in at_once) < CODE_LIMIT
    long = [
        path.name
        for path in FILES
        if path.suffix == ".js"
        and path.stem not in ("en", "ko", "zh")  # one file per language, with all messages
        and path.read_text("utf-8").count("\n") > LINES
    ]
    assert long == []


def test_folders_are_small() -> None:
    for folder in {path.parent for path in FILES}:
        assert sum(path.is_file() for path in folder.iterdir()) <= 12, folder


def test_it_names_no_other_place() -> None:
    for path in FILES:
        named = set(re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", code(path.read_text("utf-8"))))
        assert named <= {"http://www.w3.org/2000/svg"}, path.name


def interface(name: str) -> dict[str, str]:
    """The members of an interface of page.d.ts and their types."""
    text = (PAGE.parent / "page.d.ts").read_text("utf-8")
    body = re.search(rf"interface {name} {{(.*?)\n}}", text, re.DOTALL)
    assert body is not None
    return dict(re.findall(r'^  "?([\w.]+)"?\??: (.*);$', body[1], re.MULTILINE))


def test_file_names_are_kebab_case() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.\w+", path.name) for path in FILES)


def test_steps_have_the_names_of_the_taps() -> None:
    assert set(interface("HeadSteps")) == {*HEAD_STEPS, *ATTENTION_STEPS, "resid_pre", "unmasked"}
    assert list(interface("MlpSteps")) == MLP_STEPS
    assert set(HEAD_STEPS) | set(ATTENTION_STEPS) | set(MLP_STEPS) == set(BLOCK_STEPS)
    assert set(EXPORTED_STEPS) < set(BLOCK_STEPS)
    for path in FILES:
        if path.suffix == ".js":
            named = set(re.findall(r'"((?:attn|mlp)\.(?!c_)\w+|resid_\w+)"', path.read_text("utf-8")))
            assert named <= {*BLOCK_STEPS, "resid_pre"}, path.name


def test_pictures_of_the_docs_are_there_and_small() -> None:
    docs = Path(__file__).parents[2] / "docs"
    named = re.findall(r"\]\((explorer/[\w-]+\.png)\)", (docs / "explorer.md").read_text("utf-8"))
    taken = {f"explorer/{path.name}" for path in (docs / "explorer").glob("*.png")}
    assert set(named) <= taken
    assert taken - set(named) <= {"explorer/play-light.png", "explorer/play-dark.png"}
    for name in taken - {"explorer/playing.png"}:
        assert (docs / name).stat().st_size <= 150_000, name
    moving = (docs / "explorer" / "playing.png").read_bytes()
    assert b"acTL" in moving[:200]  # an animated PNG
    assert len(moving) < 3_000_000


def test_edits_are_those_of_inspect() -> None:
    fields = interface("Edit")
    assert re.findall(r'"(\w+)"', fields.pop("kind")) == list(EDIT_KINDS)
    assert set(fields) == {name for edit in EDIT_KINDS.values() for name in edit_fields(edit)}
    made = {
        kind
        for path in FILES
        if path.suffix == ".js"
        for kind in re.findall(r'kind: "(\w+)", (?:layer|step)', path.read_text("utf-8"))
    }
    assert made <= set(EDIT_KINDS)
    assert len(made) == 6
