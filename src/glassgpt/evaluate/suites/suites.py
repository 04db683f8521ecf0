"""Suites: tasks grouped by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from glassgpt.errors import SettingError
from glassgpt.evaluate.suites import choice, datasets, detokenize
from glassgpt.evaluate.suites.cbt import ChildrensBooks
from glassgpt.evaluate.suites.choice import Choice
from glassgpt.evaluate.suites.datasets import Dataset
from glassgpt.evaluate.suites.eval_task import EvalTask
from glassgpt.evaluate.suites.lambada import Lambada
from glassgpt.evaluate.suites.perplexity import (
    BitsPerByte,
    DocumentBits,
    HarnessWikitext,
    TokenPerplexity,
    WholeText,
    join_as_hub_rows,
)

SMOKE_DATA = Path(__file__).resolve().parent.parent.parent / "data" / "smoke"

PAPER: list[EvalTask] = [
    Lambada("lambada", datasets.LAMBADA),
    ChildrensBooks("cbt-cn", datasets.CBT_CN),
    ChildrensBooks("cbt-ne", datasets.CBT_NE),
    WholeText("wikitext-2", datasets.WIKITEXT_2, detokenize.wikitext),
    TokenPerplexity("wikitext-2", datasets.WIKITEXT_2_RAW, join_as_hub_rows),
    WholeText("ptb", datasets.PTB, detokenize.ptb),
    BitsPerByte("enwik8", datasets.ENWIK8, "paper: raw text"),
    BitsPerByte("text8", datasets.TEXT8, "paper: raw text"),
    WholeText("wikitext-103", datasets.WIKITEXT_103, detokenize.wikitext),
    WholeText("1bw", datasets.ONE_BILLION, detokenize.one_billion),
]

HARNESS: list[EvalTask] = [
    Lambada("lambada_openai", datasets.LAMBADA, harness=True),
    Choice("hellaswag", datasets.HELLASWAG, choice.hellaswag),
    HarnessWikitext("wikitext", datasets.WIKITEXT_2_RAW),
    Choice("piqa", datasets.PIQA, choice.question_and_answer),
    Choice("winogrande", datasets.WINOGRANDE, choice.winogrande, normalized=False),
    Choice("arc_easy", datasets.ARC_EASY, choice.question_and_answer),
    Choice("wsc273", datasets.WSC273, choice.wsc273, normalized=False),
]


def _small(name: str, file: str) -> Dataset:
    return Dataset(name, (file,), None)


SMOKE: list[EvalTask] = [
    Lambada("smoke-words", _small("smoke-words", "words.jsonl")),
    Choice("smoke-choice", _small("smoke-choice", "choice.jsonl"), choice.question_and_answer),
    TokenPerplexity("smoke-text", _small("smoke-text", "text.txt")),
    BitsPerByte("smoke-text", _small("smoke-text", "text.txt")),
]

SUITES = {"smoke": SMOKE, "paper": PAPER, "harness": HARNESS}
FILE_SUITES = ("perplexity", "bits-per-byte")


def tasks_for_file(suite: str, path: Path) -> list[EvalTask]:
    """The task of `perplexity FILE` or `bits-per-byte FILE`. A .jsonl contains many documents."""
    name = path.name.split(".")[0]
    dataset = Dataset(path.name, (path.name,), None)
    if ".jsonl" in path.suffixes:
        return [DocumentBits(name, dataset)]
    if suite == "perplexity":
        return [TokenPerplexity(name, dataset)]
    return [BitsPerByte(name, dataset)]


def select_tasks(names: str) -> tuple[list[EvalTask], list[str]]:
    """The tasks of a suite or a list like `lambada,piqa`, and a message for every unknown name."""
    tasks: list[EvalTask] = []
    messages = []
    every = {task.name for suite in SUITES.values() for task in suite}
    for name in names.split(","):
        name = name.strip()
        matches = SUITES.get(name)
        if matches is None:
            matches = [task for suite in SUITES.values() for task in suite if task.name == name]
        if not matches:
            known = [*SUITES, *FILE_SUITES, *sorted(every)]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            messages.append(f"unknown suite or task {name!r}. {hint}")
        tasks += [task for task in matches if task not in tasks]
    if not tasks:
        raise SettingError(messages[0])
    return tasks, messages


def data_folder(task: EvalTask, folder: Path | None) -> Path | None:
    """The folder of a task's file: the smoke tests ship with the package."""
    return SMOKE_DATA if task in SMOKE else folder
