"""kill -9 at any moment, and full disks: what was saved is whole, and the run that goes on ends as one that
was never cut.

A server that has torch imported already forks the processes to be killed: a start costs a tenth of a second.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from glassgpt.backends.torch.backend import load_model
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import UserError
from glassgpt.files import find_interrupted_writes
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train import estimate
from glassgpt.train.checkpoint.load import read_training_state
from glassgpt.train.checkpoint.run_folder import checkpoint_path, list_checkpoints
from glassgpt.train.finetune.run import prepare_run, train_run
from glassgpt.train.finetune.settings import schedule
from glassgpt.train.finetune.state import STATE, read_state, state_folder
from glassgpt.train.loop import train_loop
from glassgpt.train.settings import TrainSettings
from glassgpt.train.trainer import RunConfig, Trainer, check_config
from glassgpt.weights import Checkpoint, load_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs forks and /proc")

# Dropout is on by default. A save after every step: most moments fall into one.
SETTINGS = TrainSettings(
    steps=24, batch_size=4, micro_batch_size=2, context=32, lr=1e-2, optimizer="muon", warmup_steps=3,
    eval_every=4, eval_batches=1, save_every=1, keep_checkpoints=2,
)  # fmt: skip
RANDOM_KILLS = 20
KILLS_IN_SAVES = 10
PATIENCE = 1800  # seconds: a loaded machine is slow, but not for ever


def steps_of(data: Path, out: Path) -> Iterator[int]:
    """What `glassgpt train` does, without its reports: start, or resume where the folder stands."""
    config = RunConfig(
        data=str(data), out=out, settings=SETTINGS, shape="2x32x2", resume=bool(list_checkpoints(out))
    )
    trainer = Trainer(*check_config(config), torch.device("cpu"))
    trainer.prepare_folder()
    with ExitStack() as stack:
        batches = lambda step: stack.enter_context(trainer.batches(step))  # noqa: E731
        for record in train_loop(
            trainer.model, batches, trainer.held_out, out, trainer.settings, data=trainer.loader.identity
        ):
            yield record["step"]


def run_once(data: Path, out: Path) -> None:
    for _ in steps_of(data, out):
        pass


def live_until_full(data: Path, out: Path, fill: Callable[[Path], None], reported: Path) -> None:
    """After step 6 the disk is full. What the user is told goes into a file elsewhere."""
    try:
        for step in steps_of(data, out):
            if step == 6:
                fill(out)
    except UserError as error:
        reported.write_text(str(error))


def fill_disk(out: Path) -> None:
    with suppress(OSError), open(out.parent / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def limit_files(out: Path) -> None:
    """No file of this process may become larger than half of what a checkpoint takes."""
    limit = (list_checkpoints(out)[-1] / "training.safetensors").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., BaseProcess]]:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["pytest", "torch._dynamo", "glassgpt.cli", "glassgpt.train.trainer"])
    threads, os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS"), "1"

    def started(work: Callable[..., None], *arguments: object) -> BaseProcess:
        process = server.Process(target=work, args=arguments)
        process.start()
        return process

    yield started
    if threads is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = threads


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    ByteTokenizer().save(folder / "bytes")
    for name in range(10):
        days = range(30 * name, 30 * name + 30)
        (folder / f"{name}.txt").write_text(
            "".join(f"Day {n}: {'wet' if n % 3 else 'fair'}.\n" for n in days)
        )
    texts = [str(folder / f"{name}.txt") for name in range(10)]
    arguments = ["prepare", *texts, "-o", str(folder / "shards"), "--tokenizer", str(folder / "bytes")]
    assert main([*arguments, "--val-fraction", "0.2", "--workers", "1"]) == 0
    return folder / "shards"


@pytest.fixture(scope="module")
def full(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody cuts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_once(data, out)
    return out


def records(out: Path) -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]


def is_saving(out: Path) -> bool:
    """Whether something lies there half-written or half-removed."""
    folders = [folder for folder in (out / "checkpoints").glob("step-*") if not (folder / "DONE").exists()]
    return bool(find_interrupted_writes(out) + find_interrupted_writes(out / "checkpoints") + folders)


def assert_sound(out: Path) -> None:
    """From the first save on: every checkpoint is whole, the best is there, the folder is a model."""
    found = list_checkpoints(out)
    if not found:
        return
    facts = [read_training_state(folder)[1] for folder in found][-1]
    best = json.loads(facts["best"])
    assert best is None or checkpoint_path(out, best[1]) in found
    checkpoint = load_checkpoint(str(out))
    assert checkpoint.tokenizer is not None
    model = load_model(checkpoint, device="cpu", dtype="float32")
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]]))).all()
    assert json.loads((out / "settings.json").read_text())["steps"] == SETTINGS.steps


def assert_same(out: Path, full: Path) -> None:
    assert records(out) == records(full)
    files = (
        "model.safetensors",
        f"checkpoints/step-{SETTINGS.steps:08d}/training.safetensors",
        "config.json",
    )
    for name in files:  # weights; optimizers, random numbers and position; shape
        assert (out / name).read_bytes() == (full / name).read_bytes(), name
    assert not is_saving(out)
    assert [folder.name for folder in list_checkpoints(out)] == [
        folder.name for folder in list_checkpoints(full)
    ]


def kill_at_random(process: BaseProcess, out: Path, longest: float) -> None:
    process.join(random.uniform(0, longest))
    process.kill()


def kill_in_a_save(process: BaseProcess, out: Path, longest: float) -> None:
    """Freeze it now and then; where it is found saving, it stays so for ever."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        while process.is_alive():
            time.sleep(random.uniform(0, 0.01))
            os.kill(process.pid, signal.SIGSTOP)
            while not is_stopped(process.pid):
                time.sleep(0.0005)
            if is_saving(out):
                process.kill()
                break
            os.kill(process.pid, signal.SIGCONT)


