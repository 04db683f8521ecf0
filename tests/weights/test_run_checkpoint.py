"""A run's checkpoints as models, plain and sharded, equal to the run's own; damaged ones are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgpt
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import ModelNotFoundError, SettingError, UserError
from glassgpt.files import file_crc32
from glassgpt.tokenizer import CharTokenizer
from glassgpt.weights import load_checkpoint, load_config, load_tokenizer, save_checkpoint
from glassgpt.weights.run_checkpoint import OFFSETS, REST, STATE
from glassgpt.weights.safetensors_file import TensorToWrite, open_tensors, write_tensors

from ..train.test_loop import fresh
from ..train.test_loop import run as train_run

TOKENIZER = CharTokenizer("abcdefghijklmnopqrstuv")  # 23 tokens, as the model of `fresh` has


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 8, with checkpoints of steps 4 and 8 and a tokenizer."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train_run(fresh(), out, stop=8)
    TOKENIZER.save(out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000008"


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    made = [
        TensorToWrite(name, value.shape, value.dtype, lambda value=value: value)
        for name, value in tensors.items()
    ]
    write_tensors(path, made, metadata)


def write_done(folder: Path) -> None:
    files = {file.name: [file.stat().st_size, file_crc32(file)] for file in folder.glob("*.safetensors")}
    (folder / "DONE").write_text(json.dumps({"files": files}))


def shard(folder: Path, ranks: int = 2) -> Path:
    """The same checkpoint as `ranks` processes write it: split by rows, the fused matrix by heads."""
    tensors, metadata = open_tensors(folder / STATE)
    for rank in range(ranks):
        parts, offsets = {}, {}
        for name, tensor in tensors.items():
            value = tensor.read()
            if not name.startswith("model."):
                continue
            if name.endswith(".c_attn.weight"):
                value = value.reshape(value.shape[0], 3, -1)
                parts[name] = np.array_split(value, ranks, axis=2)[rank]
                offsets[name] = [0, 0, sum(p.shape[2] for p in np.array_split(value, ranks, axis=2)[:rank])]
            else:
                parts[name] = np.array_split(value, ranks)[rank]
                first = sum(len(p) for p in np.array_split(value, ranks)[:rank])
                offsets[name] = [first] + [0] * (value.ndim - 1)
        info = {OFFSETS: json.dumps({name: {"saved_offsets": offset} for name, offset in offsets.items()})}
        write(folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", parts, info)
    write(folder / REST, {"rng.cpu": np.zeros(8, np.uint8)}, metadata)
    (folder / STATE).unlink()
    write_done(folder)
    return folder


def same_model(one: Path, other: Path) -> None:
    mine, theirs = load_checkpoint(one), load_checkpoint(other)
    assert mine.config == theirs.config
    assert set(mine.tensors) == set(theirs.tensors) == set(mine.config.shapes())
    for name, value in theirs.tensors.items():
        assert np.array_equal(mine.tensors[name], value), name


@pytest.mark.parametrize("ranks", [0, 1, 2, 3])
def test_a_checkpoint_is_the_model_of_its_step(run: Path, ranks: int) -> None:
    if ranks:
        shard(newest(run), ranks)
    checkpoint = load_checkpoint(newest(run))
    assert checkpoint.format == "run"
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.hash == TOKENIZER.hash
    assert load_tokenizer(newest(run)).hash == TOKENIZER.hash
    assert load_config(newest(run)) == checkpoint.config
    same_model(newest(run), run)
    earlier = load_checkpoint(run / "checkpoints" / "step-00000004")
    assert not np.array_equal(earlier.tensors["wte.weight"], checkpoint.tensors["wte.weight"])


@pytest.mark.parametrize("sharded", [False, True])
def test_the_commands_take_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sharded: bool
) -> None:
    folder = shard(newest(run)) if sharded else newest(run)
    assert main(["convert", str(folder), str(tmp_path / "converted")]) == 0
    assert "run -> hf" in capsys.readouterr().err
    same_model(folder, tmp_path / "converted")
    assert main(["info", str(folder)]) == 0
    capsys.readouterr()
    assert (
        main(["generate", "ab", "--model", str(folder), "--max-new-tokens", "4", "--temperature", "0"]) == 0
    )
    generated = capsys.readouterr().out
    assert main(["generate", "ab", "--model", str(run), "--max-new-tokens", "4", "--temperature", "0"]) == 0
    assert generated == capsys.readouterr().out
    ids = [[1, 2, 3]]
    mine, theirs = (glassgpt.load(str(path), device="cpu", dtype="float32") for path in (folder, run))
    assert np.array_equal(mine.logits(ids), theirs.logits(ids))


@pytest.mark.usefixtures("no_trial")
def test_eval_and_train_start_from_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = str(shard(newest(run))), tmp_path / "a.txt"
    text.write_text("abcdefghijklmnopqrstuv" * 100)
    figures = []
    for model in (folder, str(run)):
        words = [model, str(text), "--suite", "perplexity", "--device", "cpu", "--cache", str(tmp_path / "c")]
        assert main(["eval", *words, "--json"]) == 0
        figures.append(capsys.readouterr().out.replace(model, "MODEL"))
    assert figures[0] == figures[1]
    shards = str(tmp_path / "shards")
    assert main(["prepare", str(text), "-o", shards, "--tokenizer", folder]) == 0
    out = tmp_path / "new"
    words = ["--steps", "1", "--context", "8", "--device", "cpu", "--lr", "1e-30", "--init-from", folder]
    assert main(["train", "--data", shards, "--out", str(out), *words]) == 0
    assert Config.load(out).n_embd == load_config(folder).n_embd
    before, after = load_checkpoint(folder), load_checkpoint(out)
    assert np.allclose(before.tensors["wpe.weight"], after.tensors["wpe.weight"], atol=1e-6)


def test_it_needs_no_torch(run: Path) -> None:
    shard(newest(run))
    program = (
        "import sys; from glassgpt.weights import load_checkpoint; c = load_checkpoint(sys.argv[1]); "
        "c.tensors['wte.weight']; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(newest(run))], check=True)


def test_nothing_else_writes_it(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="written by glassgpt train only"):
        save_checkpoint(load_checkpoint(run), tmp_path / "other", "run")


def forge(change: Callable[[dict[str, Any], dict[str, str]], object]) -> Callable[[Path], None]:
    """Rewrite a plain checkpoint with other tensors or metadata, and a DONE that matches."""

    def damage(folder: Path) -> None:
        opened, metadata = open_tensors(folder / STATE)
        tensors = {name: tensor.read() for name, tensor in opened.items()}
        change(tensors, metadata)
        write(folder / STATE, tensors, metadata)
        write_done(folder)

    return damage


def set_config(text: str) -> Callable[[Path], None]:
    return forge(lambda tensors, metadata: metadata.update(config=text))


def forge_shards(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Shard a checkpoint and change the offsets of its second shard."""

    def damage(folder: Path) -> None:
        shard(folder)
        file = sorted(folder.glob("shard-00002*"))[0]
        opened, metadata = open_tensors(file)
        offsets = json.loads(metadata[OFFSETS])
        changed = change(offsets)
        tensors = {name: tensor.read() for name, tensor in opened.items()}
        write(file, tensors, {OFFSETS: changed if isinstance(changed, str) else json.dumps(offsets)})
        write_done(folder)

    return damage


