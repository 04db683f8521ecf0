"""How good a draft is `tiny` for `default`? The share of its proposals that speculative decoding would keep.

    python recipes/default/draft.py --texts texts/ -o recipes/default/draft.txt

The draft proposes four tokens, the target reads them in one pass and keeps each with the probability
min(1, p / q) until one is refused, which it replaces by a draw from what p has over q (arXiv:2211.17192); if
all stay it adds one of its own. Greedy keeps a proposal that is the target's own first choice. Nothing is
cached: this measures acceptance, not time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

import glassgpt
from glassgpt.files.text import read_texts
from glassgpt.gpt import GPT

PROPOSED = 4  # tokens
PROMPT = 128  # tokens of a held-out document, or half the context; half as many are written


class Pass(NamedTuple):
    kept: list[int]  # tokens the text grows by
    accepted: int  # of the proposals


def probabilities(gpt: GPT, ids: list[int], temperature: float, last: int) -> np.ndarray:
    """What may come after each of the last tokens, (last, V). At temperature 0 all is on the likeliest."""
    logits = gpt.logits([ids])[0, -last:].astype(np.float64)
    if temperature == 0:
        likeliest: np.ndarray = logits == logits.max(axis=1, keepdims=True)
        return likeliest / likeliest.sum(axis=1, keepdims=True)
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def one_pass(
    target: GPT, draft: GPT, ids: list[int], temperature: float, random: np.random.Generator
) -> Pass:
    proposed: list[int] = []
    q = []
    for _ in range(PROPOSED):
        q.append(probabilities(draft, ids + proposed, temperature, 1)[0])
        proposed.append(int(random.choice(len(q[-1]), p=q[-1])))
    p = probabilities(target, ids + proposed, temperature, PROPOSED + 1)
    for i, token in enumerate(proposed):
        if random.random() * q[i][token] >= p[i][token]:
            rest = np.maximum(p[i] - q[i], 0)
            instead = int(random.choice(len(rest), p=rest / rest.sum()))
            return Pass([*proposed[:i], instead], i)
    return Pass([*proposed, int(random.choice(len(p[-1]), p=p[-1]))], PROPOSED)


def acceptance(target: GPT, draft: GPT, prompts: list[list[int]], temperature: float) -> dict[str, float]:
    random = np.random.default_rng(1)
    passes: list[Pass] = []
    judged = 0  # proposals that the target came to look at
    for prompt in track(prompts, f"temperature {temperature:g}", console=Console(stderr=True)):
        ids = list(prompt)
        while len(ids) < 1.5 * len(prompt):
            passes.append(one_pass(target, draft, ids, temperature, random))
            judged += min(passes[-1].accepted + 1, PROPOSED)
            ids += passes[-1].kept
    accepted = sum(each.accepted for each in passes)
    return {
        "accepted_of_judged": accepted / judged,
        "accepted_of_proposed": accepted / (PROPOSED * len(passes)),
        "tokens_per_target_pass": sum(len(each.kept) for each in passes) / len(passes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="the folder that evaluate.py texts wrote")
    parser.add_argument("--target", default="default")
    parser.add_argument("--draft", default="tiny")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    target, draft = (glassgpt.load(name, dtype="float32") for name in (given.target, given.draft))
    texts = [text for text, _ in read_texts(given.texts / "held-out-wiki.jsonl")][: given.prompts // 2]
    for book, _ in read_texts(given.texts / "held-out-books.jsonl"):
        texts += [book[place:] for place in range(30_000, 150_000, 40_000)]  # within the story
    length = min(PROMPT, target.config.n_positions // 2)
    prompts = [target.encode(text[:2000])[:length] for text in texts if text][: given.prompts]
    figures = {
        name: acceptance(target, draft, prompts, temperature)
        for name, temperature in (("greedy", 0.0), ("temperature 0.8", 0.8))
    }
    said = [
        f"{name}: {found['accepted_of_judged']:.1%} of the proposals it came to accepted, "
        f"{found['tokens_per_target_pass']:.2f} tokens for each of its passes"
        for name, found in figures.items()
    ]
    given.out.write_text("\n".join(said) + "\n", "utf-8")
    print(*said, json.dumps(figures), sep="\n")


if __name__ == "__main__":
    main()
