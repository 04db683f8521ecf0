"""SVG: elements, text and colors.

A drawing is self-contained: no scripts, fonts or links.
"""

from __future__ import annotations

import html
import itertools
import unicodedata
from collections.abc import Iterable
from numbers import Integral, Real
from string import Template
from typing import Any

LIGHT = {"background": "#ffffff", "text": "#1b1f27", "muted": "#5d6675", "line": "#d5dae2"}
DARK = {"background": "#14171c", "text": "#eceff4", "muted": "#a0a9b8", "line": "#343b47"}
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
CHAR_WIDTH = 0.61  # of a monospace font, as a fraction of its size

Point = tuple[float, float]


def element(
    name: str, content: str = "", *, kind: str | None = None, tip: str = "", **attributes: object
) -> str:
    """An SVG element with SVG inside, a class (`kind`) and a tooltip. `stroke_width` is its stroke-width; an
    attribute that is None is left out."""
    if tip:
        content += f"<title>{escape(tip)}</title>"
    written = "".join(
        f' {key.replace("_", "-")}="{attribute(value)}"'
        for key, value in {"class": kind, **attributes}.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def attribute(value: object) -> str:
    """Numbers with five digits at most; text escaped."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.5g}"
    return html.escape(str(value), quote=True)


def text(x: float, y: float, words: str, kind: str | None = None, anchor: str = "start", **more: Any) -> str:
    """Words whose baseline is at y; `anchor` says which point of them is at x: start, middle or end."""
    where = None if anchor == "start" else anchor
    return element("text", escape(words), kind=kind, x=x, y=y, text_anchor=where, **more)


def rect(x: float, y: float, width: float, height: float, **more: Any) -> str:
    return element("rect", x=x, y=y, width=width, height=height, **more)


def circle(x: float, y: float, radius: float, **more: Any) -> str:
    return element("circle", cx=x, cy=y, r=radius, **more)


def path(d: str, **more: Any) -> str:
    return element("path", d=d, **more)


def through(points: Iterable[Point]) -> str:
    """The `d` of a path from point to point."""
    return "M" + "L".join(f"{attribute(x)} {attribute(y)}" for x, y in points)


def document(
    width: float, height: float, parts: Iterable[str], label: str, *, style: str = "", **more: Any
) -> str:
    """An SVG file. Screen readers read `label`."""
    size: dict[str, Any] = {
        "width": width,
        "height": height,
        "viewBox": f"0 0 {attribute(width)} {attribute(height)}",
    }
    content = f"<title>{escape(label)}</title>\n<style>{style}</style>\n" + "\n".join(parts) + "\n"
    return element("svg", content, xmlns="http://www.w3.org/2000/svg", role="img", **size, **more) + "\n"


def light_and_dark(rules: str) -> str:
    """CSS that follows the reader's setting: `rules` with $background, $text, $muted and $line."""
    light, dark = (Template(rules).substitute(colors) for colors in (LIGHT, DARK))
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


def visible(token: str) -> str:
    """A token's text with visible spaces and line breaks."""
    return sanitize(token.replace(" ", "␣").replace("\n", "↵").replace("\r", "␍").replace("\t", "⇥"))


def sanitize(words: str) -> str:
    """On one line, without characters that XML forbids or that change the text direction."""
    cleaned = []
    for character in words:
        category = unicodedata.category(character)
        if character < " ":
            cleaned.append(chr(0x2400 + ord(character)))  # the symbol for the control character
        elif category in ("Cc", "Cs", "Cn", "Zl", "Zp"):
            cleaned.append("\ufffd")
        else:
            cleaned.append("·" if category == "Cf" else character)  # Cf: direction marks and others
    return "".join(cleaned)


def truncate(words: str, room: int) -> str:
    """The start of a text that fits `room` characters; wide ones count twice."""
    widths = [2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in words]
    if sum(widths) <= room:
        return words
    fits = sum(reached < room for reached in itertools.accumulate(widths))  # one is left for the ellipsis
    return words[:fits] + "…"


def escape(words: str) -> str:
    return html.escape(sanitize(words), quote=True)
