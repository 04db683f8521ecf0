"""`glassgpt generate PROMPT`: text that continues the prompt."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, Model, load
from glassgpt.cli.parser.options import Flag, OmitArgPrefixes, Positional
from glassgpt.cli.text import encode_prompt, read_prompt
from glassgpt.files import read_text
from glassgpt.generate.generation import Interrupted
from glassgpt.generate.sampling.params import FIELDS, SamplingParams

if TYPE_CHECKING:
    from glassgpt.generate.generation import Generation
    from glassgpt.gpt import GPT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SamplingParams):
    """How to choose the next token, how often, and when to stop."""

    schema: Any = dataclasses.field(default=None, init=False)  # --json-schema
    grammar: str | None = None  # constrain the text to the grammar in this file, Lark or GBNF


MAX_GRAMMAR_BYTES = 2**24
NO_SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_k": None}


def defaults(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Beam search does not sample, so sampling has no defaults there: typing such an option is an error."""
    return {} if typed.get("beams") is None else {"settings": Options(**NO_SAMPLING)}


def command(
    prompt: Annotated[
        Positional[str | None],
        Flag("the text to continue; - reads stdin; omit it to start a new document", "[PROMPT]"),
    ] = None,
    *,
    settings: OmitArgPrefixes[Options],
    json_schema: Annotated[
        str | None, Flag("write JSON that the JSON schema in this file describes", "FILE")
    ] = None,
    model: Model = "default",
    device: Device = None,
    dtype: Dtype = None,
    draft_model: Annotated[
        str | None, Flag("a small model of the same vocabulary that guesses ahead", "MODEL")
    ] = None,
    allow_special: Annotated[bool, Flag("treat <|endoftext|> in the prompt as the special token")] = False,
    ids: Annotated[bool, Flag("PROMPT and output are token ids; no tokenizer needed")] = False,
    json: Annotated[bool, Flag("print each sample as a JSON object, one per line")] = False,
) -> int:
    """Generate text that continues a prompt. Prompt and text are streamed to stdout; the seed and the speed
    go to stderr."""
    files = {"schema": json_schema, "grammar": settings.grammar}
    given: dict[str, Any] = {name: getattr(settings, name) for name in FIELDS}
    given |= {name: read_text(path, MAX_GRAMMAR_BYTES) for name, path in files.items() if path is not None}
    chosen = SamplingParams(**given)
    if chosen.beams is not None:
        SamplingParams.of(beams=chosen.beams, **{name: getattr(chosen, name) for name in NO_SAMPLING})
    prompt = read_prompt(prompt, "generate")
    batch_size = chosen.candidates if chosen.beams is None else chosen.beams
    gpt = load(model, device, dtype, batch_size, draft_model)
    prompt_ids = encode_prompt(prompt, gpt, ids, "generate", allow_special)
    interrupt: Interrupted | None = None
    if json:
        generations, interrupt = generate(gpt, prompt_ids, chosen)
        for generation in generations:
            print(jsonlib.dumps(to_json(generation, prompt, model)), flush=True)
        note_if_blank(generations, model)
    elif chosen.samples == 1 and chosen.best_of is None and chosen.beams is None and not ids:
        write_stream(gpt, prompt_ids, prompt, chosen, model)
    else:
        n_texts = chosen.candidates if chosen.beams is None else chosen.samples
        with progress_bar.spinner(f"generating {n_texts} {'text' if n_texts == 1 else 'texts'}"):
            generations, interrupt = generate(gpt, prompt_ids, chosen)
        if interrupt is not None:
            generations = [generation for generation in generations if generation.tokens]
        write_samples(generations, prompt, model, ids)
    if interrupt is not None:
        terminal.note("interrupted")
        raise interrupt
    return 0


def generate(
    gpt: GPT, prompt_ids: list[int] | None, settings: SamplingParams
) -> tuple[list[Generation], Interrupted | None]:
    """All samples; after Ctrl-C, those there are, finished or not, and the interrupt."""
    try:
        return gpt.generate(prompt_ids, settings=settings).samples, None
    except Interrupted as interrupt:
        return interrupt.generations[0], interrupt


