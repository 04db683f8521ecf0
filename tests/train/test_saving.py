"""Saving in the background: the copy is of that moment, one save at a time, no failure goes unheard."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch

from glassgpt.errors import UserError
from glassgpt.files import find_interrupted_writes, remove
from glassgpt.train import step
from glassgpt.train.checkpoint.asynchronous import AsyncSaver
from glassgpt.train.checkpoint.load import read_training_state
from glassgpt.train.checkpoint.run_folder import checkpoint_path, clean_up, list_checkpoints
from glassgpt.train.loop import train_loop

from .test_loop import HELD_OUT, SETTINGS, Windows, fresh, run


def test_the_copy_is_of_that_moment(tmp_path: Path) -> None:
    weight = torch.zeros(3)
    written, moved = [], threading.Event()
    with AsyncSaver() as saver:
        copy = saver.copy("weight", weight)
        saver.start(lambda: (moved.wait(60), written.append(copy.tolist())))
        weight += 1  # the loop goes on while the save has not begun
        moved.set()
    assert written == [[0, 0, 0]]


def test_a_save_waits_for_the_one_before_it() -> None:
    events, go_on = [], threading.Event()
    with AsyncSaver() as saver:
        saver.start(lambda: (go_on.wait(60), events.append("first")))
        threading.Timer(0.05, go_on.set).start()
        saver.start(lambda: events.append("second"))
        assert events[0] == "first"
    assert events == ["first", "second"]


def test_an_error_is_raised_once_by_the_next_call() -> None:
    def fail() -> None:
        raise UserError("the disk is full")

    with AsyncSaver() as saver:
        saver.start(fail)
        with pytest.raises(UserError, match="disk is full"):
            saver.wait()
        saver.check()
    with pytest.raises(UserError, match="disk is full"), AsyncSaver() as saver:
        saver.start(fail)


def test_what_ended_the_run_is_raised_and_the_failed_save_remarked() -> None:
    def fail() -> None:
        raise UserError("the disk is full")

    def end() -> None:
        with AsyncSaver() as saver:
            saver.start(fail)
            raise KeyError

    with pytest.warns(UserWarning, match="disk is full"), pytest.raises(KeyError):
        end()


def test_a_failed_save_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three. The first is there to go on from."""
    from glassgpt.train.checkpoint import save as save_module

    write = save_module.write_run

    def fail_at_8(*arguments: object) -> None:
        if arguments[4] == 8:
            raise UserError("the disk is full")
        write(*arguments)

    monkeypatch.setattr(save_module, "write_run", fail_at_8)
    steps = train_loop(fresh(), Windows(SETTINGS), HELD_OUT, tmp_path, SETTINGS)
    with pytest.raises(UserError, match="disk is full"):
        list(steps)
    # The loop may be quicker than the thread, but it cannot come to the next save.
    assert len(run_log(tmp_path)) in (8, 9, 10, 11, 12)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000004"]
    monkeypatch.setattr(save_module, "write_run", write)
    assert run(fresh(), tmp_path)[0]["step"] == 5


def run_log(out: Path) -> list[str]:
    return (out / "log.jsonl").read_text().splitlines()


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    run(fresh(), tmp_path, stop=8)
    inside = tmp_path / "checkpoints"
    (tmp_path / ".model.safetensors.01234567.part").write_text("half")
    (inside / ".step-00000012.01234567.part").mkdir()
    (inside / ".step-00000012.01234567.part" / "DONE").write_text(
        "whole, but never to be seen: not moved yet"
    )
    (inside / "step-00000002").mkdir()  # being removed: DONE goes first
    (inside / "my-notes").mkdir()
    (tmp_path / ".keep").touch()
    clean_up(tmp_path)
    assert sorted(path.name for path in inside.iterdir()) == ["my-notes", "step-00000004", "step-00000008"]
    assert (tmp_path / ".keep").exists()
    assert find_interrupted_writes(tmp_path) == []


