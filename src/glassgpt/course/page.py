"""A notebook as one HTML page, for readers without Jupyter: text, code, outputs and figures."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from glassgpt.course.lessons import LIMIT, title_of
from glassgpt.files import read_bytes

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f27;--code:#f1f3f7;--line:#d5dae2}
@media(prefers-color-scheme:dark){:root{--back:#14171c;--text:#eceff4;--code:#1e232b;--line:#343b47}}
body{max-width:46rem;margin:2rem auto;padding:0 1rem;background:var(--back);color:var(--text);
font:17px/1.55 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
pre{overflow-x:auto;padding:.7rem 1rem;border-radius:6px;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
pre.in{background:var(--code)}
pre.out{border-left:3px solid var(--line);padding:.2rem 1rem;white-space:pre-wrap}
.figure{overflow-x:auto}svg{max-width:100%;height:auto}table{border-collapse:collapse}
td,th{border:1px solid var(--line);padding:.2rem .6rem}a{color:#2f7fe0}
@media print{body{max-width:none;margin:0;font-size:11pt}pre{white-space:pre-wrap}
pre,.figure{break-inside:avoid}h2{break-after:avoid}}
"""


def page(notebook: Path) -> str:
    """The page of a notebook with stored outputs."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark").enable("table")
    parts = []
    for cell in json.loads(read_bytes(notebook, LIMIT))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(markdown.render(source))
        else:
            parts.append(f'<pre class="in"><code>{escape(source)}</code></pre>')
            parts += [output_html(output) for output in cell.get("outputs", ())]
    title = escape(title_of(notebook))
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def output_html(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f'<pre class="out">{escape("".join(output["text"]))}</pre>'
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<div class="figure">{"".join(data["image/svg+xml"])}</div>'
    return f'<pre class="out">{escape("".join(data.get("text/plain", [])))}</pre>'
