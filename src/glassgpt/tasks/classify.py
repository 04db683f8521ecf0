"""Classification: by a tuned head at the extract token, or zero-shot, by which label the model finds more
likely.

Zero-shot, a label's score is its log-probability after the text less the one it has after no text:
otherwise a label that is a frequent word would win too often (Holtzman et al., 2021, "Surface form
competition").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.errors import SettingError
from glassgpt.tasks.definition import Direction, Task
from glassgpt.tasks.generate import make_encoder

if TYPE_CHECKING:
    from glassgpt.generate.language_model import LanguageModel
    from glassgpt.tasks.encode import Encoder
    from glassgpt.tasks.task_model import TaskModel

FORMAT = "{source}\nThis is {target}"  # zero-shot, where only labels are given
BATCH = 16  # texts that are read together


@dataclass(frozen=True)
class Label:
    """The label of a text, with the probabilities of all of them."""

    label: str
    probabilities: dict[str, float]
    source_tokens: int
    kept_tokens: int

    @property
    def was_cut(self) -> bool:
        return self.kept_tokens < self.source_tokens


def classification_task(
    gpt: TaskModel, labels: Sequence[str] | None = None, format: str | None = None
) -> Task:
    """The model's own task, or one of given labels, zero-shot."""
    if labels is None:
        if format is not None:
            raise SettingError("a format needs labels to put into it. Add --labels.")
        if gpt.task is None or not gpt.task.classifies:
            raise SettingError(
                f"{gpt.name} was not tuned to classify. Give it labels to choose from (--labels good,bad), "
                "or tune it: glassgpt tune LABELLED.tsv --task sentiment"
            )
        return gpt.task
    if isinstance(labels, str) or not labels:
        raise SettingError("give at least two labels to choose from, in a list (--labels good,bad).")
    direction = Direction.parse("", FORMAT if format is None else format, "text", "label")
    if not direction.has_target:
        raise SettingError(f"the format {format!r} has no {{target}}, where the labels go.")
    return Task("zero-shot", (direction,), labels=tuple(labels))


def classify(
    gpt: TaskModel, texts: Sequence[str], *, labels: Sequence[str] | None = None, format: str | None = None
) -> list[Label]:
    """The label of each text: by the model's head, or among the given labels."""
    return classify_task(gpt, classification_task(gpt, labels, format), texts)


def classify_task(gpt: TaskModel, task: Task, texts: Sequence[str]) -> list[Label]:
    if not texts:
        return []
    encoder = make_encoder(gpt, task)
    prompts = [encoder.prompt(text) for text in texts]
    score = score_by_head if task.has_head else score_by_likelihood
    scores = score(gpt, task, encoder, [prompt.ids for prompt in prompts])  # (N, labels)
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shifted / shifted.sum(axis=1, keepdims=True)
    return [
        Label(
            task.labels[int(np.argmax(row))], dict(zip(task.labels, row, strict=True)), prompt.source_tokens,
            prompt.kept_tokens,
        )
        for prompt, row in zip(prompts, shares.tolist(), strict=True)
    ]  # fmt: skip


def score_by_head(gpt: TaskModel, task: Task, encoder: Encoder, prompts: list[list[int]]) -> np.ndarray:
    """The logits of the head for each prompt, whose last token is the extract token: (N, labels)."""
    import torch

    if gpt.classifier is None or len(gpt.classifier) != len(task.labels):
        raise SettingError(
            f"{gpt.name} has no head for the {len(task.labels)} labels of {task.name}. Tune it again."
        )
    model = gpt.torch_model
    device = model.wte.weight.device
    rows = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        longest = max(map(len, batch))
        # Padding at the end cannot affect what precedes it.
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch], device=device)  # (B, T)
        last = torch.tensor([len(row) - 1 for row in batch], device=device)  # (B)
        with torch.inference_mode():
            hidden = model.hidden(ids)[torch.arange(len(batch), device=device), last]  # (B, C)
        rows.append(np.asarray(hidden.float().cpu().numpy() @ gpt.classifier.T))
    return np.concatenate(rows)


def score_by_likelihood(
    gpt: LanguageModel, task: Task, encoder: Encoder, prompts: list[list[int]]
) -> np.ndarray:
    """How much more probable each label is after a prompt than without its text: (N, labels)."""
    targets = [encoder.tokenizer.encode(encoder.lead + label) for label in task.labels]
    without_text = [*encoder.start, *encoder.separator]
    if not without_text:  # a label needs a token before it
        without_text = [encoder.tokenizer.eot_id] if encoder.tokenizer.eot_id is not None else targets[0][:1]
    logprobs = label_logprobs(gpt, [*prompts, without_text], targets)  # (N + 1, labels)
    scores: np.ndarray = logprobs[:-1] - logprobs[-1:]
    return scores


def label_logprobs(gpt: LanguageModel, prompts: list[list[int]], targets: list[list[int]]) -> np.ndarray:
    """The log-probability of each target after each prompt, (prompts, targets), in one pass."""
    context = gpt.backend.context
    groups = []
    for prompt in prompts:
        ids = [np.array([*prompt, *target][-context - 1 :], np.int64) for target in targets]
        groups.append(
            [ScoreRequest(row, len(row) - len(target)) for row, target in zip(ids, targets, strict=True)]
        )
    logprobs = np.zeros((len(prompts), len(targets)))
    with closing(gpt.backend.score(groups)) as batches:
        for places, scores in batches:
            for place, score in zip(places, scores, strict=True):
                logprobs[place] = score.total
    return logprobs
