"""Folders in the manner of those that people publish: each computes what `transformers` computes."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.gpt import GPT
from glassgpt.tokenizer import Tokenizer
from glassgpt.weights import convert, huggingface, load_checkpoint, save_checkpoint
from tests.weights.conftest import random_checkpoint, write_shards

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 301, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
IDS = [[3, 1, 4, 1, 5, 9, 2, 6], [300, 0, 7, 7, 250, 100, 33, 8]]

# float32 sums in another order: the largest gap measured in these folders is 2.5e-7 of the largest logit.
ROUNDING = 2e-6


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    words = tmp_path_factory.mktemp("words") / "words.txt"
    words.write_text(" ".join(f"word{i} and{i % 7} the" for i in range(400)))
    return Tokenizer.train([words], vocab_size=301)


def model_of(**changes: Any) -> Any:
    """A model of `transformers` in which no parameter has its initial 0 or 1."""
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SMALL, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model.eval()


def written(folder: Path, tokenizer: Tokenizer | None = None, **changes: Any) -> Any:
    model = model_of(**changes)
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(folder)
    return model


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def pickled(folder: Path, state: dict[str, Any]) -> None:
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def keys_of_the_owner(folder: Path, tokenizer: Tokenizer) -> None:
    written(folder, tokenizer)
    change(
        folder / "config.json",
        my_dataset="novels of 1900",
        trainer={"name": "ours", "steps": [1, 2]},
        freeze_layers=None,
        cls_token_id=1,
        unk_token_id=2,
        hidden_size=32,
        auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"},
        _commit_hash="0123456789abcdef",
    )
    (folder / "modeling_evil.py").write_text("raise SystemExit('this must not run')")


def several_ends(folder: Path, tokenizer: Tokenizer) -> None:
    written(folder, tokenizer, eos_token_id=[7, 9], bos_token_id=7, pad_token_id=0)
    change(folder / "generation_config.json", eos_token_id=[9, 11])


def wordpiece(folder: Path, tokenizer: Tokenizer) -> None:
    """As GPT-2s of Chinese, Japanese and Turkish have it."""
    written(folder)
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "##s": 4}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "[UNK]", "special": True}],
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(vocabulary))


def unigram(folder: Path, tokenizer: Tokenizer) -> None:
    written(folder)
    content = {
        "version": "1.0",
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5]]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "spiece.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")


def sentencepiece_alone(folder: Path, tokenizer: Tokenizer) -> None:
    written(folder)
    (folder / "spiece.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')


def saved_on_a_gpu(folder: Path, tokenizer: Tokenizer) -> None:
    """The pickle says of every storage that it was on cuda:0, in two buffers of the mask too."""
    model = written(folder, tokenizer)
    state = model.state_dict()
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8).tril()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    pickled(folder, state)
    file = folder / "pytorch_model.bin"
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries.items():
            if name.endswith("data.pkl"):
                here, there = (b"X" + len(at).to_bytes(4, "little") + at for at in (b"cpu", b"cuda:0"))
                assert here in data
                data = data.replace(here, there)
            archive.writestr(name, data)


def in_shards(folder: Path, tokenizer: Tokenizer) -> None:
    model_of().save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    (folder / "generation_config.json").unlink()
    tokenizer.save(folder)


def halves_without_prefix(folder: Path, tokenizer: Tokenizer) -> None:
    """As `GPT2Model` is saved, in float16, with the mask's buffers and a copy of the tied head."""
    model = written(folder, tokenizer).half()
    state = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8).tril()
    pickled(folder, state)
    change(folder / "config.json", torch_dtype="float16", architectures=["GPT2Model"])


def slow_files_alone(folder: Path, tokenizer: Tokenizer) -> None:
    """vocab.json and merges.txt, with tokens that were added later above the embeddings."""
    written(folder, tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "added_tokens.json").write_text('{"<|pad|>": 301}')
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


def padded_with_chat(folder: Path, tokenizer: Tokenizer) -> None:
    written(folder, tokenizer, vocab_size=384)
    change(
        folder / "tokenizer_config.json", chat_template="{% for m in messages %}{{ m.content }}{% endfor %}"
    )


def dialogue(folder: Path, tokenizer: Tokenizer) -> None:
    """The keys of DialoGPT, distilgpt2 and Cerebras-GPT."""
    written(
        folder,
        tokenizer,
        n_inner=96,
        activation_function="gelu",
        scale_attn_weights=True,
        reorder_and_upcast_attn=True,
        scale_attn_by_inverse_layer_idx=True,
        use_cache=True,
        summary_activation=None,
        summary_first_dropout=0.1,
        summary_proj_to_labels=True,
        summary_type="cls_index",
        summary_use_proj=True,
        task_specific_params={"conversational": {"max_length": 1000}},
    )
    change(
        folder / "config.json", _num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, n_ctx=24
    )


