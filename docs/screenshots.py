"""Take screenshots of every view of the Explorer, light and dark, into docs/explorer/.

    python docs/screenshots.py [NAME ...]

Needs Chromium and playwright (`make test` installs both). Text and model are fixed, so a screenshot changes
only when the page does. Each file is below 150 KB.
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
MAX_BYTES = 150_000
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# The page's state for each screenshot.
SCREENSHOTS: dict[str, dict[str, Any]] = {
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
    names = sys.argv[1:] or list(SCREENSHOTS)
    gpt = glassgpt.load("default", device="cpu", dtype="float32")
    OUT.mkdir(exist_ok=True)
    with served(make_app(gpt, perturb(gpt))) as url, launched() as browser:
        for name in names:
            for theme in ("light", "dark"):
                options = PHONE if name == "phone" else {"viewport": {"width": 1280, "height": 800}}
                page = Visit(browser, url, reduced_motion="reduce", **options)
                page.open(TEXT, theme=theme, **SCREENSHOTS[name])
                if name == "strip":
                    page.page.locator("glass-strip [role=group] button").nth(2).hover()
                page.page.wait_for_timeout(500)
                file = OUT / f"{name}-{theme}.png"
                page.page.screenshot(path=file, full_page=name == "phone")
                size = compress(file)
                print(f"{file.name:20} {size:8,} bytes" + ("   TOO LARGE" if size > MAX_BYTES else ""))
                page.close()


def perturb(gpt: GPT) -> GPT:
    """A second model to compare with: the same weights with some noise."""
    torch.manual_seed(5)
    model = GPT2(gpt.config)
    state = gpt.backend.model.state_dict()  # type: ignore[attr-defined]
    model.load_state_dict({name: x + 0.02 * torch.randn_like(x) for name, x in state.items()})
    return GPT(TorchBackend(model.requires_grad_(False)), gpt.tokenizer, name="perturbed")


def compress(file: Path) -> int:
    """Compress better than the browser does; reduce colours only if that is not enough."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return file.stat().st_size
    with Image.open(file) as image:
        plain = image.convert("RGB")
    plain.save(file, optimize=True)
    if file.stat().st_size > MAX_BYTES:
        plain.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(file, optimize=True)
    return file.stat().st_size


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as why:
        raise SystemExit(str(why)) from None
