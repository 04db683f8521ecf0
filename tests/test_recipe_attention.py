"""The recipes of attention's relatives in miniature: each script runs, and its results are drawn."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassgpt.cli import main

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "attention"


def run(script: str, *arguments: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(RECIPE / script), *map(str, arguments)]
    subprocess.run(command, check=True, env=environment, timeout=1800)


@pytest.mark.slow
def test_every_script_runs_in_miniature(tmp_path: Path) -> None:
    text = "".join(f"Day {n} was fair, and we went on to the {n * 7 % 13}th hill.\n" for n in range(600))
    with lzma.open(tmp_path / "books.jsonl.xz", "wt", encoding="utf-8") as books:
        books.writelines(json.dumps({"text": text}) + "\n" for _ in range(3))
    run("texts.py", tmp_path / "books.jsonl.xz", "-o", tmp_path / "text", "--characters", str(2 * len(text)))
    assert sorted(file.name for file in (tmp_path / "text").iterdir()) == ["000.txt", "001.txt"]
    shards = tmp_path / "shards"
    arguments = ["prepare", str(tmp_path / "text"), "-o", str(shards), "--tokenizer", "bytes"]
    assert main([*arguments, "--workers", "1", "--val-fraction", "0.5"]) == 0
    out = tmp_path / "out"
    run("memory.py", shards, shards, "--out", out, "--smoke")
    run("bidirectional.py", shards, shards, "--out", out, "--smoke")
    run("long.py", "--out", out, "--smoke")
    found = json.loads((out / "memory.json").read_text())
    assert set(found["chars"]) == set(found["bpe"]) == {"0", "64"}
    assert len(found["chars"]["64"]["by_read_length"]) > 2
    found = json.loads((out / "bidirectional.json").read_text())
    for corpus in "chars", "bpe":
        n = found[corpus]["causal"]["guesses"]["n"]
        assert n == found[corpus]["bidirectional"]["alone"]["n"] > 20
    found = json.loads((out / "long.json").read_text())
    assert found["math"]["compressed"]["512"]["attention_ms"] > 0
    (out / "attention.md").write_text((ROOT / "docs" / "attention.md").read_text("utf-8"), "utf-8")
    run("pictures.py", "--results", out, "-o", out)
    drawn = {file.name for file in out.glob("*.svg")}
    assert drawn == {f"attention_{name}.svg" for name in ("masks", "memory", "bidirectional", "long")}
    page = (out / "attention.md").read_text("utf-8")
    assert all(f"(attention_{name}.svg)" in page for name in ("memory", "bidirectional", "long"))
