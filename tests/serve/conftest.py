"""A server in this process for most tests, and one started by its command for real clients."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

import glassgpt
from glassgpt.gpt import GPT
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, find_models
from glassgpt.serve.settings import ServerSettings
from tests.conftest import SHIPPED

PATIENCE = 300  # seconds, for what should take a few
PROMPT = "The old house stood at the end of the lane"
# However slow the machine: nothing that a test sends is refused for the time it would wait.
COMMON = ("--model", SHIPPED, "--max-batch-size", "8", "--max-wait", "1000000")


@pytest.fixture(scope="session")
def gpt() -> GPT:
    return glassgpt.load(SHIPPED)  # as the command loads it


@pytest.fixture(autouse=True)
def _leave_garbage_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server walks all garbage when it has loaded a model, and in the end thaws what was frozen: here that
    is all that the other tests have left, and what tests/conftest.py froze."""
    still = SimpleNamespace(collect=lambda: None, freeze=lambda: None, unfreeze=lambda: None)
    monkeypatch.setattr("glassgpt.serve.models.gc", still)


def copy_of(gpt: GPT) -> GPT:
    """The same weights: a server starts a service, which a model has one of."""
    return GPT(gpt.backend, gpt.tokenizer, gpt.name, gpt._checkpoint)


@contextmanager
def app_client(gpt: GPT, batch_size: int = 8, **settings: Any) -> Iterator[TestClient]:
    """A client of an app in this process, whose model is loaded."""
    made = ServerSettings(**settings)
    pool = ModelPool(
        find_models([SHIPPED]), lambda path: copy_of(gpt), max_batch_size=batch_size, queue=made.queue
    )
    with TestClient(
        make_app(pool, made), base_url="http://127.0.0.1:8000", raise_server_exceptions=False
    ) as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        yield client


@pytest.fixture(scope="session")
def client(gpt: GPT) -> Iterator[TestClient]:
    with app_client(gpt) as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE * 100):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never happened")


def exchange(connection: socket.socket, sent: bytes) -> bytes:
    """All that is answered to these bytes. A server that has read enough may close the connection while the
    rest is on its way, which resets it after the answer."""
    received = b""
    with suppress(ConnectionError):
        connection.sendall(sent)
        with suppress(OSError):  # not connected anymore
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            received += part
    return received


def complete(client: TestClient, **body: Any) -> Any:
    response = client.post("/v1/completions", json={"model": SHIPPED, "prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: TestClient, status: int, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    """The error of a request that must fail with this status, in the one shape."""
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


class ServerProcess:
    """`glassgpt serve` as a user starts it."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "glassgpt", "serve", "--port", "0", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()  # ends with /v1
        assert self.url.endswith("/v1"), self.process.communicate()[1]
        self.root = self.url.removesuffix("/v1")
        wait_until(self.is_healthy)

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return False
            raise

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"glassgpt_{name}{{"))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    started = ServerProcess(*COMMON)
    yield started
    started.stop()
