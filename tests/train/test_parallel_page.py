"""The page on many processes says what its script computes, and its launch files what the command takes."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import glassgpt
from glassgpt.config import SIZES
from glassgpt.errors import SettingError
from glassgpt.train.distributed.parallelize import check_divisible

ROOT = Path(__file__).parents[2]
LAUNCH = sorted((ROOT / "examples" / "launch").iterdir())


def test_the_table_in_the_page_is_what_the_script_prints() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "parallel_estimate.py"))
    page = (ROOT / "docs" / "parallel.md").read_text("utf-8")
    assert script["table"]() in page
    assert script["summary"]() in page


def test_the_script_counts_as_the_tally_does() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "parallel_estimate.py"))
    assert script["XL"].parameters == glassgpt.tally("gpt2-xl").total
    assert script["SMALL"].parameters == glassgpt.tally("gpt2").total


@pytest.mark.parametrize(("size", "largest"), [("gpt2", 4), ("gpt2-medium", 16), ("gpt2-large", 4)])
def test_how_many_can_share_a_published_size(size: str, largest: int) -> None:
    check_divisible(SIZES[size], 1024, largest)
    with pytest.raises(SettingError):
        check_divisible(SIZES[size], 1024, 2 * largest)


def test_xl_cannot_be_shared_and_says_so() -> None:
    with pytest.raises(SettingError, match=r"n_head 25 cannot be .* 8 processes\. Choose --parallel fsdp"):
        check_divisible(SIZES["gpt2-xl"], 1024, 8)


def test_launch_files_give_flags_that_exist() -> None:
    help = subprocess.run(
        [sys.executable, "-m", "glassgpt", "train", "--help"],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    known = set(re.findall(r"--[a-z][a-z0-9-]*", help))
    assert len(LAUNCH) == 4
    for file in LAUNCH:
        text = re.sub(r"#.*", "", file.read_text("utf-8"))
        _, _, command = re.sub(r"[\s-]+glassgpt\s+(- )?train\b", " COMMAND ", text, count=1).partition(
            "COMMAND"
        )
        assert command, file
        command, _, _ = command.partition("resources:")
        given = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", command))
        assert {"--data", "--out", "--steps"} <= given, file
        assert given <= known, file
        if file.suffix != ".yaml":
            subprocess.run(["sh", "-n", str(file)], check=True)
