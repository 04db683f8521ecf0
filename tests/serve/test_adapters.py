"""`serve --lora`: several adapters of one model, chosen by name, in one engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError
from glassgpt.gpt import GPT
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, find_models
from glassgpt.serve.settings import ServerSettings
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter
from tests.serve.conftest import PROMPT, copy_of, wait_until

NAMES = [SHIPPED, "red", "green", "blue"]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("served")
    return [f"{name}={write_adapter(place / name, SHIPPED, seed)}" for seed, name in enumerate(NAMES[1:])]


@pytest.fixture(scope="module")
def pool(gpt: GPT, arguments: list[str]) -> ModelPool:
    return ModelPool(find_models([SHIPPED], adapters=arguments), lambda path: copy_of(gpt), max_batch_size=4)


@pytest.fixture(scope="module")
def client(pool: ModelPool) -> Iterator[TestClient]:
    app = make_app(pool, ServerSettings(explorer=True))
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as made:
        wait_until(lambda: made.get("/health").status_code == 200)
        yield made


def complete(client: TestClient, model: str) -> dict:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "suffix": None}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_name_has_its_text_and_its_fingerprint(client: TestClient, pool: ModelPool) -> None:
    answers = {name: complete(client, name) for name in NAMES}
    assert [answer["model"] for answer in answers.values()] == NAMES
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 4
    assert len({answer["system_fingerprint"] for answer in answers.values()}) == 4
    assert list(pool.loaded) == [SHIPPED]  # one model in memory
    listed = client.get("/v1/models").json()["data"]
    assert [(model["id"], model["loaded"]) for model in listed] == [(name, True) for name in NAMES]
    assert all(complete(client, name)["choices"] == answers[name]["choices"] for name in reversed(NAMES))


def test_the_explorer_shows_the_base_alone(client: TestClient) -> None:
    page = client.get("/").text
    assert page.count("explore</a>") == 1
    assert "<code>red</code>" in page
    answer = client.get("/explorer/2/api/model")
    assert answer.status_code == 404
    assert "Serve it as a model of its own" in answer.json()["error"]["message"]


def test_an_adapter_takes_no_edits(client: TestClient) -> None:
    edits = [{"kind": "ablate_head", "layer": 0, "head": 0}]
    answer = client.post("/v1/completions", json={"model": "red", "prompt": PROMPT, "edits": edits})
    assert answer.status_code == 400
    assert "takes none" in answer.json()["error"]["message"]


def test_an_unknown_name_lists_them_all(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={"model": "pink", "prompt": "x"})
    assert answer.status_code == 404
    assert ", ".join(NAMES) in answer.json()["error"]["message"]


def test_wrong_arguments_are_named_at_the_start(arguments: list[str], tmp_path: Path) -> None:
    for adapters, error, says in (
        (["red"], SettingError, "Write NAME=FOLDER"),
        (["red="], SettingError, "Write NAME=FOLDER"),
        ([arguments[0], arguments[0]], SettingError, "two models are named 'red'"),
        ([f"red={tmp_path / 'gone'}"], ModelNotFoundError, "does not exist"),
        ([f"red={tmp_path}"], ModelNotFoundError, "contains no model"),
    ):
        with pytest.raises(error, match=says):
            find_models([SHIPPED], adapters=adapters)
    with pytest.raises(FileFormatError, match="does not fit"):
        find_models(["default"], adapters=arguments)
