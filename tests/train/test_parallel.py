"""Two processes train what one would have trained: on the CPU, with gloo, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train.loader import Loader
from glassgpt.train.loop import train
from glassgpt.train.parallel import joined, leave
from glassgpt.train.settings import TrainSettings
from glassgpt.train.shards import Shards

# The real model, small: tied head, fused c_attn, and a vocabulary and a batch that 2 does not divide.
CONFIG = Config(
    vocab_size=51, n_positions=32, n_embd=32, n_layer=2, n_head=4,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip
SETTINGS = {
    "steps": 5, "rows": 5, "context": 32, "lr": 3e-3, "warmup": 2, "eval_every": 2, "save_every": 2,
    "keep": 9,
}  # fmt: skip


def work(data: Path, out: Path, plan: str, until: int, changes: dict[str, object]) -> None:
    """What each process does; it leaves behind which tokens it saw, and what it measured."""
    settings = TrainSettings(**{**SETTINGS, **changes})
    loader = Loader(Shards.open(data), settings.context, settings.rows, seed=3)
    held_out = [loader.batch(1000), loader.batch(1001)[:3]]
    torch.manual_seed(1)
    # AdamW divides by the gradient's own size: where that is near nothing, float32's rounding becomes a whole
    # step. In float64 what is left is what the processes do.
    model = GPT2(CONFIG).double()
    seen = []
    with joined(torch.device("cpu")) as (_, mesh):
        rank, world = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())

        def batches(step: int) -> Iterator[torch.Tensor]:
            while True:
                batch = loader.batch(step, rank, world)
                seen.append({"step": step, "rows": batch.tolist()})
                yield batch
                step += 1

        for record in train(model, batches, held_out, out, settings, mesh=mesh, plan=plan):
            if record["step"] == until:
                break
    (out / f"seen-{until}-{rank}.json").write_text(json.dumps(seen))
    if world > 1:
        leave()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (np.cumsum(rng.integers(1, 4, 4000)) % 51).astype("<u2").tofile(folder / "train.bin")
    return folder


def together(
    processes: int, data: Path, out: Path, plan: str = "ddp", until: int = 5, **changes: object
) -> None:
    """The same work by so many processes."""
    arguments = [str(data), str(out), plan, str(until), json.dumps(changes)]
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, *(starter if processes > 1 else []), __file__, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def difference(one: Path, two: Path) -> float:
    """The largest, of the weights after the last save."""
    a, b = (load_file(out / "model.safetensors") for out in (one, two))
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def seen(out: Path, until: int, processes: int) -> list[list]:
    """The rows of each step in order, put together from what each process saw."""
    parts = [json.loads((out / f"seen-{until}-{rank}.json").read_text()) for rank in range(processes)]
    steps = []
    for of_step in zip(*parts, strict=True):
        (step,) = {part["step"] for part in of_step}
        steps.append([step, *(row for part in of_step for row in part["rows"])])
    return steps


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    work(data, out, "ddp", 5, {})
    return out


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"micro_rows": 1, "recompute": True}])
@pytest.mark.parametrize("plan", ["ddp", "fsdp"])
def test_two_processes_train_what_one_would(
    data: Path, alone: Path, tmp_path: Path, plan: str, changes: dict[str, object]
) -> None:
    """Five rows for two: one has two and one three, and the mean is still that over all tokens."""
    together(2, data, tmp_path, plan, **changes)
    assert difference(alone, tmp_path) < 1e-6
    for ours, expected in zip(records(tmp_path), records(alone), strict=True):
        # The log rounds to five places: sums in another order may fall on the other side.
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1.1e-5)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1.1e-4)
        assert ours.get("val_loss") == pytest.approx(expected.get("val_loss"), abs=1.1e-5)
    assert len(seen(tmp_path, 5, 2)[0]) == 1 + 5
    assert seen(tmp_path, 5, 2) == seen(alone, 5, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [((2, "fsdp"), (1, "ddp")), ((1, "ddp"), (2, "fsdp")), ((2, "ddp"), (3, "ddp"))]
)
def test_a_run_goes_on_with_another_number_of_processes(
    data: Path, alone: Path, tmp_path: Path, first: tuple[int, str], then: tuple[int, str]
) -> None:
    """It stops after step 3; the last save was after step 2. So step 3 (counted from 0: 2) is done again."""
    together(first[0], data, tmp_path, first[1], until=3)
    together(then[0], data, tmp_path, then[1], until=5)
    whole = seen(alone, 5, 1)
    assert seen(tmp_path, 3, first[0]) == whole[:3]
    assert seen(tmp_path, 5, then[0]) == whole[2:]
    losses, expected = ([record["loss"] for record in records(out)] for out in (tmp_path, alone))
    assert losses == pytest.approx(expected, abs=1.1e-5)  # five places in the log
    assert difference(alone, tmp_path) < 1e-6
    ours, one = (
        load_file(out / "checkpoints" / "step-00000005" / "training.safetensors") for out in (tmp_path, alone)
    )
    for name in one:
        if name.startswith("optimizer"):
            np.testing.assert_allclose(ours[name], one[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_ends_the_same(data: Path, tmp_path: Path) -> None:
    """kill -9 of one of two under `--max-restarts`, with dropout on: torchrun repeats the command."""
    outs = [tmp_path / "whole", tmp_path / "cut"]
    runs = []
    for out in outs:  # both at once, as most of the time is spent waiting for torch to be imported
        starter = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
        command = ["train", "--data", str(data), "--out", str(out), "--device", "cpu", "--shape", "2x32x2"]
        numbers = ["--steps", "40", "--rows", "4", "--context", "32", "--eval-rows", "4", "--save-every", "5"]
        runs.append(
            subprocess.Popen(
                [sys.executable, "-m", *starter, "-m", "glassgpt", *command, *numbers],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (outs[1] / "checkpoints" / "step-00000005" / "DONE").exists():
        assert runs[1].poll() is None, runs[1].stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{runs[1].pid}/task/{runs[1].pid}/children").read_text().split()
    workers = [int(pid) for pid in children if b"glassgpt" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    told = [run.communicate(timeout=60)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told[1][-2000:]
    assert "SIGKILL" in told[1] or "Signal 9" in told[1] or "exitcode: -9" in told[1]
    whole, cut = ([(record["step"], record["loss"]) for record in records(out)] for out in outs)
    assert [step for step, _ in whole] == list(range(1, 41))
    assert cut == whole
    assert difference(*outs) == 0


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        ("zero", {}, "parallel 'zero' is not one of ddp, fsdp"),
        ("fsdp", {"muon_lr": 0.02}, "muon_lr moves whole matrices"),
        ("fsdp", {"precision": "float16"}, "choose bfloat16"),
    ],
)
def test_plans_that_cannot_be(
    data: Path, tmp_path: Path, plan: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        work(data, tmp_path / "run", plan, 5, changes)
    assert not (tmp_path / "run").exists()


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
