"""A figure of a few kinds of marks, rendered as SVG, an HTML page or (with matplotlib) PNG.

Colors are names, which in SVG follow the reader's light or dark setting, or fixed (`#1b6ca8`). Shades are one
color with an opacity, so they work on both.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
import zlib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.figures import svg
from glassgpt.figures.svg import CHAR_WIDTH, DARK, LIGHT, MONO, Point, escape, sanitize, truncate
from glassgpt.files import atomic_write

# Text is readable on these, at up to MAX_OPACITY, in both schemes.
SHADES = {"cool": "#2f7fe0", "warm": "#e0702f"}
MAX_OPACITY = 0.6
STYLE = (
    f".glassgpt{{font-family:{MONO}}}.glassgpt text{{white-space:pre}}"
    ".glassgpt image{image-rendering:pixelated}"
    + "".join(f".glassgpt .{name}{{fill:{color}}}" for name, color in SHADES.items())
    + svg.light_and_dark("".join(f".glassgpt .{name}{{fill:${name}}}" for name in LIGHT))
)
NO_MATPLOTLIB = (
    "PNG needs matplotlib. Install it with: pip install 'glassgpt[plot]', or write an .svg instead."
)


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    color: str
    opacity: float = 1.0
    tip: str = ""  # a tooltip
    radius: float = 0.0  # of the corners, in SVG

    def to_svg(self) -> str:
        shade = None if self.opacity == 1 else self.opacity
        return svg.rect(
            self.x, self.y, self.width, self.height,
            rx=self.radius or None, fill_opacity=shade, tip=self.tip, **svg_color(self.color),
        )  # fmt: skip

    def draw(self, axes: Any) -> None:
        from matplotlib.patches import Rectangle

        corner = (self.x, self.y)
        color = png_color(self.color)
        axes.add_patch(Rectangle(corner, self.width, self.height, facecolor=color, alpha=self.opacity, lw=0))


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # of the baseline
    words: str
    size: float = 12
    color: str = "text"
    anchor: str = "start"  # or middle, end
    bold: bool = False
    tip: str = ""

    def to_svg(self) -> str:
        weight = "bold" if self.bold else None
        return svg.text(
            self.x, self.y, self.words, anchor=self.anchor,
            font_size=self.size, font_weight=weight, tip=self.tip, **svg_color(self.color),
        )  # fmt: skip

    def draw(self, axes: Any) -> None:
        axes.text(
            self.x,
            self.y,
            self.words,
            fontsize=0.75 * self.size,  # points: 72 per inch, against 96 pixels
            family="monospace",
            color=png_color(self.color),
            ha={"start": "left", "middle": "center", "end": "right"}[self.anchor],
            va="baseline",
            weight="bold" if self.bold else "normal",
            parse_math=False,  # a $ is a $
        )


@dataclass(frozen=True)
class Grid:
    """Values from -1 to 1 as pixels: cool above zero, warm below, NaN and -inf transparent."""

    x: float
    y: float
    width: float
    height: float
    values: np.ndarray
    tip: str = ""

    def to_svg(self) -> str:
        data = base64.b64encode(encode_png(to_rgba(self.values))).decode()
        return svg.element(
            "image", x=self.x, y=self.y, width=self.width, height=self.height, preserveAspectRatio="none",
            href=f"data:image/png;base64,{data}", tip=self.tip,
        )  # fmt: skip

    def draw(self, axes: Any) -> None:
        extent = (self.x, self.x + self.width, self.y + self.height, self.y)
        axes.imshow(to_rgba(self.values), extent=extent, aspect="auto", interpolation="nearest")


@dataclass(frozen=True)
class Arc:
    """A curve from one point to another, drawn towards a third."""

    start: Point
    towards: Point
    end: Point
    color: str  # a fixed one
    width: float
    opacity: float = 1.0

    def to_svg(self) -> str:
        points = [f"{svg.attribute(x)} {svg.attribute(y)}" for x, y in (self.start, self.towards, self.end)]
        return svg.path(
            "M {} Q {} {}".format(*points),
            fill="none", stroke=self.color, stroke_width=self.width, stroke_opacity=self.opacity,
        )  # fmt: skip

    def draw(self, axes: Any) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        curve = Path([self.start, self.towards, self.end], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        axes.add_patch(
            PathPatch(curve, fill=False, edgecolor=self.color, alpha=self.opacity, lw=0.75 * self.width)
        )


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    color: str

    def to_svg(self) -> str:
        return svg.circle(self.x, self.y, self.radius, **svg_color(self.color))

    def draw(self, axes: Any) -> None:
        from matplotlib.patches import Circle

        axes.add_patch(Circle((self.x, self.y), self.radius, color=png_color(self.color)))


Mark = Rect | Text | Grid | Arc | Dot


@dataclass
class Figure:
    width: float
    height: float
    title: str  # for screen readers
    marks: list[Mark] = field(default_factory=list)
    background: str = "background"

    def rect(self, *args: Any, **more: Any) -> None:
        self.marks.append(Rect(*args, **more))

    def text(self, x: float, y: float, words: str, *, room: float | None = None, **more: Any) -> None:
        """Text, truncated to the width `room` if given."""
        words = sanitize(words)
        if room is not None:
            words = truncate(words, int(room / (CHAR_WIDTH * more.get("size", 12))))
        self.marks.append(Text(x, y, words, **more))

    def grid(self, *args: Any, **more: Any) -> None:
        self.marks.append(Grid(*args, **more))

    def to_svg(self) -> str:
        """A standalone SVG file, which can also be embedded in HTML."""
        back = Rect(0, 0, self.width, self.height, self.background).to_svg()
        parts = [back, *(mark.to_svg() for mark in self.marks)]
        return svg.document(self.width, self.height, parts, self.title, style=STYLE, kind="glassgpt")

    def to_html(self) -> str:
        """A standalone HTML page."""
        return (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title>\n"
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
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("matplotlib"):
                raise
            raise UserError(NO_MATPLOTLIB) from None
        figure = MatplotlibFigure(
            figsize=(self.width / 96, self.height / 96), facecolor=png_color(self.background)
        )
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        for mark in self.marks:
            mark.draw(axes)
            axes.set(xlim=(0, self.width), ylim=(self.height, 0))  # an image changes them
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # drawn as an empty box
            figure.savefig(out, dpi=dpi, format="png")
        return out.getvalue()

    def save(self, path: str | Path) -> None:
        """Write an .svg or .png file."""
        check_picture(path)
        data = self.to_svg().encode() if Path(path).suffix == ".svg" else self.to_png()
        with atomic_write(path, needs=len(data)) as part:
            part.write_bytes(data)


def check_picture(path: str | Path) -> None:
    """Refuse a file that `save` could not write, before the work."""
    if Path(path).suffix not in (".svg", ".png"):
        raise SettingError(f"{path} must end in .svg or .png.")
    if Path(path).suffix == ".png" and find_spec("matplotlib") is None:
        raise UserError(NO_MATPLOTLIB)


def svg_color(color: str) -> dict[str, Any]:
    return {"fill": color} if color.startswith("#") else {"kind": color}


def png_color(color: str) -> str:
    return color if color.startswith("#") else {**LIGHT, **SHADES}[color]


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