@pytest.mark.parametrize("new_is_whole", [True, False])
def test_a_checkpoint_between_two_renames_is_not_lost(tmp_path: Path, new_is_whole: bool) -> None:
    run(fresh(), tmp_path, stop=8)
    inside = tmp_path / "checkpoints"
    (inside / "step-00000008").rename(inside / ".step-00000008.01234567.old")
    (inside / "step-00000004").rename(inside / ".step-00000008.01234567.part")
    if not new_is_whole:
        (inside / ".step-00000008.01234567.part" / "DONE").unlink()
    clean_up(tmp_path)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000008"]
    _, facts = read_training_state(inside / "step-00000008")
    assert facts["step"] == ("4" if new_is_whole else "8")
    assert find_interrupted_writes(inside) == []


def test_a_damaged_checkpoint_of_a_later_step_is_not_counted(tmp_path: Path) -> None:
    """Else, with one to keep, a stop at step 6 would keep the damaged one of step 8 and remove its own."""
    settings = type(SETTINGS)(**{**vars(SETTINGS), "keep_checkpoints": 1, "eval_every": 100})
    run(fresh(), tmp_path, type(SETTINGS)(**{**vars(SETTINGS), "eval_every": 100}), stop=8)
    (tmp_path / "checkpoints" / "step-00000008" / "training.safetensors").write_bytes(b"damaged")
    asked = iter([False, True])
    with pytest.warns(UserWarning, match="is damaged"):
        steps = list(
            train_loop(fresh(), Windows(settings), HELD_OUT, tmp_path, settings, stop=lambda: next(asked))
        )
    assert [record["step"] for record in steps] == [5, 6]
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000006", "step-00000008"]
    remove(tmp_path / "checkpoints" / "step-00000008")
    assert run(fresh(), tmp_path)[0]["step"] == 7


def test_deterministic_mode_is_on_for_updates_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples between the steps may use what torch knows no fixed order for."""
    backward, modes = step.backward_micro_batches, []

    def watched(*arguments: object) -> object:
        modes.append(torch.are_deterministic_algorithms_enabled())
        return backward(*arguments)

    monkeypatch.setattr(step, "backward_micro_batches", watched)
    settings = type(SETTINGS)(**{**vars(SETTINGS), "deterministic": True})
    for _ in train_loop(fresh(), Windows(settings), HELD_OUT, tmp_path, settings):
        modes.append(torch.are_deterministic_algorithms_enabled())
    assert modes == [True, False] * settings.steps


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_run_on_a_gpu_is_bit_for_bit_the_same(tmp_path: Path, precision: str) -> None:
    """In deterministic mode, with dropout and accumulation."""
    changes = {"precision": precision, "deterministic": True, "micro_batch_size": 2}
    settings = type(SETTINGS)(**{**vars(SETTINGS), **changes})
    full = fresh().cuda()
    expected = run(full, tmp_path / "whole", settings)
    run(fresh().cuda(), tmp_path / "cut", settings, stop=6)
    torch.manual_seed(999)
    resumed = fresh().cuda()
    rest = run(resumed, tmp_path / "cut", settings)
    assert [record["loss"] for record in rest] == [record["loss"] for record in expected[4:]]
    for name, value in full.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_copy_from_a_gpu_stands_between_the_steps() -> None:
    """The weights are changed right after the copy was asked for, before it can have been made."""
    weight = torch.zeros(1 << 24, device="cuda")
    sums: list[float] = []
    with AsyncSaver() as saver:
        for step in range(5):
            saver.wait()
            copy = saver.copy("weight", weight)
            saver.start(lambda copy=copy: sums.append(copy.double().mean().item()))
            weight += 1
            assert copy.is_pinned(), step
    assert sums == [0, 1, 2, 3, 4]


def test_what_the_last_save_had_no_time_to_remove_goes_when_the_run_is_opened(tmp_path: Path) -> None:
    settings = type(SETTINGS)(**{**vars(SETTINGS), "keep_checkpoints": 1, "eval_every": 100, "save_every": 2})
    run(fresh(), tmp_path, settings)
    last = list_checkpoints(tmp_path)[-1]
    shutil.copytree(last, checkpoint_path(tmp_path, 1))  # as if a kill had come before its removal
    assert len(list_checkpoints(tmp_path)) == 2
    run(fresh(), tmp_path, settings)
    assert list_checkpoints(tmp_path) == [last]


def test_ctrl_c_before_the_thread_has_started_is_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), AsyncSaver() as saver:
        saver.start(lambda: None)
