"""`glassgpt info`: the parameter tally."""

from __future__ import annotations

import json
import re

import pytest

import glassgpt as package
from glassgpt.config import SIZES, Config
from glassgpt.inspect.parameters.tally import ILLUSTRATED_TOTAL, tally
from glassgpt.weights import load_checkpoint

# From the table of the subject's numbers: independent of the code that counts.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
}


@pytest.mark.parametrize("name", SIZES)
def test_the_published_totals(glassgpt, name):
    assert tally(name).total == PUBLISHED[name]
    answer = glassgpt("info", name)
    assert (answer.code, answer.err) == (0, "")
    assert f"{PUBLISHED[name]:,}" in answer.out
    assert not re.search(r" $", answer.out, re.MULTILINE), "no blanks at the end of lines"
    assert "\x1b" not in answer.out, "no colour in a pipe"


def test_json_lists_every_tensor_and_they_add_up(glassgpt):
    counted = json.loads(glassgpt("info", "gpt2", "--json").out)
    assert counted["total"] == 124_439_808 == sum(tensor["count"] for tensor in counted["tensors"])
    assert len(counted["tensors"]) == 2 + 12 * 12 + 2
    assert counted["bytes"]["float32"] == 4 * 124_439_808
    assert counted["kv_cache_bytes_per_token"]["float32"] == 2 * 12 * 768 * 4


def test_every_block_lists_every_tensor(glassgpt):
    out = glassgpt("info", "distilgpt2", "--every-block").out
    assert out.count("attn.c_attn.weight") == 6
    rows = re.findall(r"^ +\S+\.(?:weight|bias) .*?([\d,]+) +[\d.]+%", out, re.MULTILINE)
    assert sum(int(count.replace(",", "")) for count in rows) == 6 * 7_087_872


def test_the_illustrated_table_and_why_it_differs(glassgpt):
    answer = glassgpt("info", "gpt2", "--illustrated")
    assert answer.code == 0
    last = next(line for line in answer.out.splitlines() if line.startswith("total "))
    assert last.split()[1:] == ["124,439,808", "124,410,624", "29,184"]
    bias = next(line for line in answer.out.splitlines() if "mlp.c_fc.bias" in line)
    assert bias.split()[1:] == ["3,072", "3,072", "768", "2,304"]
    reasons = [int(n.replace(",", "")) for n in re.findall(r"^ +([\d,]+)  \w", answer.out, re.MULTILINE)]
    assert reasons == [27_648, 1_536, 29_184]
    assert "12 blocks * 2,304" in answer.out
    assert tally("gpt2").total - ILLUSTRATED_TOTAL == 29_184
    assert glassgpt("info", "gpt2-xl", "--illustrated").is_one_line_error(
        "gpt2-xl", "info gpt2 --illustrated"
    )


def test_without_a_model_there_is_a_short_list_of_models(glassgpt):
    answer = glassgpt("info")
    assert (answer.code, answer.err) == (0, "")
    head, *rows, blank, last = answer.out.splitlines()
    assert head.split() == ["model", "blocks", "width", "heads", "tokens", "parameters"]
    found = {row.split()[0]: row.split()[1:] for row in rows}
    assert found.keys() == {"default", "en-fr", "music", "summarize", "tiny", *SIZES}
    assert found["gpt2-xl"] == ["48", "1,600", "25", "50,257", "1,557,611,200", "on", "the", "hub"]
    assert found["default"] == ["12", "512", "8", "16,384", "46,742,528", "shipped"]
    assert (blank, last) == ("", "glassgpt info NAME shows a model's tensors, its memory and its model card.")
    assert json.loads(glassgpt("info", "--json").out)["model"] == "default"


def test_tally_is_part_of_the_package_and_counts_an_untied_head():
    shape = Config(vocab_size=11, n_positions=5, n_embd=4, n_layer=1, n_head=2, n_inner=6)
    untied = Config(**{**shape.__dict__, "tie_word_embeddings": False})
    assert package.tally(untied).total == package.tally(shape).total + 11 * 4
    # By hand: 44 + 20 + (8 + 60 + 20 + 8 + 30 + 28) + 8
    assert package.tally(shape).total == 226


def test_a_folder_a_file_and_a_model_card(glassgpt, tiny, tmp_path):
    folder = tmp_path / "carded"
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "MODEL_CARD.md").write_text("# A small model\n\nIt was never trained.\n")
    answer = glassgpt("info", folder)
    assert answer.code == 0
    assert "format: hf, stored as: float32" in answer.out
    assert answer.out.endswith("It was never trained.\n")
    (folder / "ATTRIBUTION.txt.gz").write_bytes(b"")
    assert glassgpt("info", folder).out.endswith(f"{folder / 'ATTRIBUTION.txt.gz'}\n")
    assert json.loads(glassgpt("info", folder, "--json").out)["format"] == "hf"
    by_file = json.loads(glassgpt("info", folder / "model.safetensors", "--json").out)
    assert by_file["total"] == tally(Config.load(tiny)).total


def test_a_config_without_weights_is_enough(glassgpt, tiny, tmp_path):
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    answer = glassgpt("info", tmp_path)
    assert answer.code == 0
    assert "no weights" in answer.out


def test_errors(glassgpt, tmp_path):
    assert glassgpt("info", tmp_path / "missing").is_one_line_error("missing", "does not exist")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    assert glassgpt("info", tmp_path).is_one_line_error("config.json", "vocab_size")


def test_a_model_on_the_hub_is_counted_without_its_weights(glassgpt, tiny, hub):
    hub.repos["someone/small"] = {file.name: file.read_bytes() for file in tiny.iterdir()}
    answer = glassgpt("info", "someone/small")
    assert answer.code == 0
    assert "weights not downloaded" in answer.out
    assert f"{tally(Config.load(tiny)).total:,}" in answer.out
    assert hub.asked("GET", "config.json")
    assert not hub.asked("GET", ".safetensors")
    assert not hub.asked("HEAD", ".safetensors")
    load_checkpoint("someone/small")
    assert "format: hf, stored as: float32" in glassgpt("info", "someone/small").out
