"""GGUF: against the gguf package as an independent reader and writer, against llama.cpp, hostile files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, SettingError
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.weights import gguf, gguf_file
from glassgpt.weights.checkpoint import Checkpoint
from glassgpt.weights.ggml_types import (
    Q4_0,
    Q4_K,
    Q8_0,
    TYPES,
    GGMLType,
    quantize_q4_0,
    quantize_q4_k,
    quantize_q8_0,
)
from tests.weights.bounded import refused
from tests.weights.conftest import VARIANTS, assert_same, random_checkpoint

TEXT = "The ferry crossed at noon, and the ferryman's daughter counted 41 boats. " * 20 + "naïve 東京 🚢"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return Tokenizer.train([file], 298)


def arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name: np.array(checkpoint.tensors[name]) for name in checkpoint.tensors}


# Numbers


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_blocks_give_the_numbers_of_the_gguf_package(kind: GGMLType):
    """Bit for bit: both do the same float32 operations. All bytes are random, only the scales are sane."""
    theirs = reference.GGMLQuantizationType(kind.number)
    assert reference.GGML_QUANT_SIZES[theirs] == (kind.block, kind.block_bytes)
    random = np.random.default_rng(kind.number)
    stored = random.integers(0, 256, 200 * kind.block_bytes, np.uint8).view(kind.layout)
    if kind.dequantize is None:
        stored = random.normal(size=200).astype(kind.layout)
    else:
        for scale in {"d", "m"} & set(kind.layout.names):
            stored[scale] = random.normal(size=200)
    data = stored.view(np.uint8)
    shape = (4, 50 * kind.block)
    found = kind.read(data, shape)
    expected = reference.quants.dequantize(data.reshape(4, -1), theirs)
    np.testing.assert_array_equal(found.astype(np.float32), expected.reshape(shape))


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 0.02, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_q8_0_is_quantised_as_the_gguf_package_does(seed: int, scale: float):
    numbers = np.random.default_rng(seed).normal(0, scale, (6, 64)).astype(np.float32)
    numbers[1] = 0
    numbers[2] = np.arange(64) * 0.5  # halves: the rounding shows
    numbers[2, [0, 32]] = 127
    found = quantize_q8_0(numbers)
    expected = reference.quants.quantize(numbers, reference.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(found, expected.reshape(-1))
    # Half a step of the block's scale, and the rounding of that scale to float16 over up to 127 steps.
    step = np.abs(numbers).reshape(-1, 32).max(axis=1, keepdims=True) / 127
    error = np.abs(Q8_0.read(found, (12, 32)) - numbers.reshape(12, 32))
    assert (error <= step * (0.5 + 127 * 2**-11) * 1.001 + 127 * 2**-25).all()


# Files


@pytest.mark.parametrize("variant", ["published", "untied", "inner", "erf"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_round_trip_is_bit_exact(tmp_path: Path, variant: str, dtype: str):
    before = random_checkpoint(dtype, **VARIANTS[variant])
    gguf.save(before, tmp_path / "m.gguf")
    after = gguf.load(tmp_path / "m.gguf")
    assert gguf.detect(tmp_path / "m.gguf")
    assert dataclasses.replace(after.config, bos_token_id=None, eos_token_id=None) == before.config
    # Vectors and positions are always float32 in the file, which holds every float16 and bfloat16.
    kept = {
        name: array if array.ndim == 2 and name != "wpe.weight" else array.astype(np.float32)
        for name, array in before.tensors.items()
    }
    assert_same(arrays(after), kept)
    gguf.save(after, tmp_path / "again.gguf")
    again = reference.GGUFReader(tmp_path / "again.gguf")
    first = reference.GGUFReader(tmp_path / "m.gguf")
    assert [t.data.tobytes() for t in again.tensors] == [t.data.tobytes() for t in first.tensors]


def test_equal_head_stays_untied_in_our_files_and_is_tied_in_older_ones(tmp_path: Path):
    before = random_checkpoint(tie_word_embeddings=False)
    tensors = {**before.tensors, "lm_head.weight": before.tensors["wte.weight"]}
    gguf.save(dataclasses.replace(before, tensors=tensors), tmp_path / "m.gguf")
    assert not gguf.load(tmp_path / "m.gguf").config.tie_word_embeddings
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "old.gguf").write_bytes(data.replace(b"glassgpt.tie", b"someones.tie"))
    old = gguf.load(tmp_path / "old.gguf")
    assert old.config.tie_word_embeddings
    assert "lm_head.weight" not in old.tensors


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 0.02, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_q4_0_is_quantized_as_the_gguf_package_does(seed: int, scale: float):
    numbers = np.random.default_rng(seed).normal(0, scale, (6, 64)).astype(np.float32)
    numbers[1] = 0
    numbers[2] = np.arange(64) * 0.5 - 16  # halves, and both signs
    found = quantize_q4_0(numbers)
    expected = reference.quants.quantize(numbers, reference.GGMLQuantizationType.Q4_0)
    np.testing.assert_array_equal(found, expected.reshape(-1))
    read = reference.quants.dequantize(found.reshape(6, -1), reference.GGMLQuantizationType.Q4_0)
    np.testing.assert_array_equal(Q4_0.read(found, (6, 64)), read)
    # Half a step of an eighth of the largest, a whole one at the end without an 8, and the scale's rounding.
    largest = np.abs(numbers).reshape(-1, 32).max(axis=1, keepdims=True)
    assert (np.abs(read.reshape(12, 32) - numbers.reshape(12, 32)) <= largest * 0.1251 + 8 * 2**-25).all()


@pytest.mark.parametrize("scale", [0.02, 1.0, 1e3])
def test_q4_k_is_read_by_the_gguf_package_and_finer_than_q4_0(scale: float):
    numbers = np.random.default_rng(7).standard_t(5, (6, 512)).astype(np.float32) * np.float32(scale)
    numbers[1] = 0
    numbers[2] = np.abs(numbers[2])
    numbers[3] = -np.abs(numbers[3])
    numbers[4, :300] = 0
    found = quantize_q4_k(numbers)
    assert found.nbytes == numbers.size * 144 // 256
    read = reference.quants.dequantize(found.reshape(6, -1), reference.GGMLQuantizationType.Q4_K)
    np.testing.assert_array_equal(Q4_K.read(found, numbers.shape), read)
    assert (read[1] == 0).all()
    coarse = Q4_0.read(quantize_q4_0(numbers), numbers.shape)
    errors = [
        float(np.square(one[rows] - numbers[rows]).mean()) for rows in (0, 2, 3, 5) for one in (read, coarse)
    ]
    assert all(fine < 0.75 * other for fine, other in zip(errors[::2], errors[1::2], strict=True)), errors


def test_a_4_bit_file_is_small_and_read_back(tmp_path: Path, tokenizer: Tokenizer):
    before = dataclasses.replace(random_checkpoint(n_embd=64, n_layer=4), tokenizer=tokenizer)
    sizes = {}
    for dtype in ("float32", "q8_0", "q4_0"):
        gguf.save(before, tmp_path / f"{dtype}.gguf", dtype)
        sizes[dtype] = (tmp_path / f"{dtype}.gguf").stat().st_size
    gguf.save(before, tmp_path / "int4.gguf", "int4")
    assert (tmp_path / "int4.gguf").read_bytes() == (tmp_path / "q4_0.gguf").read_bytes()
    assert sizes["q4_0"] < 0.75 * sizes["q8_0"] < 0.4 * sizes["float32"]
    file = reference.GGUFReader(tmp_path / "q4_0.gguf")
    assert file.fields["general.file_type"].contents() == 2
    kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert (kinds["token_embd.weight"], kinds["blk.1.ffn_up.weight"]) == ("Q8_0", "Q4_0")
    wide = dataclasses.replace(random_checkpoint(n_embd=256, n_layer=1, n_inner=64), tokenizer=tokenizer)
    gguf.save(wide, tmp_path / "k.gguf", "q4_k")
    file = reference.GGUFReader(tmp_path / "k.gguf")
    assert file.fields["general.file_type"].contents() == 14
    kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert (kinds["token_embd.weight"], kinds["blk.0.ffn_up.weight"]) == ("Q8_0", "Q4_K")
    assert kinds["blk.0.ffn_down.weight"] == "Q4_0"  # rows of 64
    after = gguf.load(tmp_path / "q4_0.gguf")
    for name, array in before.tensors.items():
        assert np.abs(after.tensors[name] - array).max() <= 0.126 * np.abs(array).max()
    tensors = {name: np.full_like(array, 1e9) for name, array in before.tensors.items()}
    with pytest.raises(SettingError, match=r"too large for Q8_0, or NaN"):
        gguf.save(dataclasses.replace(before, tensors=tensors), tmp_path / "x.gguf", "q4_0")


def test_the_gguf_package_reads_what_we_write(tmp_path: Path, tokenizer: Tokenizer):
    before = dataclasses.replace(random_checkpoint(), tokenizer=tokenizer)
    gguf.save(before, tmp_path / "m.gguf", "q8_0")
    file = reference.GGUFReader(tmp_path / "m.gguf")
    stored = {tensor.name: tensor for tensor in file.tensors}
    assert set(stored) == {gguf.gguf_name(name) for name in before.tensors}
    for name, array in before.tensors.items():
        tensor = stored[gguf.gguf_name(name)]
        transposed = array.T if "c_" in name and array.ndim == 2 else array
        if tensor.tensor_type.name == "Q8_0":
            found = reference.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(
                found, Q8_0.read(quantize_q8_0(np.ascontiguousarray(transposed)), transposed.shape)
            )
        else:
            np.testing.assert_array_equal(tensor.data, transposed)
    assert {name for name, t in stored.items() if t.tensor_type.name == "F32"} == {
        gguf.gguf_name(name)
        for name, array in before.tensors.items()
        if array.ndim == 1 or name == "wpe.weight"
    }
    fields = {name: field.contents() for name, field in file.fields.items()}
    assert fields["general.architecture"] == "gpt2"
    assert fields["gpt2.block_count"] == 2
    assert fields["tokenizer.ggml.merges"][0].count(" ") == 1
    assert len(fields["tokenizer.ggml.tokens"]) == before.config.vocab_size


def reference_file(path: Path, checkpoint: Checkpoint, kinds: dict[str, GGMLType]) -> dict[str, np.ndarray]:
    """A model as the gguf package writes it; the numbers each tensor then has."""
    config = checkpoint.config
    writer = reference.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.d_mlp)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    random = np.random.default_rng(9)
    expected = {}
    for name, array in checkpoint.tensors.items():
        is_turned = "c_" in name and array.ndim == 2
        transposed = np.ascontiguousarray(array.T) if is_turned else array
        kind = kinds.get(name)
        if kind is None:
            writer.add_tensor(gguf.gguf_name(name), transposed)
            expected[name] = array
            continue
        theirs = reference.GGMLQuantizationType(kind.number)
        records = random.integers(0, 256, kind.n_bytes(transposed.size), np.uint8).view(kind.layout)
        for scale in {"d", "m"} & set(kind.layout.names):
            records[scale] = random.normal(size=len(records))
        data = records.view(np.uint8).reshape(len(transposed), -1)
        writer.add_tensor(gguf.gguf_name(name), data, raw_dtype=theirs)
        numbers = reference.quants.dequantize(data, theirs)
        expected[name] = numbers.T if is_turned else numbers
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize(
    "kind", [kind for kind in TYPES.values() if kind.dequantize is not None], ids=lambda kind: kind.name
)
def test_quantised_files_of_the_gguf_package(tmp_path: Path, kind: GGMLType):
    checkpoint = random_checkpoint(n_embd=256)
    matrices = {name: kind for name, array in checkpoint.tensors.items() if array.ndim == 2}
    expected = reference_file(tmp_path / "m.gguf", checkpoint, matrices)
    found = gguf.load(tmp_path / "m.gguf")
    assert found.tokenizer is None
    assert found.config == checkpoint.config
    assert_same(arrays(found), expected)


def test_version_2_and_other_alignments(tmp_path: Path):
    before = random_checkpoint()
    gguf.save(before, tmp_path / "m.gguf")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (tmp_path / "m.gguf").write_bytes(data)
    assert_same(arrays(gguf.load(tmp_path / "m.gguf")), before.tensors)
    writer = reference.GGUFWriter(tmp_path / "x.gguf", "gpt2")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(5, dtype=np.float32))
    writer.add_tensor("b", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = gguf_file.read_gguf(tmp_path / "x.gguf")
    np.testing.assert_array_equal(file.read(file.tensors["b"]), np.arange(7))


@pytest.mark.parametrize("variant", ["inverse", "relu", "unscaled"])
def test_what_llama_cpp_cannot_compute_is_refused(tmp_path: Path, variant: str):
    with pytest.raises(ConfigError, match="Convert to hf"):
        gguf.save(random_checkpoint(**VARIANTS[variant]), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_numbers_too_large_and_unknown_dtypes_leave_no_file(tmp_path: Path):
    before = random_checkpoint()
    before.tensors["wte.weight"][5, 5] = 1e9
    for dtype in ("float16", "q8_0"):
        with pytest.raises(SettingError, match="too large"):
            gguf.save(before, tmp_path / "m.gguf", dtype)
    with pytest.raises(SettingError, match="int3"):
        gguf.save(before, tmp_path / "m.gguf", "int3")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_fill_no_block_stay_float16(tmp_path: Path):
    gguf.save(random_checkpoint(n_embd=24), tmp_path / "m.gguf", "int8")
    kinds = {t.name: t.kind.name for t in gguf_file.read_gguf(tmp_path / "m.gguf").tensors.values()}
    assert kinds["token_embd.weight"] == "F16"  # rows of 24
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"  # rows of 96


# Tokenizers


def test_the_vocabulary_comes_back(tmp_path: Path, tokenizer: Tokenizer):
    before = dataclasses.replace(random_checkpoint(), tokenizer=tokenizer)
    gguf.save(before, tmp_path / "m.gguf")
    after = gguf.load(tmp_path / "m.gguf")
    assert after.tokenizer is not None
    assert after.tokenizer.hash == tokenizer.hash  # the padding up to 301 embeddings is gone again
    assert after.config.eos_token_id == tokenizer.eot_id
    assert after.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("abcé東京🚢\n")], ids=["byte", "char"])
def test_bytes_and_characters(tmp_path: Path, tokenizer: Tokenizer):
    gguf.save(dataclasses.replace(random_checkpoint(), tokenizer=tokenizer), tmp_path / "m.gguf")
    found = gguf.load(tmp_path / "m.gguf")
    assert found.tokenizer is not None
    assert found.tokenizer.hash == tokenizer.hash
    assert found.config.eos_token_id == tokenizer.eot_id


def test_too_many_tokens_are_refused(tmp_path: Path, tokenizer: Tokenizer):
    small = random_checkpoint(vocab_size=100)
    with pytest.raises(ConfigError, match="298"):
        gguf.save(dataclasses.replace(small, tokenizer=tokenizer), tmp_path / "m.gguf")


def test_other_vocabularies_leave_the_weights_readable(tmp_path: Path, tokenizer: Tokenizer):
    gguf.save(dataclasses.replace(random_checkpoint(), tokenizer=tokenizer), tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0qwen2"))
    found = gguf.load(tmp_path / "m.gguf")
    assert found.tokenizer is None
    assert "qwen2" in found.notes["tokenizer"]


def test_the_published_vocabulary(tmp_path: Path, shared: Path):
    published = Tokenizer.load(shared / "gpt2-bpe")
    model = random_checkpoint(vocab_size=50304, n_embd=4, n_head=1)
    gguf.save(dataclasses.replace(model, tokenizer=published), tmp_path / "m.gguf")
    found = gguf.load(tmp_path / "m.gguf")
    assert found.tokenizer is not None
    assert found.tokenizer.hash == published.hash


# llama.cpp


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def transformers_logits(config: Config, tensors: dict[str, np.ndarray]) -> Callable[[list[int]], np.ndarray]:
    """The same weights in Hugging Face's GPT-2, in float32."""
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.n_positions,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    state = {f"transformer.{name}": torch.tensor(a.astype(np.float32)) for name, a in tensors.items()}
    model.load_state_dict({**state, "lm_head.weight": state["transformer.wte.weight"]})

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()  # (T, V)

    return logits


