"""Other people's clients against the server, started by its command: ollama's and openai's.

`make test-doors` installs them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("ollama", reason="ollama is not installed: make test-doors installs it")

import ollama
import openai

import glassgpt
from glassgpt.weights import save_checkpoint
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter
from tests.serve.conftest import COMMON, PROMPT, ServerProcess
from tests.tasks.conftest import make_model

OPTIONS = {"num_predict": 12, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    save_checkpoint(make_model("chat"), folder / "talker")
    write_adapter(folder / "red", SHIPPED)
    made = ServerProcess(*COMMON, "--model", f"talker={folder / 'talker'}", "--lora", f"red={folder / 'red'}")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def expected() -> str:
    return glassgpt.load(SHIPPED).generate(PROMPT, max_new_tokens=12, temperature=0).text


def test_ollamas_client(server: ServerProcess, expected: str) -> None:
    client = ollama.Client(server.root)
    whole = client.generate(SHIPPED, PROMPT, options=OPTIONS)
    assert (whole.response, whole.eval_count) == (expected, 12)
    parts = list(client.generate(SHIPPED, PROMPT, options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts) == expected
    more = client.generate(SHIPPED, "", context=list(whole.context), options=OPTIONS)
    assert more.prompt_eval_count == len(whole.context)
    assert [model.model for model in client.list().models] == [SHIPPED, "talker", "red"]
    about = client.show(SHIPPED)
    assert about.modelinfo["general.architecture"] == "gpt2"
    assert about.details.family == "gpt2"
    assert len(client.embed(SHIPPED, ["one", "two"]).embeddings) == 2
    said = client.chat("talker", [{"role": "user", "content": "The red cat"}], options=OPTIONS)
    assert said.message.role == "assistant"
    pieces = client.chat("talker", [{"role": "user", "content": "The red cat"}], options=OPTIONS, stream=True)
    assert "".join(piece.message.content for piece in pieces) == said.message.content
    with pytest.raises(ollama.ResponseError, match="does not exist") as failed:
        client.generate("gone", "x")
    assert failed.value.status_code == 404


def test_openais_client(server: ServerProcess, expected: str) -> None:
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        vectors = client.embeddings.create(model=SHIPPED, input=["one", "two"]).data  # base64 on the wire
        plain = client.embeddings.create(model=SHIPPED, input="two", encoding_format="float").data
        assert vectors[1].embedding == pytest.approx(plain[0].embedding)
        messages = [{"role": "user", "content": "The red cat"}]
        said = client.chat.completions.create(model="talker", messages=messages, max_tokens=8, seed=1)
        parts = client.chat.completions.create(
            model="talker", messages=messages, max_tokens=8, seed=1, stream=True
        )
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == said.choices[0].message.content
        with pytest.raises(openai.NotFoundError, match="base model"):
            client.chat.completions.create(model=SHIPPED, messages=messages)
        texts = {
            name: client.completions.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
            .choices[0].text
            for name in (SHIPPED, "red")
        }  # fmt: skip
        assert texts[SHIPPED] == expected != texts["red"]
        assert client.models.retrieve("red").id == "red"
