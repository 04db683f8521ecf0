"""Hugging Face folders against the library that made the format, and what can be wrong with one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, ModelNotFoundError, UserError
from glassgpt.weights import Checkpoint, huggingface, load_checkpoint, safetensors_file, save_checkpoint
from tests.weights.conftest import SMALL, VARIANTS, assert_same, random_checkpoint, write_shards

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def reference(**changes: Any) -> Any:
    """A model of `transformers` in which no parameter has its initial 0 or 1."""
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SMALL, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model.eval()


def state_of(model: Any) -> dict[str, np.ndarray]:
    """The model's numbers under our names."""
    tied = model.config.tie_word_embeddings
    return {
        name.removeprefix("transformer."): tensor.detach().numpy()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_reads_what_transformers_writes(variant: str, tmp_path: Path) -> None:
    model = reference(**VARIANTS[variant])
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.format == "hf"
    assert checkpoint.tokenizer is None
    assert_same(checkpoint.tensors, state_of(model))
    for name, value in {**SMALL, **VARIANTS[variant]}.items():
        assert getattr(checkpoint.config, name) == value


def test_reads_shards_and_they_are_several(tmp_path: Path) -> None:
    model = reference()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same(load_checkpoint(tmp_path).tensors, state_of(model))


@pytest.mark.parametrize("old_format", [False, True])
def test_reads_a_pickled_state_dict(old_format: bool, tmp_path: Path) -> None:
    """With the mask buffers and the second copy of the tied head that files of 2019 have."""
    model = reference()
    state = dict(model.state_dict())
    for layer in range(2):
        mask = torch.tril(torch.ones(24, 24, dtype=torch.uint8)).view(1, 1, 24, 24)
        state[f"transformer.h.{layer}.attn.bias"] = mask
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    model.config.save_pretrained(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    torch.save(state, file, _use_new_zipfile_serialization=not old_format)
    assert_same(load_checkpoint(tmp_path).tensors, state_of(model))
    file.rename(tmp_path / "weights")  # found by content, not by name
    assert_same(load_checkpoint(tmp_path / "weights").tensors, state_of(model))


def test_reads_pickled_shards_in_bfloat16(tmp_path: Path) -> None:
    model = reference().to(torch.bfloat16)
    state = model.state_dict()
    model.config.save_pretrained(tmp_path)
    names = list(state)
    weight_map = {}
    for number in (0, 1):
        shard = f"pytorch_model-{number + 1:05}-of-00002.bin"
        torch.save({name: state[name] for name in names[number::2]}, tmp_path / shard)
        weight_map |= dict.fromkeys(names[number::2], shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.dtype.name == "bfloat16"
    assert_same(
        {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.tensors.items()},
        state_of(model.float()),
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_reads_what_we_write(variant: str, tmp_path: Path) -> None:
    ours = random_checkpoint(**VARIANTS[variant])
    save_checkpoint(ours, tmp_path / "out")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(state_of(theirs), ours.tensors)
    for name in VARIANTS[variant]:
        assert getattr(theirs.config, name) == getattr(ours.config, name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_survives_both_ways(dtype: str, tmp_path: Path) -> None:
    ours = random_checkpoint(dtype)
    save_checkpoint(ours, tmp_path / "out")
    assert_same(load_checkpoint(tmp_path / "out").tensors, ours.tensors)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == getattr(torch, dtype)
    wanted = {name: tensor.astype(np.float32) for name, tensor in ours.tensors.items()}
    assert_same(state_of(theirs.float()), wanted)


def test_a_written_file_satisfies_the_safetensors_library(small: Checkpoint, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    save_checkpoint(small, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert_same(found, {f"transformer.{name}": tensor for name, tensor in small.tensors.items()})


def test_a_written_tokenizer_opens_in_transformers(tmp_path: Path) -> None:
    from glassgpt.tokenizer import Tokenizer

    text = "the cat sat on the mat, the cat ate the rat; naïve café\n" * 40
    (tmp_path / "words.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train([tmp_path / "words.txt"], vocab_size=301)
    checkpoint = random_checkpoint(vocab_size=tokenizer.vocab_size)
    checkpoint.tokenizer = tokenizer
    save_checkpoint(checkpoint, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    sample = "the café cat, ate\n the  mat"
    assert theirs(sample)["input_ids"] == list(tokenizer.encode(sample))
    assert theirs.decode(tokenizer.encode(sample)) == sample
    again = load_checkpoint(tmp_path / "out").tokenizer
    assert again is not None
    assert again.hash == tokenizer.hash


def test_names_without_the_prefix(small: Checkpoint, tmp_path: Path) -> None:
    """The published gpt2 has no `transformer.` before its names."""
    rewrite(small, tmp_path, lambda tensors: tensors)
    assert_same(load_checkpoint(tmp_path).tensors, small.tensors)


def test_a_single_file_carries_its_config(tmp_path: Path) -> None:
    ours = random_checkpoint(n_inner=72, tie_word_embeddings=False)
    save_checkpoint(ours, tmp_path / "one.safetensors")
    found = load_checkpoint(tmp_path / "one.safetensors")
    assert found.config == ours.config
    assert_same(found.tensors, ours.tensors)


@pytest.mark.parametrize("changes", [{}, {"n_inner": 100}, {"tie_word_embeddings": False}])
def test_a_bare_file_is_understood_by_its_shapes(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = random_checkpoint(n_embd=768, n_head=12, n_layer=1, **changes)
    rewrite(ours, tmp_path, lambda tensors: tensors)
    (tmp_path / "config.json").unlink()
    found = load_checkpoint(tmp_path / "model.safetensors")
    assert found.config == ours.config
    assert_same(found.tensors, ours.tensors)


@pytest.mark.parametrize("width", [32, 192])
def test_a_bare_file_of_another_width_asks_for_its_config(width: int, tmp_path: Path) -> None:
    """192 is the shipped model's width; its heads are 32 wide, and 64-wide ones would write nonsense."""
    rewrite(random_checkpoint(n_embd=width, n_head=4), tmp_path, lambda tensors: tensors)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"for width {width}.*config.json next to the file"):
        load_checkpoint(tmp_path)


def test_a_folder_that_lost_its_config_finds_it_in_the_file(tmp_path: Path) -> None:
    ours = random_checkpoint(n_embd=192, n_head=6)
    save_checkpoint(ours, tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    assert load_checkpoint(tmp_path / "m").config == ours.config


def rewrite(checkpoint: Checkpoint, folder: Path, change: Any) -> None:
    """Write a folder with the tensors as `change` leaves them, whatever that is."""
    tensors = change(dict(checkpoint.tensors))
    outgoing = [
        safetensors_file.TensorToWrite(name, array.shape, array.dtype, lambda array=array: array)
        for name, array in tensors.items()
    ]
    folder.mkdir(exist_ok=True)
    safetensors_file.write_tensors(folder / "model.safetensors", outgoing, {})
    (folder / "config.json").write_text(json.dumps(checkpoint.config.to_dict()))


def without(name: str) -> Any:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def plus(name: str, array: np.ndarray) -> Any:
    return lambda tensors: {**tensors, name: array}


FEW = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("h.1.ln_2.bias"), "tensor 'h.1.ln_2.bias' of shape (32,) is missing"),
        (plus("h.0.attn.rotary", FEW), "unknown tensor 'h.0.attn.rotary' of shape (2, 2)"),
        (plus("h.2.ln_1.bias", FEW), "unknown tensor 'h.2.ln_1.bias'"),
        (plus("wpe.weight", FEW), "tensor 'wpe.weight' has shape (2, 2), but the config requires (24, 32)"),
        (plus("transformer.wpe.weight", FEW), "with and without the prefix"),
        (plus("ln_f.bias", np.zeros(32, np.int64)), "tensor 'ln_f.bias' is int64, not floating point"),
        (plus("lm_head.weight", FEW), "lm_head.weight differs from wte.weight"),
    ],
)
def test_a_wrong_tensor_is_named(small: Checkpoint, tmp_path: Path, change: Any, words: str) -> None:
    rewrite(small, tmp_path, change)
    with pytest.raises(FileFormatError, match=re.escape(words)) as caught:
        load_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"vocab_size": 301, "n_embd": 32, "n_layer": 2}', "has no n_head"),
        ('{"model_type": "llama"}', "'llama'"),
        ("{", "is not JSON"),
        ("[]", "not an object"),
        ('{"vocab_size": 301, "n_embd": 32, "n_layer": 2, "n_head": "4"}', "n_head is '4'"),
        ('{"vocab_size": 301, "n_embd": 32, "n_layer": 2, "n_head": 4, "attn_pdrop": "x"}', "attn_pdrop 'x'"),
        ('{"vocab_size": 301, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary": 1}', "rotary is 1"),
    ],
)
def test_a_wrong_config_is_explained(small: Checkpoint, tmp_path: Path, text: str, words: str) -> None:
    save_checkpoint(small, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(text)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        load_checkpoint(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_named(small: Checkpoint, tmp_path: Path) -> None:
    write_shards(small, tmp_path / "m")
    (tmp_path / "m" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"names the shard model-00002-of-00003\.safetensors"):
        load_checkpoint(tmp_path / "m")


def test_a_truncated_file_is_refused(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="but the file at byte"):
        load_checkpoint(tmp_path / "m")


def test_places_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="contains no model \\(nothing\\)"):
        load_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelNotFoundError, match=r"contains no model \(notes.txt\)"):
        load_checkpoint(tmp_path)
    with pytest.raises(FileFormatError, match="none of the known formats"):
        load_checkpoint(tmp_path / "notes.txt")
    for missing in (tmp_path / "nowhere", "./nowhere", "nowhere.gguf", "~/no/where"):
        with pytest.raises(ModelNotFoundError, match="does not exist"):
            load_checkpoint(missing)


def test_arrays_can_be_written_to_and_the_file_stays(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "m")
    array = load_checkpoint(tmp_path / "m").tensors["wte.weight"]
    array[:] = 0
    assert_same(load_checkpoint(tmp_path / "m").tensors, small.tensors)


def test_an_unpadded_header_is_read(small: Checkpoint, tmp_path: Path) -> None:
    """Old writers left arrays at odd addresses."""
    save_checkpoint(small, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for shift in (1, 2, 3):
        text = data[8 : 8 + length].rstrip() + b" " * shift
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        assert_same(load_checkpoint(tmp_path / "m").tensors, small.tensors)


def test_config_is_kept_whole(tmp_path: Path) -> None:
    config = Config(**SMALL, bos_token_id=7, eos_token_id=7, resid_pdrop=0.0, initializer_range=0.01)
    tensors = random_checkpoint().tensors
    save_checkpoint(Checkpoint(config, tensors), tmp_path / "m")
    assert load_checkpoint(tmp_path / "m").config == config
    assert huggingface.detect(tmp_path / "m")
