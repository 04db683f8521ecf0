"""Does this machine compute what it should? Every mode of running a model against the reference.

The reference is the plainest forward pass: each text alone, no cache, no padding, float32, on the CPU. It has
a rounding error of its own, which is measured against float64; every other mode may differ from the reference
by a small multiple of that error. For a coarser dtype the error is that of the plain pass in that dtype (the
native engine's own in int8 and int4), but never more than the float32 error scaled by how much coarser the
dtype is. So the tolerance is measured on the model at hand, place by place, and not chosen.

Most checks speak to the protocol of `backends/protocol.py`, so any backend can be checked, and see logits.
Those in `LAYER_CHECKS` look into the torch model and name the block where a fault begins (verify_layers.py).
Without torch, the reference is the numpy model's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.choose import BACKENDS, is_torch_installed, load_backend
from glassgpt.backends.numpy import load_numpy_model
from glassgpt.backends.protocol import Backend, ScoreRequest
from glassgpt.config import Config, check_can_continue
from glassgpt.errors import NEEDS_TORCH, SettingError
from glassgpt.inspect.arrays import log_softmax, to_float64
from glassgpt.model.numpy_gpt2 import NumpyGPT2

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint

# Two computations that each miss the truth by up to e differ by up to 2 e, and a sum taken in another order
# rounds differently: one row times a 768-wide matrix was measured to deviate by 4.4 e from many rows.
TIMES_ROUNDING = 8

EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "int8": 2.0**-7, "int4": 2.0**-3}
INTEGERS = ("int8", "int4")
# The dtypes that each backend is checked in.
DTYPES = {
    "native": tuple(EPS),
    "torch": tuple(name for name in EPS if name not in INTEGERS),
    "numpy": ("float32",),
}
LENGTH = 32  # tokens of the longest text: enough for every path, little enough for the XL model on a laptop
CUDA_LENGTH = 160  # there long prompts are read by another graph than short ones (cuda_graphs.LONG_PROMPT)
STEPS = 6  # how many of them are decoded one by one where the cache is checked
CHUNK = 5  # tokens per call where a prompt is read in chunks
LENGTHS = (1.0, 0.7, 0.4, 0.15)  # of the texts that share a batch, as fractions of the longest

# A place (`h.3.resid_post`, `logits`) -> its values for one text, (T, C) or (T, V), in float64 on the host.
# With fewer than T rows they are the last ones.
Values = Mapping[str, np.ndarray]
Texts = Sequence[Sequence[int]]
Plan = tuple[str, str, str]  # backend, device, dtype
Run = Callable[[Backend, Texts], list[Values]]


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
    backend: str = "torch"


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
    if not is_torch_installed():
        return found
    import torch

    if torch.cuda.is_available():
        found += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def backends() -> list[str]:
    """The backends that are installed, torch first: its checks look into every layer."""
    from glassgpt.backends.native import is_available

    installed = {"torch": is_torch_installed(), "native": is_available()}
    return [name for name in sorted(BACKENDS, key=lambda name: name != "torch") if installed.get(name, True)]


def check_devices(names: Sequence[str]) -> None:
    """Refuse names of devices that are not on this machine."""
    if is_torch_installed():
        from glassgpt.backends.torch.backend import choose_device

        for name in names:
            choose_device(name)
        return
    for name in names:
        if name != "cpu":
            raise SettingError(f"device {name!r} {NEEDS_TORCH}")


def verify(
    checkpoint: Checkpoint, planned: Sequence[Plan] | None = None, texts: Texts | None = None
) -> Iterator[Check]:
    """Run all checks that are planned, by default all there are; each result as soon as it is known."""
    check_can_continue(checkpoint.config)
    if planned is None:
        planned = computable(checkpoint.config, list(plan(backends(), devices(), list(EPS))))
    if texts is None:
        on_cuda = any(device.startswith("cuda") for _, device, _ in planned)
        texts = sample_texts(checkpoint, CUDA_LENGTH if on_cuda else LENGTH)
    reference = make_reference(checkpoint, texts, list(dict.fromkeys(dtype for _, _, dtype in planned)))
    for backend, device, dtype in planned:
        loaded = load_backend(checkpoint, backend, device=device, dtype=dtype)
        for name in checks_of(backend):
            check = run_check(loaded, device, dtype, name, CHECKS[name], reference)
            yield replace(check, backend=backend)
        del loaded
        gc.collect()  # a captured step and its buffers refer to each other; GPU memory waits for neither


def plan(wanted: Sequence[str], names: Sequence[str], dtypes: Sequence[str]) -> Iterator[Plan]:
    """What there is to check of these backends, devices and dtypes. All but torch run on the CPU only."""
    for backend in wanted:
        for device in names:
            for dtype in dtypes:
                if (backend == "torch" or device == "cpu") and dtype in DTYPES[backend]:
                    yield backend, device, dtype


def computable(config: Config, planned: Sequence[Plan]) -> Sequence[Plan]:
    """Without backends that have only the published attention, where the model's is another."""
    return (
        planned if config.attention == Config.attention else [each for each in planned if each[0] == "torch"]
    )


