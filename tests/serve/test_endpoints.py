"""The smaller endpoints, what guards all of them, and the document that describes them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.testclient import TestClient

import glassgpt
from glassgpt.cli import main
from glassgpt.config import Config
from glassgpt.errors import ModelNotFoundError, SettingError
from glassgpt.gpt import GPT
from glassgpt.http.errors import ApiError
from glassgpt.serve import schemas
from glassgpt.serve.app import make_app
from glassgpt.serve.models import ModelPool, ModelSpec, find_models
from glassgpt.serve.recent import RecentRequests
from glassgpt.serve.schemas import CompletionRequest, DetokenizeRequest
from glassgpt.serve.settings import ServerSettings
from tests.conftest import SHIPPED
from tests.serve.conftest import app_client, complete, copy_of, refused

KEY = "secret-key"


def test_tokenizing(client: TestClient, gpt: GPT) -> None:
    text = "naïve 🤖"
    found = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["tokens"] == gpt.encode(text)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}
    assert refused(client, 400, "/detokenize", tokens=[10**6])["param"] == "tokens"
    special = client.post("/tokenize", json={"prompt": "<|endoftext|>", "add_special_tokens": False})
    assert special.json()["tokens"] == [gpt.tokenizer.eot_id]
    info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|endoftext|>"
    assert info["vocab_size"] == gpt.tokenizer.vocab_size


def test_models_and_version(client: TestClient, gpt: GPT) -> None:
    (card,) = client.get("/v1/models").json()["data"]
    assert card["id"] == SHIPPED
    assert card["max_model_len"] == gpt.backend.context
    assert client.get(f"/v1/models/{SHIPPED}").json() == card
    assert client.get("/version").json() == {"version": glassgpt.__version__}
    assert client.get("/ready").json() == {"status": "ok"}


def test_metrics_count_tokens(client: TestClient) -> None:
    def values() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    before = values()
    complete(client, max_tokens=5, ignore_eos=True)
    after = values()
    label = f'{{model="{SHIPPED}"}}'
    assert after[f"glassgpt_generated_tokens_total{label}"] >= 5
    for name, more in (
        ("generated_tokens_total", 5), ("time_to_first_token_seconds_count", 1),
        ("inter_token_latency_seconds_count", 4), ("queue_time_seconds_count", 1),
    ):  # fmt: skip
        assert after[f"glassgpt_{name}{label}"] - before.get(f"glassgpt_{name}{label}", 0) == more
    assert after[f"glassgpt_requests_running{label}"] == 0
    assert after[f"glassgpt_requests_waiting{label}"] == 0


def test_the_document_names_every_route(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/ready", "/metrics", "/version",
        "/tokenize", "/detokenize", "/tokenizer_info", "/v1/chat/completions", "/v1/embeddings",
    }  # fmt: skip
    assert "ValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost@evil.example"])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    response = client.get("/v1/models", headers={"host": host})
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


def test_a_foreign_origin_is_refused(client: TestClient) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        response = client.request(method, "/v1/models", headers={"origin": "https://evil.example"})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers


def test_origins_and_hosts_that_were_named(gpt: GPT) -> None:
    good = "https://good.example"
    with app_client(gpt, cors_origin=(good,), allowed_host=("api.example",)) as client:
        headers = {"origin": good, "host": "api.example"}
        response = client.get("/v1/models", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == good
        asked = {**headers, "access-control-request-method": "POST",
                 "access-control-request-headers": "authorization,content-type"}  # fmt: skip
        assert client.options("/v1/completions", headers=asked).status_code == 200
        assert client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403


def test_the_api_key_guards_everything_but_probes(gpt: GPT) -> None:
    with app_client(gpt, api_key=KEY) as client:
        basic = base64.b64encode(f"me:{KEY}".encode()).decode()
        for value, status in (
            (f"Bearer {KEY}", 200), (f"Basic {basic}", 200), (f"Bearer {KEY}x", 401), ("Bearer", 401),
            (KEY, 401), ("Basic !!", 401), (f"Digest {KEY}", 401), (None, 401),
        ):  # fmt: skip
            headers = {} if value is None else {"authorization": value}
            response = client.get("/v1/models", headers=headers)
            assert response.status_code == status, value
        assert response.json()["error"]["code"] == "invalid_api_key"
        for path in ("/metrics", "/openapi.json", "/docs", "/version", "/tokenizer_info", "/nowhere"):
            assert client.get(path).status_code == 401, path
        assert client.get("/health").status_code == 200


def test_nothing_of_a_prompt_is_logged_unless_asked(gpt: GPT, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for log, lines, shown in (("none", 0, False), ("requests", 1, False), ("prompts", 1, True)):
        caplog.clear()
        with app_client(gpt, log=log) as client:
            complete(client, prompt="a very private prompt", max_tokens=2)
        ours = [record.getMessage() for record in caplog.records if record.name == "glassgpt.serve"]
        assert len(ours) == lines
        assert ("private" in caplog.text) is shown


def test_a_body_that_is_too_large(client: TestClient) -> None:
    for body in (b"x" * 4_000_001, iter([b"x" * 1_000_000] * 5)):
        response = client.post("/v1/completions", content=body)
        assert response.status_code == 413
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_queue_that_is_full(gpt: GPT) -> None:
    with app_client(gpt, batch_size=1, max_queue=1) as client:
        state = client.app.state.server
        service = state.pool.loaded[SHIPPED].service
        with service.lock.hold():  # so that nothing can finish
            from glassgpt.generate.sampling.params import SamplingParams
            from glassgpt.generate.service.service import Job

            blocking = [Job([1], SamplingParams(max_new_tokens=4), lambda updates: None) for _ in range(3)]
            service.submit(blocking)
            response = client.post("/v1/completions", json={"prompt": "A"})
        service.cancel(blocking)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "queue_full"


def test_a_wait_that_would_be_too_long(gpt: GPT) -> None:
    from glassgpt.errors import QueueFullError

    with app_client(gpt, batch_size=1, max_wait=0) as client:
        service = client.app.state.server.pool.loaded[SHIPPED].service
        complete(client, max_tokens=2)
        assert complete(client, max_tokens=2)  # a free row is admitted to

        def full(client: str = "") -> None:
            raise QueueFullError("it would take long.", retry_after=7)

        service.check_wait = full
        for body in (b'{"prompt": "A"}', b"not JSON: it is not even parsed", b"x" * 100_000):
            response = client.post("/v1/completions", content=body)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "7"
            assert response.json()["error"]["code"] == "queue_full"
        assert client.get("/v1/models").status_code == 200
        rejected = f'glassgpt_requests_total{{model="{SHIPPED}",outcome="rejected"}} 3.0'
        assert rejected in client.get("/metrics").text


def test_connections_do_not_wait_to_fill_packets() -> None:
    """Nagle's algorithm cost every request on a connection that was kept 40 ms."""
    import socket

    from glassgpt.cli.listening import listen

    found = []

    async def connect() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(answer, sock=listen("127.0.0.1", 0)) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()

    asyncio.run(connect())
    assert found == [1]


