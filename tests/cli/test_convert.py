"""`glassgpt convert`: the report, and targets that are whole or not there."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest

from glassgpt.weights import load_checkpoint

from .conftest import SRC, program


def same(one, other):
    one, other = load_checkpoint(one), load_checkpoint(other)
    return all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.config.shapes())


@pytest.mark.parametrize("target", ["out", "out.gguf", "out.pt", "out.bin"])
def test_every_format_reports_every_tensor(glassgpt, tiny, tmp_path, target):
    answer = glassgpt("convert", tiny, tmp_path / target)
    assert answer.code == 0
    assert same(tiny, tmp_path / target)
    rows = answer.out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(load_checkpoint(tiny).config.shapes())
    assert all("exact" in row for row in rows)
    assert "28 tensors, all values equal" in answer.err


def test_json_and_dtype(glassgpt, tiny, tmp_path):
    answer = glassgpt("convert", tiny, tmp_path / "out", "--dtype", "bfloat16", "--json")
    report = json.loads(answer.out)
    assert report["source_format"] == report["target_format"] == "hf"
    assert {tensor["target_dtype"] for tensor in report["tensors"]} == {"bfloat16"}
    # bfloat16 keeps 8 bits: a number below 2 is off by at most half of 2 ** -7.
    assert 0 < report["max_abs_error"] <= 2**-8


def test_existing_files_stay_without_force(glassgpt, tiny, tmp_path):
    target = tmp_path / "out.gguf"
    target.write_bytes(b"precious")
    assert glassgpt("convert", tiny, target).is_one_line_error("exists", "--force")
    assert target.read_bytes() == b"precious"
    assert glassgpt("convert", tiny, target, "--force").code == 0
    assert same(tiny, target)


def test_errors(glassgpt, tiny, tmp_path):
    assert glassgpt("convert", tiny).is_one_line_error("DST")
    assert glassgpt("convert", tmp_path / "missing", tmp_path / "out").is_one_line_error("missing")
    assert glassgpt("convert", tiny, tmp_path / "out", "--format", "onnx").is_one_line_error("onnx", "gguf")
    assert glassgpt("convert", tiny, tmp_path / "out", "--dtype", "float7").is_one_line_error("float7")
    assert glassgpt("convert", tiny, tiny).is_one_line_error("source")
    assert os.listdir(tmp_path) == []


# The kernel refuses to let any file of the program grow beyond this: what a full disk does, without a disk.
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
sys.path.insert(0, {src!r})
from glassgpt.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX's")
@pytest.mark.parametrize("target", ["out", "out.gguf", "out.pt", "out.bin"])
def test_a_full_disk_leaves_existing_files(tiny, tmp_path, target):
    _, env = program()
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    old = tmp_path / "keep.txt"
    old.write_text("kept")
    code = LIMITED.format(src=str(SRC))
    done = subprocess.run(
        [program()[0][0], "-c", code, "convert", str(tiny), str(tmp_path / target)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith("glassgpt: "), done
    assert done.stderr.count("\n") == 1, done
    assert os.listdir(tmp_path) == ["keep.txt"]
