"""`glassgpt generate PROMPT`: the model goes on."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional

from glassgpt.cli import terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parse import flag, peek
from glassgpt.cli.text import checked_prompt, given_ids
from glassgpt.generate.generation import Interrupted
from glassgpt.generate.settings import Settings

if TYPE_CHECKING:
    from glassgpt.generate.generation import Generation
    from glassgpt.gpt import GPT

NOTHING_DRAWN: dict[str, Any] = {"temperature": 1.0, "top_k": None}


def defaults(words: Sequence[str]) -> dict[str, Any]:
    """A beam search draws nothing, so those of drawing do not hold: what is then typed of it is a mistake."""
    if not any(word.startswith("--beams") for word in words):  # to look closely takes its time
        return {}
    said = peek(Said, words)
    return {} if said is None or said.beams is None else {"settings": Settings(**NOTHING_DRAWN)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What decides the defaults of all else."""

    beams: int | None = None


def command(
    prompt: Annotated[
        Positional[str | None],
        flag("what to continue; - reads stdin; left out, the model rambles", "[PROMPT]", default=""),
    ] = None,
    *,
    settings: OmitArgPrefixes[Settings],
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    allow_special: Annotated[
        bool, flag("take <|endoftext|> in the prompt as that one token", default="")
    ] = False,
    ids: Annotated[
        bool, flag("the prompt is token ids, and so is what is written; needs no tokenizer", default="")
    ] = False,
    json: Annotated[bool, flag("one JSON object a line, for each sample", default="")] = False,
) -> int:
    """Continue a text. Prompt and continuation go to stdout as they are made; seed and speed to stderr."""
    if settings.beams is not None:
        Settings.of(beams=settings.beams, **{name: getattr(settings, name) for name in NOTHING_DRAWN})
    prompt = checked_prompt(prompt, "generate")
    gpt = load(model, device, dtype, rows=settings.candidates if settings.beams is None else settings.beams)
    given = given_ids(prompt, gpt, ids, "generate", allow_special)
    interrupt: Interrupted | None = None
    if json:
        found, interrupt = finished(gpt, given, settings)
        for generation in found:
            print(jsonlib.dumps(as_json(generation, prompt, model)), flush=True)
        tell_if_blank(found, model)
    elif settings.samples == 1 and settings.best_of is None and settings.beams is None and not ids:
        write_stream(gpt, given, prompt, settings, model)
    else:
        texts = settings.candidates if settings.beams is None else settings.samples
        with terminal.waiting(f"writing {texts} {'text' if texts == 1 else 'texts'}"):
            found, interrupt = finished(gpt, given, settings)
        write_samples(found if interrupt is None else [g for g in found if g.tokens], prompt, model, ids)
    if interrupt is not None:
        terminal.note("interrupted")
        raise interrupt
    return 0


def finished(
    gpt: GPT, given: str | list[int] | None, settings: Settings
) -> tuple[list[Generation], Interrupted | None]:
    """All texts; or, after Ctrl-C, those that are finished, what there is of the others, and the Ctrl-C."""
    try:
        return gpt.generate(given, settings=settings).samples, None
    except Interrupted as interrupt:
        return interrupt.found[0], interrupt


def write_stream(
    gpt: GPT, given: str | list[int] | None, prompt: str | None, settings: Settings, model: str
) -> None:
    """Text as it comes. Interrupted, what came stays and its line is ended."""
    stream = gpt.stream(given, settings=settings)
    lines = terminal.lines()
    last = ""
    began = time.perf_counter()
    if prompt is not None:
        sys.stdout.write(terminal.emphasised(lines.push(prompt) + lines.flush()))
        sys.stdout.flush()
    try:
        for piece in stream:
            sys.stdout.write(lines.push(terminal.harmless(piece)))
            sys.stdout.flush()
            last = piece
        sys.stdout.write(lines.flush())
    except KeyboardInterrupt:
        sys.stdout.write(lines.flush() + "\n")
        terminal.note("interrupted")
        raise
    finally:
        stream.close()
    if not last.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()
    if stream.generation is not None:
        report([stream.generation], time.perf_counter() - began, model)


def write_samples(found: list[Generation], prompt: str | None, model: str, ids: bool) -> None:
    for number, generation in enumerate(found, start=1):
        if len(found) > 1:
            score = "" if generation.score is None else f", log-probability {generation.score:.3f}"
            sys.stdout.write(terminal.faint(f"--- {number} of {len(found)}{score} ---") + "\n")
        lines = terminal.lines()
        if prompt is not None:
            sys.stdout.write(terminal.emphasised(lines.push(prompt) + lines.flush()))
        text = "".join(f" {token}" for token in generation.tokens) if ids else generation.text
        sys.stdout.write(lines.push(terminal.harmless(text)) + lines.flush())
        sys.stdout.write("" if text.endswith("\n") else "\n")
        sys.stdout.flush()
    if found:
        report(found, max(generation.seconds for generation in found), model)


def report(found: list[Generation], seconds: float, model: str) -> None:
    """What is worth knowing, on stderr: notes first, then seed and speed in one line."""
    for message in dict.fromkeys(note for generation in found for note in generation.notes):
        terminal.note(f"note: {message}")
    tell_if_blank(found, model)
    n_tokens = sum(len(generation.tokens) for generation in found)
    parts = [] if found[0].seed is None else [f"seed {found[0].seed}"]
    parts.append(f"{n_tokens} {'token' if n_tokens == 1 else 'tokens'} in {seconds:.2f} s")
    if seconds > 0:
        parts.append(f"{n_tokens / seconds:,.0f} tokens/s")
    if len(found) == 1:
        ends = {"length": "stopped at --max-new-tokens", "stop": "came to an end", "cancelled": "cancelled"}
        parts.append(ends.get(found[0].finish_reason, found[0].finish_reason))
    terminal.note(", ".join(parts))


def tell_if_blank(found: list[Generation], model: str) -> None:
    """Tokens of which nothing can be seen look like a program that does nothing: say what happened."""
    from glassgpt.weights import shipped_names

    if any(not one.text or is_visible(one.text) for one in found):  # without a tokenizer there is no text
        return
    why = (
        ": this model has read books and encyclopedia articles, not code" if model in shipped_names() else ""
    )
    other = ", or --model gpt2" if model in shipped_names() else ""
    terminal.note(
        f"note: the continuation is only white space{why}; try a sentence of prose, another --seed{other}"
    )


def is_visible(text: str) -> bool:
    return any(char.isprintable() and not char.isspace() for char in text)


def as_json(found: Generation, prompt: str | None, model: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "text": found.text,
        "tokens": found.tokens,
        "logprobs": found.logprobs,
        "finish_reason": found.finish_reason,
        "seed": found.seed,
        "sample": found.sample,
        "prompt_tokens": found.prompt_tokens,
        "notes": found.notes,
        "seconds": round(found.seconds, 4),
    }
    if found.alternatives is not None and any(found.alternatives):
        made["alternatives"] = [[list(pair) for pair in pairs] for pairs in found.alternatives]
    if found.score is not None:
        made["score"] = found.score
    return made
