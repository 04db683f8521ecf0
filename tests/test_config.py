from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassgpt.config import SIZES, Config
from glassgpt.errors import ConfigError

GOOD = {"vocab_size": 100, "n_embd": 12, "n_layer": 2, "n_head": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_head": 5}, "n_embd 12 is not a multiple of n_head 5"),
        ({"n_layer": 0}, "n_layer is 0; it must be a whole number of at least 1"),
        ({"n_layer": 2.0}, "n_layer is 2.0"),
        ({"n_layer": True}, "n_layer is True"),
        ({"n_inner": -1}, "n_inner is -1"),
        ({"attn_pdrop": "x"}, "attn_pdrop 'x' is not a probability"),
        ({"attn_pdrop": 1.0}, "attn_pdrop 1.0 is not a probability"),
        ({"layer_norm_epsilon": None}, "layer_norm_epsilon None is not a number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; write true or false"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not one of gelu_new"),
        ({"activation_function": ["gelu"]}, "activation_function .* is not one of"),
        ({"model_type": "llama"}, "model_type 'llama' is not 'gpt2'"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"rotary_dim": 64}, "unknown key 'rotary_dim' = 64"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_dict({**GOOD, **change})


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"has no {key}"):
        Config.from_dict({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize("size", SIZES)
def test_a_config_survives_its_file(size: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES[size].to_dict()))
    assert Config.load(tmp_path) == SIZES[size]


def test_the_context_may_be_called_n_ctx() -> None:
    assert Config.from_dict({**GOOD, "n_ctx": 77}).n_positions == 77


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_file_that_is_not_a_config(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        Config.load(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        Config.load(tmp_path / "nowhere")


def test_a_published_size_by_name() -> None:
    assert Config.named("gpt2-xl").n_embd == 1600
    with pytest.raises(ConfigError, match="no published size is called 'gpt3'"):
        Config.named("gpt3")
