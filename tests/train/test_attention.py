"""Every attention trains: it learns, resumes bit for bit, keeps its settings, refuses what it cannot do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glassgpt
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import ConfigError, SettingError
from glassgpt.model import GPT2
from glassgpt.train.distributed.parallelize import check_tensor_parallel
from glassgpt.train.optim import make_optimizers
from glassgpt.train.settings import TrainSettings
from glassgpt.weights import load_checkpoint

SIZES: dict[str, Any] = {
    "shape": "2x16x2", "context": 16, "batch_size": 4, "eval_batches": 1, "eval_every": 4, "save_every": 4,
    "warmup_steps": 2, "lr": 3e-3, "dropout": 0.1, "device": "cpu",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "relative": {"attention": "relative", "relative_distance": 8, "absolute_positions": False},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "text.txt").write_text("".join(f"Day {n} was fair, and we went on.\n" for n in range(200)))
    arguments = ["prepare", str(folder / "text.txt"), "-o", str(folder / "shards"), "--tokenizer", "bytes"]
    assert main([*arguments, "--workers", "1"]) == 0
    return folder / "shards"


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    """Neither the estimate nor samples are what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassgpt.train.trainer.Trainer.estimate_needs", lambda trainer: None)
        patch.setattr("glassgpt.train.trainer.generate_sample", lambda *args: "")
        yield


def tensors(run: Path) -> dict[str, torch.Tensor]:
    state = glassgpt.load(run, device="cpu").torch_model.state_dict()
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_resumes_bit_for_bit(shards: Path, tmp_path: Path, variant: str) -> None:
    options = SIZES | VARIANTS[variant]
    whole = glassgpt.train(shards, tmp_path / "whole", steps=12, **options)
    count = iter(range(100))
    glassgpt.train(shards, tmp_path / "parts", steps=12, stop=lambda: next(count) == 6, **options)
    assert not (tmp_path / "parts" / "checkpoints" / "step-00000012").exists()
    parts = glassgpt.train(shards, tmp_path / "parts", resume=True)
    assert [r["loss"] for r in parts.records] == [r["loss"] for r in whole.records]
    assert parts.val_loss == whole.val_loss
    expected, found = tensors(whole.path), tensors(parts.path)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_and_its_settings_are_kept(shards: Path, tmp_path: Path, variant: str) -> None:
    run = glassgpt.train(shards, tmp_path / "run", steps=30, **(SIZES | VARIANTS[variant] | {"dropout": 0.0}))
    assert run.loss < run.records[0]["loss"] - 1
    config = load_checkpoint(run.path).config
    for name, value in VARIANTS[variant].items():
        assert getattr(config, name) == value
    with pytest.raises(SettingError, match=f"attention causal differs from the run's {config.attention}"):
        glassgpt.train(shards, run.path, resume=True, attention="causal")
    with pytest.raises(SettingError, match=f"differs from {config.attention} of .* or --init-from"):
        glassgpt.train(shards, tmp_path / "new", steps=1, init_from=run.path, attention="causal")
    again = glassgpt.train(
        shards, tmp_path / "again", steps=1, init_from=run.path, **{**SIZES, "shape": None}
    )
    assert load_checkpoint(again.path).config.attention == config.attention


@pytest.mark.parametrize("variant", VARIANTS)
def test_tensor_parallelism_and_muon_know_what_is_theirs(variant: str) -> None:
    model = GPT2(Config(n_layer=1, n_embd=32, n_head=2, vocab_size=99, n_positions=16, **VARIANTS[variant]))
    with pytest.raises(
        SettingError, match=r"--parallel tp divides GPT-2's own layers.* Choose --parallel fsdp"
    ):
        check_tensor_parallel(model)
    _, muon = make_optimizers(model, TrainSettings(steps=1, optimizer="muon"))
    by_muon = {id(p) for group in muon.param_groups for p in group["params"]}
    assert {name for name, p in model.named_parameters() if id(p) in by_muon} >= {
        "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.weight"
    }  # fmt: skip
    assert not any(
        "wre" in name or "bias" in name for name, p in model.named_parameters() if id(p) in by_muon
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_and_checkpointed_it_computes_the_same(variant: str) -> None:
    from glassgpt.train.distributed.parallelize import parallelize

    config = Config(n_layer=2, n_embd=32, n_head=2, vocab_size=99, n_positions=16, embd_pdrop=0.0,
                    attn_pdrop=0.0, resid_pdrop=0.0, **VARIANTS[variant])  # fmt: skip
    torch.manual_seed(0)
    model = GPT2(config)
    ids = torch.randint(98, (2, 17))
    settings = TrainSettings(steps=1, context=16, batch_size=2, precision="float32")
    found = []
    for changes in {}, {"activation_checkpointing": True}:
        module = parallelize(model, dataclasses.replace(settings, **changes))
        loss, _ = module(ids[:, :-1], ids[:, 1:], torch.ones(2, 16, dtype=torch.bool))
        model.zero_grad()
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-4)


def test_flags_that_do_not_belong_together_are_refused(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in {
        "--attention sparse": "attention 'sparse' is not one of causal,",
        "--relative-distance 9": "relative_distance 9 is a setting of attention 'relative', and",
        "--no-absolute-positions": "absolute_positions False is a setting of attention 'relative'",
        "--attention relative --relative-distance 0": "relative_distance is 0",
    }.items():
        arguments = ["train", "--data", str(shards), "--out", str(tmp_path / "run"), "--steps", "1"]
        assert main([*arguments, *flags.split()]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="attention 'sparse'"):
        glassgpt.train(shards, tmp_path / "run", steps=1, attention="sparse")
