"""A figure of a few kinds of marks, rendered as SVG, an HTML page or (with matplotlib) PNG.

The result is self-contained: no scripts, fonts or links. Colors are names; in SVG they follow the reader's
light or dark setting. Shades are one color with an opacity, so they work on both.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import struct
import unicodedata
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassgpt.errors import UserError

LIGHT = {"background": "#ffffff", "text": "#1b1f27", "muted": "#5d6675", "line": "#d5dae2"}
DARK = {"background": "#14171c", "text": "#eceff4", "muted": "#a0a9b8", "line": "#343b47"}
# Text is readable on these, at up to MAX_OPACITY, in both schemes.
SHADES = {"cool": "#2f7fe0", "warm": "#e0702f"}
MAX_OPACITY = 0.6
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CHAR_WIDTH = 0.61  # of such a font, as a fraction of its size


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    color: str
    opacity: float = 1.0
    tip: str = ""  # a tooltip


@dataclass(frozen=True)
class Label:
    x: float
    y: float  # of the baseline
    text: str
    size: float = 12
    color: str = "text"
    anchor: str = "start"  # or middle, end
    bold: bool = False
    tip: str = ""


@dataclass(frozen=True)
class Grid:
    """Values from -1 to 1 as pixels: cool above zero, warm below, NaN and -inf transparent."""

    x: float
    y: float
    width: float
    height: float
    values: np.ndarray
    tip: str = ""


@dataclass
class Figure:
    width: float
    height: float
    title: str  # for screen readers
    marks: list[Rect | Label | Grid] = field(default_factory=list)

    def rect(self, *args: Any, **more: Any) -> None:
        self.marks.append(Rect(*args, **more))

    def label(self, x: float, y: float, text: str, *, room: float | None = None, **more: Any) -> None:
        """Text, truncated to the width `room` if given."""
        size = more.get("size", 12)
        cleaned = sanitize(text)
        if room is not None:
            cleaned = truncate(cleaned, int(room / (CHAR_WIDTH * size)))
        self.marks.append(Label(x, y, cleaned, **more))

    def grid(self, *args: Any, **more: Any) -> None:
        self.marks.append(Grid(*args, **more))

    def to_svg(self) -> str:
        """A standalone SVG file, which can also be embedded in HTML."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        name = escape(sanitize(self.title))
        parts = "\n".join(self._svg())
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" class="glassgpt" role="img" '
            f'aria-label="{name}" {size}>\n'
            f"<style>{STYLE}</style>\n<title>{name}</title>\n"
            f'<rect class="background" width="100%" height="100%"/>\n{parts}\n</svg>'
        )

    def _svg(self) -> Iterator[str]:
        for mark in self.marks:
            tip = f"<title>{escape(sanitize(mark.tip))}</title>" if mark.tip else ""
            if isinstance(mark, Label):
                extra = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
                extra += ' font-weight="bold"' if mark.bold else ""
                at = f'x="{mark.x:g}" y="{mark.y:g}" font-size="{mark.size:g}"'
                yield f'<text class="{mark.color}" {at}{extra}>{escape(mark.text)}{tip}</text>'
                continue
            box = f'x="{mark.x:g}" y="{mark.y:g}" width="{mark.width:g}" height="{mark.height:g}"'
            if isinstance(mark, Rect):
                shade = "" if mark.opacity == 1 else f' fill-opacity="{mark.opacity:.3g}"'
                yield f'<rect class="{mark.color}" {box}{shade}>{tip}</rect>'
            else:
                data = base64.b64encode(encode_png(to_rgba(mark.values))).decode()
                box += ' preserveAspectRatio="none"'
                yield f'<image {box} href="data:image/png;base64,{data}">{tip}</image>'

    def to_html(self) -> str:
        """A standalone HTML page."""
        return (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(sanitize(self.title))}</title>\n"
            f"<style>body {{ margin: 1rem; background: {LIGHT['background']}; }} "
            f"@media (prefers-color-scheme: dark) {{ body {{ background: {DARK['background']}; }} }}"
            "</style></head>\n"
            f"<body>{self.to_fragment()}</body>\n</html>\n"
        )

    def to_fragment(self) -> str:
        """HTML for a page or notebook; it scrolls if it is wider."""
        return f'<div style="overflow-x: auto">{self.to_svg()}</div>'

    def to_png(self, dpi: int = 200) -> bytes:
        """The same figure by matplotlib, on white."""
        try:
            from matplotlib.figure import Figure as MatplotlibFigure
            from matplotlib.patches import Rectangle
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("matplotlib"):
                raise
            raise UserError(
                "PNG needs matplotlib. Install it with: pip install 'glassgpt[plot]', or use to_svg."
            ) from None
        colors = {**LIGHT, **SHADES}
        figure = MatplotlibFigure(figsize=(self.width / 96, self.height / 96), facecolor=LIGHT["background"])
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        alignment = {"start": "left", "middle": "center", "end": "right"}
        for mark in self.marks:
            if isinstance(mark, Rect):
                corner = (mark.x, mark.y)
                axes.add_patch(
                    Rectangle(
                        corner,
                        mark.width,
                        mark.height,
                        facecolor=colors[mark.color],
                        alpha=mark.opacity,
                        lw=0,
                    )
                )
            elif isinstance(mark, Label):
                axes.text(
                    mark.x,
                    mark.y,
                    mark.text,
                    fontsize=0.75 * mark.size,  # points: 72 per inch, against 96 pixels
                    family="monospace",
                    color=colors[mark.color],
                    ha=alignment[mark.anchor],
                    va="baseline",
                    weight="bold" if mark.bold else "normal",
                    parse_math=False,  # a $ is a $
                )
            else:
                extent = (mark.x, mark.x + mark.width, mark.y + mark.height, mark.y)
                axes.imshow(to_rgba(mark.values), extent=extent, aspect="auto", interpolation="nearest")
                axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # drawn as an empty box
            figure.savefig(out, dpi=dpi, format="png")
        return out.getvalue()