def test_a_request_that_takes_too_long(gpt: GPT) -> None:
    with app_client(gpt, timeout=0.05) as client:
        service = client.app.state.server.pool.loaded[SHIPPED].service
        with service.lock.hold():
            assert refused(client, 408, prompt="A", max_tokens=500)["code"] == "timeout"
        assert client.get("/health").status_code == 200


def test_while_draining_new_requests_are_refused(gpt: GPT) -> None:
    with app_client(gpt) as client:
        client.app.state.server.draining = True
        assert refused(client, 503, prompt="A")["code"] == "shutting_down"
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


# Several models.


class Loaded:
    """Loads the shipped model under any name, and counts."""

    def __init__(self, gpt: GPT) -> None:
        self.gpt = gpt
        self.paths: list[str] = []

    def __call__(self, path: Path) -> GPT:
        self.paths.append(path.name)
        return copy_of(self.gpt)


@pytest.fixture
def loader(gpt: GPT) -> Loaded:
    return Loaded(gpt)


def make_pool(loader: Any, names: str, models: float | None) -> ModelPool:
    """A pool with memory for this number of models."""
    specs = [ModelSpec(name, Path(name)) for name in names]
    return ModelPool(
        specs, loader, max_batch_size=1, max_memory=None if models is None else int(models * size(loader.gpt))
    )