def checks_of(backend: str) -> list[str]:
    return [name for name in CHECKS if backend == "torch" or name not in LAYER_CHECKS]


def run_check(backend: Backend, device: str, dtype: str, name: str, run: Run, reference: Reference) -> Check:
    """Run the model in one mode. A device that cannot do it at all is a result too."""
    try:
        # Streams, graphs and kernels go to the current device, which is otherwise the first of several.
        with current_device(device):
            seen = run(backend, reference.texts)
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        if is_missing_kernel(error):
            return Check(device, dtype, name, ok=True, note="torch has no such kernel here")
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        return Check(device, dtype, name, ok=False, note=f"failed: {reason}")
    return compare(device, dtype, name, seen, reference)


def current_device(name: str) -> AbstractContextManager[None]:
    if not name.startswith("cuda"):
        return nullcontext()
    import torch

    return torch.cuda.device(name)


def sample_texts(checkpoint: Checkpoint, longest: int = LENGTH) -> Texts:
    """Four texts of unequal lengths: ids drawn evenly, so that all of the vocabulary has a chance."""
    config = checkpoint.config
    longest = min(longest, config.n_positions)
    draw = np.random.default_rng(2019)
    lengths = [max(1, round(longest * fraction)) for fraction in LENGTHS]
    return [[int(i) for i in draw.integers(config.vocab_size, size=length)] for length in lengths]


def make_reference(checkpoint: Checkpoint, texts: Texts, dtypes: Sequence[str]) -> Reference:
    # float64 is computed and freed first: the two models are never in memory together.
    exact = plain_pass(checkpoint, texts, "float64")
    seen = plain_pass(checkpoint, texts, "float32")
    fine = max_errors(seen, exact, "float32")
    rounding = {"float32": fine}
    for name in dtypes:
        if name == "float32":
            continue
        coarser = EPS[name] / EPS["float32"]
        rounding[name] = {place: error * coarser for place, error in fine.items()}
        computes = "native" if name in INTEGERS else "torch"
        if computes not in backends():
            continue
        try:
            plain = (integer_pass if name in INTEGERS else plain_pass)(checkpoint, texts, name)
        except RuntimeError as error:
            if not is_missing_kernel(error):
                raise
            continue
        for place, found in max_errors(plain, seen, name).items():
            rounding[name][place] = min(rounding[name][place], found)
    return Reference(texts, list(seen), rounding)


def plain_pass(checkpoint: Checkpoint, texts: Texts, dtype: str) -> list[Values]:
    """Each text by itself, without a cache, on the CPU: by torch, or where it is not installed by numpy."""
    if not is_torch_installed():
        return numpy_pass(load_numpy_model(checkpoint, dtype), texts)
    from glassgpt.backends.torch.backend import load_model
    from glassgpt.inspect import verify_layers

    return verify_layers.plain_pass(load_model(checkpoint, device="cpu", dtype=dtype).eval(), texts)


def integer_pass(checkpoint: Checkpoint, texts: Texts, dtype: str) -> list[Values]:
    """Each text by itself with quantized weights, which only the native engine has."""
    backend = load_backend(checkpoint, "native", device="cpu", dtype=dtype)
    seen: list[Values] = []
    for text in texts:
        logits = to_float64(backend.extend([0], [text], None, "all"))  # as it generates
        more = {"logprobs": next_logprobs(logits, text)} if len(text) > 1 else {}
        seen.append({"logits": logits, **more})
    return seen


