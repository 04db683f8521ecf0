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
        ({"layer_norm_epsilon": None}, "layer_norm_epsilon None is not a sensible number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; write true or false"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not one of gelu_new"),
        ({"activation_function": ["gelu"]}, "activation_function .* is not one of"),
        ({"model_type": "llama"}, "model_type 'llama' is not 'gpt2'"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"rotary_dim": 64}, "rotary_dim is 64, which changes the computation"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is .*'linear'"),
        ({"position_embedding_type": "rotary"}, "position_embedding_type is 'rotary'"),
        ({"alibi": True}, "alibi is True"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1"),
        ({"multi_query": True}, "multi_query is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is {'0': "),
        ({"adapters": {"adapters": {"mine": "houlsby"}}}, "adapters is "),
        ({"hidden_size": 64}, "hidden_size 64 and n_embd 12 contradict"),
        ({"intermediate_size": 64}, "intermediate_size is 64"),
        ({"n_layer": 10**100}, "n_layer is a whole number of about 101 digits"),
        ({"layer_norm_epsilon": 10**400}, "layer_norm_epsilon a whole number of about 401 digits"),
        ({"eos_token_id": [3, "end"]}, "eos_token_id is 'end'"),
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


@pytest.mark.parametrize(
    "harmless",
    [
        {"add_cross_attention": False},
        {"quantization_config": None},
        {"position_embedding_type": "absolute"},
        {"rope_scaling": None, "alibi": False, "multi_query": False, "sliding_window": None},
        {"num_key_value_heads": 3, "intermediate_size": 48, "head_dim": 4},
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
        {"pruned_heads": {}},
        {"adapters": {"adapters": {}, "config_map": {}, "fusions": {}}},
        {
            "cls_token_id": 1,
            "unk_token_id": 2,
            "pad_token_id": [3, 4],
            "_commit_hash": "abc",
            "dtype": "float16",
        },
        {
            "auto_map": {"AutoModel": "modelling_mine.Mine"},
            "id2label": {"0": "no"},
            "_name_or_path": "./mine",
        },
    ],
)
def test_a_key_of_other_models_may_stand_there_if_it_says_nothing(harmless: dict[str, object]) -> None:
    config = Config.from_dict({**GOOD, **harmless})
    assert config == Config(**GOOD)
    assert config.unread == []
    assert "auto_map" not in config.kept


def test_keys_of_the_owner_are_kept() -> None:
    config = Config.from_dict({**GOOD, "my_corpus": "novels", "lucky": [7], "pad_token_id": 0})
    assert config == Config(**GOOD)
    assert config.kept == {"my_corpus": "novels", "lucky": [7], "pad_token_id": 0}
    assert config.unread == ["lucky", "my_corpus"]


def test_the_sizes_may_have_the_names_that_transformers_gives_them() -> None:
    names = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    assert Config.from_dict({"vocab_size": 100, **names, "max_position_embeddings": 9}) == Config(
        **GOOD, n_positions=9
    )


def test_several_tokens_may_end_a_text() -> None:
    config = Config.from_dict({**GOOD, "eos_token_id": [7, 9], "bos_token_id": [5]})
    assert (config.bos_token_id, config.eos_token_id, config.eos_token_ids) == (5, 7, (7, 9))
    assert Config.from_dict(config.to_dict()) == config
    assert Config.from_dict({**GOOD, "eos_token_id": []}).eos_token_ids == ()


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
