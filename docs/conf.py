"""Sphinx: `make docs` builds the documentation into site/; a warning is an error."""

import html
import importlib.util
import sys
import tomllib
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

# Cards: what a chat or a social network shows of a link. Nothing is fetched for them. A picture is added once
# pyproject.toml has the project's public address, for its own has to be absolute.
_root = Path(__file__).resolve().parents[1]
_project = tomllib.loads((_root / "pyproject.toml").read_text("utf-8"))
_repository = _project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"].rstrip("/")
DESCRIPTION_LENGTH = 200


def describe(doctree) -> str:
    """The beginning of a page's first paragraph, in whole words."""
    from docutils import nodes

    text = next(
        (node.astext() for node in doctree.findall(nodes.paragraph)), _project["project"]["description"]
    )
    text = " ".join(text.split())
    if len(text) > DESCRIPTION_LENGTH:
        text = text[:DESCRIPTION_LENGTH].rsplit(" ", 1)[0].rstrip(".,;:") + " ..."
    return text


def add_card(app, page, template, context, doctree) -> None:
    if doctree is None:  # a page without a source: search, index
        return
    description = describe(doctree)
    facts = {
        "og:type": "website" if page == "index" else "article",
        "og:site_name": project,
        "og:title": context["title"],
        "og:description": description,
    }
    if _repository:
        facts["og:image"] = f"{_repository}/raw/main/docs/explorer/play-light.png"
    tags = [f'<meta property="{name}" content="{html.escape(text)}">' for name, text in facts.items()]
    tags.append(f'<meta name="description" content="{html.escape(description)}">')
    tags.append('<meta name="twitter:card" content="summary">')
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def setup(app) -> None:
    app.connect("html-page-context", add_card)