def _style() -> str:
    def rules(colors: dict[str, str]) -> str:
        return " ".join(f".glassgpt .{name} {{ fill: {color}; }}" for name, color in colors.items())

    fixed = f".glassgpt {{ font-family: {FONT}; }} .glassgpt text {{ white-space: pre; }} "
    fixed += ".glassgpt image { image-rendering: pixelated; } "
    return f"{fixed}{rules(LIGHT | SHADES)} @media (prefers-color-scheme: dark) {{ {rules(DARK)} }}"


STYLE = _style()


def visible(token: str) -> str:
    """A token's text with visible spaces and line breaks."""
    return sanitize(token.replace(" ", "␣").replace("\n", "↵").replace("\r", "␍").replace("\t", "⇥"))


def sanitize(text: str) -> str:
    """On one line, without characters that XML forbids or that change the text direction."""
    cleaned = []
    for character in text:
        category = unicodedata.category(character)
        if character < " ":
            cleaned.append(chr(0x2400 + ord(character)))  # the symbol for the control character
        elif category in ("Cc", "Cs", "Cn", "Zl", "Zp"):
            cleaned.append("\ufffd")
        else:
            cleaned.append("·" if category == "Cf" else character)  # Cf: direction marks and others
    return "".join(cleaned)


def truncate(text: str, room: int) -> str:
    """The start of a text that fits `room` characters; wide ones count twice."""
    widths = [2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text]
    if sum(widths) <= room:
        return text
    fits = sum(reached < room for reached in itertools.accumulate(widths))  # one is left for the ellipsis
    return text[:fits] + "…"


def escape(text: str) -> str:
    return html.escape(text, quote=True)


def to_rgba(values: np.ndarray) -> np.ndarray:
    """Values from -1 to 1 as RGBA bytes, (n, m, 4)."""
    values = np.where(np.isfinite(values), values, 0).clip(-1, 1)
    out = np.empty((*values.shape, 4), np.uint8)
    cool, warm = (bytes.fromhex(SHADES[name][1:]) for name in ("cool", "warm"))
    out[..., :3] = np.where((values >= 0)[..., None], list(cool), list(warm))
    out[..., 3] = np.round(255 * np.abs(values))
    return out


def encode_png(pixels: np.ndarray) -> bytes:
    """RGBA bytes, (n, m, 4), as a PNG file."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + 4 * width), np.uint8)  # each row starts with its filter, none
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    packed = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
