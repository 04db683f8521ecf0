"""Does this machine compute what it should? Every mode of running a model against the reference.

The reference is the plainest forward pass: each text alone, no cache, no padding, float32, on the CPU. It has
a rounding error of its own, which is measured against float64; every other mode may differ from the reference
by a small multiple of that error. For a coarser dtype the error is that of the reference in that dtype,
but never more than the float32 error scaled by how much coarser the dtype is. So the tolerance is measured on
the model at hand, place by place, and not chosen.

Most checks speak to the protocol of `backend.py`, so any backend can be put to them, and see logits. Those in
`LAYER_CHECKS` look into the torch model and name the block where a fault begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from glassgpt.backend import DEFAULT_BACKEND, Backend, ScoreRequest, load_backend
from glassgpt.model import GPT2, Cache, TorchBackend, load_model

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint

# Two computations that each miss the truth by up to e differ by up to 2 e, and a sum taken in another order
# rounds differently: one row times a 768-wide matrix was measured to deviate by 4.4 e from many rows.
TIMES_ROUNDING = 8

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH = 32  # tokens of the longest text: enough for every path, little enough for the XL model on a laptop
CUDA_LENGTH = 160  # there long prompts are read by another graph than short ones (cuda_graphs.LONG_PROMPT)
STEPS = 6  # how many of them are decoded one by one where the cache is checked
CHUNK = 5  # tokens per call where a prompt is read in chunks
LENGTHS = (1.0, 0.7, 0.4, 0.15)  # of the texts that share a batch, as fractions of the longest

# A place (`h.3.resid_post`, `logits`) -> its values for one text, (T, C) or (T, V), in float64 on the CPU.
# With fewer than T rows they are the last ones.
Values = Mapping[str, Tensor]
Texts = Sequence[Sequence[int]]
Run = Callable[[Backend, Texts], list[dict[str, Tensor]]]


@dataclass(frozen=True)
class Check:
    """One mode of running the model, and where it deviates most from the reference."""

    device: str
    dtype: str
    mode: str
    ok: bool
    deviation: float | None = None  # the largest in proportion to what is tolerance there
    tolerance: float | None = None
    place: str = ""  # `h.7.resid_post, position 12`
    same_tokens: int | None = None  # positions at which the likeliest next token is the reference's
    n_tokens: int | None = None
    note: str = ""
    backend: str = DEFAULT_BACKEND


@dataclass(frozen=True)
class Reference:
    texts: Texts
    seen: list[Values]  # float32, one per text
    rounding: dict[str, dict[str, float]]  # dtype -> place -> the rounding error of the plain pass

    def tolerance(self, place: str, dtype: str) -> float:
        return TIMES_ROUNDING * self.rounding[dtype][place]


def devices() -> list[str]:
    """Every device of this machine, the CPU first."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


@torch.inference_mode()
def verify(
    checkpoint: Checkpoint,
    texts: Texts | None = None,
    names: Sequence[str] | None = None,
    dtypes: Sequence[str] = tuple(DTYPES),
    backend: str = DEFAULT_BACKEND,
) -> Iterator[Check]:
    """Run every check on every device in every dtype; each result as soon as it is known."""
    names = devices() if names is None else names
    if texts is None:
        on_cuda = any(name.startswith("cuda") for name in names)
        texts = sample_texts(checkpoint, CUDA_LENGTH if on_cuda else LENGTH)
    reference = make_reference(checkpoint, texts, dtypes)
    for device in names:
        for dtype in dtypes:
            # Ordinary tensors, as in ordinary use: the compiler of captured steps minds the difference.
            with torch.inference_mode(False):
                loaded = load_backend(checkpoint, backend, device=device, dtype=dtype)
            for name, run in CHECKS.items():
                if name not in LAYER_CHECKS or isinstance(loaded, TorchBackend):
                    check = run_check(loaded, device, dtype, name, run, reference)
                    yield dataclasses.replace(check, backend=backend)
            del loaded
            gc.collect()  # a captured step and its buffers refer to each other; GPU memory waits for neither


def run_check(backend: Backend, device: str, dtype: str, name: str, run: Run, reference: Reference) -> Check:
    """Run the model in one mode. A device that cannot do it at all is a result too."""
    try:
        # Streams, graphs and kernels go to the current device, which is otherwise the first of several.
        with torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext():
            seen = run(backend, reference.texts)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if is_missing_kernel(error):
            return Check(device, dtype, name, ok=True, note="torch has no such kernel here")
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        return Check(device, dtype, name, ok=False, note=f"failed: {reason}")
    return compare(device, dtype, name, seen, reference)


