"""The course's lessons as pages: the stub docs/course/NN-name.md is filled from the notebook of that name.

Sphinx reads a notebook as Markdown: text as it is, code and what it printed as blocks, drawings as SVG in the
page. The stored outputs are shown; tests/course runs the notebooks and compares. conf.py calls `setup`.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from glassgpt.figures.figure import SHADES
from glassgpt.figures.svg import DARK, LIGHT

COURSE = Path(__file__).resolve().parents[1] / "course"


def setup(app: Any) -> None:
    app.connect("source-read", fill)
    app.connect("env-before-read-docs", outdated)
    app.connect("build-finished", write_css)
    app.add_css_file("lessons.css")


def notebook_of(page: str) -> Path | None:
    """The notebook of the page `course/07-sampling`; None for another page."""
    folder, _, name = page.rpartition("/")
    path = COURSE / f"{name}.ipynb"
    return path if folder == "course" and path.is_file() else None


def outdated(app: Any, env: Any, pages: list[str]) -> None:
    """Read a lesson again if its notebook changed: Sphinx looks only at the stub."""
    for page in env.found_docs:
        notebook = notebook_of(page)
        read = env.all_docs.get(page)  # microseconds
        if notebook is not None and read is not None and notebook.stat().st_mtime * 1e6 > read:
            pages.append(page)


def fill(app: Any, page: str, source: list[str]) -> None:
    notebook = notebook_of(page)
    if notebook is not None:
        source[0] = to_markdown(json.loads(notebook.read_text("utf-8")), int(notebook.name[:2]))


def to_markdown(notebook: dict[str, Any], number: int) -> str:
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(fence(text, "python"))
        parts += [part for output in cell["outputs"] for part in show(output)]
    parts.insert(1, f"To run this lesson and do its exercises, type `glassgpt course {number}`.")
    return "\n\n".join(parts) + "\n"


def show(output: dict[str, Any]) -> list[str]:
    if output["output_type"] == "stream":
        return [block("".join(output["text"]))]
    data = output["data"]
    if "image/svg+xml" not in data:
        return [block("".join(data["text/plain"]))]
    picture = "".join(data["image/svg+xml"])
    picture = re.sub(r"\n\s*\n", "\n", picture)  # an empty line would end the HTML
    return [f'<div class="lesson-figure">\n{picture.strip()}\n</div>']


def block(words: str) -> str:
    """Printed text. As HTML: a fence would be colored, and offer to be copied."""
    kept = html.escape(words.rstrip("\n"), quote=False)
    return f'<pre class="lesson-output">{kept}</pre>'


def fence(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"


def css() -> str:
    """The style of outputs and drawings. A drawing follows the system's light or dark setting by itself; here
    it also follows the page's own button, and paper is always light."""

    def rules(colors: dict[str, str], where: str) -> str:
        return "".join(f"{where} .glassgpt .{name}{{fill:{color}}}\n" for name, color in colors.items())

    return (
        ".lesson-output{margin:-0.4rem 0 1rem;padding:.5rem .875rem;font-size:var(--code-font-size);"
        "border-left:3px solid var(--color-brand-primary);line-height:1.4;"
        "white-space:pre-wrap;background:none}\n"
        ".lesson-figure{overflow-x:auto;margin:0 0 1rem}\n"
        ".lesson-figure svg{max-width:100%;height:auto}\n"
        + rules(LIGHT | SHADES, 'body[data-theme="light"]')
        + rules(DARK | SHADES, 'body[data-theme="dark"]')
        + "@media print{.skip-to-content{display:none}"
        ".lesson-figure,.lesson-output,.highlight{break-inside:avoid}"
        ".highlight pre{white-space:pre-wrap}\n" + rules(LIGHT | SHADES, "body[data-theme]") + "}\n"
    )


def write_css(app: Any, problem: Exception | None) -> None:
    if problem is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / "lessons.css").write_text(css(), "utf-8")
