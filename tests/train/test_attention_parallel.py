"""Two processes train what one would have trained, with every attention: DDP and FSDP on gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glassgpt
from tests.train.test_attention import SIZES, VARIANTS, shards  # noqa: F401  (a fixture)

MODES = ("ddp", "fsdp")
STEPS = 4
OPTIONS = SIZES | {"dropout": 0.0, "save_every": STEPS, "precision": "float32"}


def train_all(data: str, out: Path, modes: tuple[str, ...] = MODES) -> dict[str, list[float]]:
    """The losses of each attention and mode."""
    losses = {}
    for mode in modes:
        for name, options in VARIANTS.items():
            parallel = {} if mode == "one" else {"parallel": mode}
            run = glassgpt.train(data, out / f"{name}-{mode}", steps=STEPS, **OPTIONS, **options, **parallel)
            losses[f"{name}-{mode}"] = [record["loss"] for record in run.records]
    return losses


@pytest.mark.slow
def test_two_processes_train_what_one_would(
    shards: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *starter, __file__, str(shards), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads((tmp_path / "losses.json").read_text())
    alone = train_all(str(shards), tmp_path, ("one",))
    for name in VARIANTS:
        wanted = alone[f"{name}-one"]
        assert len(wanted) == STEPS
        for mode in MODES:
            losses = found[f"{name}-{mode}"]
            if name == "bidirectional":  # each process draws the tokens it hides
                assert np.isfinite(losses).all()
                assert losses[0] == pytest.approx(wanted[0], abs=0.1)  # of a model that knows nothing yet
            else:  # float32, summed in another order, through the optimizer of four steps
                assert losses == pytest.approx(wanted, abs=1e-3)
            path = tmp_path / f"{name}-{mode}"
            assert glassgpt.load(path, device="cpu").config.attention == VARIANTS[name]["attention"]


if __name__ == "__main__":
    found = train_all(sys.argv[1], Path(sys.argv[2]))
    if os.environ["RANK"] == "0":
        (Path(sys.argv[2]) / "losses.json").write_text(json.dumps(found))
