"""Many processes train what one would have trained: on the CPU, with gloo, as torchrun starts them.

Torch takes seconds to start, so two launches (of two and of four processes) do all jobs, one after the other,
and the tests look at what they left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.distributed.tensor import DTensor

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.model import GPT2
from glassgpt.train import loop
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Shards
from glassgpt.train.distributed.parallelize import check_divisible
from glassgpt.train.distributed.process_group import data_parallel, exit_process, init_distributed, make_mesh
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import StepResult

# The real model, small: tied head, fused c_attn, and a vocabulary and a batch that 2 does not divide.
CONFIG = Config(
    vocab_size=51, n_positions=32, n_embd=32, n_layer=2, n_head=4,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip
SETTINGS = {
    "steps": 5, "batch_size": 5, "context": 32, "lr": 3e-3, "warmup_steps": 2, "eval_every": 2,
    "save_every": 2, "keep_checkpoints": 9,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A run, or a part of one: `until` a step, resuming from what is saved in `out`."""

    out: str
    mode: str = "ddp"
    tensor_parallel_size: int | None = None
    until: int = 5
    double: bool = True
    bad: int | None = None  # in this step the second process has a weight that is NaN
    dropout: float = 0.0
    changes: dict[str, object] = field(default_factory=dict)


def work(data: Path, root: Path, jobs: list[Part]) -> None:
    """What each process does; it leaves behind which tokens it saw, and the exact losses."""
    with init_distributed(torch.device("cpu")) as (_, mesh):
        for task in jobs:
            if mesh is not None:
                world = int(os.environ["WORLD_SIZE"])
                mesh = make_mesh(
                    torch.device("cpu"), world, task.tensor_parallel_size if task.mode == "tp" else 1
                )
            do(data, root / task.out, task, mesh)
    if mesh is not None:
        exit_process()


def do(data: Path, out: Path, task: Part, mesh: object) -> None:
    settings = TrainSettings(**{**SETTINGS, **task.changes})
    loader = Loader(Shards.open(data), settings.context, settings.batch_size, seed=3)
    held_out = [loader.batch(1000), loader.batch(1001)[:3]]
    torch.manual_seed(1)
    model = GPT2(replace(CONFIG, embd_pdrop=task.dropout, attn_pdrop=task.dropout, resid_pdrop=task.dropout))
    model = model.double() if task.double else model
    seen, losses = [], []
    group, groups = data_parallel(mesh)
    rank = 0 if mesh is None else mesh.get_rank()

    def batches(step: int) -> Iterator[torch.Tensor]:
        while True:
            if rank == 1 and task.bad is not None:
                poison(model, step + 1 - task.bad)
            batch = loader.batch(step, group, groups)
            seen.append({"step": step, "rows": batch.tolist()})
            yield batch
            step += 1

    def train_step(*arguments: object) -> StepResult:
        result = TRAIN_STEP(*arguments)
        losses.append(result.loss)
        return result

    loop.train_step = train_step  # the log rounds to five places
    for record in loop.train_loop(model, batches, held_out, out, settings, mesh=mesh, mode=task.mode):
        if record["step"] == task.until:
            break
    left = {"group": group, "seen": seen, "losses": losses}
    (out / f"until-{task.until}-{rank}.json").write_text(json.dumps(left))


TRAIN_STEP = loop.train_step


@torch.no_grad()
def poison(model: GPT2, steps_since: int) -> None:
    """Of a sharded weight, this process's shard. Afterwards it is put right again: it was about 1."""
    weight = model.ln_f.weight
    shard = weight.to_local() if isinstance(weight, DTensor) else weight
    if steps_since in (0, 1):
        shard[0] = float("nan") if steps_since == 0 else 1.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (np.cumsum(rng.integers(1, 4, 4000)) % 51).astype("<u2").tofile(folder / "train.bin")
    return folder


