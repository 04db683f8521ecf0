"""The native engine against torch, its kernels against each other, a row against itself in other company."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassgpt
from glassgpt.backends.choose import load_backend
from glassgpt.backends.native import is_available
from glassgpt.backends.native.backend import NativeBackend
from glassgpt.backends.native.library import kernels
from glassgpt.backends.native.weights import DTYPES, Weights
from glassgpt.backends.protocol import ScoreRequest
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.model import GPT2
from glassgpt.weights import Checkpoint, load_checkpoint, packed
from glassgpt.weights.checkpoint import LazyTensors
from tests.model.conftest import noisy
from tests.weights.conftest import save_rows

pytestmark = pytest.mark.skipif(not is_available(), reason="the native engine was not built")

SMALL = Config(vocab_size=101, n_positions=80, n_embd=48, n_layer=2, n_head=3)


def model_of(**changes: object) -> tuple[GPT2, Checkpoint]:
    torch.manual_seed(4)
    model = noisy(GPT2(dataclasses.replace(SMALL, **changes))).requires_grad_(False)
    return model, Checkpoint(
        model.config, {name: values.numpy() for name, values in model.state_dict().items()}
    )


def draw(config: Config, *shape: int) -> np.ndarray:
    return np.random.default_rng(8).integers(config.vocab_size, size=shape)


def assert_close(found: np.ndarray, wanted: np.ndarray, relative: float) -> None:
    assert np.abs(found - wanted).max() <= relative * np.abs(wanted).max()


VARIANTS = {
    "heads of 16": {},
    "heads of 32": {"n_embd": 96},
    "heads of 64": {"n_embd": 192},
    "heads of 100": {"n_embd": 300},
    "a head of 7": {"n_embd": 7, "n_head": 1},
    "an odd MLP and vocabulary": {"n_inner": 91, "vocab_size": 67},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "its own head": {"tie_word_embeddings": False},
    "another epsilon": {"layer_norm_epsilon": 0.1},
    **{name: {"activation_function": name} for name in ("gelu", "relu", "silu", "tanh")},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_torch(variant: str) -> None:
    model, checkpoint = model_of(**VARIANTS[variant])
    ids = draw(model.config, 2, 70).tolist()
    wanted = TorchBackend(model).logits(ids)
    for kernel in kernels():
        backend = NativeBackend(Weights(checkpoint, kernels=kernel), rows=1)
        assert backend.dtype == "float32"
        assert_close(backend.logits(ids), wanted, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["gpt2", "gpt2-medium"])
def test_logits_of_published_shapes(size: str) -> None:
    torch.manual_seed(0)
    model = GPT2(Config.named(size, n_layer=4)).requires_grad_(False)
    checkpoint = Checkpoint(
        model.config, {name: values.numpy() for name, values in model.state_dict().items()}
    )
    ids = draw(model.config, 1, 130).tolist()
    assert_close(NativeBackend.load(checkpoint).logits(ids), TorchBackend(model).logits(ids), 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_agree(dtype: str) -> None:
    """To rounding: integers are exact, and floats differ only in where products and sums round together."""
    model, checkpoint = model_of(n_embd=72, n_inner=133)
    ids = draw(model.config, 1, 41).tolist()
    first, *others = [
        NativeBackend(Weights(checkpoint, dtype=dtype, kernels=kernel)).logits(ids) for kernel in kernels()
    ]
    for other in others:
        assert_close(other, first, 2e-2 if dtype.startswith("int") else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_precision_of_each_dtype(dtype: str) -> None:
    model, checkpoint = model_of()
    ids = draw(model.config, 1, 70).tolist()
    backend = NativeBackend.load(checkpoint, dtype=dtype)
    bound = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 3e-2, "int8": 5e-2, "int4": 0.5}[dtype]
    assert_close(backend.logits(ids), TorchBackend(model).logits(ids), bound)
    assert len({NativeBackend.load(checkpoint, dtype=one).fingerprint() for one in (dtype, "int8")}) == (
        1 if dtype == "int8" else 2
    )


@pytest.mark.parametrize("d_head", [7, 16, 64, 100])
def test_int8_cache_is_near_the_float32_cache(d_head: int) -> None:
    """A key or value is off by at most half a step, 1/254 of the largest number in its vector."""
    model, checkpoint = model_of(n_embd=3 * d_head)
    ids = draw(model.config, 1, 70).tolist()
    wanted = TorchBackend(model).logits(ids)
    for kernel in kernels():
        backend = NativeBackend(Weights(checkpoint, kernels=kernel), cache_dtype="int8")
        assert_close(backend.logits(ids), wanted, 3e-2)
        assert np.abs(backend.logits(ids) - wanted).max() > 1e-5  # it is another cache
    assert backend.with_rows(2).cache_dtype == "int8"
    assert backend.fingerprint() != NativeBackend(Weights(checkpoint)).fingerprint()


def test_int8_cache_of_a_copied_row() -> None:
    model, checkpoint = model_of()
    backend = NativeBackend(Weights(checkpoint), rows=2, cache_dtype="int8")
    text = draw(model.config, 37).tolist()
    backend.extend([0], [text])
    backend.copy(0, [1], 37)
    after = backend.decode([0, 1], [5, 5], [37, 37])
    np.testing.assert_array_equal(after[0], after[1])


def test_a_cache_dtype_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="cache_dtype 'int4' is not one of float32, float16, int8"):
        NativeBackend.load(model_of()[1], cache_dtype="int4")
    with pytest.raises(SettingError, match="cache_dtype int8 is for the native backend"):
        glassgpt.load("tiny", backend="torch", cache_dtype="int8")


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [("float32", None), ("float32", "int8"), ("int8", None), ("int8", "int8"), ("int4", None)],
)
def test_threads_and_company_change_no_bit(dtype: str, cache_dtype: str | None) -> None:
    model, checkpoint = model_of()
    texts = draw(model.config, 64, 9).tolist()
    new = draw(model.config, 64)
    found = []
    for threads in (1, 2, 3):
        weights = Weights(checkpoint, dtype=dtype, threads=threads)
        for batch in (1, 7, 64):
            backend = NativeBackend(weights, rows=batch, cache_dtype=cache_dtype)
            last = backend.extend(range(batch), texts[:batch])
            after = backend.decode(range(batch), new[:batch], [9] * batch)
            found.append((last[0].copy(), after[0].copy()))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0][0], other[0])
        np.testing.assert_array_equal(found[0][1], other[1])


@pytest.mark.parametrize(("dtype", "cache_dtype"), [("float32", None), ("int8", None), ("int8", "int8")])
def test_reading_in_pieces_changes_no_bit(dtype: str, cache_dtype: str | None) -> None:
    """Neither pieces of a text nor its tokens one by one: speculation is exact."""
    model, checkpoint = model_of(n_positions=600)
    backend = NativeBackend.load(checkpoint, dtype=dtype, cache_dtype=cache_dtype)
    text = draw(model.config, 560).tolist()
    every = backend.extend([0], [text], logits="all").copy()
    np.testing.assert_array_equal(backend.extend([0], [text])[0], every[-1])
    backend.extend([0], [text[:301]], logits="none")
    np.testing.assert_array_equal(backend.extend([0], [text[301:]], [301])[0], every[-1])
    for at in range(540, 560):
        np.testing.assert_array_equal(backend.decode([0], [text[at]], [at])[0], every[at])


@pytest.mark.slow
def test_greedy_text_equals_that_of_torch() -> None:
    texts = [
        glassgpt.load("tiny", device="cpu", dtype="float32", backend=name)
        .generate("The old house stood", max_new_tokens=200, temperature=0, ignore_eot=True)
        .tokens
        for name in ("native", "torch")
    ]
    assert len(texts[0]) == 200
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_perplexity_of_the_shipped_model() -> None:
    checkpoint = load_checkpoint("default")
    assert checkpoint.tokenizer is not None
    text = (Path(glassgpt.__file__).parent / "data" / "smoke" / "text.txt").read_text("utf-8")
    ids = np.array(checkpoint.tokenizer.encode(text))
    perplexity = {}
    for dtype in ("float32", "int8", "int4"):
        (scores,) = [
            s for _, s in NativeBackend.load(checkpoint, dtype=dtype).score([[ScoreRequest(ids, 1)]])
        ]
        perplexity[dtype] = float(np.exp(-scores[0].logprobs.mean()))
    (scores,) = [
        s for _, s in NativeBackend.load(checkpoint, cache_dtype="int8").score([[ScoreRequest(ids, 1)]])
    ]
    coarse = float(np.exp(-scores[0].logprobs.mean()))
    assert abs(coarse / perplexity["int8"] - 1) < 0.005
    assert abs(perplexity["int8"] / perplexity["float32"] - 1) < 0.005
    assert (
        abs(perplexity["int4"] / perplexity["float32"] - 1) < 0.05
    )  # few tokens; docs/performance.md has more


def test_a_file_runs_in_its_own_precision() -> None:
    model, checkpoint = model_of()
    half = {name: values.astype(np.float16) for name, values in checkpoint.tensors.items()}
    assert NativeBackend.load(Checkpoint(model.config, half)).dtype == "float16"
    assert NativeBackend.load(load_checkpoint("tiny")).dtype == "int8"


def test_int8_rows_of_a_file_are_those_quantized_here(tmp_path: Path) -> None:
    model, checkpoint = model_of()
    save_rows(checkpoint, tmp_path / "m")
    rows = load_checkpoint(tmp_path / "m")
    tensors = {
        **checkpoint.tensors,
        "wpe.weight": rows.tensors["wpe.weight"],
    }  # the file rounds positions, too
    here = NativeBackend.load(Checkpoint(model.config, tensors), dtype="int8")
    there = NativeBackend.load(rows)
    ids = draw(model.config, 1, 30).tolist()
    np.testing.assert_array_equal(here.logits(ids), there.logits(ids))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    "variant", ["heads of 16", "heads of 100", "its own head", "an odd MLP and vocabulary"]
)
def test_a_packed_file_is_what_is_quantized_here(
    dtype: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped or read, it computes the same bits as the weights it was made of; others run it, too."""
    model, checkpoint = model_of(**VARIANTS[variant])
    packed.save(checkpoint, tmp_path / "m", dtype)
    file = load_checkpoint(tmp_path / "m")
    rounded = {**checkpoint.tensors, "wpe.weight": file.tensors["wpe.weight"]}  # they are int8 in the file
    ids = draw(model.config, 1, 30).tolist()
    wanted = NativeBackend.load(Checkpoint(model.config, rounded), dtype=dtype).logits(ids)
    mapped = NativeBackend.load(file)
    assert mapped.dtype == dtype
    np.testing.assert_array_equal(mapped.logits(ids), wanted)
    monkeypatch.setenv("GLASSGPT_MMAP", "0")
    copied = NativeBackend.load(file)
    np.testing.assert_array_equal(copied.logits(ids), wanted)
    assert copied.weights.n_bytes == mapped.weights.n_bytes
    assert copied.fingerprint() == mapped.fingerprint()
    torchs, numpys = (
        load_backend(file, name, device="cpu", dtype="float32").logits(ids) for name in ("torch", "numpy")
    )
    assert_close(numpys, torchs, 1e-5)
    assert_close(NativeBackend.load(file, dtype="float32").logits(ids), torchs, 1e-5)
    assert_close(wanted, torchs, 5e-2)  # as its activations are quantized


