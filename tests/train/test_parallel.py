"""Many processes train what one would have trained: on the CPU, with gloo, as torchrun starts them.

Torch takes seconds to start, so two launches (of two and of four processes) do all jobs, one after the other,
and the tests look at what they left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.distributed.tensor import DTensor

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.train import loop
from glassgpt.train.loader import Loader
from glassgpt.train.parallel import check_division
from glassgpt.train.settings import TrainSettings
from glassgpt.train.shards import Shards
from glassgpt.train.team import group_of, joined, leave, made_mesh

# The real model, small: tied head, fused c_attn, and a vocabulary and a batch that 2 does not divide.
CONFIG = Config(
    vocab_size=51, n_positions=32, n_embd=32, n_layer=2, n_head=4,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip
SETTINGS = {
    "steps": 5, "rows": 5, "context": 32, "lr": 3e-3, "warmup": 2, "eval_every": 2, "save_every": 2,
    "keep": 9,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A run, or a part of one: `until` a step, going on from what is saved in `out`."""

    out: str
    plan: str = "ddp"
    tensor: int | None = None
    until: int = 5
    double: bool = True
    bad: int | None = None  # in this step the second process has a weight that is NaN
    changes: dict[str, object] = field(default_factory=dict)


def work(data: Path, root: Path, jobs: list[Job]) -> None:
    """What each process does; it leaves behind which tokens it saw, and the exact losses."""
    with joined(torch.device("cpu")) as (_, mesh):
        for job in jobs:
            if mesh is not None:
                world = int(os.environ["WORLD_SIZE"])
                mesh = made_mesh(torch.device("cpu"), world, job.tensor if job.plan == "tp" else 1)
            do(data, root / job.out, job, mesh)
    if mesh is not None:
        leave()


