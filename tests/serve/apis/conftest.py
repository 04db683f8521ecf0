"""A server of the shipped model, and of a small one that has roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import glassgpt
from glassgpt.gpt import GPT
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, find_models
from glassgpt.serve.settings import ServerSettings
from glassgpt.weights import save_checkpoint
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter
from tests.serve.conftest import copy_of, wait_until
from tests.tasks.conftest import make_model

CHAT = "talker"


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / CHAT
    save_checkpoint(make_model("chat"), folder)
    return folder


@pytest.fixture(scope="session")
def talking(talker: Path) -> GPT:
    return glassgpt.load(talker)


@pytest.fixture(scope="module")
def api(
    gpt: GPT, talking: GPT, talker: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    adapter = write_adapter(tmp_path_factory.mktemp("adapters") / "red", SHIPPED)
    specs = find_models([SHIPPED, f"{CHAT}={talker}"], adapters=[f"red={adapter}"])
    pool = ModelPool(
        specs, lambda path: copy_of(gpt) if path == specs[0].path else glassgpt.load(path), max_batch_size=4
    )
    app = make_app(pool, ServerSettings())
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        yield client
