"""What guessing ahead gains: tokens per second of single texts with and without speculation.

    python benchmarks/speculation.py                        # ten prompts, the shipped model, this machine
    python benchmarks/speculation.py --draft tiny           # also with a draft model
    python benchmarks/speculation.py --only code --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/speculation.py --cpu-time      # on a machine that is busy otherwise

Three prompts make the model repeat or quote (code, a list, a summary) and are continued greedily, as is one
of records, which it does not go on with; six are prose, sampled with the default settings. For each prompt
the contestants alternate; the ratio is that of the medians. Texts are compared, too. A table for people, then
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import glassgpt
from glassgpt.generate import SamplingParams
from glassgpt.gpt import GPT

PROMPTS = {
    "code": """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def add(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def subtract(self, other):
        return Point(self.x - other.x, self.y - other.y)

    def multiply(self, other):
        return Point(self.x * other.x, self.y * other.y)

    def""",
    "list": """The kings of the island:
1. King Arthur, who reigned from 1701 to 1712 and was followed by his son.
2. King Edward, who reigned from 1712 to 1725 and was followed by his son.
3. King George, who reigned from 1725 to 1739 and was followed by his son.
4. King Henry, who""",
    "quotes": """The old lighthouse keeper said: "The sea gives and the sea takes, and no man may ask it why."
The young sailor answered: "Then I shall ask the wind, for the wind has been everywhere." The keeper laughed.

Summary: The old lighthouse keeper said: "The sea gives and the sea takes,""",
    "records": """name: Anna Smith; age: 31; city: London; work: teacher; language: English
name: John Smith; age: 45; city: London; work: doctor; language: English
name: Mary Smith; age: 27; city: London; work: writer; language: English
name:""",
    "robot": "A robot must obey the orders given it",
    "sea": "The sea was calm that morning, and the two boats had already left the harbour when",
    "history": "In the early nineteenth century, the construction of canals in the north of England",
    "letter": "My dear sister,\n\nI write to you from a small inn at the foot of the mountains, where",
    "science": "The speed of light in a vacuum is a constant of nature, which means that",
    "talk": '"Do you believe him?" asked Holmes.\n\n"I do not know what to believe," I answered.',
}
GREEDY = ("code", "list", "quotes", "records")


def measure(
    gpt: GPT, name: str, kinds: list[str], new_tokens: int, rounds: int, clock: Callable[[], float]
) -> dict[str, object]:
    drawing = {"temperature": 0.0} if name in GREEDY else {"seed": 1}
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    texts = {}
    for round_number in range(rounds + 1):
        for kind in kinds:
            settings = SamplingParams(max_new_tokens=new_tokens, ignore_eot=True, speculate=kind, **drawing)
            begun = clock()
            texts[kind] = gpt.generate(PROMPTS[name], settings=settings).tokens
            if round_number or rounds == 1:  # the first is to warm up
                speeds[kind].append(new_tokens / (clock() - begun))
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    row: dict[str, object] = {"prompt": name, "off": round(medians["off"], 1)}
    for kind in kinds[1:]:
        row[kind] = round(medians[kind] / medians["off"], 3)
        row[f"{kind}_same_text"] = texts[kind] == texts["off"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--only", action="append", choices=PROMPTS)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="the processor's time, not the clock's")
    arguments = parser.parse_args()
    gpt = glassgpt.load(arguments.model, backend=arguments.backend, draft=arguments.draft)
    kinds = ["off", "lookup"] + ([] if arguments.draft is None else ["draft"])
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    rows = []
    for name in PROMPTS if arguments.only is None else arguments.only:
        row = measure(gpt, name, kinds, arguments.new_tokens, arguments.rounds, clock)
        rows.append(row)
        ratios = "  ".join(f"{kind} {row[kind]:5.2f}x" for kind in kinds[1:])
        same = all(row[f"{kind}_same_text"] for kind in kinds[1:])
        print(
            f"{name:8s} {row['off']:8.1f} tokens/s  {ratios}  {'same text' if same else 'OTHER TEXT'}",
            flush=True,
        )
    print(json.dumps({"benchmark": "speculation", "model": arguments.model, "rows": rows}))


if __name__ == "__main__":
    main()