def write_stream(
    gpt: GPT, prompt_ids: list[int] | None, prompt: str | None, settings: SamplingParams, model: str
) -> None:
    """Write the text as it is generated. An interrupt ends the line and leaves what was written."""
    stream = gpt.stream(prompt_ids, settings=settings)
    wrapper = terminal.make_wrapper()
    last = ""
    start = time.perf_counter()
    if prompt is not None:
        sys.stdout.write(terminal.bold(wrapper.push(prompt) + wrapper.flush()))
        sys.stdout.flush()
    try:
        for piece in stream:
            sys.stdout.write(wrapper.push(terminal.sanitize(piece)))
            sys.stdout.flush()
            last = piece
        sys.stdout.write(wrapper.flush())
    except KeyboardInterrupt:
        sys.stdout.write(wrapper.flush() + "\n")
        terminal.note("interrupted")
        raise
    finally:
        stream.close()
    if not last.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()
    if stream.generation is not None:
        report([stream.generation], time.perf_counter() - start, model)


def write_samples(generations: list[Generation], prompt: str | None, model: str, ids: bool) -> None:
    for number, generation in enumerate(generations, start=1):
        if len(generations) > 1:
            score = "" if generation.score is None else f", log-probability {generation.score:.3f}"
            sys.stdout.write(terminal.dim(f"--- {number} of {len(generations)}{score} ---") + "\n")
        wrapper = terminal.make_wrapper()
        if prompt is not None:
            sys.stdout.write(terminal.bold(wrapper.push(prompt) + wrapper.flush()))
        text = "".join(f" {token}" for token in generation.tokens) if ids else generation.text
        sys.stdout.write(wrapper.push(terminal.sanitize(text)) + wrapper.flush())
        sys.stdout.write("" if text.endswith("\n") else "\n")
        sys.stdout.flush()
    if generations:
        report(generations, max(generation.seconds for generation in generations), model)


def report(generations: list[Generation], seconds: float, model: str) -> None:
    """Print the notes to stderr, then the seed and the speed in one line."""
    for message in dict.fromkeys(note for generation in generations for note in generation.notes):
        terminal.note(f"note: {message}")
    note_if_blank(generations, model)
    n_tokens = sum(len(generation.tokens) for generation in generations)
    parts = [] if generations[0].seed is None else [f"seed {generations[0].seed}"]
    parts.append(f"{n_tokens} {'token' if n_tokens == 1 else 'tokens'} in {seconds:.2f} s")
    if seconds > 0:
        parts.append(f"{n_tokens / seconds:,.0f} tokens/s")
    if len(generations) == 1:
        reason = generations[0].finish_reason
        endings = {"length": "stopped at --max-new-tokens", "stop": "end of text"}
        parts.append(endings.get(reason, reason))
    terminal.note(", ".join(parts))


def note_if_blank(generations: list[Generation], model: str) -> None:
    """Explain text of white space alone, which looks as if the program did nothing."""
    from glassgpt.weights import shipped_names

    # Without a tokenizer there is no text at all.
    if any(not generation.text or is_visible(generation.text) for generation in generations):
        return
    shipped = model in shipped_names()
    why = ": this model was trained on books and encyclopedia articles, not code" if shipped else ""
    other = ", or --model gpt2" if shipped else ""
    terminal.note(
        f"note: the generated text is only white space{why}; try a sentence of prose, another --seed{other}"
    )


def is_visible(text: str) -> bool:
    return any(char.isprintable() and not char.isspace() for char in text)


def to_json(generation: Generation, prompt: str | None, model: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "text": generation.text,
        "tokens": generation.tokens,
        "logprobs": generation.logprobs,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "sample": generation.sample,
        "prompt_tokens": generation.prompt_tokens,
        "notes": generation.notes,
        "seconds": round(generation.seconds, 4),
    }
    if generation.alternatives is not None and any(generation.alternatives):
        result["alternatives"] = [[list(pair) for pair in pairs] for pairs in generation.alternatives]
    if generation.prompt_logprobs is not None:
        result["prompt_logprobs"] = generation.prompt_logprobs
    if generation.prompt_alternatives is not None:
        result["prompt_alternatives"] = generation.prompt_alternatives
    if generation.score is not None:
        result["score"] = generation.score
    return result