def run_llama_cpp(file: Path, prompt: str, n_tokens: int) -> dict[str, Any]:
    """What llama.cpp makes of a file. Needs Node and npm's node-llama-cpp, which brings it prebuilt:

    mkdir llama && cd llama && npm install node-llama-cpp
    GLASSGPT_NODE_LLAMA_CPP=$PWD/node_modules/node-llama-cpp pytest -s -k llama_cpp
    """
    library = os.environ.get("GLASSGPT_NODE_LLAMA_CPP")
    if library is None or shutil.which("node") is None:
        pytest.skip(
            "set GLASSGPT_NODE_LLAMA_CPP to a folder of npm's node-llama-cpp to compare with llama.cpp"
        )
    script = Path(__file__).with_name("llama_cpp.mjs")
    command = ["node", str(script), library, str(file), prompt, str(n_tokens)]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "q8_0", "q4_0", "q4_k"])
def test_llama_cpp_runs_it(tmp_path: Path, tokenizer: Tokenizer, dtype: str):
    """llama.cpp and transformers agree on the exported model."""
    config = Config(vocab_size=301, n_positions=128, n_embd=96, n_layer=3, n_head=4)
    random = np.random.default_rng(5)
    tensors = {
        name: (random.normal(0, 0.12, shape) + ("ln_" in name and name.endswith("weight"))).astype(np.float32)
        for name, shape in config.shapes().items()
    }
    gguf.save(Checkpoint(config, tensors, tokenizer), tmp_path / "m.gguf", dtype)
    prompt = "The ferryman's daughter counted 41 boats in 東京 🚢"
    answer = run_llama_cpp(tmp_path / "m.gguf", prompt, 60)

    assert answer["ids"] == tokenizer.encode(prompt)
    assert answer["eos"] == tokenizer.eot_id
    assert answer["text"] == prompt
    logits = transformers_logits(config, arrays(gguf.load(tmp_path / "m.gguf")))
    expected = softmax(logits(answer["ids"]))
    error = float(np.abs(np.array(answer["probabilities"]) - expected).max())
    # ggml looks GELU up in a float16 table and, for each stored type, rounds what it multiplies a matrix
    # with to that same type. So the yardstick is what rounding the weights alone does, to float16 at best.
    rounded = tmp_path / "rounded.gguf"
    gguf.save(Checkpoint(config, tensors, tokenizer), rounded, "float16" if dtype == "float32" else dtype)
    exact = softmax(transformers_logits(config, tensors)(answer["ids"]))
    coarse = softmax(transformers_logits(config, arrays(gguf.load(rounded)))(answer["ids"]))
    yardstick = float(np.abs(exact - coarse).max())
    print(f"{dtype}: |llama.cpp - transformers| {error:.2e}, rounding of weights {yardstick:.2e}")
    assert error < 4 * yardstick
    # Every token it chose was, to that accuracy, the likeliest.
    ids = [*answer["ids"], *answer["greedy"]]
    assert len(answer["greedy"]) == 60
    chosen = softmax(logits(ids[:-1]))[len(answer["ids"]) - 1 :]
    gaps = chosen.max(axis=1) - chosen[np.arange(60), answer["greedy"]]
    assert gaps.max() <= 8 * yardstick
    if dtype == "float32":
        assert gaps.max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer(TEXT)], ids=["byte", "char"])
