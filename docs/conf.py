"""Sphinx: `make docs` builds the documentation into site/; a warning is an error."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(1, str(Path(__file__).resolve().parent))  # lesson_pages.py

from glassgpt import __version__

project = "GlassGPT"
author = "the authors of GlassGPT"
copyright = "2026, the authors of GlassGPT"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.githubpages", "lesson_pages"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "none"  # of blocks that name no language: command lines

# The API is documented from the source, without running the model.
autodoc_mock_imports = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"undoc-members": True}
python_maximum_signature_line_length = 90
autodoc_preserve_defaults = True

# Furo (MIT): light and dark follow the system; on a phone the menu is behind a button. No external requests.
html_theme = "furo"
html_title = f"GlassGPT {__version__}"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