def test_mapped_weights_outlive_their_checkpoint(tmp_path: Path) -> None:
    model, checkpoint = model_of()
    packed.save(checkpoint, tmp_path / "m", "int4")
    ids = draw(model.config, 1, 30).tolist()
    backend = NativeBackend.load(load_checkpoint(tmp_path / "m"))
    wanted = backend.logits(ids)
    backend.weights._checkpoint = checkpoint  # the last reference to the file's reader
    gc.collect()
    np.testing.assert_array_equal(backend.logits(ids), wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": np.zeros(10, np.uint8)}, "panels of 10 bytes instead of"),
        ({"dtype": "float32"}, "panels are int8 or int4"),
        ({"dtype": "int8"}, "int8 values without scales"),
    ],
)
def test_panels_of_another_size_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, checkpoint = model_of()
    packed.save(checkpoint, tmp_path / "m", "int4")
    file = load_checkpoint(tmp_path / "m")
    panels = file.panels("wte.weight")
    assert panels is not None
    assert isinstance(file.tensors, LazyTensors)
    bad = panels._replace(**options)
    file.tensors.entries["wte.weight"] = dataclasses.replace(
        file.tensors.entries["wte.weight"], panels=lambda mapped: bad
    )
    with pytest.raises(UserError, match=words):
        NativeBackend.load(file)


