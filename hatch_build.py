"""Build hook: compiles the native engine into the package, which installs without it where that fails."""

from __future__ import annotations

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):
    """Called by pip for a wheel, and for an editable install (where the library stays in the source tree)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
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


def load_build_module(root: Path) -> Any:
    """glassgpt/native/build.py by itself: the package's dependencies are not there while it is built."""
    spec = importlib.util.spec_from_file_location(
        "native_build", root / "src" / "glassgpt" / "native" / "build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag() -> str:
    """The tag of wheels for this machine. It is plain C++ without Python's headers: any Python 3 will do."""
    if sys.platform == "darwin":
        release = sysconfig.get_platform().split("-")[1].replace(".", "_")
        return f"macosx_{release}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
