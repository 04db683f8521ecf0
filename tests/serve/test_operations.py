"""What an operator sees: ids, logs and metrics of requests, keys, changed files, and hostile grammars."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import glassgpt
from glassgpt.cli import main
from glassgpt.generate.sampling.grammar_checker import GrammarChecker
from glassgpt.gpt import GPT
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, find_models
from tests.conftest import SHIPPED
from tests.serve.conftest import PATIENCE, PROMPT, app_client, complete, refused, wait_until


class TestRequestLog:
    """Every request has an id, is counted, and is a line of JSON where that was asked for."""

    def test_ids(self, client: TestClient) -> None:
        for path in ("/health", "/nothing", "/v1/models"):
            assert re.fullmatch("req-[0-9a-f]{32}", client.get(path).headers["x-request-id"])
            answer = client.get(path, headers={"x-request-id": "mine-1.2"})
            assert answer.headers["x-request-id"] == "mine-1.2"
        for hostile in ("a b", "x" * 129, 'a"b', "é".encode()):
            answer = client.get("/health", headers=[("x-request-id", hostile)])
            assert answer.headers["x-request-id"].startswith("req-")

    def test_every_answer_is_counted(self, gpt: GPT) -> None:
        with app_client(gpt, api_key="secret") as client:
            key = {"authorization": "Bearer secret"}
            client.get("/v1/models")  # 401
            client.get("/nothing/1", headers=key)
            client.get("/nothing/2", headers=key)
            client.post("/v1/completions", json={"max_tokens": -1}, headers=key)
            client.post("/v1/completions", json={"max_tokens": 1}, headers={**key, "host": "evil.example"})
            text = client.get("/metrics", headers=key).text
        for path, status, count in (
            ("/v1/models", 401, 1),
            ("other", 404, 2),
            ("/v1/completions", 400, 1),
            ("/v1/completions", 403, 1),
        ):
            assert f'glassgpt_http_responses_total{{path="{path}",status="{status}"}} {count}.0' in text
        assert "_created" not in text

    def test_lines_are_json(self, gpt: GPT, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "glassgpt.serve"), app_client(gpt, log="requests") as client:
            caplog.clear()
            complete(client, max_tokens=3, seed=1)
            client.post("/v1/completions", json={"max_tokens": -1}, headers={"x-request-id": "bad-one"})
        done, failed = [json.loads(record.message) for record in caplog.records if "/v1/" in record.message]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", done["time"])
        assert (done["method"], done["path"], done["status"]) == ("POST", "/v1/completions", 200)
        assert (done["model"], done["outcome"], done["completion_tokens"]) == (SHIPPED, "ok", 3)
        assert done["client"] == "testclient"
        assert done["seconds"] >= 0
        assert (failed["request_id"], failed["status"]) == ("bad-one", 400)
        assert PROMPT not in caplog.text

    def test_prompts_only_where_asked_for(self, gpt: GPT, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "glassgpt.serve"), app_client(gpt, log="prompts") as client:
            complete(client, max_tokens=1)
        assert json.loads(caplog.records[-1].message)["prompts"] == [PROMPT]

    def test_no_path_steers_a_terminal(self, gpt: GPT, caplog: pytest.LogCaptureFixture) -> None:
        path = "/\x9b31m\u2028\u202e\x7f\nx"
        with caplog.at_level("INFO", "glassgpt.serve"), app_client(gpt, log="requests") as client:
            client.get(quote(path))
        line = caplog.records[-1].message
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["path"] == path


def test_docs_describe_every_endpoint_and_load_nothing(client: TestClient) -> None:
    answer = client.get("/docs")
    assert answer.status_code == 200
    document = client.get("/openapi.json").json()
    for path in document["paths"]:
        assert f"<code>POST {path}</code>" in answer.text or f"<code>GET {path}</code>" in answer.text
    for field in document["components"]["schemas"]["CompletionRequest"]["properties"]:
        assert f"<td><code>{field}</code></td>" in answer.text
    assert "<script" not in answer.text
    assert not re.search(r"(src|href)=\"(?!#|/)", answer.text)


def test_an_unknown_field_is_named_in_plain_words(client: TestClient) -> None:
    error = refused(client, 400, prompt="A", max_token=3)
    assert error["message"] == "max_token is not a field of this request. Did you mean max_tokens?"
    assert error["param"] == "max_token"
    error = refused(client, 400, prompt="A", stream=True, stream_options={"quux": 1})
    assert error["message"].startswith("stream_options.quux is not a field of this request. Leave it out")
    assert "pydantic" not in error["message"]


def test_a_field_whose_name_is_half_a_surrogate_pair_is_refused(client: TestClient) -> None:
    body = b'{"prompt": "A", "\\ud800": 1}'
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "\\ud800"


def test_ready_needs_no_key(gpt: GPT) -> None:
    with app_client(gpt, api_key="secret") as client:
        assert client.get("/ready").status_code == 200
        assert client.get("/v1/models").status_code == 401


def test_what_one_key_sent_is_not_shown_to_another(gpt: GPT) -> None:
    """`cached_tokens`, and the speed behind it, come from a client's own requests only."""
    long = "The old house stood at the end of the lane. " * 20

    def cached(client: TestClient, key: str) -> int:
        body = {"prompt": long, "max_tokens": 1}
        answer = client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    with app_client(gpt, api_key="alice,bob") as client:
        assert client.get("/v1/models", headers={"authorization": "Bearer alice,bob"}).status_code == 401
        assert cached(client, "alice") == 0
        assert cached(client, "alice") >= 64
        assert cached(client, "bob") == 0
        assert cached(client, "bob") >= 64


