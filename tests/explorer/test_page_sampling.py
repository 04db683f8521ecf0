"""The page's sampler in JavaScript against the package's own: the same tokens, probabilities and draws."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.generate.sampling.rng import UniformRNG
from glassgpt.generate.sampling.sampler import draw_tokens, stack_metadata
from tests.generate import naive

PAGE = Path(glassgpt.__file__).parent / "explorer" / "page"
KNOBS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 0.05, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 25, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 2.5, "top_k": 500, "top_p": 0.5, "min_p": 0.001},
    {"temperature": 1.0, "top_k": 1},
]


def rows() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    smooth = (random.standard_normal(1000) * 3).astype(np.float32)
    ties = np.round(random.standard_normal(300) * 2).astype(np.float32)
    holes = smooth[:200].copy()
    holes[::7] = -np.inf
    wide = (random.standard_normal(50_257) * 4 - 30).astype(np.float32)
    return [smooth, ties, holes, wide]


def expected(logits: np.ndarray, given: dict[str, float | int], draws: np.ndarray) -> dict[str, object]:
    settings = SamplingParams(**{"top_k": None, **given})  # type: ignore[arg-type]
    found, slack = naive.distribution([float(x) for x in logits], settings)
    assert slack > 1e-13, "a threshold lies on a token: rounding would decide. Choose another row"
    column = stack_metadata([settings] * len(draws), len(logits), lambda a: a)
    drawn = draw_tokens(np.tile(logits, (len(draws), 1)), column, draws).tokens
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    return {
        "params": {js: given.get(python) for python, js in names.items()},
        "ids": [i for i, _ in found],
        "probabilities": [p for _, p in found],
        "draws": [[float(u), int(t)] for u, t in zip(draws, drawn, strict=True)],
    }


def test_the_pages_sampler_is_the_packages_sampler(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here (the page's own sampler is tested with it)")
    random = np.random.default_rng(6)
    draws = np.concatenate([[0.0, 0.9999], random.random(30)])
    cases = {
        "rows": [
            {
                "logits": [None if x == -np.inf else float(x) for x in row],
                "cases": [
                    expected(row, given, draws[: 32 if len(row) < 9999 else 6])
                    for given in (KNOBS if len(row) < 9999 else KNOBS[1:])
                ],
            }
            for row in rows()
        ],
        "uniforms": [
            {"seed": str(seed), "values": list(UniformRNG(seed, 0).window(0, 9))}
            for seed in (0, 7, 2**53 + 1, 2**64 - 1)
        ],
    }
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [node, "--test", str(Path(__file__).with_name("sampling.test.mjs"))],
        env={
            **os.environ,
            "SAMPLING": (PAGE / "next" / "sampling.js").as_uri(),
            "CASES": str(tmp_path / "cases.json"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
