"""From format to format, and never at the cost of a file that was there before."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write
from glassgpt.files.byte_reader import ByteReader
from glassgpt.weights import Checkpoint, convert, load_checkpoint, safetensors_file, save_checkpoint
from glassgpt.weights.conversion import max_abs_error
from glassgpt.weights.registry import format_for
from tests.weights.conftest import assert_same, random_checkpoint

EXACT = {"hf": "m", "nanogpt": "m.pt", "llmc": "m.bin", "gguf": "m.gguf", "openai": "m"}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(EXACT, 2)))
def test_every_path_between_exact_formats_is_exact(first: str, second: str, tmp_path: Path) -> None:
    ours = random_checkpoint()
    save_checkpoint(ours, tmp_path / "a" / EXACT[first], format=first)
    report = convert(tmp_path / "a" / EXACT[first], tmp_path / "b" / EXACT[second], format=second)
    assert (report.source_format, report.target_format) == (first, second)
    assert [t.name for t in report] == list(ours.config.shapes())
    assert report.max_abs_error == 0
    assert_same(load_checkpoint(tmp_path / "b" / EXACT[second]).tensors, ours.tensors)


def test_a_change_of_dtype_is_measured(tmp_path: Path) -> None:
    ours = random_checkpoint()
    save_checkpoint(ours, tmp_path / "m")
    report = convert(tmp_path / "m", tmp_path / "half", dtype="float16")
    for entry in report:
        exact = ours.tensors[entry.name]
        error = np.abs(exact.astype(np.float16).astype(np.float64) - exact).max()
        assert (entry.source_dtype, entry.target_dtype) == ("float32", "float16")
        assert entry.max_abs_error == error
    with pytest.raises(SettingError, match="dtype 'int3'"):
        convert(tmp_path / "m", tmp_path / "other", dtype="int3")
    assert not (tmp_path / "other").exists()


def test_a_modelfile_for_ollama(tmp_path: Path) -> None:
    report = convert("tiny", tmp_path / "tiny.gguf", modelfile=True)
    place = tmp_path / "Modelfile"
    assert place.read_text().splitlines() == [
        "FROM ./tiny.gguf",
        'TEMPLATE """{{ .Prompt }}"""',
        f"PARAMETER num_ctx {load_checkpoint('tiny').config.n_positions}",
        'PARAMETER stop "<|endoftext|>"',
    ]
    assert f"ollama create tiny -f {place}" in report.notes[-1]
    with pytest.raises(SettingError, match=r"Modelfile exists\. Add --force"):
        convert("tiny", tmp_path / "again.gguf", modelfile=True)
    assert not (tmp_path / "again.gguf").exists()
    with pytest.raises(SettingError, match=r"is for a \.gguf file"):
        convert("tiny", tmp_path / "folder", modelfile=True)


def test_the_name_of_the_target_says_the_format() -> None:
    names = {
        "a.gguf": "gguf",
        "a.bin": "llmc",
        "a.pt": "nanogpt",
        "a.safetensors": "hf",
        "a": "hf",
        "v1.5": "hf",
    }
    assert {name: format_for(name) for name in names} == names
    with pytest.raises(SettingError, match=r"\.onnx does not determine"):
        format_for("a.onnx")


def test_the_report_says_where_the_tokenizer_went(tmp_path: Path) -> None:
    from glassgpt.tokenizer import ByteTokenizer

    ours = random_checkpoint()
    save_checkpoint(ours, tmp_path / "without")
    assert any("no tokenizer" in note for note in convert(tmp_path / "without", tmp_path / "w.bin").notes)
    ours.tokenizer = ByteTokenizer()
    save_checkpoint(ours, tmp_path / "with")
    assert convert(tmp_path / "with", tmp_path / "again").notes == []
    (note,) = convert(tmp_path / "with", tmp_path / "files" / "m.bin").notes
    assert str(tmp_path / "files" / "tokenizer.json") in note
    assert load_checkpoint(tmp_path / "files" / "m.bin").tokenizer.hash == ours.tokenizer.hash
    assert convert(tmp_path / "with", tmp_path / "files" / "m.pt").notes[1:] == []  # it lies there already


def test_a_tokenizer_of_another_model_is_not_replaced(tmp_path: Path) -> None:
    from glassgpt.tokenizer import ByteTokenizer, CharTokenizer

    ours = random_checkpoint()
    ours.tokenizer = ByteTokenizer()
    save_checkpoint(ours, tmp_path / "with")
    CharTokenizer("a few letters").save(tmp_path / "files")
    before = (tmp_path / "files" / "tokenizer.json").read_bytes()
    (note,) = convert(tmp_path / "with", tmp_path / "files" / "m.bin").notes
    assert "is a different one" in note
    assert (tmp_path / "files" / "tokenizer.json").read_bytes() == before


def test_the_report_says_why_a_tokenizer_could_not_be_read(tmp_path: Path) -> None:
    from glassgpt.weights import gguf, gguf_file

    save_checkpoint(random_checkpoint(), tmp_path / "m.gguf", format="gguf")
    file = gguf_file.read_gguf(tmp_path / "m.gguf")
    kept = [
        gguf_file.GGUFTensorToWrite(name, tensor.shape, tensor.kind, functools.partial(file.bytes_of, tensor))
        for name, tensor in file.tensors.items()
    ]
    foreign = {**file.settings, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    gguf_file.write_gguf(tmp_path / "foreign.gguf", foreign, kept)
    why_not = gguf.load(tmp_path / "foreign.gguf").notes["tokenizer"]
    assert "llama" in why_not
    (note,) = convert(tmp_path / "foreign.gguf", tmp_path / "out").notes
    assert note == f"the source has a tokenizer that cannot be read ({why_not}), so none was written"


def test_no_name_is_not_the_folder_we_are_in(
    small: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(small, tmp_path / "m")
    monkeypatch.chdir(tmp_path / "m")
    with pytest.raises(UserError, match="name is empty"):
        load_checkpoint("")
    with pytest.raises(UserError, match="name is empty"):
        convert("", tmp_path / "out")
    with pytest.raises(UserError, match="name is empty"):
        convert("m", "", force=True)
    assert_same(load_checkpoint(".").tensors, small.tensors)


def test_unknown_format(small: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="format 'tf' is not one of hf, gguf"):
        save_checkpoint(small, tmp_path / "m", format="tf")


@pytest.mark.parametrize(
    ("target", "dtype", "words"),
    [
        ("m", "foo", "dtype 'foo' is not one of float32, float16, bfloat16, int8, int4, q8_0, q4_0, q4_k."),
        (
            "m.gguf",
            "foo",
            "dtype 'foo' is not one of float32, float16, bfloat16, int8, int4, q8_0, q4_0, q4_k.",
        ),
        ("m", "q4_0", "hf files do not hold q4_0; gguf files do."),
        ("m.safetensors", "int4", "hf files do not hold int4; packed and gguf files do."),
    ],
)
def test_a_dtype_that_a_format_does_not_have(
    small: Checkpoint, tmp_path: Path, target: str, dtype: str, words: str
) -> None:
    save_checkpoint(small, tmp_path / "source")
    with pytest.raises(SettingError, match=re.escape(words)):
        convert(tmp_path / "source", tmp_path / target, dtype=dtype)
    assert not (tmp_path / target).exists()


def test_an_existing_target_is_kept_unless_forced(tmp_path: Path) -> None:
    save_checkpoint(random_checkpoint(seed=1), tmp_path / "a")
    save_checkpoint(random_checkpoint(seed=2), tmp_path / "b")
    with pytest.raises(SettingError, match=r"exists\. Choose another target"):
        convert(tmp_path / "a", tmp_path / "b")
    assert_same(load_checkpoint(tmp_path / "b").tensors, random_checkpoint(seed=2).tensors)
    convert(tmp_path / "a", tmp_path / "b", force=True)
    assert_same(load_checkpoint(tmp_path / "b").tensors, random_checkpoint(seed=1).tensors)
    (tmp_path / "empty").mkdir()
    convert(tmp_path / "a", tmp_path / "empty")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "empty"]


def test_the_source_is_never_the_target(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "m")
    (tmp_path / "link").symlink_to(tmp_path / "m")
    for source, target in (("m", "m"), ("m", "link"), ("link", "m"), ("m/model.safetensors", "m")):
        with pytest.raises(SettingError, match="contains the source"):
            convert(tmp_path / source, tmp_path / target, force=True)
    assert_same(load_checkpoint(tmp_path / "m").tensors, small.tensors)


def test_a_folder_with_other_things_in_it_is_never_replaced(small: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(small, tmp_path / "m")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.doc").write_text("years of work")
    for action in (
        lambda: convert(tmp_path / "m", tmp_path / "home", force=True),
        lambda: save_checkpoint(small, tmp_path / "home"),
    ):
        with pytest.raises(SettingError, match=r"thesis\.doc"):
            action()
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["thesis.doc"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_device_or_a_pipe_is_never_replaced(small: Checkpoint, tmp_path: Path) -> None:
    """As root, `convert ... /dev/null --force` would put a file where the device was."""
    save_checkpoint(small, tmp_path / "m")
    os.mkfifo(tmp_path / "pipe")
    for action in (
        lambda: convert(tmp_path / "m", tmp_path / "pipe", "gguf", force=True),
        lambda: save_checkpoint(small, tmp_path / "pipe", "gguf"),
    ):
        with pytest.raises(SettingError, match="a device or a pipe"):
            action()
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(SettingError, match="null byte"):
        convert(tmp_path / "m", "a\0b")


class FullAfterSomeWrites:
    """A file on a disk that has room for five pieces more."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.left = file, 5

    def write(self, piece: bytes) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(piece)

    def __enter__(self) -> FullAfterSomeWrites:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weights are written, there is no more room."""

    def opened(path: Path, mode: str = "r") -> object:
        file = open(path, mode)  # noqa: SIM115
        return FullAfterSomeWrites(file) if mode == "wb" else file

    for module in ("safetensors_file", "llmc"):
        monkeypatch.setattr(f"glassgpt.weights.{module}.open", opened, raising=False)


@pytest.mark.parametrize("format", ["hf", "packed", "llmc"])
def test_a_full_disk_leaves_the_old_file_and_no_debris(
    format: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    old = random_checkpoint(seed=1)
    save_checkpoint(old, tmp_path / "m", format=format)
    before = load_checkpoint(tmp_path / "m").tensors
    wanted = {name: np.array(before[name]) for name in before}
    request.getfixturevalue("full_disk")
    with pytest.raises(UserError, match="the disk is full") as caught:
        save_checkpoint(random_checkpoint(seed=2), tmp_path / "m", format=format)
    with pytest.raises(UserError, match="the disk is full"):
        save_checkpoint(random_checkpoint(seed=2), tmp_path / "new" / "folder", format=format)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "m") in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    request.getfixturevalue("monkeypatch").undo()
    assert_same(load_checkpoint(tmp_path / "m").tensors, wanted)


@pytest.mark.parametrize("format", ["hf", "nanogpt", "llmc", "packed"])
def test_a_limit_on_file_size_is_reported_like_a_full_disk(format: str, tmp_path: Path) -> None:
    """The real thing, not a patched function: the system refuses to let the file grow."""
    resource = pytest.importorskip("resource")
    code = (
        "import resource, signal, sys\n"
        "from glassgpt.errors import UserError\n"
        "from glassgpt.weights import save_checkpoint\n"
        "from tests.weights.conftest import random_checkpoint\n"
        "checkpoint = random_checkpoint()\n"
        f"if {format!r} == 'nanogpt': import torch\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        f"try: save_checkpoint(checkpoint, {str(tmp_path / 'm')!r}, format={format!r})\n"
        "except UserError as error: print(error)\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.stdout.count("\n") == 1, run.stderr
    assert "the disk is full" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_known_before_writing(
    small: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(UserError, match=r"m needs 1\d\d,\d\d\d bytes"):
        save_checkpoint(small, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(small: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*file/m: Not a directory"):
        save_checkpoint(small, tmp_path / "file" / "m")
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        save_checkpoint(small, tmp_path / "folder.bin", format="llmc")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.bin"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> np.ndarray:
        raise KeyboardInterrupt

    outgoing = [safetensors_file.TensorToWrite("a", (3,), np.dtype(np.float32), interrupted)]
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "new" / "m") as part:
        safetensors_file.write_tensors(part, outgoing, {})
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_special_numbers() -> None:
    nan, inf = np.array([np.nan, 1.0]), np.array([np.inf, 1.0])
    assert max_abs_error(nan, nan) == 0
    assert max_abs_error(inf, inf) == 0
    assert max_abs_error(nan, inf) == np.inf
    assert max_abs_error(np.zeros(3), np.zeros(4)) == np.inf
    assert max_abs_error(np.array([1.0, 2.0]), np.array([1.0, 2.5])) == 0.5


def test_a_lazy_checkpoint_is_not_read_to_be_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(random_checkpoint(), tmp_path / "m")

    def read(*arguments: object) -> None:
        raise AssertionError("read too early")

    monkeypatch.setattr(ByteReader, "read", read)
    checkpoint = load_checkpoint(tmp_path / "m")
    assert "wte.weight" in checkpoint.tensors
    assert checkpoint.dtype == np.float32
    assert len(checkpoint.tensors) == len(list(checkpoint.config.shapes()))
