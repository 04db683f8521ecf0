"""The native engine's edges: forks, refused threads, tiny numbers, sets that fail, numbers that do not fit.

And the numbers that it shows of a model: they are those of float32.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import glassgpt
from glassgpt.backends.choose import load_backend
from glassgpt.backends.native import is_available
from glassgpt.backends.native.backend import NativeBackend
from glassgpt.backends.native.library import floats_at, kernels, load_library
from glassgpt.backends.native.weights import DTYPES, Weights
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.weights import Checkpoint, load_checkpoint
from glassgpt.weights.panels import floats_of_panels, panels_of_floats

pytestmark = pytest.mark.skipif(not is_available(), reason="the native engine was not built")

SMALL = Config(vocab_size=101, n_positions=80, n_embd=48, n_layer=2, n_head=3)
IDS = list(range(3, 60))
PATIENCE = 300


def random_checkpoint(**scales: float) -> Checkpoint:
    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(shape, np.float32) / 8 for name, shape in SMALL.shapes().items()}
    for name, values in tensors.items():
        if name.split(".")[-2].startswith("ln_"):
            values *= scales.get("norms", 1.0)
    return Checkpoint(SMALL, tensors)


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


FORKS = """
import os, sys, threading, time
import glassgpt
from glassgpt.errors import UserError
gpt = glassgpt.load("tiny", backend="native")
busy = threading.Event()
def work():
    for seed in range(10**9):
        gpt.generate([5], max_new_tokens=40, seed=seed, ignore_eot=True)
        busy.set()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
busy.wait()
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            gpt.generate([5], max_new_tokens=2)
        except UserError as error:
            assert "forked" in str(error), error
            raise SystemExit(7)  # through the interpreter's end: the engine is deleted there
        raise SystemExit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_beside_busy_threads_is_told_and_ends() -> None:
    done = run_python(FORKS)
    assert (done.returncode, done.stderr) == (0, "")


