"""Write the model card of a packed model: the words of NAME.card.md, the figures, ten samples as they come.

    python recipes/default/card.py default

The figures are those of NAME.results.json (evaluate.py), NAME.log.jsonl (curve.py) and draft.txt (draft.py).
Of each prompt the first sample is taken, temperature 0.8, top-k 40, with the prompt's number as its seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from pack import SHIPPED

import glassgpt
from glassgpt.config import Config
from glassgpt.evaluate.published import published
from glassgpt.train.checkpoint.log import read_log

WATTS = 700  # the most an H200 draws
PROMPTS = (
    "The old house stood at the end of the lane, and",
    '"You cannot mean to sail tonight," said the captain,',
    "The river rises in the mountains in the north of the country and",
    "When the letter came at last, Margaret",
    "The battle began on the morning of 12 June, when",
    "Once upon a time there was a miller who",
    "The species is found in the forests of",
    "My dear friend, I write to you from",
    "The album was released in 1998 and",
    "The detective looked at the empty room and",
)
TOKENS = 120
ROWS = {
    "held-out-books.bits_per_byte": "held-out books, bits per byte",
    "held-out-wiki.bits_per_byte": "held-out encyclopedia, bits per byte",
    "reviews.bits_per_byte": "film reviews (nothing like them was learned), bits per byte",
    "wikitext.word_perplexity": "WikiText-2 test, perplexity per word (lm-evaluation-harness)",
    "wikitext-2.perplexity": "WikiText-2 test, perplexity per word (the paper's rule)",
    "lambada_openai.acc": "LAMBADA, last word right (lm-evaluation-harness)",
    "lambada_openai.perplexity": "LAMBADA, perplexity of the last word",
    "lambada.accuracy": "LAMBADA, last word right, stop words barred (the paper's rule)",
    "lambada-straight-quotes.accuracy_any_word": "LAMBADA with straight quotes, last word right",
    "lambada-straight-quotes.perplexity": "LAMBADA with straight quotes, perplexity of the last word",
}


def displayed(metric: str, value: float) -> str:
    if ".acc" in metric:
        return f"{100 * value:.2f}%"
    return f"{value:.3f}" if metric.endswith("bits_per_byte") else f"{value:.2f}"


def figures(results: dict[str, Any]) -> str:
    lines = ["| | this model | GPT-2 small |", "| --- | --- | --- |"]
    for metric, meaning in ROWS.items():
        figure = results["packed"][metric]
        known = published(metric, figure["protocol"])
        percent = "%" if ".acc" in metric else ""
        gpt2 = "" if known is None or known[0] is None else f"{known[0]:.2f}{percent}"
        lines.append(f"| {meaning} | {displayed(metric, figure['value'])} | {gpt2} |")
    if "int8" in results:
        int8 = results["int8"]
        lines.append(f"| held-out text, nats per token, before packing | {int8['float_loss']:.4f} | |")
        lines.append(f"| the same as int8 | {int8['loss']:.4f} | |")
        lines.append(f"| perplexity that int8 costs | {int8['perplexity_cost_percent']:.3f}% | |")
    return "\n".join(lines)


def samples(model: Path) -> str:
    gpt = glassgpt.load(model, device="cpu", dtype="float32")
    written = []
    for seed, prompt in enumerate(PROMPTS):
        text = gpt.generate(prompt, max_new_tokens=TOKENS, temperature=0.8, top_k=40, seed=seed).text
        quoted = "\n".join(f"> {line}".rstrip() for line in (f"**{prompt}**" + text).split("\n"))
        written.append(f"seed {seed}:\n\n{quoted}")
    return "\n\n".join(written)


def training(records: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, str]:
    """What the run took, from its log: the steps alone, without starting, looking and saving."""
    tokens = records[-1]["step"] * settings["batch_size"] * settings["context"]
    seconds = tokens / statistics.median(record["tokens_per_s"] for record in records)
    return {
        "SEEN": f"{tokens / 1e6:,.0f} million",
        "MINUTES": f"{seconds / 60:.0f} minutes",
        "ENERGY": f"{seconds / 3600 * WATTS / 1000:.2f} kWh",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parent, help="where NAME.card.md is")
    parser.add_argument("--data", type=Path, default=SHIPPED, help="where the packed model is")
    given = parser.parse_args()
    recipe, name, model = given.recipe, given.name, given.data / given.name
    settings = json.loads((recipe / "config.json").read_text("utf-8"))["models"][name]
    size = (model / "model.int8.safetensors").stat().st_size
    slots = {
        "PARAMETERS": f"{Config.load(model).n_parameters:,}",
        "SIZE": f"{size / 1e6:.1f} MB",
        **training(read_log(recipe / f"{name}.log.jsonl"), settings),
        "FIGURES": figures(json.loads((recipe / f"{name}.results.json").read_text("utf-8"))),
        "DRAFT": (recipe / "draft.txt").read_text("utf-8").strip().replace("\n", "; "),
        "SAMPLES": samples(model),
    }
    card = (recipe / f"{name}.card.md").read_text("utf-8")
    for place, text in slots.items():
        card = card.replace("{" + place + "}", text)
    (model / "MODEL_CARD.md").write_text(card, "utf-8")


if __name__ == "__main__":
    main()