def test_llama_cpp_cuts_bytes_and_characters(tmp_path: Path, tokenizer: Tokenizer):
    model = random_checkpoint(n_positions=128, tie_word_embeddings=False, n_inner=72)
    gguf.save(dataclasses.replace(model, tokenizer=tokenizer), tmp_path / "m.gguf")
    prompt = "41 boats, the naïve ferryman's 東京 🚢🚢  東"
    answer = run_llama_cpp(tmp_path / "m.gguf", prompt, 5)
    assert answer["ids"] == tokenizer.encode(prompt)
    assert answer["text"] == prompt


# Hostile files


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> bytes:
    path = tmp_path_factory.mktemp("good") / "m.gguf"
    model = random_checkpoint(vocab_size=298, n_embd=32, n_layer=1)
    gguf.save(dataclasses.replace(model, tokenizer=tokenizer), path, "q8_0")
    return path.read_bytes()


def read_everything(path: Path) -> None:
    checkpoint = gguf.load(path)
    for name in checkpoint.tensors:
        assert checkpoint.tensors[name].shape == checkpoint.config.shapes()[name]


fuzz = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(st.data())
def test_damaged_anywhere(tmp_path: Path, good: bytes, data: st.DataObject):
    """Bytes changed, numbers made absurd, pieces cut out or off: refused, or read to the end."""
    damaged = bytearray(good)
    end = good.index(b"ln_f" if b"ln_f" in good else b"output_norm.bias") + 64  # the metadata
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end))
        match data.draw(st.sampled_from(["byte", "number", "cut", "truncate"])):
            case "byte":
                damaged[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "number":
                absurd = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
                damaged[at : at + 8] = struct.pack("<Q", absurd)
            case "cut":
                del damaged[at : at + data.draw(st.integers(1, 64))]
            case "truncate":
                del damaged[data.draw(st.integers(0, len(good))) :]
    (tmp_path / "m.gguf").write_bytes(damaged)
    with contextlib.suppress(FileFormatError):
        read_everything(tmp_path / "m.gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def file_of(settings: list[bytes], tensors: list[bytes], counts: tuple[int, int] | None = None) -> bytes:
    n_tensors, n_settings = (len(tensors), len(settings)) if counts is None else counts
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_settings) + b"".join(settings + tensors)


ARRAY_OF_TEXT, ARRAY_OF_U8, ARRAY_OF_ARRAY = (struct.pack("<II", 9, kind) for kind in (8, 0, 9))

HOSTILE = {
    "empty": b"",
    "only magic": b"GGUF",
    "other magic": b"GGML" + bytes(100),
    "version 1": b"GGUF" + struct.pack("<I", 1) + bytes(100),
    "big-endian": b"GGUF" + struct.pack(">I", 3) + bytes(100),
    "2^60 settings": file_of([], [], (0, 2**60)) + bytes(100),
    "2^60 tensors": file_of([], [], (2**60, 0)) + bytes(100),
    "2^64-1 of both": file_of([], [], (2**64 - 1, 2**64 - 1)) + bytes(100),
    "key of 2^63 bytes": file_of([struct.pack("<Q", 2**63)], []) + bytes(100),
    "text of 2^50 bytes": file_of([text("k") + struct.pack("<IQ", 8, 2**50)], []) + bytes(100),
    "list of 2^61 texts": file_of([text("k") + ARRAY_OF_TEXT + struct.pack("<Q", 2**61)], []) + bytes(100),
    "list of 2^40 bytes": file_of([text("k") + ARRAY_OF_U8 + struct.pack("<Q", 2**40)], []) + bytes(100),
    "list in list in list": file_of([text("k") + ARRAY_OF_ARRAY * 50 + bytes(100)], []) + bytes(100),
    "two million empty texts": file_of([text("k") + ARRAY_OF_TEXT + struct.pack("<Q", 2**21)], [])
    + bytes(2**24 + 100),
    "ten thousand equal keys": file_of([text("k") + struct.pack("<IB", 0, 1)] * 10_000, []),
    "type 77": file_of([text("k") + struct.pack("<I", 77)], []) + bytes(100),
    "not UTF-8": file_of([struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1)], []) + bytes(100),
    "alignment 0": file_of([text("general.alignment") + struct.pack("<II", 4, 0)], []) + bytes(100),
    "alignment 33": file_of([text("general.alignment") + struct.pack("<II", 4, 33)], []) + bytes(100),
    "alignment 2^31": file_of([text("general.alignment") + struct.pack("<II", 4, 2**31)], []) + bytes(100),
    "alignment text": file_of([text("general.alignment") + struct.pack("<I", 8) + text("x")], [])
    + bytes(100),
    "dimensions overflow": file_of([], [tensor("t", [2**32, 2**32, 1])]) + bytes(100),
    "dimension 0": file_of([], [tensor("t", [0, 4])]) + bytes(100),
    "no dimensions": file_of([], [tensor("t", [])]) + bytes(100),
    "2^31 dimensions": file_of([], [tensor("t", [4], n_dims=2**31)]) + bytes(100),
    "out of range": file_of([], [tensor("t", [4], offset=2**40)]) + bytes(100),
    "offset wraps": file_of([], [tensor("t", [4], offset=2**64 - 32)]) + bytes(100),
    "askew": file_of([], [tensor("t", [4], offset=3)]) + bytes(100),
    "overlap": file_of([], [tensor("t", [16]), tensor("u", [16], offset=32)]) + bytes(200),
    "twice": file_of([], [tensor("t", [16]), tensor("t", [16], offset=64)]) + bytes(200),
    "half a block": file_of([], [tensor("t", [33], kind=8)]) + bytes(200),
    "type IQ2_XXS": file_of([], [tensor("t", [256], kind=16)]) + bytes(200),
    "larger than the file": file_of([], [tensor("t", [2**20, 2**20])]) + bytes(200),
    "another architecture": file_of(
        [text("general.architecture") + struct.pack("<I", 8) + text("llama")], []
    ),
    "nothing in it": file_of([text("general.architecture") + struct.pack("<I", 8) + text("gpt2")], []),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_forged_files_are_refused(tmp_path: Path, data: bytes):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    message = refused(lambda: read_everything(path))
    assert str(path) in message


def test_a_petabyte_that_is_not_there(tmp_path: Path):
    """A sparse file whose metadata goes on and on."""
    path = tmp_path / "m.gguf"
    header = file_of([text("k") + ARRAY_OF_U8 + struct.pack("<Q", 2**33)], [])
    path.write_bytes(header)
    with open(path, "r+b") as file:
        file.truncate(2**34)
    refused(lambda: read_everything(path), "more than it has room for")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (("gpt2.block_count", 1), ("gpt2.block_count", 2**32 - 1), "layers"),
        (("gpt2.block_count", 1), ("gpt2.block_count", 0), "n_layer"),
        (("gpt2.embedding_length", 32), ("gpt2.embedding_length", 2**31), "shape"),
        (("gpt2.context_length", 24), ("gpt2.context_length", 1024), "shape"),
        (("gpt2.attention.head_count", 4), ("gpt2.attention.head_count", 0), "n_head"),
        (("gpt2.attention.head_count", 4), ("gpt2.attention.head_count", 7), "n_head"),
        (("gpt2.block_count", 1), ("gpt2.block_cxxxx", 1), "block_count"),
    ],
)
def test_settings_that_do_not_fit(
    tmp_path: Path, good: bytes, old: tuple[str, int], new: tuple[str, int], message: str
):
    def stored(setting: tuple[str, int]) -> bytes:
        return text(setting[0]) + struct.pack("<II", 4, setting[1])

    assert stored(old) in good
    path = tmp_path / "m.gguf"
    path.write_bytes(good.replace(stored(old), stored(new)))
    refused(lambda: read_everything(path), message)


def test_vocabularies_that_do_not_fit(tmp_path: Path, good: bytes):
    path = tmp_path / "m.gguf"
    path.write_bytes(good)
    merge = str(gguf_file.read_gguf(path).settings["tokenizer.ggml.merges"][0])
    types = struct.pack("<IIQ", 9, 5, 298)
    for old, new, message in [
        (text(merge), text("~" * len(merge)), "a merge is two tokens"),
        (text(merge), text(merge[:-1] + "Q"), "is not in the vocabulary"),
        (text("!"), text('"'), "are both"),
        (text("!"), text("\x7f"), "stands for no byte|no token for 1 of the 256"),
        (types, struct.pack("<IIQ", 9, 5, 297), "unknown type|damaged"),
    ]:
        assert old in good
        path.write_bytes(good.replace(old, new, 1))
        refused(lambda: read_everything(path), message)