def do(data: Path, out: Path, job: Job, mesh: object) -> None:
    settings = TrainSettings(**{**SETTINGS, **job.changes})
    loader = Loader(Shards.open(data), settings.context, settings.rows, seed=3)
    held_out = [loader.batch(1000), loader.batch(1001)[:3]]
    torch.manual_seed(1)
    model = GPT2(CONFIG)
    model = model.double() if job.double else model
    seen, losses = [], []
    group, groups = group_of(mesh)
    rank = 0 if mesh is None else mesh.get_rank()

    def batches(step: int) -> Iterator[torch.Tensor]:
        while True:
            if rank == 1 and job.bad is not None:
                poison(model, step + 1 - job.bad)
            batch = loader.batch(step, group, groups)
            seen.append({"step": step, "rows": batch.tolist()})
            yield batch
            step += 1

    def learn(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        loss, tokens = LEARN(*arguments)
        losses.append(loss.item())
        return loss, tokens

    loop.learn = learn  # the log rounds to five places
    for record in loop.train(model, batches, held_out, out, settings, mesh=mesh, plan=job.plan):
        if record["step"] == job.until:
            break
    told = {"group": group, "seen": seen, "losses": losses}
    (out / f"until-{job.until}-{rank}.json").write_text(json.dumps(told))


LEARN = loop.learn


@torch.no_grad()
def poison(model: GPT2, steps_since: int) -> None:
    """Of a shared weight, this process's share. Afterwards it is put right again: it was about 1."""
    weight = model.ln_f.weight
    share = weight.to_local() if isinstance(weight, DTensor) else weight
    if steps_since in (0, 1):
        share[0] = float("nan") if steps_since == 0 else 1.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (np.cumsum(rng.integers(1, 4, 4000)) % 51).astype("<u2").tofile(folder / "train.bin")
    return folder


def together(processes: int, data: Path, root: Path, jobs: list[Job]) -> None:
    """The same work by so many processes."""
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    arguments = [str(data), str(root), json.dumps([asdict(job) for job in jobs])]
    done = subprocess.run(
        [sys.executable, *starter, __file__, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]


PARITY = [
    Job(f"{plan}-{name}", plan, changes=changes, double=double)
    for plan in ("ddp", "fsdp", "tp")
    for name, changes, double in [
        ("whole", {}, True), ("micro", {"micro_rows": 1, "recompute": True}, True), ("single", {}, False),
    ]
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: alone, by two processes, by four, and begun by some and ended by others."""
    root = tmp_path_factory.mktemp("runs")
    alone = [Job("alone"), Job("alone-single", double=False)]
    alone += [Job(f"one-ddp-to-two-{plan}", until=3) for plan in ("fsdp", "tp")]
    work(data, root, alone)
    two = [*PARITY]
    two += [Job(f"one-ddp-to-two-{plan}", plan) for plan in ("fsdp", "tp")]
    two += [Job(f"two-{plan}-to-one-ddp", plan, until=3) for plan in ("fsdp", "tp")]
    two += [Job("two-fsdp-to-two-tp", "fsdp", until=3), Job("two-fsdp-to-two-tp", "tp")]
    two += [Job("two-ddp-to-four-ddp", until=3), Job("two-tp-to-four-fsdp", "tp", until=3)]
    two += [Job("two-tp-to-four-tp", "tp", until=3)]
    two += [Job(f"bad-{plan}", plan, bad=3, changes={"skip_bad_steps": 1}) for plan in ("ddp", "fsdp", "tp")]
    together(2, data, root, two)
    four = [Job("tp-groups", "tp", 2), Job("two-ddp-to-four-ddp"), Job("two-tp-to-four-fsdp", "fsdp")]
    four += [Job("two-tp-to-four-tp", "tp", 4), Job("four-tp-to-one-ddp", "tp", 2, until=3)]
    together(4, data, root, four)
    ended = ("two-fsdp-to-one-ddp", "two-tp-to-one-ddp", "four-tp-to-one-ddp")
    work(data, root, [Job(out) for out in ended])
    return root


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, np.ndarray]:
    return load_file(out / "model.safetensors")


def told(out: Path, until: int = 5) -> list[dict]:
    """What the processes left behind, in the order of their ranks."""
    files = sorted(out.glob(f"until-{until}-*.json"), key=lambda file: int(file.stem.split("-")[2]))
    return [json.loads(file.read_text()) for file in files]


def seen(out: Path, until: int = 5) -> list[list]:
    """The rows of each step in order, put together from what each group saw."""
    groups = {of_rank["group"]: of_rank["seen"] for of_rank in told(out, until)}
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
@pytest.mark.parametrize("run", [job.out for job in PARITY if job.double] + ["tp-groups"])
def test_many_processes_train_what_one_would(runs: Path, run: str) -> None:
    """Five rows for two: one has two and one three, and the mean is still that over all tokens.

    In float64, so that what is left is what the processes do (the loss itself is added up in float32).
    """
    assert difference(runs / "alone", runs / run) < 1e-6
    for ours, expected in zip(records(runs / run), records(runs / "alone"), strict=True):
        # The log rounds to five places: sums in another order may fall on the other side.
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1.1e-5)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1.1e-4)
        assert ours.get("val_loss") == pytest.approx(expected.get("val_loss"), abs=1.1e-5)
    expected = told(runs / "alone")[0]["losses"]
    for of_rank in told(runs / run):
        assert of_rank["losses"] == pytest.approx(expected, rel=1e-6)
    assert len(seen(runs / run)[0]) == 1 + 5
    assert seen(runs / run) == seen(runs / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["ddp", "fsdp", "tp"])
def test_in_float32_they_differ_by_rounding(runs: Path, plan: str) -> None:
    """Losses relative, weights absolute, after five steps: measured up to 1.3e-7 and 6e-7.

    The bias of the keys is left out. It adds the same to all scores of a query, so its true gradient is zero
    (and it changes no output): AdamW makes steps out of the rounding error that is left, measured 5e-6.
    """
    one, many = weights(runs / "alone-single"), weights(runs / f"{plan}-single")
    width = CONFIG.n_embd
    for name in one:
        gap = np.abs(one[name] - many[name])
        if name.endswith("c_attn.bias"):
            assert gap[width : 2 * width].max() < 1e-4
            gap[width : 2 * width] = 0
        assert gap.max() < 1e-6, name
    expected = told(runs / "alone-single")[0]["losses"]
    assert told(runs / f"{plan}-single")[0]["losses"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "one-ddp-to-two-fsdp", "one-ddp-to-two-tp", "two-fsdp-to-one-ddp", "two-tp-to-one-ddp",
        "two-fsdp-to-two-tp", "two-ddp-to-four-ddp", "two-tp-to-four-fsdp", "two-tp-to-four-tp",
        "four-tp-to-one-ddp",
    ],
)  # fmt: skip
def test_a_run_goes_on_with_others(runs: Path, run: str) -> None:
    """It stops after step 3; the last save was after step 2. So step 3 (counted from 0: 2) is done again."""
    whole = seen(runs / "alone")
    assert seen(runs / run, until=3) == whole[:3]
    assert seen(runs / run, until=5) == whole[2:]
    losses, expected = ([record["loss"] for record in records(runs / out)] for out in (run, "alone"))
    assert losses == pytest.approx(expected, abs=1.1e-5)  # five places in the log
    assert difference(runs / "alone", runs / run) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["ddp", "fsdp", "tp"])
def test_all_skip_a_step_that_is_bad_in_one_of_them(runs: Path, plan: str) -> None:
    out = runs / f"bad-{plan}"
    assert [record["step"] for record in records(out)] == [1, 2, 3, 4, 5]
    assert [record["step"] for record in records(out) if "skipped" in record] == [3]
    losses = [of_rank["losses"] for of_rank in told(out)]
    assert [[loss == loss for loss in of_rank] for of_rank in losses] == [[True, True, False, True, True]] * 2
    assert all(np.isfinite(value).all() for value in weights(out).values())


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_ends_the_same(data: Path, tmp_path: Path) -> None:
    """kill -9 of one of two under `--max-restarts`, with dropout on: torchrun repeats the command."""
    plans = ("ddp", "tp")
    outs = [tmp_path / f"{plan}-{what}" for plan in plans for what in ("whole", "cut")]
    runs = {}
    for out in outs:  # all at once, as most of the time is spent waiting for torch to be imported
        starter = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
        command = ["train", "--data", str(data), "--out", str(out), "--device", "cpu", "--shape", "2x32x2"]
        numbers = ["--steps", "40", "--rows", "4", "--context", "32", "--eval-rows", "4", "--save-every", "5"]
        plan = ["--parallel", out.name.split("-")[0]]
        runs[out] = subprocess.Popen(
            [sys.executable, "-m", *starter, "-m", "glassgpt", *command, *numbers, *plan],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    waiting = {out for out in outs if out.name.endswith("cut")}
    deadline = time.monotonic() + 300
    while waiting:
        for out in list(waiting):
            assert runs[out].poll() is None, runs[out].stderr.read()
            if (out / "checkpoints" / "step-00000005" / "DONE").exists():
                kill_second(runs[out].pid)
                waiting.remove(out)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told = {out: run.communicate(timeout=300)[1] for out, run in runs.items()}
    assert [run.returncode for run in runs.values()] == [0] * 4, [text[-2000:] for text in told.values()]
    for plan in plans:
        whole, cut = tmp_path / f"{plan}-whole", tmp_path / f"{plan}-cut"
        assert any(sign in told[cut] for sign in ("SIGKILL", "Signal 9", "exitcode: -9"))
        expected, losses = ([(line["step"], line["loss"]) for line in records(out)] for out in (whole, cut))
        assert [step for step, _ in expected] == list(range(1, 41))
        assert losses == expected
        assert difference(whole, cut) == 0


def kill_second(launcher: int) -> None:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    workers = [int(pid) for pid in children if b"glassgpt" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        ("zero", {}, "parallel 'zero' is not one of ddp, fsdp, tp"),
        ("fsdp", {"muon_lr": 0.02}, "muon_lr moves whole matrices"),
        ("tp", {"precision": "float16"}, "With tp choose bfloat16"),
    ],
)
def test_plans_that_cannot_be(
    data: Path, tmp_path: Path, plan: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        do(data, tmp_path / "run", Job("run", plan, changes=changes), None)
    assert not (tmp_path / "run").exists()


def test_heads_are_divided_evenly_or_not_at_all() -> None:
    check_division(CONFIG, 32, 4)
    with pytest.raises(SettingError, match=r"n_head 4 cannot be divided among 3.*Choose --tensor 4 or a"):
        check_division(CONFIG, 32, 3)
    with pytest.raises(SettingError, match=r"context 30 cannot be divided among 4.*Choose --tensor 2 or a"):
        check_division(CONFIG, 30, 4)
    with pytest.raises(SettingError, match="6 processes do not make groups of 4"):
        made_mesh(torch.device("cpu"), 6, 4)


if __name__ == "__main__":
    jobs = [Job(**job) for job in json.loads(sys.argv[3])]
    work(Path(sys.argv[1]), Path(sys.argv[2]), jobs)