def sample_texts(checkpoint: Checkpoint, longest: int = LENGTH) -> Texts:
    """Four texts of unequal lengths: ids drawn evenly, so that all of the vocabulary has a chance."""
    config = checkpoint.config
    longest = min(longest, config.n_positions)
    draw = np.random.default_rng(2019)
    lengths = [max(1, round(longest * fraction)) for fraction in LENGTHS]
    return [[int(i) for i in draw.integers(config.vocab_size, size=length)] for length in lengths]


def make_reference(checkpoint: Checkpoint, texts: Texts, dtypes: Sequence[str]) -> Reference:
    # float64 is computed and freed first: the two models are never in memory together.
    exact = plain_pass(load_model(checkpoint, device="cpu", dtype="float64").eval(), texts)
    seen = plain_pass(load_model(checkpoint, device="cpu", dtype="float32").eval(), texts)
    fine = max_errors(seen, exact, torch.float32)
    rounding = {"float32": fine}
    for name in dtypes:
        if name == "float32":
            continue
        dtype = DTYPES[name]
        coarser = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        rounding[name] = {place: error * coarser for place, error in fine.items()}
        try:
            plain = plain_pass(load_model(checkpoint, device="cpu", dtype=name).eval(), texts)
        except RuntimeError as error:
            if not is_missing_kernel(error):
                raise
            continue
        for place, found in max_errors(plain, seen, dtype).items():
            rounding[name][place] = min(rounding[name][place], found)
    return Reference(texts, list(seen), rounding)


def max_errors(seen: Sequence[Values], truths: Sequence[Values], dtype: torch.dtype) -> dict[str, float]:
    """The largest error at each place, of all texts."""
    found: dict[str, float] = {}
    for one, truth in zip(seen, truths, strict=True):
        for place, values in one.items():
            # Never less than one rounding of the largest number there: a tiny model may be lucky everywhere.
            least = torch.finfo(dtype).eps * truth[place].abs().max().item()
            error = (values - truth[place]).abs().nan_to_num(float("inf")).max().item()
            found[place] = max(found.get(place, 0.0), error, least)
    return found


def is_missing_kernel(error: RuntimeError) -> bool:
    """Whether torch says that a device cannot do an operation in this dtype."""
    message = str(error).lower()
    if message.startswith("cuda error") or "triton" in message:  # a driver or a compiler at fault, not a gap
        return False
    return "not implemented" in message or "not supported" in message


# The modes of running a model. Each returns, for every text, the values at every place it can see.


def plain_pass(model: GPT2, texts: Texts) -> list[dict[str, Tensor]]:
    """Each text by itself, without a cache, by the fused attention kernel."""
    seen = []
    for text in texts:
        values = unpadded(watched(model, ids_of(model, [text])), [slice(None)])[0]
        if len(text) > 1:
            values["logprobs"] = next_logprobs(values["logits"], text)
        seen.append(values)
    return seen


def next_logprobs(logits: Tensor, text: Sequence[int]) -> Tensor:
    """The log-probability of each token but the first, (T - 1, 1)."""
    return logits[:-1].log_softmax(dim=-1).gather(1, torch.tensor(text[1:])[:, None])


def torch_model(backend: Backend) -> GPT2:
    assert isinstance(backend, TorchBackend)
    return backend.model


