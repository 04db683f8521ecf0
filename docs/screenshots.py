"""Take screenshots of every view of the Explorer, light, dark and on a phone, into docs/explorer/, and a
short animated picture of the block playing.

    python docs/screenshots.py [NAME ...] [-o docs/explorer]

Needs Chromium and playwright (`make test` installs both) and Pillow. Text and model are fixed: a screenshot
changes only when the page does. Each file is below 150 KB, the animation below 3 MB.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch

import glassgpt
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.explorer.app import make_app
from glassgpt.files import atomic_write
from glassgpt.gpt import GPT
from glassgpt.model import GPT2

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.explorer.browser import NoBrowser, Visit, launched, served

TEXT = "A robot must obey the orders given it"
MAX_BYTES = 150_000
LAPTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# The page's state for each screenshot.
SCREENSHOTS: dict[str, dict[str, Any]] = {
    "tower": {"view": "block", "layer": 8, "head": 2, "pin": 369},
    "block": {"view": "block", "layer": 6, "head": 5},
    "play": {"view": "block", "layer": 6, "head": 5, "play": 19},
    "pairs": {"view": "block", "layer": 6, "head": 5, "part": "pairs"},
    "mlp": {"view": "block", "layer": 6, "head": 5, "part": "mlp"},
    "embedding": {"view": "block", "layer": -1},
    "heads": {"view": "heads", "layer": 6, "head": 5},
    "overlay": {"view": "heads", "layer": 6, "head": 5, "overlay": '["5.3","11.2"]', "skipFirst": "true"},
    "edits": {
        "view": "next",
        "layer": 8,
        "head": 2,
        "edits": '[{"kind":"ablate_head","layer":8,"head":2,"how":"zero"}]',
    },
    "next": {"view": "next", "temperature": 0.8, "topP": 0.9},
    "why": {"view": "why", "layer": 6, "head": 5},
    "cache": {"view": "cache", "step": 4},
    "tally": {"view": "tally"},
    "compare": {"view": "compare"},
    "family": {"view": "family"},
    "tour": {"tour": 4},
    "strip": {"view": "block", "layer": 6, "head": 5},
}
PHONE_VIEWS = ("tower", "block", "heads", "next", "why", "cache", "tally", "compare", "family", "tour")
ANIMATION = "playing.png"
ANIMATION_BYTES = 3_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*SCREENSHOTS, "playing"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(every)}")
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("explorer"))
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in every]:
        parser.error(f"there is no screenshot {unknown[0]!r}; choose from {', '.join(every)}")
    names = given.names if given.names else every
    gpt = glassgpt.load("default", device="cpu", dtype="float32", backend="torch")
    given.out.mkdir(exist_ok=True)
    with served(make_app(gpt, perturb(gpt))) as url, launched() as browser:
        for kind in ("light", "dark", "phone"):
            options = PHONE if kind == "phone" else LAPTOP
            page = Visit(browser, url, reduced_motion="reduce", **options)
            for name in names:
                if name in SCREENSHOTS and (kind != "phone" or name in PHONE_VIEWS):
                    take(page, name, kind, given.out)
            page.close()
        if "playing" in names:
            animate(browser, url, given.out)


def take(page: Visit, name: str, kind: str, out: Path) -> None:
    state = {"text": TEXT, "theme": "dark" if kind == "dark" else "light", "welcome": "false"} | SCREENSHOTS[
        name
    ]
    if name == "tower" and kind == "phone":
        state["view"] = "tower"  # there it is a view of its own
    page.page.goto(
        page.url + "#" + urlencode(state)
    )  # the same page: what it has loaded is not asked for again
    if name == "strip":
        page.page.locator("glass-strip [role=group] button").nth(2).hover()
    page.ready().page.wait_for_timeout(900)
    file = out / f"{name}-{kind}.png"
    with atomic_write(file) as part:
        page.painted().page.screenshot(path=part, type="png")
        size = compress(part)
    print(f"{file.name:20} {size:8,} bytes" + ("   TOO LARGE" if size > MAX_BYTES else ""), flush=True)


def animate(browser: Any, url: str, out: Path) -> None:
    """The block playing, as an APNG: two pictures of each new step, one of each repetition."""
    import io

    from PIL import Image

    page = Visit(browser, url, viewport={"width": 1100, "height": 800})
    page.open(TEXT, view="block", layer=6, head=5, welcome="false", play=0, wide="true")
    frames = page.js("module.framesOf(store.trace.tokens.length)", module="block/player.js")
    area = page.page.locator("#sheet").bounding_box()
    pictures, lasts = [], []
    for number, frame in enumerate(frames):
        repeats = number > 0 and frames[number - 1]["stage"] == frame["stage"]
        page.js("store.set({ play: given })", number)
        page.js("document.querySelector('glass-block .now')?.scrollIntoView({ block: 'nearest' })")
        for wait, shown in ((350, 250),) if repeats else ((250, 250), (900, 1300)):
            page.page.wait_for_timeout(wait)
            shot = Image.open(io.BytesIO(page.page.screenshot(clip=area))).convert("RGB")
            pictures.append(shot.quantize(64, dither=Image.Dither.NONE).convert("RGB"))
            lasts.append(shown)
    page.close()
    file = out / ANIMATION
    first, *rest = pictures
    with atomic_write(file) as part:
        first.save(part, "PNG", save_all=True, append_images=rest, duration=lasts, loop=0, optimize=True)
    size = file.stat().st_size
    print(f"{file.name:20} {size:8,} bytes, {len(pictures)} frames" + " TOO LARGE" * (size > ANIMATION_BYTES))


def perturb(gpt: GPT) -> GPT:
    """A second model to compare with: the same weights with some noise."""
    torch.manual_seed(5)
    model = GPT2(gpt.config)
    state = gpt.backend.model.state_dict()  # type: ignore[attr-defined]
    model.load_state_dict({name: x + 0.02 * torch.randn_like(x) for name, x in state.items()})
    return GPT(TorchBackend(model.requires_grad_(False)), gpt.tokenizer, name="perturbed")


def compress(file: Path) -> int:
    """Compress better than the browser does; reduce colors only if that is not enough."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return file.stat().st_size
    with Image.open(file) as image:
        plain = image.convert("RGB")
    plain.save(file, "PNG", optimize=True)
    if file.stat().st_size > MAX_BYTES:
        plain.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.stat().st_size


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as why:
        raise SystemExit(str(why)) from None
