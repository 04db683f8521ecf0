"""A little of tests/serve/attack.py: random requests never get a 5xx, nor anything undocumented."""

from __future__ import annotations

import re

import pytest

from tests.serve.attack import attack, send_mutations
from tests.serve.conftest import ServerProcess

pytest.importorskip("schemathesis")


@pytest.mark.slow
def test_random_requests_get_documented_answers(server: ServerProcess) -> None:
    ended = attack(server.root, 10, "--phases", "fuzzing", "--generation-deterministic")
    assert ended.returncode == 0, ended.stdout[-5000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None, ended.stdout[-5000:]
    assert int(passed[1]) >= 10  # operations


@pytest.mark.slow
def test_mutated_bodies_get_documented_answers(server: ServerProcess) -> None:
    statuses = send_mutations(server.root, 150)
    assert set(statuses) == {200, 400}  # some are still requests
