"""A site: the page with its engine and its models as a folder that any static host serves, without a server.

The same models and the same version of the package give the same bytes. Nothing comes from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import glassgpt
from glassgpt.errors import SettingError, UserError
from glassgpt.explorer.dependencies import PAGE
from glassgpt.explorer.examples import examples_json
from glassgpt.explorer.models import Model, short_name
from glassgpt.explorer.site_facts import site_facts
from glassgpt.files import atomic_write, check_target
from glassgpt.gpt import load
from glassgpt.progress import Progress, no_progress
from glassgpt.weights import load_checkpoint, packed

KINDS = {"html", "js", "css", "svg", "wasm", "webmanifest", "png", "txt"}
LIST = "files.json"
CARDS = ("MODEL_CARD.md", "ATTRIBUTION.txt.gz")  # a model's, which go with it
SCRIPT = '<script type="module" src="main.js"></script>'


@dataclass(frozen=True)
class SiteReport:
    """What was written."""

    folder: Path
    version: str
    files: int
    bytes: int
    model_bytes: int


def write_site(
    folder: str | Path,
    models: Sequence[str] = ("default", "tiny"),
    text: str | None = None,
    *,
    progress: Progress = no_progress,
) -> SiteReport:
    """Write the folder, in place of an older site there. The first of the models is opened first."""
    folder = Path(folder)
    check_target(folder)
    if folder.exists() and not (folder / LIST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} exists and is not a site. Choose another folder.")
    if len(set(map(short_name, models))) != len(models) or not models:
        raise SettingError(f"--model {' '.join(models)}: name every model once.")
    with atomic_write(folder, folder=True) as part:
        described = [write_model(part, name, progress) for name in models]
        for path, entry in page_files(PAGE):
            write(part / path, entry.read_bytes())
        version = version_of(part, described, text)
        facts = {"version": version, "package": glassgpt.__version__, "models": described, "text": text}
        write_index(part, facts | {"facts": site_facts()})
        files = [
            {"path": path, "bytes": (part / path).stat().st_size, "sha256": digest(part / path)}
            for path in paths(part)
        ]
        write(part / LIST, json.dumps({"version": version, "files": files}, indent=1).encode() + b"\n")
    sizes = {str(file["path"]): int(str(file["bytes"])) for file in files}
    of_models = sum(size for path, size in sizes.items() if path.startswith("models/"))
    return SiteReport(folder, version, len(files) + 1, sum(sizes.values()), of_models)


def page_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """All files of the page, the engine's among them."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from page_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in KINDS:
            yield prefix + entry.name, entry


def write_model(part: Path, name: str, progress: Progress) -> dict[str, Any]:
    """One model as a packed folder, and what the page says of it before it is opened."""
    checkpoint = load_checkpoint(name, progress=progress)
    config = checkpoint.config
    if config.attention != "causal" or not config.has_wpe:
        raise UserError(
            f"{name} has attention {config.attention!r}, which a site cannot compute. Leave it out."
        )
    folder = f"models/{re.sub(r'[^A-Za-z0-9._-]+', '-', short_name(name)).strip('-.') or 'model'}"
    target, source = part / folder, Path(checkpoint.source)
    stored = source / packed.FILE
    if stored.is_file() and not (source / "adapter.json").is_file():
        write(target / packed.FILE, stored.read_bytes())
        for card in CARDS:
            if (source / card).is_file():
                write(target / card, (source / card).read_bytes())
    else:
        packed.save(checkpoint, target, "int8")
        for path in target.iterdir():
            if path.name not in (packed.FILE, "tokenizer.json"):
                path.unlink()
    write(target / "config.json", json.dumps(config.to_dict(), indent=2).encode() + b"\n")
    if checkpoint.tokenizer is not None:
        files = checkpoint.tokenizer.files()
        write(target / "tokenizer.json", files["tokenizer.json"].encode())
    model = Model(load(name, device="cpu"), short_name(name))
    wanted = [packed.FILE, "config.json", *(["tokenizer.json"] if checkpoint.tokenizer else [])]
    files_of = [{"name": each, "bytes": (target / each).stat().st_size} for each in wanted]
    return {
        "name": model.name,
        "folder": folder,
        "bytes": files_of[0]["bytes"],
        "files": files_of,
        "describe": model.describe() | {"is_open": False},
        "examples": examples_json(model),
    }


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_index(part: Path, facts: dict[str, Any]) -> None:
    """The page, told that it is a site; a "<" in the facts could end the block."""
    index = part / "index.html"
    data = json.dumps(facts, ensure_ascii=False, sort_keys=True).replace("<", "\\u003c")
    page = index.read_text("utf-8")
    assert page.count(SCRIPT) == 1, "index.html loads main.js in one line"
    block = f'<script type="application/json" id="glass-site">{data}</script>'
    index.write_bytes(page.replace(SCRIPT, f"{block}\n    {SCRIPT}").encode())


def version_of(part: Path, described: list[dict[str, Any]], text: str | None) -> str:
    """Of all that the site is made of: another version is another site."""
    hasher = hashlib.sha256(json.dumps([described, text, glassgpt.__version__], sort_keys=True).encode())
    for path in paths(part):
        hasher.update(f"{path} {digest(part / path)}\n".encode())
    return hasher.hexdigest()[:16]


def paths(part: Path) -> list[str]:
    return sorted(path.relative_to(part).as_posix() for path in part.rglob("*") if path.is_file())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
