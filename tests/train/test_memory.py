"""When memory runs out: a smaller micro-batch, the same update; or a line that says what to try."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.estimate import estimate_training
from glassgpt.train.forward import LossModule
from glassgpt.train.loop import train_loop
from glassgpt.train.micro_batch import (
    AutoMicroBatch,
    OutOfMemory,
    activation_bytes,
    free_memory,
    halve_micro_batch,
    is_out_of_memory,
    largest_fitting,
)
from glassgpt.train.settings import TrainSettings
from tests.train.test_loop import HELD_OUT, Windows, loss_of, strip

SETTINGS = TrainSettings(
    steps=4, batch_size=12, context=16, lr=1e-2, warmup_steps=1, eval_every=2, eval_batches=1, save_every=2
)
ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "python": MemoryError(),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"
    ),
}


def undropped() -> GPT2:
    torch.manual_seed(3)
    return GPT2(
        Config(
            vocab_size=23, n_positions=16, n_embd=32, n_layer=2, n_head=2,
            embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip


class Narrow:
    """A device on which no more than `size` sequences fit, from some pass on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, error: Exception, after: int = 0) -> None:
        # Nothing has to be freed here, and walking all that the other tests have left takes half a second.
        monkeypatch.setattr("glassgpt.train.micro_batch.gc", SimpleNamespace(collect=lambda: None))
        self.passes = 0
        original = LossModule.forward

        def forward(
            module: LossModule, ids: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            loss, count = original(module, ids, targets, mask)
            self.passes += 1
            if torch.is_grad_enabled() and len(ids) > size and self.passes > after:
                loss.backward()  # what it leaves in the gradients may not count
                raise error
            return loss, count

        monkeypatch.setattr(LossModule, "forward", forward)


def run(out: Path, settings: TrainSettings) -> list[dict]:
    return list(train_loop(undropped(), Windows(settings), HELD_OUT, out, settings))


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("after", [0, 4])
def test_auto_micro_batch_makes_the_same_updates_in_smaller_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, after: int
) -> None:
    """From the first step on, or from the middle of the run."""
    expected = run(tmp_path / "wide", SETTINGS)
    Narrow(monkeypatch, 3, ERRORS[kind], after)
    records = run(tmp_path / "narrow", dataclasses.replace(SETTINGS, auto_micro_batch=True))
    changes = [(r["step"], r["micro_batch_size"]) for r in records if "micro_batch_size" in r]
    assert changes == [(3 if after else 1, 3)]  # 12, 6, 3: all three in one step
    for ours, theirs in zip(strip(records), strip(expected), strict=True):
        # Four float32 updates, summed in another order; the log rounds to five places.
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], abs=1e-3)


def test_without_auto_micro_batch_the_message_says_what_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Narrow(monkeypatch, 3, ERRORS["gpu"])
    with pytest.raises(
        OutOfMemory,
        match=r"with a micro-batch size of 12\. Try --micro-batch-size 6 .* or --auto-micro-batch",
    ):
        run(tmp_path, SETTINGS)
    assert not (tmp_path / "checkpoints").exists()


def test_where_one_sequence_is_too_much_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Narrow(monkeypatch, 0, ERRORS["gpu"])
    with pytest.raises(OutOfMemory, match=r"micro-batch size of 1\. Try --activation-checkpointing"):
        run(tmp_path, dataclasses.replace(SETTINGS, auto_micro_batch=True))