def max_errors(seen: Sequence[Values], truths: Sequence[Values], dtype: str) -> dict[str, float]:
    """The largest error at each place, of all texts."""
    found: dict[str, float] = {}
    for one, truth in zip(seen, truths, strict=True):
        for place, values in one.items():
            # Never less than one rounding of the largest number there: a tiny model may be lucky everywhere.
            least = EPS["float32" if dtype in INTEGERS else dtype] * float(np.abs(truth[place]).max())
            error = float(np.nan_to_num(np.abs(values - truth[place]), nan=np.inf).max())
            found[place] = max(found.get(place, 0.0), error, least)
    return found


def is_missing_kernel(error: RuntimeError) -> bool:
    """Whether torch says that a device cannot do an operation in this dtype."""
    message = str(error).lower()
    if message.startswith("cuda error") or "triton" in message:  # a driver or a compiler at fault, not a gap
        return False
    return "not implemented" in message or "not supported" in message


# The modes of running a model. Each returns, for every text, the values at every place it can see.


def numpy_pass(model: NumpyGPT2, texts: Texts) -> list[Values]:
    """The plain pass of the numpy model: each text by itself, without a cache."""
    seen: list[Values] = []
    for text in texts:
        values: dict[str, np.ndarray] = {}

        def catch(name: str, x: np.ndarray, values: dict[str, np.ndarray] = values) -> np.ndarray:
            if name.endswith("resid_post") or name == "logits":
                values[name] = to_float64(x[0])
            return x

        model(np.array([text]), tap=catch)
        if len(text) > 1:
            values["logprobs"] = next_logprobs(values["logits"], text)
        seen.append(values)
    return seen


def next_logprobs(logits: np.ndarray, text: Sequence[int]) -> np.ndarray:
    """The log-probability of each token but the first, (T - 1, 1)."""
    return np.take_along_axis(log_softmax(logits[:-1]), np.array(text[1:])[:, None], 1)


def ragged_logits(backend: Backend, texts: Texts) -> list[Values]:
    """All logits of texts of unequal lengths in one call."""
    every = backend.logits(texts)  # (B, longest, V)
    return [{"logits": to_float64(logits[: len(text)])} for logits, text in zip(every, texts, strict=True)]


def chunked_prefill(backend: Backend, texts: Texts) -> list[Values]:
    """Every text read into its row a few tokens at a time, the rows at different positions."""
    cached = backend.with_rows(len(texts))
    read = [0] * len(texts)
    out: list[list[np.ndarray]] = [[] for _ in texts]
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        tokens = [texts[row][read[row] : read[row] + CHUNK + row] for row in rows]
        logits = cached.extend(rows, tokens, [read[row] for row in rows], "all")
        ends = np.cumsum([len(some) for some in tokens])[:-1]
        for row, values in zip(rows, np.split(to_float64(logits), ends), strict=True):
            out[row].append(values)
            read[row] += len(values)
    return [{"logits": np.concatenate(parts)} for parts in out]


def scored(backend: Backend, texts: Texts) -> list[Values]:
    """The log-probability of every token but the first, as evaluation computes it."""
    long = [i for i, text in enumerate(texts) if len(text) > 1]
    groups = [[ScoreRequest(np.array(texts[i], np.int64), 1)] for i in long]
    seen: list[dict[str, np.ndarray]] = [{} for _ in texts]
    for keys, scores in backend.score(groups):
        for (group, _), found in zip(keys, scores, strict=True):
            seen[long[group]]["logprobs"] = to_float64(found.logprobs)[:, None]  # (T - 1, 1)
    return list(seen)


def many_rows(backend: Backend, texts: Texts) -> list[Values]:
    """The engine with every text in two rows: on a GPU more than a few rows take another captured step."""
    twice = through_engine(backend, [*texts, *texts])
    both = zip(twice[: len(texts)], twice[len(texts) :], strict=True)
    return [{"logits": np.stack([one["logits"], other["logits"]])} for one, other in both]  # (2, T, V)


