"""Pictures of every view of the Explorer, light and dark, into docs/explorer/.

    python docs/screenshots.py [NAME ...]

It needs Chromium and playwright (`make test` installs both). The text and the model are always the same, so a
picture changes when the page does. Each file stays below 150 KB.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.model import GPT2, TorchBackend

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.explorer.browser import NoBrowser, Visit, launched, served

OUT = Path(__file__).with_name("explorer")
TEXT = "A robot must obey the orders given it"
MOST_BYTES = 150_000
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# What each picture shows: the state in the page's address, and what is done before it is taken.
PICTURES: dict[str, dict[str, Any]] = {
    "block": {"view": "block", "layer": 2, "head": 1, "token": 7},
    "heads": {"view": "heads", "layer": 1, "head": 2},
    "edits": {
        "view": "heads",
        "layer": 3,
        "head": 4,
        "edits": '[{"kind":"ablate_head","layer":3,"head":4,"how":"zero"}]',
    },
    "next": {"view": "next", "temperature": 0.8, "topP": 0.9},
    "cache": {"view": "cache", "step": 4},
    "tally": {"view": "tally"},
    "compare": {"view": "compare"},
    "tour": {"view": "block", "tour": 4},
    "strip": {"view": "block"},
    "phone": {"view": "next"},
}


def main() -> None:
    wanted = sys.argv[1:] or list(PICTURES)
    gpt = glassgpt.load("default", device="cpu", dtype="float32")
    OUT.mkdir(exist_ok=True)
    with served(make_app(gpt, disturbed(gpt))) as url, launched() as browser:
        for name in wanted:
            for theme in ("light", "dark"):
                options = PHONE if name == "phone" else {"viewport": {"width": 1280, "height": 800}}
                page = Visit(browser, url, reduced_motion="reduce", **options)
                page.open(TEXT, theme=theme, **PICTURES[name])
                if name == "strip":
                    page.page.locator("glass-strip [role=group] button").nth(2).hover()
                page.page.wait_for_timeout(500)
                file = OUT / f"{name}-{theme}.png"
                page.page.screenshot(path=file, full_page=name == "phone")
                size = squeezed(file)
                print(f"{file.name:20} {size:8,} bytes" + ("   TOO LARGE" if size > MOST_BYTES else ""))
                page.close()


def disturbed(gpt: GPT) -> GPT:
    """A second model to compare with: the same, a little disturbed."""
    torch.manual_seed(5)
    model = GPT2(gpt.config)
    state = gpt.backend.model.state_dict()  # type: ignore[attr-defined]
    model.load_state_dict({name: x + 0.02 * torch.randn_like(x) for name, x in state.items()})
    return GPT(TorchBackend(model.requires_grad_(False)), gpt.tokenizer, name="disturbed")


def squeezed(file: Path) -> int:
    """Packed better than a browser does it; with fewer colours only where that is not enough."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return file.stat().st_size
    with Image.open(file) as picture:
        plain = picture.convert("RGB")
    plain.save(file, optimize=True)
    if file.stat().st_size > MOST_BYTES:
        plain.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(file, optimize=True)
    return file.stat().st_size


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as why:
        raise SystemExit(str(why)) from None
