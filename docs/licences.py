"""The dependencies of GlassGPT, and their licences as the packages themselves state them.

    python docs/licences.py

Three tables: the package with its extras, what only the tests and docs need, and the npm tools that check the
Explorer's page (package-lock.json).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
USED, DEVELOPED = ("all",), ("dev", "docs")  # extras
NOT_STATED = "not stated"


class Package(NamedTuple):
    name: str
    version: str
    licence: str


def closure(
    name: str, extras: Iterable[str], find: Callable[[str], Distribution] = Distribution.from_name
) -> list[Package]:
    """A package with these extras, and everything it depends on, directly or not, on this machine."""
    found: dict[str, Package] = {}
    done: set[tuple[str, str]] = set()
    to_do = [(name, extra) for extra in ("", *extras)]
    while to_do:
        name, extra = to_do.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        try:
            distribution = find(name)
        except PackageNotFoundError:
            found[canonicalize_name(name)] = Package(name, "not installed", "")
            continue
        version = distribution.version
        found[canonicalize_name(name)] = Package(
            distribution.metadata["Name"], version, licence(distribution)
        )
        for line in distribution.requires or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                to_do += [(wanted.name, more) for more in ("", *wanted.extras)]
    return sorted(found.values(), key=lambda package: package.name.lower())


def licence(distribution: Distribution) -> str:
    """The licence expression, or its predecessors: a classifier, the first line of a field, a file."""
    facts = distribution.metadata
    if facts.get("License-Expression"):
        return facts["License-Expression"]
    classifiers = [line for line in facts.get_all("Classifier") or [] if line.startswith("License :: ")]
    if classifiers:
        return ", ".join(line.rpartition(" :: ")[2] for line in classifiers)
    lines = (facts.get("License") or "").strip().splitlines()
    if lines:
        return lines[0]
    texts = [
        file for file in distribution.files or [] if file.name.upper().startswith(("LICENSE", "LICENCE"))
    ]
    return f"see {texts[0]}" if texts else NOT_STATED


def npm_tools(lock: Path) -> list[Package]:
    packages = json.loads(lock.read_text("utf-8"))["packages"]
    return [
        Package(path.rpartition("node_modules/")[2], facts["version"], facts.get("license", NOT_STATED))
        for path, facts in sorted(packages.items())
        if path != ""
    ]


def main() -> None:
    used = closure("glassgpt", USED)
    developed = [package for package in closure("glassgpt", DEVELOPED) if package not in used]
    npm = npm_tools(ROOT / "package-lock.json")
    titles = ("with glassgpt[all]", "only for tests and docs", "npm, only to check the Explorer's page")
    for title, packages in zip(titles, (used, developed, npm), strict=True):
        print(f"\n{title}\n")
        for name, version, stated in packages:
            if name != "glassgpt":
                print(f"{name:38} {version:15} {stated}")


if __name__ == "__main__":
    main()