def test_a_nan_stays_one() -> None:
    for dtype in DTYPES:
        _, checkpoint = model_of()
        tensors = {name: values.copy() for name, values in checkpoint.tensors.items()}
        tensors["h.1.ln_2.weight"][3] = np.nan
        found = NativeBackend.load(Checkpoint(checkpoint.config, tensors), dtype=dtype).logits([[1, 2, 3]])
        assert not np.isfinite(found).any()


@pytest.mark.parametrize(
    ("rows", "tokens", "starts"),
    [
        ([0], [[101]], [0]),
        ([0], [[-1]], [0]),
        ([2], [[1]], [0]),
        ([-1], [[1]], [0]),
        ([0, 0], [[1], [1]], [0, 0]),
        ([0], [[1]], [80]),
        ([0], [[1]], [-1]),
        ([0], [[1] * 81], [0]),
        ([0], [[1] * 80], [1]),
        ([0], [[]], [0]),
    ],
)
def test_what_does_not_exist_is_refused(rows: list[int], tokens: list[list[int]], starts: list[int]) -> None:
    backend = NativeBackend(Weights(model_of()[1]), rows=2)
    with pytest.raises(UserError, match=r"the native engine: |is not a token id|a row without tokens"):
        backend.extend(rows, tokens, starts)
    with pytest.raises(UserError, match="is not a row of the cache"):
        backend.copy(0, [5], 3)


def test_settings_it_does_not_have_are_refused_in_one_line() -> None:
    _, checkpoint = model_of()
    for options in ({"dtype": "float64"}, {"device": "cuda"}):
        with pytest.raises(SettingError, match="the native backend cannot run this"):
            NativeBackend.load(checkpoint, **options)
    with pytest.raises(UserError, match="no kernels 'abacus', only portable"):
        Weights(checkpoint, kernels="abacus")


def test_after_a_fork_it_says_so() -> None:
    code = (
        "import os\nfrom glassgpt.backends.native.backend import NativeBackend\n"
        "from glassgpt.weights import load_checkpoint\n"
        "from glassgpt.errors import UserError\n"
        "backend = NativeBackend.load(load_checkpoint('tiny'))\nbackend.logits([[1, 2]])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n        backend.logits([[1, 2]])\n"
        "    except UserError:\n        os._exit(7)\n"
        "    os._exit(1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "7", done.stderr


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, glassgpt\ngpt = glassgpt.load('tiny', backend='native')\n"
        "gpt.generate('Once', max_new_tokens=3)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr
