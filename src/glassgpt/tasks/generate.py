"""Run a task that writes: encode the sources, generate, and report how much of each the model saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from glassgpt.errors import SettingError, UserError
from glassgpt.tasks.definition import Task
from glassgpt.tasks.encode import Encoder, Prompt
from glassgpt.tasks.sentences import complete_sentences, first_sentences

if TYPE_CHECKING:
    from glassgpt.generate.generation import Generation
    from glassgpt.generate.language_model import LanguageModel
    from glassgpt.generate.sampling.params import SamplingParams


@dataclass(frozen=True)
class Output:
    """What a task wrote for one source."""

    text: str
    source_tokens: int
    kept_tokens: int  # source tokens the model saw
    finish_reason: str
    score: float | None = None  # of beam search: log-probability / length ** length_penalty
    seed: int | None = None
    notes: list[str] = field(default_factory=list)

    mode = "abstract"

    @property
    def was_cut(self) -> bool:
        return self.kept_tokens < self.source_tokens


def make_encoder(gpt: LanguageModel, task: Task, direction: str | None = None) -> Encoder:
    """The encoder of a task for this model, which must have the task's tokens."""
    if gpt.tokenizer is None:
        raise UserError(f"{gpt.name} has no tokenizer. Put its tokenizer.json beside the weights.")
    for name in task.tokens:
        ids = gpt.tokenizer.encode(name, True)
        if len(ids) != 1 or ids[0] >= gpt.config.vocab_size:
            raise SettingError(
                f"{gpt.name} has no token {name!r}, so it was not trained for the task {task.name}. "
                f"Choose another --model, or train one: glassgpt tune PAIRS.jsonl --task {task.name}"
            )
    return Encoder(task, gpt.tokenizer, gpt.backend.context, direction)


def run_task(
    gpt: LanguageModel, task: Task, sources: Sequence[str], direction: str | None = None, **decoding: Any
) -> list[Output]:
    """Write a target for each source. `decoding` are settings of `generate`."""
    encoder = make_encoder(gpt, task, direction)
    prompts = [encoder.prompt(source) for source in sources]
    return run_prompts(gpt, task, prompts, task.settings(**decoding))


def run_prompts(
    gpt: LanguageModel, task: Task, prompts: Sequence[Prompt], settings: SamplingParams
) -> list[Output]:
    generations = gpt.generate([prompt.ids for prompt in prompts], settings=settings)
    return [
        make_output(task, prompt, generation) for prompt, generation in zip(prompts, generations, strict=True)
    ]


def stream_task(gpt: LanguageModel, task: Task, prompt: Prompt, settings: SamplingParams) -> Iterator[str]:
    """The same for one source, piece by piece; sentence by sentence if the task limits their number."""
    with closing(gpt.stream(prompt.ids, settings=settings)) as pieces:
        if task.sentences is not None:
            for number, sentence in enumerate(islice(complete_sentences(pieces), task.sentences)):
                yield f" {sentence}" if number else sentence
            return
        started = False
        for piece in pieces:
            piece = piece if started else piece.lstrip()
            started = started or bool(piece)
            yield piece


def make_output(task: Task, prompt: Prompt, generation: Generation) -> Output:
    text = generation.text.strip()
    if task.sentences is not None:
        text = first_sentences(text, task.sentences)
    return Output(
        text, prompt.source_tokens, prompt.kept_tokens, generation.finish_reason, generation.score,
        generation.seed, generation.notes,
    )  # fmt: skip
