"""examples/serve/nginx.conf with two replicas: streams pass through, and a killed replica loses nothing."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHIPPED
from tests.serve.conftest import PATIENCE, PROMPT, ServerProcess, wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve" / "nginx.conf"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def replicas() -> Iterator[list[ServerProcess]]:
    started = [ServerProcess("--model", SHIPPED, "--max-batch-size", "8") for _ in range(2)]
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def balancer(replicas: list[ServerProcess], tmp_path: Path) -> Iterator[str]:
    """The address of nginx with the example's configuration, on other ports."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if nginx is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    text = EXAMPLE.read_text().replace("/tmp/glassgpt-nginx.pid", str(tmp_path / "nginx.pid"))
    for old, new in (("8001", replicas[0].root), ("8002", replicas[1].root)):
        text = text.replace(f"server 127.0.0.1:{old}", f"server {new.removeprefix('http://')}")
    text = text.replace("listen 127.0.0.1:8000", f"listen 127.0.0.1:{port}")
    (tmp_path / "nginx.conf").write_text(text)
    words = [nginx, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path), "-g", "daemon off;"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(is_up)
    yield url
    process.terminate()
    process.wait(PATIENCE)


def post(url: str, **fields: Any) -> Any:
    body = json.dumps({"model": SHIPPED, "prompt": PROMPT, **fields}).encode()
    headers = {"content-type": "application/json"}
    return urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=PATIENCE
    )


def test_streams_pass_and_a_killed_replica_loses_nothing(
    balancer: str, replicas: list[ServerProcess]
) -> None:
    with post(balancer, stream=True, max_tokens=5, ignore_eos=True) as answer:
        events = [line for line in answer if line.startswith(b"data: ")]
    assert len(events) == 6
    assert events[-1] == b"data: [DONE]\n"

    found: list[int] = []

    def client() -> None:
        for _ in range(6):
            with post(balancer, max_tokens=20, ignore_eos=True) as answer:
                found.append(json.load(answer)["usage"]["completion_tokens"])

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(found) > 4 and replicas[0].metric("requests_running") > 0)
    replicas[0].process.kill()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [20] * 24
