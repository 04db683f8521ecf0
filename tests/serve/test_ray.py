"""The server and the pipeline on a real Ray cluster of two nodes, with a replica killed under load.

`make test-ray` installs ray into a separate environment and runs this.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: make test-ray installs it")

import ray
from ray import serve
from ray.cluster_utils import Cluster
from starlette.testclient import TestClient

import glassgpt
from glassgpt.errors import SettingError
from glassgpt.serve import ray_batch
from glassgpt.serve.ray import RayOptions, app
from tests.conftest import SHIPPED

pytestmark = pytest.mark.slow

PORT = 8127
PROMPT = "The old house stood at the end of the lane"
PATIENCE = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    ray.init(address=made.address)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    yield made
    serve.shutdown()
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def url(cluster: Any) -> str:
    serve.start(http_options={"port": PORT})
    serve.run(app({"model": SHIPPED, "replicas": "2", "cpus": "1"}), name="glassgpt", route_prefix="/")
    return f"http://127.0.0.1:{PORT}"


def post(url: str, **fields: Any) -> Any:
    body = json.dumps({"model": SHIPPED, "prompt": PROMPT, **fields}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, headers={"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=PATIENCE)


def post_until_answered(url: str, **fields: Any) -> Any:
    """As clients do: 429, 5xx and lost connections are tried again."""
    for _ in range(100):
        try:
            with post(url, **fields) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < 429:
                raise
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    pytest.fail("it was never answered")


def replicas() -> list[dict[str, Any]]:
    names = ray.util.list_named_actors(all_namespaces=True)
    return [each for each in names if each["name"].startswith("SERVE_REPLICA::glassgpt#glassgpt")]


def test_completions_streams_and_health(url: str) -> None:
    gpt = glassgpt.load(SHIPPED)
    expected = gpt.generate(PROMPT, max_new_tokens=8, temperature=0).text
    with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as answer:
        assert json.load(answer) == {"status": "ok"}
    assert post_until_answered(url, max_tokens=8, temperature=0)["choices"][0]["text"] == expected
    with post(url, max_tokens=8, temperature=0, stream=True) as answer:
        events = [line for line in answer if line.startswith(b"data: ")]
    assert events.pop() == b"data: [DONE]\n"
    parts = [json.loads(event[6:])["choices"][0]["text"] for event in events]
    assert len(parts) == 8
    assert "".join(parts) == expected


def test_a_killed_replica_loses_nothing_that_is_tried_again(url: str) -> None:
    before = replicas()
    assert len(before) == 2
    found: list[str] = []

    def client() -> None:
        for _ in range(5):
            answer = post_until_answered(url, max_tokens=24, temperature=0, ignore_eos=True)
            found.append(answer["choices"][0]["text"])

    threads = [threading.Thread(target=client) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(found) < 3:
        time.sleep(0.05)
    ray.kill(ray.get_actor(before[0]["name"], before[0]["namespace"]), no_restart=True)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == 30
    assert len(set(found)) == 1


def test_the_pipeline_continues_where_it_was_stopped(cluster: Any, tmp_path: Path) -> None:
    prompts = [f"{word} old house" for word in ("The", "An", "My", "Our", "No", "Some", "This")]
    source, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    fields: dict[str, Any] = {"model": SHIPPED, "rows": 2, "workers": 2, "cpus": 0.5, "max_new_tokens": 6}
    assert ray_batch.run(source, out, **fields) == (7, 0)
    parts = sorted(out.glob("part-*.jsonl"))
    assert len(parts) == 4
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(7))
    gpt = glassgpt.load(SHIPPED)
    assert [row["text"] for row in rows] == [
        gpt.generate(prompt, max_new_tokens=6, seed=number).text for number, prompt in enumerate(prompts)
    ]
    whole = parts[2].read_text()
    parts[2].unlink()  # as if it had been stopped here
    assert ray_batch.run(source, out, **fields) == (2, 3)
    assert parts[2].read_text() == whole
    assert ray_batch.run(source, out, **fields) == (0, 4)
    with pytest.raises(SettingError, match="begun with max_new_tokens 6, and this is 7"):
        ray_batch.run(source, out, **{**fields, "max_new_tokens": 7})


def test_a_wrong_row_is_one_line(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "The old house"}\n\n')
    words = ["ray_batch", str(source), str(tmp_path / "out"), "--model", SHIPPED, "--cpus", "0.5"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SettingError, match="does not exist"):
        ray_batch.run(tmp_path / "no.jsonl", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"^glassgpt: row 1 of .* has no text in 'prompt'. See --column.$"):
        ray_batch.main()


def test_the_pipeline_scores_parquet(cluster: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["The old house stood.", "A robot must obey the orders", "No", "My king is here.", "The end."]
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet", row_group_size=2)
    fields: dict[str, Any] = {"model": SHIPPED, "column": "text", "score": True, "cpus": 0.5, "rows": 3}
    assert ray_batch.run(tmp_path / "texts.parquet", tmp_path / "out", **fields) == (5, 0)
    parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    gpt = glassgpt.load(SHIPPED)
    for text, row in zip(texts, rows, strict=True):
        scored = gpt.generate(text, max_new_tokens=0, prompt_logprobs=0).prompt_logprobs
        assert row["logprob"] == pytest.approx(sum(scored[1:]))
        assert row["tokens"] == len(scored)


def test_options() -> None:
    assert RayOptions.of({"model": "gpt2", "replicas": "3", "gpus": "0.5"}) == RayOptions(
        "gpt2", replicas=3, gpus=0.5
    )
    with pytest.raises(SettingError, match="no option 'modle'"):
        RayOptions.of({"modle": "gpt2"})
    with pytest.raises(SettingError, match="not a number"):
        RayOptions.of({"replicas": "many"})
    with pytest.raises(SettingError, match="replicas is 0"):
        RayOptions.of({"replicas": "0"})
    with pytest.raises(SettingError, match="min_replicas 2 is above max_replicas 0"):
        RayOptions.of({"min_replicas": "2"})


def test_the_key_of_the_machine_that_deploys_guards_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica's process has the environment of its machine, which may have none."""
    built: list[Any] = []
    monkeypatch.setattr(serve, "ingress", lambda build: built.append(build) or (lambda cls: cls))
    monkeypatch.setenv("GLASSGPT_API_KEY", "secret")
    app({"model": SHIPPED})
    monkeypatch.delenv("GLASSGPT_API_KEY")
    with TestClient(built[0]()) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