def is_stopped(process: int) -> bool:
    """Each of its threads: the one that saves may still be in the middle of a rename."""
    stats = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "wanted"), [(kill_at_random, RANDOM_KILLS), (kill_in_a_save, KILLS_IN_SAVES)]
)
def test_a_run_killed_at_any_moment_goes_on_bit_for_bit(
    start: Callable[..., BaseProcess],
    data: Path,
    full: Path,
    tmp_path: Path,
    kill: Callable[[BaseProcess, Path, float], None],
    wanted: int,
) -> None:
    start(time.sleep, 0).join(PATIENCE)  # the server itself takes some time to start
    begun = time.monotonic()
    start(run_once, data, tmp_path / "timed").join(PATIENCE)
    longest = (time.monotonic() - begun) / 2
    assert_same(tmp_path / "timed", full)

    runs, kills, in_saves = 0, 0, 0
    while kills < wanted:
        runs += 1
        out = tmp_path / f"run-{runs}"
        alive = True
        while alive:
            process = start(run_once, data, out)
            if kills < wanted:
                kill(process, out, longest)
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL), "the run could not go on"
            alive = process.exitcode != 0
            kills += alive
            in_saves += alive and is_saving(out)
            assert_sound(out)
            assert time.monotonic() - begun < PATIENCE
        assert_same(out, full)
    assert kill is kill_at_random or in_saves == wanted
    print(f"{kills} kills, {in_saves} of them in a save, in {runs} runs")


CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def live_until_change(data: Path, out: Path, number: int) -> None:
    """Killed just before the change of that number to what the folder holds.

    Only the log may be written to under its own name. Python tells a hook of everything that is about to
    happen to files. (Inside of `rmtree` their names are relative.)
    """
    seen = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wxa":
            path = str(arguments[0])
            inside = path.startswith(str(out))
            if inside and ".part" not in path and path != str(out / "log.jsonl"):
                os._exit(99)
        elif event in CHANGES:
            path = str(arguments[0])
            inside = path.startswith(str(out)) or (event != "os.mkdir" and not path.startswith("/"))
        else:
            return
        seen += inside
        if inside and seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    run_once(data, out)


