"""The speed of the Explorer, in a real Chromium on this machine.

    python benchmarks/explorer.py [--case default:32] [--case default:200] [--case gpt2:32] [--rounds 7]

A case is a model and a number of tokens: `default` is the shipped model, a published size (gpt2, ...) has
random weights (speed does not depend on them). Server and browser run on this machine. Medians of:

    trace          the server's response to a new text
    first paint    from the click on a link to the first paint, by the browser's clock
    ready          from the click to the tower with all values
    interactions   from the event to the frame that shows its result, including the server
    sliders        the page's work for one movement: script, style and layout

Beside the wall time it reports CPU seconds of the page's main thread and of the server, which other
programs on the machine disturb less.

Prints a table with the goal of each figure, then one line of JSON. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import glassgpt
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import SIZES, Config
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.model import GPT2

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.explorer.browser import NoBrowser, launched, served

# Seconds, for the shipped model with 32 tokens, and with 200; a trace of GPT-2 small's shape may take 2.5 s.
GOALS = {"trace": 1.0, "first paint": 1.0, "ready": 1.0, "interaction": 0.100, "slider": 0.016}
LONG_INTERACTION = 0.300
GPT2_READY = 2.5

# In the page: a way to wait for the frame that shows all that was asked for. A frame may ask for more, so it
# is over when a frame has passed after which nothing is pending. (Nothing here polls: that would be work.)
WATCH = """
let pending = 0;
let waiting = [];
const later = () => new Promise((done) => {  // the next task; a timer would wait up to 4 ms
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); done(); };
  port2.postMessage(null);
});
const count = (object, name) => {
  const plain = object[name];
  object[name] = async function (...given) {
    pending++;
    try {
      return await plain.apply(this, given);
    } finally {
      later().then(() => --pending === 0 && waiting.splice(0).forEach((done) => done()));
    }
  };
};
count(window, "fetch");
for (const name of ["json", "text", "arrayBuffer"]) count(Response.prototype, name);
window.frame = () => new Promise((done) => requestAnimationFrame(() => later().then(done)));
window.shown = async () => {
  do {
    if (pending > 0) await new Promise((done) => waiting.push(done));
    await frame();
  } while (pending > 0);
};
"""

EDIT = {"kind": "ablate_head", "layer": 1, "head": 1, "how": "zero"}
INTERACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "cursor to another token": ("token", {"view": "block"}),
    "cursor to another block": ("layer", {"view": "block"}),
    "another head": ("head", {"view": "block"}),
    "all heads opened": ("heads", {"view": "block"}),
    "heads, cursor moves": ("token", {"view": "heads"}),
    "a head ablated: its effect": ("effect", {"view": "next"}),
    "a head ablated: the tower": ("edits", {"view": "next"}),
    "cursor moves with an edit": ("token", {"view": "next", "edits": [EDIT]}),
    "why this word": ("why", {"view": "why"}),
    "the player, one step": ("play", {"view": "block", "play": 0}),
    "a candidate appended": ("append", {"view": "next"}),
}


def opened(name: str) -> GPT:
    if name not in SIZES:
        return glassgpt.load(name, device="cpu", dtype="float32")
    torch.manual_seed(0)
    return GPT(TorchBackend(GPT2(Config.named(name)).eval().requires_grad_(False)), name=name)


def some_text(gpt: GPT, tokens: int, seed: int) -> str:
    """A text of that many tokens; for a model without a tokenizer, ids."""
    if gpt.tokenizer is None:
        generator = torch.Generator().manual_seed(seed)
        return " ".join(
            map(str, torch.randint(gpt.config.vocab_size, (tokens,), generator=generator).tolist())
        )
    words = "the old house stood at the end of a lane and no one had come that way for years".split()
    ids: list[int] = []
    while len(ids) < tokens:
        ids += gpt.encode(" " + words[(len(ids) + seed) % len(words)])
    return gpt.decode(ids[:tokens])


Figures = tuple[float, ...]  # seconds: on the clock, and often the CPU time of the page and of the server


class Meter:
    """The CPU seconds that the page's main thread and this process, the server, have used."""

    def __init__(self, page: Any) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
        self.session.send("Performance.enable")

    def read(self) -> tuple[float, float]:
        found = self.session.send("Performance.getMetrics")["metrics"]
        page = sum(each["value"] for each in found if each["name"] == "TaskDuration")
        return float(page), time.process_time()

    def since(self, before: tuple[float, float]) -> tuple[float, float]:
        page, server = self.read()
        return page - before[0], server - before[1]


