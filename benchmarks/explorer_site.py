"""The speed and the memory of a site (`glassgpt site`) in Chromium on this machine, from a plain web server.

    python benchmarks/explorer_site.py [--model default] [--rounds 5]

Medians over the rounds, each in a new page, with 32 tokens:

    ready         from the last byte of the model to the tower with all values
    trace         a new text of as many tokens, to the frame that shows all of it
    interactions  from the event to the frame that shows its result
    tokens/s      of Generate, with 60 tokens, in the page
    memory        of the page's process beyond an empty page's, as a multiple of the model's file (Linux)

Prints a table with the goal of each figure, then one line of JSON. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import glassgpt
from explorer import WATCH, interaction, some_text
from glassgpt.explorer.site import write_site

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.explorer.browser import NoBrowser, launched
from tests.explorer.test_site import hosted

TOKENS = 32
GENERATED = 60
GOALS = {"ready": 3.0, "trace": 1.0, "tokens/s": 80.0, "memory": 3.0}
INTERACTION = 0.150
INTERACTIONS = {"cursor to a token": "token", "cursor to a block": "layer", "another head": "head"}

# Requests go to the worker here, not to a server: count them as well.
WORKER = """
const ended = new Map();
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message.type === "ask") {
    pending++;
    const { number } = message;
    const done = ({ data }) => data.type === "answer" && data.number === number && end(number);
    ended.set(number, () => this.removeEventListener("message", done));
    this.addEventListener("message", done);
  } else if (message.type === "abort") end(message.number);
  return post.call(this, message, ...rest);
};
function end(number) {
  const stop = ended.get(number);
  if (!ended.delete(number)) return;
  stop();
  later().then(() => --pending === 0 && waiting.splice(0).forEach((done) => done()));
}
document.addEventListener("glass-loading", ({ detail }) => {
  if (detail.loaded >= detail.total && detail.total > 0) window.downloaded ??= performance.now();
});
"""

READY = """async () => {
  const { store } = await import("/state/store.js");
  const isReady = () => store.status === "ready";
  if (!isReady()) await new Promise((done) => {
    const stop = store.subscribe(() => isReady() && done(stop()));
  });
  await shown();
  return (performance.now() - (window.downloaded ?? 0)) / 1000;
}"""

TRACE = """async (ids) => {
  const { store } = await import("/state/store.js");
  const start = performance.now();
  store.set({ ids, token: ids.length - 1 });
  await shown();
  return (performance.now() - start) / 1000;
}"""

GENERATE = """async ({ ids, n }) => {
  const { api } = await import("/state/api.js");
  const body = { ids, temperature: 1, top_k: 40, seed: 1, max_new_tokens: n };
  const start = performance.now();
  let count = 0;
  for await (const event of api.events("/generate", body)) if (event.token !== undefined) count++;
  return (1000 * count) / (performance.now() - start);
}"""


def largest_page() -> int:
    """Bytes that the largest page's process under this one has written, without the browser's own code."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue

    def is_ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    largest = 0
    for process in filter(is_ours, parents):
        try:
            if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes():
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
                largest = max(largest, 1024 * int(rollup.partition("Pss_Anon:")[2].split()[0]))
        except OSError:
            continue
    return largest


def measured(folder: Path, model: str, rounds: int) -> dict[str, float]:
    gpt = glassgpt.load(model, device="cpu")
    file_bytes = max(path.stat().st_size for path in (folder / "models").rglob("*.safetensors"))
    found: dict[str, list[float]] = {}

    def note(what: str, value: Any) -> None:
        found.setdefault(what, []).append(float(value))

    with hosted(folder) as address, launched() as browser:
        for round in range(rounds):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            page.goto(f"{address}icon.svg")
            before = largest_page()
            page.add_init_script(f"{WATCH}\n{WORKER}")
            page.goto(f"{address}#text={some_text(gpt, TOKENS, round)}")

            note("ready", page.evaluate(READY))
            ids = gpt.encode(some_text(gpt, TOKENS, round + 3))[:TOKENS]
            note("trace", page.evaluate(TRACE, ids))
            page.evaluate(
                "async () => { (await import('/state/store.js')).store.set({view: 'block'}); await shown(); }"
            )
            for again in range(rounds):
                for what, kind in INTERACTIONS.items():
                    note(what, interaction(page, kind, again))
            note("tokens/s", page.evaluate(GENERATE, {"ids": ids, "n": GENERATED}))
            if before:
                note("memory", (largest_page() - before) / file_bytes)
            context.close()
    return {what: statistics.median(values) for what, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "site"
        write_site(folder, [given.model])
        results = measured(folder, given.model, given.rounds)
    for what, value in results.items():
        unit = {"tokens/s": "", "memory": " times the file"}.get(what, " s")
        goal = GOALS.get(what, INTERACTION)
        print(f"{what:20} {value:8.3f}{unit}   goal {'at least' if what == 'tokens/s' else 'at most'} {goal}")
    print(json.dumps(results))


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as why:
        raise SystemExit(str(why)) from None
