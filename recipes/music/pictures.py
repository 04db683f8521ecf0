"""The sample of docs/music.md, to see and to hear, by the shipped model.

    python recipes/music/pictures.py [--seed 2] [--layer 2] [--out docs]

Writes music_sample.mid, .svg and .ogg (20 s), music_attention.svg (what its last note within 12 s looks at)
and, where Chromium and playwright are installed, music_explorer.png: the Explorer playing its beginning.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import urlencode

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.figures.figure import Figure
from glassgpt.gpt import GPT
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.arcs import attention_arcs
from glassgpt.music.generate import sample
from glassgpt.music.midi import write_midi
from glassgpt.music.roll import draw_roll
from glassgpt.music.sound.render import render

sys.path.insert(0, str(Path(__file__).parents[2]))

SECONDS, ATTENTION_SECONDS, PAGE_EVENTS = 20.0, 12.0, 150


def draw_attention(gpt: GPT, performance: Performance, layer: int) -> Figure:
    part = performance.crop(0, ATTENTION_SECONDS)
    ids = PerformanceTokenizer().encode(part).tolist()
    last = max(place for place, id in enumerate(ids) if id < 128)  # NOTE_ON
    arcs = attention_arcs(gpt, ids, event=last, layer=layer, per_head=6)
    title = f"what the heads of layer {layer} look at from the last note"
    return draw_roll(part, title, arcs=[arc for arc in arcs if arc.weight > 0.03])


def photograph(gpt: GPT, text: str, out: Path) -> None:
    """The page while it plays."""
    from tests.explorer.browser import NoBrowser, Visit, launched, served

    try:
        with served(make_app(gpt)) as url, launched() as browser:
            page = Visit(browser, url, viewport={"width": 1280, "height": 760})
            state = {"text": text, "view": "heads", "layer": 4, "head": 0, "welcome": "false"}
            page.page.goto(f"{page.url}#{urlencode(state | {'theme': 'light'})}")
            page.ready().page.locator("piano-roll .play").click()
            page.page.wait_for_timeout(2500)
            page.page.screenshot(path=out)
    except NoBrowser as missing:
        print(f"{out} was not made: {missing}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="music")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    gpt = glassgpt.load(args.model, device="cpu", backend="torch")
    (take,) = sample(gpt, SECONDS, seed=args.seed)
    write_midi(take.performance, args.out / "music_sample.mid", take.seconds)
    played_by = render(take.performance, args.out / "music_sample.ogg")
    draw_roll(take.performance, "a sample of 20 seconds").save(args.out / "music_sample.svg")
    draw_attention(gpt, take.performance, args.layer).save(args.out / "music_attention.svg")
    photograph(gpt, gpt.decode(take.ids[:PAGE_EVENTS]), args.out / "music_explorer.png")
    print(f"seed {args.seed}: {len(take.performance)} notes, played by {played_by}")


if __name__ == "__main__":
    main()