def test_pages_with_prompts_are_not_stored(client: TestClient) -> None:
    assert client.get("/").headers["cache-control"] == "no-store"


class TestChangedWeights:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(Path(glassgpt.__file__).parent / "data/tiny", tmp_path / "tiny"))

    def serve(self, copy: Path) -> TestClient:
        return TestClient(
            make_app(ModelPool(find_models([f"tiny={copy}"]))), base_url="http://127.0.0.1:8000"
        )

    @pytest.mark.parametrize("how", ["overwritten", "truncated", "removed after it"])
    def test_are_said(self, copy: Path, how: str) -> None:
        with self.serve(copy) as client:
            wait_until(lambda: client.get("/ready").status_code == 200)
            weights = copy / "model.int8.safetensors"
            with weights.open("r+b") as file:
                if how == "truncated":
                    file.truncate(weights.stat().st_size // 2)
                else:
                    file.seek(-100, 2)
                    file.write(b"\7" * 100)
                    os.utime(weights, ns=(1, 1))  # however coarse the file system's clock is
            if how == "removed after it":
                weights.unlink()
            for answer in (
                client.get("/ready"),
                client.post("/v1/completions", json={"prompt": "A", "max_tokens": 2}),
            ):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "weights_changed"
                assert "Restart the server" in answer.json()["error"]["message"]

    def test_replaced_by_renaming_are_no_concern(self, copy: Path) -> None:
        with self.serve(copy) as client:
            wait_until(lambda: client.get("/ready").status_code == 200)
            body = {"prompt": "A", "max_tokens": 5, "temperature": 0}
            before = client.post("/v1/completions", json=body).json()["choices"]
            (copy / "new").write_bytes(b"nonsense")
            (copy / "new").replace(copy / "model.int8.safetensors")
            assert client.get("/ready").status_code == 200
            assert client.post("/v1/completions", json=body).json()["choices"] == before


class TestGrammars:
    """A hostile grammar is a 400, and neither a timeout nor a client that leaves waits for one."""

    @pytest.fixture(autouse=True)
    def _guidance(self) -> None:
        pytest.importorskip("llguidance")

    def test_are_refused(self, client: TestClient) -> None:
        rules = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "z"'
        assert "nested too deeply" in refused(client, 400, prompt="A", guided_grammar=rules)["message"]
        links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
        schema = {"$defs": {**links, "d3000": {"type": "string"}}, "$ref": "#/$defs/d0"}
        assert "nested too deeply" in refused(client, 400, prompt="A", guided_json=schema)["message"]
        assert complete(client, guided_choice=["yes", "no"])["choices"][0]["text"] in ("yes", "no")

    def test_a_timeout_ends_the_wait(self, gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
        may_go = threading.Event()
        monkeypatch.setattr(GrammarChecker, "check", lambda *_: may_go.wait(PATIENCE))
        try:
            with app_client(gpt, timeout=0.01) as client:
                error = refused(client, 408, prompt="A", guided_regex="[a-f]{4}")
                assert error["code"] == "timeout"
        finally:
            may_go.set()

    def test_a_client_has_few_at_a_time(self, gpt: GPT) -> None:
        with app_client(gpt) as client:
            state = client.app.state.server
            with ExitStack() as stack:
                for _ in range(4):
                    stack.enter_context(state.compilers.turn("testclient"))
                assert refused(client, 429, prompt="A", guided_regex="[a-f]{5}")["code"] == "queue_full"
                complete(client, max_tokens=1)  # without a grammar
            complete(client, guided_regex="[a-f]{5}")
            assert not state.compilers._compiling


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-model-memory", "nan"], "--max-model-memory"),
        (["--max-model-memory", "inf"], "--max-model-memory"),
        (["--drain-timeout", "nan"], "--drain-timeout"),
        (["--model", "=tiny"], "--model '=tiny'"),
        (["--model", "tiny="], "--model 'tiny='"),
        (["--cors-origin", "*"], "--cors-origin '*'"),
        (["--cors-origin", "example.org"], "--cors-origin 'example.org'"),
        (["--cors-origin", "https://example.org/page"], "--cors-origin 'https://example.org/page'"),
    ],
)
def test_options_that_make_no_sense(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error