@pytest.mark.slow
def test_a_kill_in_any_gap_between_two_files_is_harmless(
    start: Callable[..., BaseProcess], data: Path, full: Path, tmp_path: Path
) -> None:
    """Each life goes one change further than the one before: through its start and its first saves."""
    out = tmp_path / "run"
    for number in range(1, 1000):
        process = start(live_until_change, data, out, number)
        process.join(PATIENCE)
        assert_sound(out)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert number > 25  # a start makes about 5 changes, a save 12
    assert_same(out, full)


def tune_until_change(text: Path, out: Path, number: int) -> None:
    """Begin a tuning, or go on with it, until just before that change to the folders; 0 is never."""
    estimate.measure_throughput = lambda *of: 1e5  # type: ignore[assignment]
    estimate.measure_peak_flops = lambda *of: 1e12  # type: ignore[assignment]
    torch.manual_seed(0)
    config = Config(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=1)
    tensors = {name: value.numpy() for name, value in GPT2(config).state_dict().items()}
    start = Checkpoint(config, tensors, ByteTokenizer(), source="small")
    saved = read_state(out) if (state_folder(out) / STATE).exists() else None
    tuning = prepare_run(start, [text], torch.device("cpu"), saved=saved, out=out)
    if saved is None:
        tuning.settings = schedule(
            dataclasses.replace(tuning.settings, steps=30, precision="float32", lr=5e-3)
        )
    seen = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in CHANGES and str(arguments[0]).startswith(str(out.parent)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    for _ in train_run(tuning, out, 1e6):
        pass


@pytest.mark.slow
def test_a_tuning_killed_between_any_two_files_goes_on_exactly(
    start: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    text = tmp_path / "tides.txt"
    text.write_text("".join(f"At {n % 24} the tide was {'in' if n % 2 else 'out'}.\n" for n in range(200)))
    (tmp_path / "a").mkdir()
    process = start(tune_until_change, text, tmp_path / "a" / "out", 0)
    process.join(PATIENCE)
    assert process.exitcode == 0
    (tmp_path / "b").mkdir()
    out = tmp_path / "b" / "out"
    kills = 0
    for number in range(3, 1000, 6):  # each life goes a little further than the one before
        process = start(tune_until_change, text, out, number)
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode == 0:
            break
        kills += 1
    assert kills >= 4  # a look makes about 20 changes
    assert (out / "model.safetensors").read_bytes() == (
        tmp_path / "a" / "out" / "model.safetensors"
    ).read_bytes()
    assert [entry.name for entry in (tmp_path / "b").iterdir()] == ["out"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def assert_nothing_is_lost(
    start: Callable[..., BaseProcess], data: Path, out: Path, full: Path, fill: Callable[[Path], None]
) -> None:
    reported = data.parent / f"told-{fill.__name__}"
    process = start(live_until_full, data, out, fill, reported)
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert "the disk is full" in reported.read_text()
    assert str(out) in reported.read_text()
    assert len(reported.read_text().splitlines()) == 1
    assert_sound(out)
    assert checkpoint_path(out, 5) in list_checkpoints(out)
    (out.parent / "ballast").unlink(missing_ok=True)
    run_once(data, out)
    assert_same(out, full)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(
    start: Callable[..., BaseProcess], data: Path, full: Path, small_disk: Path
) -> None:
    assert_nothing_is_lost(start, data, small_disk / "run", full, fill_disk)


@pytest.mark.slow
def test_a_quota_loses_nothing(
    start: Callable[..., BaseProcess], data: Path, full: Path, tmp_path: Path
) -> None:
    assert_nothing_is_lost(start, data, tmp_path / "run", full, limit_files)