def test_another_error_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Narrow(monkeypatch, 3, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(tmp_path, dataclasses.replace(SETTINGS, auto_micro_batch=True))


def test_a_run_whose_memory_ran_out_continues_with_a_smaller_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a person types it: the estimate already finds out, and the run's settings say so afterwards."""
    (tmp_path / "a.txt").write_text("".join(f"It was day {n}, and we went on.\n" for n in range(400)))
    prepare = ["prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "shards"), "--workers", "1"]
    assert main(prepare) == 0
    out = tmp_path / "run"
    command = ["train", "--data", str(tmp_path / "shards"), "--out", str(out), "--device", "cpu"]
    command += [
        "--shape",
        "1x32x2",
        "--context",
        "32",
        "--batch-size",
        "8",
        "--eval-batches",
        "1",
        "--warmup-steps",
        "1",
    ]
    Narrow(monkeypatch, 2, ERRORS["cpu"])
    assert main([*command, "--steps", "2"]) == 2
    reported = capsys.readouterr().err
    assert "glassgpt: out of memory with a micro-batch size of 8. Try --micro-batch-size 4" in reported
    assert main([*command, "--steps", "2", "--auto-micro-batch"]) == 0
    assert "8, micro-batch size 2" in capsys.readouterr().err
    assert json.loads((out / "settings.json").read_text())["micro_batch_size"] == 2
    capsys.readouterr()
    assert main([*command, "--steps", "2", "--resume", "--micro-batch-size", "1"]) == 0  # it may change


def test_the_largest_that_fits_is_found_in_few_tries() -> None:
    for fit in range(13):
        tries: list[int] = []

        def fits(size: int, fit: int = fit, tries: list[int] = tries) -> bool:
            tries.append(size)
            return size <= fit

        assert largest_fitting(12, fits) == max([n for n in (1, 2, 3, 4, 6, 12) if n <= fit], default=0)
        assert len(tries) <= 4


def test_half_of_an_odd_batch_size() -> None:
    def halved(batch_size: int, micro: int | None) -> int | None:
        smaller = halve_micro_batch(TrainSettings(steps=1, batch_size=batch_size, micro_batch_size=micro))
        return None if smaller is None else smaller.micro_batch_size

    assert [halved(15, None), halved(15, 5), halved(15, 3), halved(15, 1)] == [5, 1, 1, None]


def test_several_processes_do_not_retry_one_by_one() -> None:
    with pytest.raises(SettingError, match="--auto-micro-batch is for one process"):
        AutoMicroBatch(TrainSettings(steps=1, auto_micro_batch=True), world_size=2)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_estimate_is_near_what_is_kept(dropout: float, precision: str) -> None:
    """Counted by autograd's own hooks: every storage that is saved and is no parameter. Within a quarter."""
    config = Config(
        vocab_size=100, n_positions=128, n_embd=96, n_layer=3, n_head=3,
        embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout,
    )  # fmt: skip
    model, settings = GPT2(config), TrainSettings(steps=1, context=128, precision=precision)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.zeros(8, 128, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model, ids, ids, settings)
    measured = sum(storage.nbytes() for storage in kept.values())
    assert activation_bytes(config, settings, 8) == pytest.approx(measured, rel=0.25)


def test_memory_is_known_and_the_estimate_says_what_fits() -> None:
    assert 1 << 20 < free_memory(torch.device("cpu")) < 1 << 50
    assert all(is_out_of_memory(error) for error in ERRORS.values())
    estimate = estimate_training(undropped(), SETTINGS, Windows(SETTINGS).batch(0), seconds=0.01)
    assert estimate.largest_micro_batch == 12
    assert estimate.settings == SETTINGS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_largest_micro_batch_is_tried_out() -> None:
    """With 2 GB of it left, not all of 4,096 sequences fit; what the estimate found does."""
    device = torch.device("cuda")
    config = Config(vocab_size=5000, n_positions=256, n_embd=256, n_layer=4, n_head=4)
    settings = TrainSettings(
        steps=1, batch_size=4096, context=256, precision="bfloat16", auto_micro_batch=True
    )
    model = GPT2(config).to(device)
    held = torch.empty(free_memory(device) - (2 << 30), dtype=torch.uint8, device=device)
    estimate = estimate_training(model, settings, torch.zeros(4096, 257, dtype=torch.long), seconds=0.1)
    del held
    assert 1 <= estimate.largest_micro_batch < 4096
    assert estimate.settings.micro_batch_size == estimate.largest_micro_batch