def size(gpt: GPT) -> int:
    return gpt.config.n_parameters * 4 + 2 * gpt.config.n_layer * 1024 * 128 * 4


@contextmanager
def pool_client(gpts: dict[str, GPT], models: float, **settings: Any) -> Iterator[TestClient]:
    """A client of an app with several models, and memory for this number of them."""
    specs = [ModelSpec(name, Path(str(i))) for i, name in enumerate(gpts)]
    loaded = list(gpts.values())
    memory = int(models * size(loaded[0]))
    pool = ModelPool(specs, lambda path: loaded[int(path.name)], max_batch_size=1, max_memory=memory)
    app = make_app(pool, ServerSettings(**settings), wait_for_models=True)
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        yield client


def test_models_are_unloaded_least_recently_used_first(loader: Loaded) -> None:
    pool = make_pool(loader, "abc", 2.5)

    async def use(names: str) -> list[str]:
        for name in names:
            async with pool.use(name):
                pass
        return list(pool.loaded)

    async def run() -> None:
        await pool.load_all()
        assert list(pool.loaded) == ["b", "a"]  # the first is the default, and stays
        assert await use("b") == ["a", "b"]
        assert await use("c") == ["b", "c"]
        async with pool.use("b"):
            assert await use("a") == ["b", "a"]  # b is in use, so c had to go
            async with pool.use("a"):
                with pytest.raises(ApiError) as error:
                    await use("c")
                assert error.value.status_code == 503
        assert await use("c") == ["a", "c"]
        assert pool.memory <= (pool.max_memory or 0)

    asyncio.run(run())
    pool.close()


def test_a_model_that_never_fits_is_an_error_at_the_start(loader: Loaded) -> None:
    with pytest.raises(SettingError, match="--max-model-memory"):
        asyncio.run(make_pool(loader, "a", 0.5).load_all())


def test_names_of_models() -> None:
    specs = find_models([SHIPPED, f"mine={SHIPPED}"])
    assert [spec.name for spec in specs] == [SHIPPED, "mine"]
    assert specs[0].path == specs[1].path
    with pytest.raises(SettingError, match="two models are named"):
        find_models([SHIPPED, SHIPPED])
    with pytest.raises(SettingError, match=f"--model NAME={SHIPPED}$"):
        find_models([f"mine={SHIPPED}", f"mine={SHIPPED}"])
    with pytest.raises(ModelNotFoundError):
        find_models(["mine=./not/there"])


