"""What evaluate.py and harness.py ask of our model class for lm_eval and of `hf`: the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from glassgpt.evaluate.suites import datasets
from glassgpt.evaluate.suites.detokenize import harness_wikitext
from glassgpt.evaluate.suites.perplexity import split_articles
from glassgpt.evaluate.suites.suites import HARNESS
from glassgpt.weights import load_checkpoint, save_checkpoint
from random_model import write_random

TASKS = "lambada_openai,hellaswag,wikitext"

Pairs = list[tuple[str, str]]


def export(name: str, folder: Path) -> None:
    """A model in the format of transformers, in float32; `random:SHAPE` is one of random_model.py."""
    if name.startswith("random:"):
        write_random(name.removeprefix("random:"), folder)
    else:
        save_checkpoint(load_checkpoint(name), folder, dtype="float32")


def pairs_of(task: str, data: Path, documents: int) -> Pairs:
    """(context, continuation) of each request; for wikitext ("", page), of which there are 62."""
    if task == "lambada_openai":
        text, _ = datasets.load(datasets.LAMBADA, data)
        passages = [json.loads(line)["text"] for line in text.splitlines()[:documents]]
        return [(p.rpartition(" ")[0], " " + p.rpartition(" ")[2]) for p in passages]
    if task == "hellaswag":
        text, _ = datasets.load(datasets.HELLASWAG, data)
        (hellaswag,) = (t for t in HARNESS if t.name == "hellaswag")
        return [pair for q in hellaswag.questions(text)[:documents] for pair in q.pairs]  # type: ignore[attr-defined]
    text, _ = datasets.load(datasets.WIKITEXT_2_RAW, data)
    return [("", harness_wikitext(page)) for page in split_articles(text)[:documents]]


def responses(model: Any, task: str, pairs: Pairs) -> list[tuple[float, bool]]:
    """The log-likelihood of each request, and whether it is what the model would say."""
    if task == "wikitext":
        requests = [Instance("loglikelihood_rolling", {}, (page,), i) for i, (_, page) in enumerate(pairs)]
        return [(total, True) for total in model.loglikelihood_rolling(requests, disable_tqdm=True)]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    return list(model.loglikelihood(requests, disable_tqdm=True))
