"""The reference that every mode is compared with, and its measured rounding error.

The reference is the plainest forward pass: each text alone, no cache, no padding, float32, on the CPU. Its
rounding error is measured against float64; every other mode may differ from it by a small multiple of that
error. For a coarser dtype the error is that of the plain pass in that dtype (the native engine's in int8 and
int4), but never more than the float32 error scaled by how much coarser the dtype is. So the tolerance is
measured on the model at hand, place by place, and not chosen. Without torch the reference is the numpy
model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.backends.choose import is_torch_installed, load_backend
from glassgpt.backends.numpy import load_numpy_model
from glassgpt.inspect.arrays import log_softmax, to_float64
from glassgpt.model.numpy_gpt2 import NumpyGPT2
from glassgpt.verify.plan import EPS, INTEGERS, backends

if TYPE_CHECKING:
    from glassgpt.weights.checkpoint import Checkpoint

# Two computations that each miss the truth by up to e differ by up to 2 e, and a sum taken in another order
# rounds differently: one row times a 768-wide matrix was measured to deviate by 4.4 e from many rows.
TIMES_ROUNDING = 8
LENGTH = 32  # tokens of the longest text: enough for every path, little enough for the XL model on a laptop
CUDA_LENGTH = 160  # there long prompts are read by another graph than short ones (cuda_graphs.LONG_PROMPT)
LENGTHS = (1.0, 0.7, 0.4, 0.15)  # of the texts that share a batch, as fractions of the longest
# A place (`h.3.resid_post`, `logits`) -> its values for one text, (T, C) or (T, V), in float64 on the host.
# With fewer than T rows they are the last ones.
Values = Mapping[str, np.ndarray]
Texts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Reference:
    texts: Texts
    seen: list[Values]  # float32, one per text
    rounding: dict[str, dict[str, float]]  # dtype -> place -> the rounding error of the plain pass

    def tolerance(self, place: str, dtype: str) -> float:
        return TIMES_ROUNDING * self.rounding[dtype][place]


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
    from glassgpt.verify import layer_modes

    return layer_modes.plain_pass(load_model(checkpoint, device="cpu", dtype=dtype).eval(), texts)


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


def integer_pass(checkpoint: Checkpoint, texts: Texts, dtype: str) -> list[Values]:
    """Each text by itself with quantized weights, which only the native engine has."""
    backend = load_backend(checkpoint, "native", device="cpu", dtype=dtype)
    seen: list[Values] = []
    for text in texts:
        logits = to_float64(backend.extend([0], [text], None, "all"))  # as it generates
        more = {"logprobs": next_logprobs(logits, text)} if len(text) > 1 else {}
        seen.append({"logits": logits, **more})
    return seen


def next_logprobs(logits: np.ndarray, text: Sequence[int]) -> np.ndarray:
    """The log-probability of each token but the first, (T - 1, 1)."""
    return np.take_along_axis(log_softmax(logits[:-1]), np.array(text[1:])[:, None], 1)


def max_errors(seen: Sequence[Values], truths: Sequence[Values], dtype: str) -> dict[str, float]:
    """The largest error at each place, of all texts."""
    errors: dict[str, float] = {}
    for one, truth in zip(seen, truths, strict=True):
        for place, values in one.items():
            # Never less than one rounding of the largest number there: a tiny model may be lucky everywhere.
            least = EPS["float32" if dtype in INTEGERS else dtype] * float(np.abs(truth[place]).max())
            error = float(np.nan_to_num(np.abs(values - truth[place]), nan=np.inf).max())
            errors[place] = max(errors.get(place, 0.0), error, least)
    return errors


def is_missing_kernel(error: RuntimeError) -> bool:
    """Whether torch says that a device cannot do an operation in this dtype."""
    message = str(error).lower()
    if message.startswith("cuda error") or "triton" in message:  # a driver or a compiler at fault, not a gap
        return False
    return "not implemented" in message or "not supported" in message