def together(processes: int, data: Path, root: Path, jobs: list[Part]) -> None:
    """The same work by so many processes."""
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    arguments = [str(data), str(root), json.dumps([asdict(task) for task in jobs])]
    done = subprocess.run(
        [sys.executable, *starter, __file__, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]


MODES = ("ddp", "fsdp", "tp")
ONE_SAVE = {"save_every": 5}  # saves take longer than these steps
PARITY = {
    "whole": Part(""),
    "micro": Part("", changes={**ONE_SAVE, "micro_batch_size": 1, "activation_checkpointing": True}),
    "muon": Part("", changes={**ONE_SAVE, "optimizer": "muon"}),
    "single": Part("", double=False, changes=ONE_SAVE),
    "half": Part(
        "", double=False, changes={**ONE_SAVE, "precision": "bfloat16", "activation_checkpointing": True}
    ),
}


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: alone, by two processes, by four, and begun by some and ended by others."""
    root = tmp_path_factory.mktemp("runs")
    alone = [replace(task, out=f"alone-{name}") for name, task in PARITY.items()]
    alone += [Part(f"one-ddp-to-two-{mode}", until=3) for mode in ("fsdp", "tp")]
    work(data, root, alone)
    two = [replace(task, out=f"{mode}-{name}", mode=mode) for mode in MODES for name, task in PARITY.items()]
    two += [Part(f"one-ddp-to-two-{mode}", mode) for mode in ("fsdp", "tp")]
    two += [Part(f"two-{mode}-to-one-ddp", mode, until=3) for mode in ("fsdp", "tp")]
    two += [Part("two-fsdp-to-two-tp", "fsdp", until=3), Part("two-fsdp-to-two-tp", "tp")]
    for mode in MODES:
        two += [Part(f"{mode}-once", mode, dropout=0.1)]
        two += [Part(f"{mode}-again", mode, until=until, dropout=0.1) for until in (3, 5)]
    two += [Part("two-ddp-to-four-ddp", until=3), Part("two-tp-to-four-fsdp", "tp", until=3)]
    two += [Part("two-tp-to-four-tp", "tp", until=3)]
    two += [Part(f"bad-{mode}", mode, bad=3, changes={"skip_bad_steps": 1}) for mode in ("ddp", "fsdp", "tp")]
    together(2, data, root, two)
    four = [
        replace(task, out=f"groups-{name}", mode="tp", tensor_parallel_size=2)
        for name, task in PARITY.items()
    ]
    four += [Part("two-ddp-to-four-ddp"), Part("two-tp-to-four-fsdp", "fsdp")]
    four += [Part("two-tp-to-four-tp", "tp", 4), Part("four-tp-to-one-ddp", "tp", 2, until=3)]
    together(4, data, root, four)
    ended = ("two-fsdp-to-one-ddp", "two-tp-to-one-ddp", "four-tp-to-one-ddp")
    work(data, root, [Part(out) for out in ended])
    return root


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, np.ndarray]:
    return load_file(out / "model.safetensors")


def traces(out: Path, until: int = 5) -> list[dict]:
    """What the processes left behind, in the order of their ranks."""
    files = sorted(out.glob(f"until-{until}-*.json"), key=lambda file: int(file.stem.split("-")[2]))
    return [json.loads(file.read_text()) for file in files]


def seen(out: Path, until: int = 5) -> list[list]:
    """The rows of each step in order, put together from what each group saw."""
    groups = {of_rank["group"]: of_rank["seen"] for of_rank in traces(out, until)}
    steps = []
    for of_step in zip(*(groups[group] for group in sorted(groups)), strict=True):
        (step,) = {part["step"] for part in of_step}
        steps.append([step, *(row for part in of_step for row in part["rows"])])
    return steps


def difference(one: Path, two: Path) -> float:
    """The largest, of the weights after the last save."""
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "micro", "muon"])
@pytest.mark.parametrize("mode", [*MODES, "groups"])
def test_many_processes_train_what_one_would(runs: Path, mode: str, name: str) -> None:
    """Five rows for two: one has two and one three, and the mean is still that over all tokens.

    In float64, so that what is left is what the processes do: weights and losses differ by less than 1e-13.
    """
    many, one = runs / f"{mode}-{name}", runs / f"alone-{name}"
    assert difference(one, many) < 1e-10
    for ours, expected in zip(records(many), records(one), strict=True):
        # The log rounds to five places: sums in another order may fall on the other side.
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1.1e-5)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1.1e-4)
        assert ours.get("val_loss") == pytest.approx(expected.get("val_loss"), abs=1.1e-5)
    for of_rank in traces(many):
        assert of_rank["losses"] == pytest.approx(traces(one)[0]["losses"], rel=1e-6)  # added up in float32
    assert len(seen(many)[0]) == 1 + 5
    assert seen(many) == seen(one)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "groups"])
def test_in_float32_they_differ_by_rounding(runs: Path, mode: str) -> None:
    """Losses relative, weights absolute, after five steps: measured up to 1.3e-7 and 6e-7.

    The bias of the keys is left out. It adds the same to all scores of a query, so its true gradient is zero
    (and it changes no output): AdamW makes steps out of the rounding error that is left, measured 5e-6.
    """
    one, many = weights(runs / "alone-single"), weights(runs / f"{mode}-single")
    width = CONFIG.n_embd
    for name in one:
        gap = np.abs(one[name] - many[name])
        if name.endswith("c_attn.bias"):
            assert gap[width : 2 * width].max() < 1e-4
            gap[width : 2 * width] = 0
        assert gap.max() < 1e-6, name
    expected = traces(runs / "alone-single")[0]["losses"]
    assert traces(runs / f"{mode}-single")[0]["losses"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "groups"])
def test_in_bfloat16_they_differ_by_its_rounding(runs: Path, mode: str) -> None:
    """Losses of five steps: measured up to 3e-5, and bfloat16 has 2 to 3 digits."""
    expected = traces(runs / "alone-half")[0]["losses"]
    assert traces(runs / f"{mode}-half")[0]["losses"] == pytest.approx(expected, rel=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "one-ddp-to-two-fsdp", "one-ddp-to-two-tp", "two-fsdp-to-one-ddp", "two-tp-to-one-ddp",
        "two-fsdp-to-two-tp", "two-ddp-to-four-ddp", "two-tp-to-four-fsdp", "two-tp-to-four-tp",
        "four-tp-to-one-ddp",
    ],
)  # fmt: skip
def test_a_run_resumes_in_another_mode(runs: Path, run: str) -> None:
    """It stops after step 3; the last save was after step 2. So step 3 (counted from 0: 2) is done again."""
    full = seen(runs / "alone-whole")
    assert seen(runs / run, until=3) == full[:3]
    assert seen(runs / run, until=5) == full[2:]
    losses, expected = ([record["loss"] for record in records(runs / out)] for out in (run, "alone-whole"))
    assert losses == pytest.approx(expected, abs=1.1e-5)  # five places in the log
    assert difference(runs / "alone-whole", runs / run) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_resuming_is_exact(runs: Path, mode: str) -> None:
    """With dropout, the same processes: cut after step 3 it goes on from 2, bit for bit the same."""
    assert difference(runs / f"{mode}-once", runs / f"{mode}-again") == 0
    assert records(runs / f"{mode}-once")[-1]["loss"] == records(runs / f"{mode}-again")[-1]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fsdp", "tp"])
def test_each_process_writes_its_shard(runs: Path, mode: str) -> None:
    out = runs / f"{mode}-whole"
    newest = out / "checkpoints" / "step-00000005"
    sizes = {file.name: file.stat().st_size for file in newest.iterdir()}
    shards = [size for name, size in sizes.items() if name.startswith("shard-")]
    assert len(shards) == 2
    assert "training.safetensors" not in sizes
    assert max(shards) < 0.7 * sum(shards)
    assert Config.load(out).n_head == CONFIG.n_head  # the model's, not a process's


@pytest.mark.slow
def test_a_damaged_shard_is_named_and_the_save_before_it_used(data: Path, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "tp-whole", tmp_path / "run")
    newest, before = (tmp_path / "run" / "checkpoints" / f"step-{step:08d}" for step in (5, 4))
    shard = newest / "shard-00002-model-00001-of-00001.safetensors"
    flipped = bytearray(shard.read_bytes())
    flipped[-100] ^= 1
    shard.write_bytes(flipped)
    with pytest.warns(UserWarning, match=r"shard-00002.* is damaged: .* Resuming from the one before it"):
        do(data, tmp_path / "run", Part("run"), None)
    assert [part["step"] for part in traces(tmp_path / "run")[0]["seen"]] == [4]
    assert difference(runs / "alone-whole", tmp_path / "run") < 1e-10

    remove = [before / "rest.safetensors", newest / "training.safetensors"]  # the newest is now a plain one
    for file in remove:
        file.unlink()
    for folder in (tmp_path / "run" / "checkpoints").glob("step-00000002"):
        (folder / "DONE").write_text("{")
    with (
        pytest.warns(UserWarning, match=r"step-00000004.* is damaged"),
        pytest.raises(FileFormatError, match=r"no checkpoint in .* is intact"),
    ):
        do(data, tmp_path / "run", Part("run"), None)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "tp"])
def test_all_skip_a_step_that_is_bad_in_one_of_them(runs: Path, mode: str) -> None:
    out = runs / f"bad-{mode}"
    assert [record["step"] for record in records(out)] == [1, 2, 3, 4, 5]
    assert [record["step"] for record in records(out) if "skipped" in record] == [3]
    losses = [of_rank["losses"] for of_rank in traces(out)]
    assert [[loss == loss for loss in of_rank] for of_rank in losses] == [[True, True, False, True, True]] * 2
    assert all(np.isfinite(value).all() for value in weights(out).values())


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_ends_the_same(data: Path, tmp_path: Path) -> None:
    """kill -9 of one of two under `--max-restarts`: torchrun repeats the command."""
    runs = {}
    for name in ("ddp-whole", "ddp-cut", "tp-cut"):  # at once, as torch takes long to be imported
        starter = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
        command = ["train", "--data", str(data), "--out", str(tmp_path / name), "--device", "cpu"]
        shape = ["--shape", "2x32x2", "--dropout", "0", "--parallel", name.split("-")[0]]
        numbers = [
            "--steps",
            "40",
            "--batch-size",
            "4",
            "--context",
            "32",
            "--eval-batches",
            "1",
            "--save-every",
            "5",
        ]
        runs[name] = subprocess.Popen(
            [sys.executable, "-m", *starter, "-m", "glassgpt", *command, *shape, *numbers],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    waiting = {"ddp-cut", "tp-cut"}
    deadline = time.monotonic() + 1800
    while waiting:
        for name in list(waiting):
            assert runs[name].poll() is None, runs[name].stderr.read()
            if (tmp_path / name / "checkpoints" / "step-00000005" / "DONE").exists():
                kill_second(runs[name].pid)
                waiting.remove(name)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reported = {name: run.communicate(timeout=1800)[1] for name, run in runs.items()}
    assert [run.returncode for run in runs.values()] == [0] * 3, [text[-2000:] for text in reported.values()]
    assert [record["step"] for record in records(tmp_path / "ddp-whole")] == list(range(1, 41))
    expected = [record["loss"] for record in records(tmp_path / "ddp-whole")]
    for name in ("ddp-cut", "tp-cut"):
        assert any(sign in reported[name] for sign in ("SIGKILL", "Signal 9", "exitcode: -9"))
        losses = [record["loss"] for record in records(tmp_path / name)]
        # tp adds up in another order, in float32.
        assert losses == (expected if name == "ddp-cut" else pytest.approx(expected, rel=1e-5))
    assert difference(tmp_path / "ddp-whole", tmp_path / "ddp-cut") == 0


def kill_second(launcher: int) -> None:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    workers = [int(pid) for pid in children if b"glassgpt" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)


@pytest.mark.parametrize(
    ("mode", "changes", "message"),
    [
        ("zero", {}, "parallel 'zero' is not one of ddp, fsdp, tp"),
        ("tp", {"precision": "float16"}, "With tp choose bfloat16"),
    ],
)
def test_modes_that_cannot_be(
    data: Path, tmp_path: Path, mode: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        do(data, tmp_path / "run", Part("run", mode, changes=changes), None)
    assert not (tmp_path / "run").exists()


def test_heads_are_divided_evenly_or_not_at_all() -> None:
    check_divisible(CONFIG, 32, 4)
    with pytest.raises(
        SettingError, match=r"n_head 4 cannot be divided among 3.*Choose --tensor-parallel-size 4 or a"
    ):
        check_divisible(CONFIG, 32, 3)
    with pytest.raises(
        SettingError, match=r"context 30 cannot be divided among 4.*Choose --tensor-parallel-size 2 or a"
    ):
        check_divisible(CONFIG, 30, 4)
    with pytest.raises(SettingError, match="6 processes cannot form groups of 4"):
        make_mesh(torch.device("cpu"), 6, 4)


if __name__ == "__main__":
    jobs = [Part(**task) for task in json.loads(sys.argv[3])]
    work(Path(sys.argv[1]), Path(sys.argv[2]), jobs)