def test_a_model_that_cannot_continue_is_refused_before_the_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(attention="bidirectional", mask_token_id=3)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "model.safetensors").touch()  # not even opened
    assert main(["serve", "--port", "0", "--model", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert not output.out
    assert re.fullmatch("glassgpt: a model with attention 'bidirectional' .* glassgpt fill.\n", output.err)


def test_recent_requests_are_bounded_in_tokens() -> None:
    recent = RecentRequests(keep_minutes=10, max_tokens=10)
    recent.begin("a", "tiny", [[1] * 4])
    recent.begin("b", "tiny", [[1] * 4])
    recent.append("b", 0, 0, 7)
    assert [request.id for request in recent.latest()] == ["b", "a"]
    recent.begin("c", "tiny", [[1] * 2])
    assert [request.id for request in recent.latest()] == ["c", "b"]
    recent.begin("d", "tiny", [[1] * 11])
    assert recent.latest() == []
    recent.begin("e", "tiny", [[1] * 10])
    assert [request.id for request in recent.latest()] == ["e"]


def test_recent_requests_are_bounded() -> None:
    recent = RecentRequests(keep_minutes=10, max_requests=2)
    for name in "abc":
        recent.begin(name, "tiny", [[1, 2]])
        recent.append(name, 0, 0, 7)
    assert [request.id for request in recent.latest()] == ["c", "b"]
    assert recent.latest()[0].ids() == [1, 2, 7]
    assert recent.get("a") is None
    recent.append("a", 0, 0, 8)  # forgotten meanwhile: nothing happens
    off = RecentRequests(keep_minutes=0)
    off.begin("a", "tiny", [[1]])
    assert off.latest() == []


# The page.


def test_the_page_says_what_is_served(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert SHIPPED in response.text
    assert "--explorer" in response.text
    assert client.get("/explorer/").status_code == client.post("/api/v1/trace").status_code == 404


def test_a_request_opens_in_the_explorer(gpt: GPT) -> None:
    with app_client(gpt, explorer=True, api_key=KEY) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        found = complete(client, prompt="The <b>king</b>", max_tokens=3, return_token_ids=True)
        page = client.get("/").text
        assert found["id"] in page
        assert "The &lt;b&gt;king&lt;/b&gt;" in page
        target, ids = follow(client, f"/open/{found['id']}")
        assert ids == gpt.encode("The <b>king</b>") + found["choices"][0]["token_ids"]
        assert "main.js" in client.get(target).text
        assert client.get(f"{target}main.js").status_code == 200
        trace = client.post(f"{target}api/v1/trace", json={"ids": ids}).json()
        assert [token["id"] for token in trace["tokens"]] == ids
        for path in ("/open/cmpl-unknown", f"/open/{found['id']}?prompt=1", f"/open/{found['id']}?sample=1",
                     "/explorer/2/", "/explorer/x", "/explorer/1/../../x"):  # fmt: skip
            assert client.get(path).status_code == 404, path
        assert client.get("/explorer", follow_redirects=False).headers["location"] == target
        long = client.post(f"{target}api/v1/trace", json={"text": "a" * 300_000})
        assert long.status_code == 413
        foreign = {"sec-fetch-site": "cross-site"}
        assert client.get(f"{target}api/v1/model", headers=foreign).status_code == 403
        del client.headers["authorization"]
        for path in ("/", target, f"{target}api/v1/model", f"/open/{found['id']}"):
            assert client.get(path).status_code == 401


def follow(client: TestClient, path: str) -> tuple[str, list[int]]:
    """Where a request opens: the address of an Explorer, and the ids that it gets."""
    response = client.get(path, follow_redirects=False)
    assert response.status_code == 303
    target, _, fragment = response.headers["location"].partition("#ids=")
    return target, json.loads(unquote(fragment))


@pytest.mark.slow
def test_requests_to_every_model_open_in_its_own_explorer(gpt: GPT) -> None:
    """Also when the model was unloaded meanwhile, and whatever its name is."""
    other = GPT(gpt.backend, gpt.tokenizer, "other", gpt._checkpoint)
    names = ["first", "../b ä?#", "1"]
    gpts = dict(zip(names, (gpt, other, gpt), strict=True))
    with pool_client(gpts, models=1.5, explorer=True) as client:
        pool = client.app.state.server.pool
        targets = []
        for name in names:
            found = complete(client, model=name, prompt=["The king", "A"], n=2, max_tokens=2, seed=1,
                             return_token_ids=True)  # fmt: skip
            assert list(pool.loaded) == [name]
            page = client.get("/").text
            for index, choice in enumerate(found["choices"]):
                prompt, sample = divmod(index, 2)
                link = f"/open/{found['id']}" + (f"?prompt={prompt}&sample={sample}" if index else "")
                assert f'"{escape(link)}"' in page
                target, ids = follow(client, link)
                assert ids == choice["prompt_token_ids"] + choice["token_ids"]
            targets.append(target)
        assert len(set(targets)) == 3
        for target, name in zip(targets, names, strict=True):
            (model,) = client.get(f"{target}api/v1/model").json()["models"]
            assert model["name"] == name
            assert client.post(f"{target}api/v1/trace", json={"ids": ids}).status_code == 200
            assert list(pool.loaded) == [name]  # in use only as long as it is asked


# Errors of every route.


def routes(client: TestClient) -> list[tuple[str, str]]:
    """Every path of the document with the method it takes."""
    paths = client.get("/openapi.json").json()["paths"]
    return [
        (path.replace("{name}", "x"), method.upper()) for path, methods in paths.items() for method in methods
    ]


def assert_error(response: Any, status: int) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


@pytest.mark.slow
def test_every_route_has_errors_of_one_shape(client: TestClient) -> None:
    for path, method in routes(client):
        other = "GET" if method == "POST" else "POST"
        for wrong in (other, "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"):
            response = client.request(wrong, path)
            assert_error(response, 405)
            assert response.headers["allow"] == method
        assert_error(client.request(method, f"{path}/../nowhere/x"), 404)
        assert_error(client.request(method, path, headers={"host": "evil.example"}), 403)
        if method == "POST":
            for body in (b"", b"[]", b"null", b"3", b'"a"', b"{", b'{"no_such_field": 1}'):
                assert_error(
                    client.post(path, content=body, headers={"content-type": "application/json"}), 400
                )
            for kind in (
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
            ):
                response = client.post(path, content=b'{"prompt": "A"}', headers={"content-type": kind})
                assert_error(response, 400)  # a form of another site cannot send JSON
                assert "application/json" in response.json()["error"]["message"]
    assert_error(client.get("/nowhere"), 404)
    assert_error(client.get("/tokenizer_info?model=gpt-4"), 404)


def test_chat_is_told_where_to_go(client: TestClient) -> None:
    response = client.post(
        "/v1/chat/completions", json={"model": SHIPPED, "messages": [{"role": "user", "content": "x"}]}
    )
    assert_error(response, 404)
    assert "/v1/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        (CompletionRequest, {f"a{i}": 1 for i in range(1000)}),
        (DetokenizeRequest, {"tokens": [-1] * 1000}),
        (schemas.Ids, [-1] * 1000),
        (schemas.Ids, [[]] * 1000),
        (schemas.Prompt, {"a": 1}),
    ],
)
def test_a_thousand_mistakes_are_one_error(schema: Any, given: Any) -> None:
    """Four megabytes of them, an error each, took four seconds of the event loop."""
    with pytest.raises(ValidationError) as error:
        TypeAdapter(schema).validate_python(given)
    assert error.value.error_count() == 1


def test_one_request_has_bounds(client: TestClient) -> None:
    """A few bytes cannot ask for a quarter of a million texts, nor for gigabytes of log-probabilities."""
    error = refused(client, 400, prompt=["a"] * 2048, n=3, max_tokens=0)
    assert error["param"] == "n"
    assert refused(client, 400, prompt=["a"] * 50, best_of=128, max_tokens=1)["param"] == "n"
    error = refused(client, 400, prompt="a", n=50, max_tokens=1000, logprobs=20)
    assert error["param"] == "logprobs"
    assert "1,050,000" in error["message"]
    many = [[1] * 1000] * 50
    assert refused(client, 400, prompt=many, logprobs=20, echo=True, max_tokens=0)["param"] == "logprobs"
    assert refused(client, 400, prompt=many, prompt_logprobs=20, max_tokens=0)["param"] == "logprobs"


@pytest.mark.slow
def test_browsers_of_a_named_origin_may_send_openai_s_headers(gpt: GPT) -> None:
    good = "https://good.example"
    with app_client(gpt, cors_origin=(good,)) as client:
        asked = {"origin": good, "access-control-request-method": "POST",
                 "access-control-request-headers": "authorization,content-type,x-stainless-os"}  # fmt: skip
        response = client.options("/v1/completions", headers=asked)
        assert response.status_code == 200
        assert "x-stainless-os" in response.headers["access-control-allow-headers"]
        for foreign in (
            "https://evil.example",
            "null",
            "https://good.example.evil.example",
            "http://good.example",
        ):
            response = client.options("/v1/completions", headers={**asked, "origin": foreign})
            assert response.status_code == 403
            assert "access-control-allow-origin" not in response.headers