REFUSED = """
import resource, warnings
import numpy as np
from tests.backends.native.test_edges import IDS, random_checkpoint
from glassgpt.backends.native.backend import NativeBackend
from glassgpt.backends.native.weights import Weights
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30,) * 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    weights = Weights(random_checkpoint(), threads=1024)
assert 1 < weights.threads < 1024, weights.threads
assert f"computes with {weights.threads}" in str(caught[0].message)
assert np.isfinite(NativeBackend(weights).logits([IDS])).all()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs all addresses")
def test_threads_that_the_system_refuses_are_done_without() -> None:
    # One malloc arena: each further one reserves 64 MiB of the addresses, whenever its thread gets to run.
    done = run_python(REFUSED, PYTHONPATH=os.pathsep.join(sys.path), MALLOC_ARENA_MAX="1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-37, 1e-32, 1e-25])
def test_activations_of_a_tiny_range(dtype: str, scale: float) -> None:
    checkpoint = random_checkpoint(norms=scale)
    for kernel in kernels():
        weights = Weights(checkpoint, dtype=dtype, kernels=kernel)
        for backend in (NativeBackend(weights, cache_dtype="int8"), NativeBackend(weights).exact_backend()):
            logits = backend.extend([0], [IDS], logits="all")
            assert np.abs(logits).max() < 1e-20


def test_a_head_that_could_not_be_set_leaves_the_model_as_it_was() -> None:
    weights = Weights(random_checkpoint(), dtype="int8")
    before = NativeBackend(weights).logits([IDS])
    data, scale = np.zeros(64, np.uint8), np.ones(101, np.float32)
    library = weights.library
    int8 = DTYPES.index("int8")
    wrong = (weights.handle, -1, 1, int8, data.ctypes.data, data.nbytes, floats_at(scale), None, 0)
    assert library.set_panels(*wrong) != 0
    assert library.check(weights.handle) == 0
    np.testing.assert_array_equal(NativeBackend(weights).logits([IDS]), before)


@pytest.mark.parametrize(
    ("source", "rows", "length"), [(2**32, [1], 4), (0, [2**32 + 1], 4), (0, [1], 2**32)]
)
def test_rows_and_lengths_are_not_cut_to_fit(source: int, rows: list[int], length: int) -> None:
    with pytest.raises(UserError, match=r"429496729\d (is not a row|tokens from 0 on are outside)"):
        NativeBackend(Weights(random_checkpoint()), rows=2).copy(source, rows, length)


def test_kernels_whose_name_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSGPT_KERNELS", "\udcff")  # as Python reads a byte that is not UTF-8
    with pytest.raises(SettingError, match=r"no kernels '\\udcff', only portable"):
        Weights(random_checkpoint())


@pytest.fixture
def unloaded() -> Iterator[None]:
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@pytest.mark.usefixtures("unloaded")
def test_falling_back_is_said_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSGPT_NATIVE", "junk")
    monkeypatch.setattr("glassgpt.backends.choose.is_torch_installed", lambda: False)
    with pytest.warns(UserWarning, match="GLASSGPT_NATIVE is 'junk'.*Unset it.*numpy computes: slower"):
        assert type(load_backend(random_checkpoint())).__name__ == "NumpyBackend"


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_numbers_that_are_shown_are_those_of_float32(dtype: str) -> None:
    """Against float32 with the same rounded weights: to its own rounding, not to that of bytes."""
    checkpoint = random_checkpoint()
    weights = Weights(checkpoint, dtype=dtype)
    wanted = float_twin(weights).logits([IDS])
    backend = NativeBackend(weights)
    size = np.abs(wanted).max()
    assert np.abs(backend.extend([0], [IDS], logits="all") - wanted).max() > 1e-3 * size  # as it generates
    for found in (backend.logits([IDS]), backend.exact_backend().extend([0], [IDS], logits="all")):
        assert np.abs(found - wanted).max() < 1e-5 * size


def float_twin(weights: Weights) -> NativeBackend:
    """Its weights, rounded as they are there, in float32."""
    rounded = dict(weights._checkpoint.tensors)
    for name, values in rounded.items():
        if name == "wte.weight":
            rounded[name] = round_rows(values, weights.dtype)
        elif values.ndim == 2 and name != "wpe.weight":  # (in, out)
            rounded[name] = round_rows(np.ascontiguousarray(values.T), weights.dtype).T
    return NativeBackend(Weights(Checkpoint(SMALL, rounded)))


def round_rows(rows: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "int8":
        scale = np.abs(rows).max(1, keepdims=True) / np.float32(127)
        return (np.rint(rows / scale) * scale).astype(np.float32)
    return floats_of_panels(panels_of_floats(rows), *rows.shape)


def test_next_and_logprobs_are_those_of_a_trace() -> None:
    gpt = glassgpt.load("tiny", backend="native")
    prompt = "Once upon a time there was a little"
    model = load_backend(load_checkpoint("tiny"), "numpy")
    ids = gpt.encode(prompt)
    logits = model.logits([ids])[0, -1].astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    for token, logprob in gpt.next_ids(prompt, 10):
        assert logprob == pytest.approx(logprobs[token], abs=1e-4)
    plain = gpt.generate(prompt, seed=5, max_new_tokens=20)
    scored = gpt.generate(prompt, seed=5, max_new_tokens=20, logprobs=1, prompt_logprobs=0)
    assert scored.tokens == plain.tokens
    every = model.logits([ids + scored.tokens])[0].astype(np.float64)
    every -= every.max(-1, keepdims=True)
    every -= np.log(np.exp(every).sum(-1, keepdims=True))
    after = every[len(ids) - 1 : -1][np.arange(20), scored.tokens]
    assert scored.logprobs == pytest.approx(after.tolist(), abs=1e-4)
    before = every[np.arange(len(ids) - 1), ids[1:]]
    assert scored.prompt_logprobs[1:] == pytest.approx(before.tolist(), abs=1e-4)