def alone(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """The plain pass, block by block."""
    return plain_pass(torch_model(backend), texts)


def explicit(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """The same with a tap: scores, mask, softmax and weighted sum one after another."""
    model, seen = torch_model(backend), []
    for text in texts:
        caught: dict[str, Tensor] = {}

        def catch(name: str, values: Tensor, caught: dict[str, Tensor] = caught) -> Tensor:
            if name.endswith("resid_post") or name == "logits":
                caught[name] = values
            return values

        model(ids_of(model, [text]), tap=catch)
        seen.append(unpadded(caught, [slice(None)])[0])
    return seen


def cached(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """Most of a text in one pass, then token by token, looking back through the cache."""
    model, seen = torch_model(backend), []
    for text in texts:
        cache = Cache.empty(model.config, 1, len(text), model.wte.weight.device, model.wte.weight.dtype)
        first = max(1, len(text) - STEPS)
        pieces = [watched(model, ids_of(model, [text[:first]]), cache=cache)]
        for position in range(first, len(text)):
            where = torch.tensor([[position]], device=model.wte.weight.device)
            pieces.append(watched(model, ids_of(model, [text[position : position + 1]]), where, cache))
        joined = {place: torch.cat([piece[place] for piece in pieces], dim=1) for place in pieces[0]}
        seen.append(unpadded(joined, [slice(None)])[0])
    return seen


def batched(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """The longest text four times over in one batch; all rows must come out the same."""
    model = torch_model(backend)
    longest = max(texts, key=len)
    rows = unpadded(watched(model, ids_of(model, [longest] * len(texts))), [slice(None)] * len(texts))
    by_itself = plain_pass(model, [text for text in texts if text is not longest])
    together = {place: torch.stack([row[place] for row in rows]) for place in rows[0]}  # (rows, T, C)
    return [together if text is longest else by_itself.pop(0) for text in texts]


def left_padded(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """Texts of unequal lengths in one batch, all ending together."""
    return padded(torch_model(backend), texts, left=True)


def right_padded(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """Texts of unequal lengths in one batch, all beginning together."""
    return padded(torch_model(backend), texts, left=False)


def padded(model: GPT2, texts: Texts, left: bool) -> list[dict[str, Tensor]]:
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), np.int64)
    positions = np.full((len(texts), longest), -1, np.int64)
    parts = []
    for row, text in enumerate(texts):
        part = slice(longest - len(text), longest) if left else slice(0, len(text))
        ids[row, part], positions[row, part] = text, np.arange(len(text))
        parts.append(part)
    device = model.wte.weight.device
    caught = watched(model, torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device))
    return unpadded(caught, parts)


def ragged_logits(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """All logits of texts of unequal lengths in one call."""
    every = backend.logits(texts)  # (B, longest, V)
    return [{"logits": as_double(logits[: len(text)])} for logits, text in zip(every, texts, strict=True)]


def chunked_prefill(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """Every text read into its row a few tokens at a time, the rows at different positions."""
    with torch.inference_mode(False):
        cached = backend.with_rows(len(texts))
    read = [0] * len(texts)
    out: list[list[Tensor]] = [[] for _ in texts]
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        tokens = [texts[row][read[row] : read[row] + CHUNK + row] for row in rows]
        logits = cached.extend(rows, tokens, [read[row] for row in rows], "all")
        for row, values in zip(rows, torch.split(as_double(logits), list(map(len, tokens))), strict=True):
            out[row].append(values)
            read[row] += len(values)
    return [{"logits": torch.cat(parts)} for parts in out]


def scored(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """The log-probability of every token but the first, as evaluation computes it."""
    long = [i for i, text in enumerate(texts) if len(text) > 1]
    groups = [[ScoreRequest(np.array(texts[i], np.int64), 1)] for i in long]
    seen: list[dict[str, Tensor]] = [{} for _ in texts]
    for keys, scores in backend.score(groups):
        for (group, _), found in zip(keys, scores, strict=True):
            seen[long[group]]["logprobs"] = as_double(found.logprobs)[:, None]  # (T - 1, 1)
    return seen


def many_rows(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """The engine with every text in two rows: on a GPU more than a few rows take another captured step."""
    twice = through_engine(backend, [*texts, *texts])
    both = zip(twice[: len(texts)], twice[len(texts) :], strict=True)
    return [{"logits": torch.stack([one["logits"], other["logits"]])} for one, other in both]  # (2, T, V)


def through_engine(backend: Backend, texts: Texts) -> list[dict[str, Tensor]]:
    """As the engine does it: read all but the end of each text, then decode all of them together."""
    with torch.inference_mode(False):
        cached = backend.with_rows(len(texts))
    read = [max(1, len(text) - STEPS) for text in texts]
    first = cached.extend(range(len(texts)), [text[:n] for text, n in zip(texts, read, strict=True)])
    out = [[as_double(logits)] for logits in first]  # for each text a list of (V,)
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        new = np.array([texts[row][read[row]] for row in rows])
        logits = cached.decode(rows, cached.array(new), [read[row] for row in rows])  # (rows, V)
        for row, values in zip(rows, logits, strict=True):
            out[row].append(as_double(values))
            read[row] += 1
    return [{"logits": torch.stack(rows)} for rows in out]


LAYER_CHECKS: dict[str, Run] = {
    "each text alone": alone,
    "attention step by step": explicit,
    "prefill, then decode": cached,
    "batch of equals": batched,
    "left padding": left_padded,
    "right padding": right_padded,
}
CHECKS: dict[str, Run] = {
    **LAYER_CHECKS,
    "engine, unequal lengths": through_engine,
    "engine, twice the rows": many_rows,
    "prefill in chunks": chunked_prefill,
    "ragged batch": ragged_logits,
    "scores": scored,
}  # for each device and dtype


# Watching and comparing.


def watched(
    model: GPT2, ids: Tensor, positions: Tensor | None = None, cache: Cache | None = None
) -> dict[str, Tensor]:
    """Run the model and catch the output of each block. Hooks, not taps: a tap would switch the kernel."""
    caught: dict[str, Tensor] = {}

    def keep(place: str) -> Callable[[object, object, Tensor], None]:
        return lambda module, args, output: caught.__setitem__(place, output)

    hooks = [block.register_forward_hook(keep(f"h.{i}.resid_post")) for i, block in enumerate(model.h)]
    try:
        caught["logits"] = model(ids, positions, cache)
    finally:
        for hook in hooks:
            hook.remove()
    return caught


def ids_of(model: GPT2, rows: Texts) -> Tensor:
    return torch.tensor([list(row) for row in rows], device=model.wte.weight.device)


def as_double(values: object) -> Tensor:
    return torch.as_tensor(values).detach().cpu().double()


def unpadded(caught: Mapping[str, Tensor], parts: Sequence[slice]) -> list[dict[str, Tensor]]:
    """Take each row's own tokens out of a batch: one dict of (T, C) for each row."""
    host = {place: as_double(values) for place, values in caught.items()}
    return [{place: values[row, part] for place, values in host.items()} for row, part in enumerate(parts)]


def compare(device: str, dtype: str, mode: str, seen: list[dict[str, Tensor]], reference: Reference) -> Check:
    """Find the place and position with the largest deviation in proportion to what is tolerance there."""
    worst, deviation, tolerance, place = -1.0, 0.0, 0.0, ""
    same = total = 0
    for one, truth in zip(seen, reference.seen, strict=True):
        for name, values in one.items():
            first = len(truth[name]) - values.shape[-2]  # the position of the first row given
            known = truth[name][first:]  # (T, C)
            values = values.reshape(-1, *known.shape)  # (rows, T, C)
            gaps = (values - known).abs().amax(dim=(0, 2)).nan_to_num(float("inf"), float("inf"))  # (T,)
            if name == "logits":
                agree = (values.argmax(dim=-1) == known.argmax(dim=-1)).all(dim=0)  # (T,)
                same, total = same + int(agree.sum()), total + len(agree)
            limit = reference.tolerance(name, dtype)
            gap, where = (found.item() for found in gaps.max(dim=0))
            if gap / limit > worst:
                worst, deviation, tolerance = gap / limit, gap, limit
                place = f"{name}, position {first + int(where)}"
    counts = (same, total) if total else (None, None)  # scores alone do not say which token is the likeliest
    return Check(device, dtype, mode, worst <= 1, deviation, tolerance, place, *counts)


# What others measured with the published GPT-2 small, after <|endoftext|> alone (GLTR, 2019; five decimals).
KNOWN_ANSWERS = {"\n": 0.0623, "The": 0.0377, '"': 0.02411, "A": 0.0194, "I": 0.01832}
KNOWN_TO = 2e-5  # half of their last digit, and as much for the kernels of 2019


def is_published_small(checkpoint: Checkpoint) -> bool:
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    sizes = (config.n_layer, config.n_embd, config.n_head, config.vocab_size)
    return sizes == (12, 768, 12, 50257) and tokenizer is not None and tokenizer.eot_id is not None


@torch.inference_mode()
def check_known_answers(checkpoint: Checkpoint) -> Check:
    """The published weights must give the published probabilities."""
    assert checkpoint.tokenizer is not None
    model = load_model(checkpoint, device="cpu", dtype="float32").eval()
    start = torch.tensor([[checkpoint.tokenizer.eot_id]])  # (1, 1)
    chances = model(start)[0, -1].double().softmax(dim=-1)  # (V,)
    gaps = {
        text: abs(chances[checkpoint.tokenizer.encode(text)[0]].item() - p)
        for text, p in KNOWN_ANSWERS.items()
    }
    text = max(gaps, key=lambda text: gaps[text])
    place = f"probability of {text!r} after <|endoftext|>"
    ok = gaps[text] <= KNOWN_TO
    return Check("cpu", "float32", "known answers (GLTR)", ok, gaps[text], KNOWN_TO, place)
