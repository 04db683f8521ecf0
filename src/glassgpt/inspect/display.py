"""What shows itself: in a notebook, as a page, and as a picture for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassgpt.inspect.svg import Picture


class Shown:
    """For whatever can draw itself: a notebook shows it, and it can be written for a paper."""

    def picture(self) -> Picture:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.picture().fragment()

    def to_svg(self, path: str | Path | None = None) -> str:
        """The drawing as SVG, also written to `path` if there is one."""
        return _written(self.picture().to_svg(), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The drawing as a page that needs nothing else, also written to `path` if there is one."""
        return _written(self.picture().to_html(), path)

    def to_png(self, path: str | Path | None = None, dpi: int = 200) -> bytes:
        """The drawing as PNG by matplotlib, also written to `path` if there is one."""
        data = self.picture().to_png(dpi)
        if path is not None:
            _write(path, data)
        return data


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        _write(path, text.encode())
    return text


def _write(path: str | Path, data: bytes) -> None:
    from glassgpt.files import atomic_write

    with atomic_write(path, needs=len(data)) as part:
        part.write_bytes(data)