def flip(folder: Path) -> None:
    data = bytearray((folder / STATE).read_bytes())
    data[-9] ^= 1
    (folder / STATE).write_bytes(data)


def without_a_shard(folder: Path) -> None:
    shard(folder)
    sorted(folder.glob("shard-00002*"))[0].unlink()


def drop_a_shard(folder: Path) -> None:
    without_a_shard(folder)
    write_done(folder)


BIG = json.dumps({**Config().to_dict(), "n_layer": 10**9})
DEEP = "[" * 100_000
WTE = "model.wte.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "DONE").unlink(), "is incomplete: it has no DONE file"),
        (lambda folder: (folder / "DONE").write_text(DEEP), "DONE is not JSON"),
        (lambda folder: (folder / "DONE").write_text("{}"), "DONE is damaged"),
        (lambda folder: (folder / "DONE").write_text('{"files": {"../x": [1, 2]}}'), "not a plain file name"),
        (
            lambda folder: (folder / "DONE").write_text('{"files": {"x": [1, 2]}}'),
            "DONE belongs to other files",
        ),
        (
            lambda folder: (folder / "DONE").write_text('{"bytes": -1, "crc32": true}'),
            "DONE is damaged",
        ),
        (lambda folder: (folder / STATE).write_bytes(b"half"), "training.safetensors is damaged"),
        (flip, "training.safetensors is damaged"),
        (without_a_shard, "is damaged: shard-00002"),
        (drop_a_shard, "the config requires"),
        (forge(lambda tensors, metadata: metadata.pop("config")), "has no config in its metadata"),
        (set_config(DEEP), "its config is not JSON"),
        (set_config("[1]"), "its config is not a JSON object"),
        (set_config('{"n_embd": "wide"}'), "vocab_size"),
        (set_config(BIG), "has 1,000,000,000 layers"),
        (forge(lambda tensors, metadata: tensors.pop(WTE)), "'wte.weight' .* is missing"),
        (
            forge(lambda tensors, metadata: tensors.update({WTE: tensors[WTE][:3].copy()})),
            "'wte.weight' has shape",
        ),
        (
            forge(lambda tensors, metadata: tensors.update({"model.other": np.zeros(3, np.float32)})),
            "unknown tensor 'other'",
        ),
        (forge_shards(lambda offsets: DEEP), "is not JSON"),
        (forge_shards(lambda offsets: offsets.pop(WTE)), "has the offset None"),
        (forge_shards(lambda offsets: offsets.update({WTE: {"saved_offsets": [0, 0]}})), "do not add up"),
        (
            forge_shards(lambda offsets: offsets.update({WTE: {"saved_offsets": [2**52, 0]}})),
            "do not add up",
        ),
        (forge_shards(lambda offsets: offsets.update({WTE: {"saved_offsets": [-1, 0]}})), "has the offset"),
        (forge_shards(lambda offsets: offsets.update({WTE: {"saved_offsets": [0]}})), "has the offset"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Path, damage: Callable[[Path], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(newest(run))
    with pytest.raises(UserError, match=message) as caught:
        load_checkpoint(newest(run))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert main(["generate", "ab", "--model", str(newest(run))]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_checkpoint_without_its_run_has_no_tokenizer(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(newest(run), tmp_path / "alone"))
    assert load_checkpoint(alone).tokenizer is None
    with pytest.raises(ModelNotFoundError):
        load_tokenizer(alone)