def through_engine(backend: Backend, texts: Texts) -> list[Values]:
    """As the engine does it: read all but the end of each text, then decode all of them together."""
    cached = backend.with_rows(len(texts))
    read = [max(1, len(text) - STEPS) for text in texts]
    first = cached.extend(range(len(texts)), [text[:n] for text, n in zip(texts, read, strict=True)])
    out = [[to_float64(logits)] for logits in first]  # for each text a list of (V,)
    while rows := [row for row, text in enumerate(texts) if read[row] < len(text)]:
        new = np.array([texts[row][read[row]] for row in rows])
        logits = cached.decode(rows, cached.array(new), [read[row] for row in rows])  # (rows, V)
        for row, values in zip(rows, logits, strict=True):
            out[row].append(to_float64(values))
            read[row] += 1
    return [{"logits": np.stack(rows)} for rows in out]


def layer_check(name: str) -> Run:
    """A check of verify_layers.py, which needs torch."""

    def run(backend: Backend, texts: Texts) -> list[Values]:
        from glassgpt.inspect import verify_layers

        found: list[Values] = getattr(verify_layers, name)(backend, texts)
        return found

    return run


LAYER_CHECKS: dict[str, Run] = {
    "each text alone": layer_check("alone"),
    "attention step by step": layer_check("explicit"),
    "prefill, then decode": layer_check("cached"),
    "batch of equals": layer_check("batched"),
    "left padding": layer_check("left_padded"),
    "right padding": layer_check("right_padded"),
}
CHECKS: dict[str, Run] = {
    **LAYER_CHECKS,
    "engine, unequal lengths": through_engine,
    "engine, twice the rows": many_rows,
    "prefill in chunks": chunked_prefill,
    "ragged batch": ragged_logits,
    "scores": scored,
}  # for each device and dtype


# Comparing.


def compare(device: str, dtype: str, mode: str, seen: list[Values], reference: Reference) -> Check:
    """Find the place and position with the largest deviation in proportion to what is tolerance there."""
    worst, deviation, tolerance, place = -1.0, 0.0, 0.0, ""
    same = total = 0
    for one, truth in zip(seen, reference.seen, strict=True):
        for name, values in one.items():
            first = len(truth[name]) - values.shape[-2]  # the position of the first row given
            known = truth[name][first:]  # (T, C)
            values = values.reshape(-1, *known.shape)  # (rows, T, C)
            gaps = np.nan_to_num(np.abs(values - known).max(axis=(0, 2)), nan=np.inf)  # (T,)
            if name == "logits":
                agree = (values.argmax(-1) == known.argmax(-1)).all(axis=0)  # (T,)
                same, total = same + int(agree.sum()), total + len(agree)
            limit = reference.tolerance(name, dtype)
            where = int(gaps.argmax())
            gap = float(gaps[where])
            if gap / limit > worst:
                worst, deviation, tolerance = gap / limit, gap, limit
                place = f"{name}, position {first + where}"
    counts = (same, total) if total else (None, None)  # scores alone do not say which token is the likeliest
    return Check(device, dtype, mode, worst <= 1, deviation, tolerance, place, *counts)


# What others measured with the published GPT-2 small, after <|endoftext|> alone (GLTR, 2019; five decimals).
KNOWN_ANSWERS = {"\n": 0.0623, "The": 0.0377, '"': 0.02411, "A": 0.0194, "I": 0.01832}
KNOWN_TO = 2e-5  # half of their last digit, and as much for the kernels of 2019


def is_published_small(checkpoint: Checkpoint) -> bool:
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    sizes = (config.n_layer, config.n_embd, config.n_head, config.vocab_size)
    return sizes == (12, 768, 12, 50257) and tokenizer is not None and tokenizer.eot_id is not None


def check_known_answers(checkpoint: Checkpoint) -> Check:
    """The published weights must give the published probabilities."""
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    assert tokenizer.eot_id is not None
    logits = plain_pass(checkpoint, [[tokenizer.eot_id]], "float32")[0]["logits"][-1]  # (V,)
    chances = np.exp(log_softmax(logits))
    gaps = {text: abs(float(chances[tokenizer.encode(text)[0]]) - p) for text, p in KNOWN_ANSWERS.items()}
    text = max(gaps, key=lambda text: gaps[text])
    place = f"probability of {text!r} after <|endoftext|>"
    ok = gaps[text] <= KNOWN_TO
    return Check("cpu", "float32", "known answers (GLTR)", ok, gaps[text], KNOWN_TO, place)
