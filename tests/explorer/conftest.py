"""An Explorer in this process, with the shipped model and a second one of the same vocabulary."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import glassgpt
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from tests.conftest import SHIPPED
from tests.explorer.browser import NoBrowser, Visit, launched, served

TEXT = "A robot must obey the orders given it"
API = "/api/v1"


@pytest.fixture(scope="session")
def gpt() -> GPT:
    return glassgpt.load(SHIPPED, device="cpu", dtype="float32", backend="torch")


@pytest.fixture(scope="session")
def other(gpt: GPT) -> GPT:
    """The same model, a little disturbed."""
    torch.manual_seed(5)
    model = GPT2(gpt.config)
    state = gpt.backend.model.state_dict()
    model.load_state_dict({name: x + 0.02 * torch.randn_like(x) for name, x in state.items()})
    return GPT(TorchBackend(model.requires_grad_(False)), gpt.tokenizer, name="disturbed")


class Client:
    """A client whose questions are short to write, and which never lets a 500 pass."""

    def __init__(self, app: Any) -> None:
        self.http = TestClient(app, base_url="http://127.0.0.1:8124", raise_server_exceptions=False)

    def get(self, path: str, **query: Any) -> Any:
        return self._checked(self.http.get(API + path, params=query), 200)

    def post(self, path: str, **body: Any) -> Any:
        return self._checked(self.http.post(API + path, json=body), 200)

    def trace(self, text: str = TEXT, **more: Any) -> Any:
        return self.post("/trace", text=text, **more)

    def refused(self, method: str, path: str, **given: Any) -> tuple[int, str, str | None]:
        """The status, the message and the field of a request that must be refused."""
        return refusal(self.http.request(method, path, **given))

    @staticmethod
    def _checked(answer: Any, status: int) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json()


def refusal(answer: Any) -> tuple[int, str, str | None]:
    assert 400 <= answer.status_code < 500 or answer.status_code == 503, (
        answer.status_code,
        answer.text[:300],
    )
    error = answer.json()["error"]
    assert set(error) == {"message", "field"}
    assert error["message"]
    return answer.status_code, error["message"], error["field"]


@pytest.fixture(scope="session")
def client(gpt: GPT, other: GPT) -> Client:
    return Client(make_app(gpt, other))


def array(packed: dict[str, Any]) -> np.ndarray:
    kind = {"f32": "<f4", "u8": "u1"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for each file of tests: while it is open, nothing else in this thread can run an event loop."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(launched())
        except NoBrowser as why:
            pytest.skip(str(why))
        yield found


@pytest.fixture(scope="session")
def url(gpt: GPT, other: GPT) -> Iterator[str]:
    with served(make_app(gpt, other)) as address:
        yield address


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Callable[..., Visit]]:
    """Opens pages; when the test is over, nothing may have gone wrong in any of them."""
    visits: list[Visit] = []

    def begin(where: str = url, **options: Any) -> Visit:
        visits.append(Visit(browser, where, **options))
        return visits[-1]

    yield begin
    for each in visits:
        each.close()