FOLDERS: dict[str, tuple[Callable[[Path, Tokenizer], None], str]] = {
    "keys of the owner": (keys_of_the_owner, "'freeze_layers', 'my_dataset', 'trainer'"),
    "several ends": (several_ends, ""),
    "WordPiece": (wordpiece, "without a tokenizer"),
    "Unigram": (unigram, "without a tokenizer"),
    "sentencepiece alone": (sentencepiece_alone, "spiece.model"),
    "saved on a GPU": (saved_on_a_gpu, ""),
    "in shards": (in_shards, ""),
    "halves without prefix": (halves_without_prefix, ""),
    "slow files alone": (slow_files_alone, ""),
    "padded, with a chat template": (padded_with_chat, ""),
    "dialogue": (dialogue, ""),
}


def loaded(folder: Path) -> tuple[GPT, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gpt = glassgpt.load(folder, device="cpu", dtype="float32")
    return gpt, [str(each.message) for each in said if each.category is UserWarning]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_computes_what_transformers_computes(
    name: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    make, note = FOLDERS[name]
    make(tmp_path, tokenizer)
    gpt, notes = loaded(tmp_path)
    assert len(notes) == bool(note)
    assert note in "".join(notes)
    assert (gpt.tokenizer is None) == ("tokenizer" in note or "spiece" in note)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    assert np.abs(gpt.logits(IDS) - expected).max() < ROUNDING * np.abs(expected).max()
    assert len(gpt.generate(IDS[0], max_new_tokens=3, ignore_eot=True, seed=1).tokens) == 3
    assert gpt.trace(IDS[0]).texts[0] == ("3" if gpt.tokenizer is None else gpt.decode([3]))


def test_each_of_the_ends_ends_a_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    several_ends(tmp_path, tokenizer)
    gpt, _ = loaded(tmp_path)
    assert gpt.config.eos_token_ids == (7, 9, 11)
    for end in (7, 9, 11):
        found = gpt.generate([1, 2], logit_bias={end: 1e4}, max_new_tokens=5)
        assert (found.tokens, found.finish_reason) == ([], "stop")


def test_keys_of_the_owner_survive_a_conversion(tmp_path: Path, tokenizer: Tokenizer) -> None:
    keys_of_the_owner(tmp_path / "theirs", tokenizer)
    convert(tmp_path / "theirs", tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["my_dataset"] == "novels of 1900"
    assert config["trainer"] == {"name": "ours", "steps": [1, 2]}
    assert "auto_map" not in config
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours")


def test_several_ends_survive_a_conversion(tmp_path: Path, tokenizer: Tokenizer) -> None:
    several_ends(tmp_path / "theirs", tokenizer)
    convert(tmp_path / "theirs", tmp_path / "ours")
    assert load_checkpoint(tmp_path / "ours").config.eos_token_ids == (7, 9, 11)
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert theirs.eos_token_id == [7, 9, 11]


def test_an_added_token_above_the_embeddings_is_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    slow_files_alone(tmp_path, tokenizer)
    (tmp_path / "added_tokens.json").write_text('{"<mine>": 301}')
    gpt, _ = loaded(tmp_path)
    assert gpt.generate("the word", max_new_tokens=2).tokens
    with pytest.raises(SettingError, match="token id 301 is not in this model's vocabulary, 0 to 300"):
        gpt.generate("the <mine> word")


@pytest.mark.parametrize(
    "broken",
    ["", "{", "[]", "null", '{"model": 3}', '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'],
)
def test_a_broken_tokenizer_does_not_block_the_weights(broken: str, tmp_path: Path) -> None:
    save_checkpoint(random_checkpoint(), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text(broken)
    gpt, (note,) = loaded(tmp_path / "m")
    assert "tokenizer.json" in note
    assert "\n" not in note
    assert gpt.generate([1, 2], max_new_tokens=2).tokens


@pytest.mark.parametrize("target", ["model.safetensors.index.json", "other.index.json"])
def test_an_index_that_names_an_index_is_refused(target: str, tmp_path: Path) -> None:
    write_shards(random_checkpoint(), tmp_path)
    index = tmp_path / huggingface.SAFETENSORS_INDEX
    (tmp_path / "other.index.json").write_bytes(index.read_bytes())
    change(index, weight_map={"wte.weight": target})
    with pytest.raises(FileFormatError, match="another index, as a shard"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ['{"eos_token_id": 1', "[]", '{"eos_token_id": -1}', '{"eos_token_id": ""}'])
def test_a_damaged_generation_config_does_not_block_the_weights(
    text: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder = tmp_path / "m"
    save_checkpoint(random_checkpoint(), folder)
    (folder / "generation_config.json").write_text(text)
    assert load_checkpoint(folder).config.vocab_size == random_checkpoint().config.vocab_size