def interaction(page: Any, kind: str, round: int) -> float:
    """Seconds from the change to the frame that shows it."""
    return float(
        page.evaluate(
            """async ({ kind, round }) => {
              const { store } = await import("/state/store.js");
              const last = store.trace.tokens.length - 1;
              const { n_head, n_layer } = store.config;
              const head = kind === "effect" ? 0 : 1;
              const edits = [{ kind: "ablate_head", layer: round % n_layer, head, how: "zero" }];
              const candidates = () => document.querySelectorAll("glass-why .targets button");
              if (kind === "heads") {  // of a text that was not seen before, as long as this one
                const ids = store.trace.tokens.map(({ id }) => id);
                store.set({ view: "block", ids: [...ids.slice(0, -1), round + 1] });
                await shown();
              }
              const start = performance.now();
              if (kind === "append") document.querySelectorAll(".candidate")[round % 10].click();
              else if (kind === "why") candidates()[(round + 1) % candidates().length].click();
              else store.set({
                token: { token: (7 * round + 3) % last },
                layer: { layer: (store.cursor.layer + 1) % n_layer },
                head: { head: (store.cursor.head + 1) % n_head },
                heads: { view: "heads" },
                play: { play: (store.get().play ?? 0) + 1 },
                edits: { edits },
                effect: { edits },
              }[kind]);
              if (kind === "effect") {
                await new Promise((done) => {
                  const stop = store.subscribe((changed) => changed.has("intervention") && done(stop()));
                });
                await frame();
                const took = (performance.now() - start) / 1000;
                await shown();
                return took;
              }
              await shown();
              return (performance.now() - start) / 1000;
            }""",
            {"kind": kind, "round": round},
        )
    )


def slider(page: Any, round: int) -> float:
    """Seconds of work for one movement of a slider, without the wait for the screen."""
    return float(
        page.evaluate(
            """async (round) => {
              const input = document.getElementById(round % 2 ? "param-temperature" : "param-topP");
              input.value = String(0.3 + 0.05 * round);
              const start = performance.now();
              input.dispatchEvent(new Event("input", { bubbles: true }));
              const set = performance.now() - start;
              return await new Promise((done) => requestAnimationFrame((begun) => {
                document.body.offsetHeight;  // style and layout are part of the work
                done((set + performance.now() - begun) / 1000);
              }));
            }""",
            round,
        )
    )


def measured(name: str, tokens: int, rounds: int) -> dict[str, Figures]:
    """The median of each figure: on the clock, and the work of page and server where that can be told."""
    gpt = opened(name)
    found: dict[str, list[tuple[float, ...]]] = {}

    def note(what: str, seconds: float, work: tuple[float, ...] = ()) -> None:
        found.setdefault(what, []).append((seconds, *work))

    with served(make_app(gpt)) as url, launched() as browser:
        for round in range(rounds):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            page.add_init_script(WATCH)
            text = some_text(gpt, tokens, round)
            meter = Meter(page)
            start, used = time.perf_counter(), meter.read()
            page.goto(f"{url}#text={text}")
            page.wait_for_selector("#status[data-is=ready]", state="attached", timeout=300_000)
            note("ready", time.perf_counter() - start, meter.since(used))
            paints = page.evaluate("performance.getEntriesByType('paint').map((e) => [e.name, e.startTime])")
            note("first paint", dict(paints)["first-contentful-paint"] / 1000)
            asked = page.evaluate(
                "performance.getEntriesByType('resource')"
                ".filter((e) => e.name.endsWith('/trace')).map((e) => e.duration)"
            )
            note("trace", asked[0] / 1000)
            page.evaluate("shown()")
            if round == 0:
                for what, (kind, state) in INTERACTIONS.items():
                    page.evaluate(
                        "async (state) => { const { store } = await import('/state/store.js');"
                        "store.set(state); await shown(); }",
                        {"edits": [], "play": None} | state,
                    )
                    for again in range(rounds):
                        used = meter.read()
                        note(what, interaction(page, kind, again), meter.since(used))
                for again in range(4 * rounds):
                    note("slider", slider(page, again))
            context.close()
    return {what: tuple(map(statistics.median, zip(*each, strict=True))) for what, each in found.items()}


def goal(case: str, what: str) -> float:
    if what in ("trace", "ready") and not case.startswith("default"):
        return GPT2_READY
    if what not in GOALS and not case.endswith(":32"):
        return LONG_INTERACTION
    return GOALS.get(what, GOALS["interaction"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", help="MODEL:TOKENS")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    results: dict[str, dict[str, Figures]] = {}
    for case in given.case or ["default:32", "default:200", "gpt2:32"]:
        name, _, tokens = case.partition(":")
        results[case] = measured(name, int(tokens), given.rounds)
        titles = [f"{title:>10}" for title in ("clock", "page", "server")]
        print(f"\n{case + f', {torch.get_num_threads()} threads':28} {' '.join(titles)}    goal")
        for what, (clock, *work) in results[case].items():
            columns = [f"{1000 * each:7.1f} ms" for each in (clock, *work)] + [""] * (2 - len(work))
            print(
                f"  {what:26} {' '.join(f'{each:>10}' for each in columns)} {1000 * goal(case, what):4.0f} ms"
            )
    print(json.dumps(results))


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as why:
        raise SystemExit(str(why)) from None
