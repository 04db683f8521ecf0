"""Results that render themselves: in a notebook, as an HTML page, as SVG or PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure


class Displayable:
    """A mixin for results with a figure: notebooks render it, and it can be saved."""

    def figure(self) -> Figure:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.figure().to_fragment()

    def _repr_svg_(self) -> str:
        """For viewers of stored notebooks that do not show HTML, such as GitHub's."""
        return self.to_svg()

    def to_svg(self, path: str | Path | None = None) -> str:
        """The figure as SVG, also written to `path` if given."""
        return _save_text(self.figure().to_svg(), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The figure as a self-contained HTML page, also written to `path` if given."""
        return _save_text(self.figure().to_html(), path)

    def to_png(self, path: str | Path | None = None, dpi: int = 200) -> bytes:
        """The figure as PNG (with matplotlib), also written to `path` if given."""
        data = self.figure().to_png(dpi)
        if path is not None:
            _save(path, data)
        return data


def _save_text(text: str, path: str | Path | None) -> str:
    if path is not None:
        _save(path, text.encode())
    return text


def _save(path: str | Path, data: bytes) -> None:
    from glassgpt.files import atomic_write

    with atomic_write(path, needs=len(data)) as part:
        part.write_bytes(data)
