"""Build hooks: the native engine, compiled into the package where there is a compiler; the models, in the
package or in a distribution of their own; and the README with links that work on a package index."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")  # relative: no scheme, not inside the page


class GlassGPTBuildHook(BuildHookInterface[Any]):
    """Called for the source distribution, which leaves the models out; and by pip for a wheel, and for an
    editable install (where the library stays in the source tree)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "sdist" or not has_models(Path(self.root)):
            build_data["dependencies"].append(f"glassgpt-models=={self.metadata.version}")
        if self.target_name == "wheel":
            self.add_engine(build_data)
            if version != "editable":  # a checkout's notebooks are found where they are
                for notebook in sorted((Path(self.root) / "course").glob("*.ipynb")):
                    build_data["force_include"][str(notebook)] = f"glassgpt/course/notebooks/{notebook.name}"

    def add_engine(self, build_data: dict[str, Any]) -> None:
        build = load_build_module(Path(self.root))
        try:
            library = build.build()
        except build.BuildError as problem:
            self.app.display_warning(
                f"The native engine for CPUs was not built: {problem}. GlassGPT runs without it, slower."
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())


def has_models(root: Path) -> bool:
    """Whether the shipped models are in the source tree: in a checkout, but not in a source distribution."""
    return any((root / "src" / "glassgpt" / "data").glob("*/config.json"))


def load_build_module(root: Path) -> Any:
    """backends/native/build.py by itself: the package's dependencies are not there while it is built."""
    spec = importlib.util.spec_from_file_location(
        "native_build", root / "src" / "glassgpt" / "backends" / "native" / "build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag() -> str:
    """The tag of wheels for this machine, or for that of $GLASSGPT_PLATFORM_TAG (release/wheels.py compiles
    for others). It is plain C++ without Python's headers: any Python 3 will do."""
    if tag := os.environ.get("GLASSGPT_PLATFORM_TAG"):
        return tag
    if sys.platform == "darwin":
        release = sysconfig.get_platform().split("-")[1].replace(".", "_")
        return f"macosx_{release}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class ReadmeHook(MetadataHookInterface):
    """The project's URLs and the README, made from the one address in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository),
        }
        metadata["urls"] = project_urls(repository)


def project_urls(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{BRANCH}/docs/index.md",
        "Changelog": f"{repository}/blob/{BRANCH}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def with_absolute_links(text: str, repository: str) -> str:
    """Turn relative links and images into addresses in the repository. Without one, a link becomes its text
    and an image is left out: neither would work outside a checkout."""

    def absolute(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if not repository:
            return "" if mark else label
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/{BRANCH}/{target})"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(absolute, text))
