"""`glassgpt push`: what is sent to the hub, and what is refused before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.weights import hub, load_checkpoint, save_checkpoint
from glassgpt.weights.push import plan_push, push
from tests.conftest import SHIPPED
from tests.doors.adapters import write_adapter
from tests.weights.conftest import assert_same
from tests.weights.standin_upload import TOKEN, UploadHub

NAME = "me/my-gpt2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(load_checkpoint(SHIPPED), tmp_path / "model", dtype="float16")
    return tmp_path / "model"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadHub]:
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)  # plain LFS
    with UploadHub() as running:
        yield running


def head_of(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_what_was_pushed_is_fetched_again(folder: Path, server: UploadHub, tmp_path: Path) -> None:
    (folder / "log.jsonl").write_text("{}")
    upload = plan_push(folder, NAME, "mit")
    url = push(upload, endpoint=server.hub.url, token=TOKEN, message="first")
    assert url.endswith(NAME)
    assert server.commits == [{"repo": NAME, "summary": "first", "files": len(upload.files) + 1}]
    sent = server.hub.repos[NAME]
    assert set(sent) == {file.name for file, _ in upload.files} | {"README.md"}
    assert "log.jsonl" not in sent
    fetched = hub.fetch(NAME, endpoint=server.hub.url, cache=tmp_path / "cache")
    assert_same(load_checkpoint(fetched).tensors, load_checkpoint(folder).tensors)
    push(plan_push(folder, NAME, "mit"), endpoint=server.hub.url, token=TOKEN)  # again, into what is there


def test_the_card(folder: Path, tmp_path: Path) -> None:
    upload = plan_push(folder, NAME, "mit")
    assert head_of(upload.card) == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["gpt2", "glassgpt"],
        "license": "mit",
    }  # fmt: skip
    assert 'pipeline("text-generation", "me/my-gpt2")' in upload.card
    write_adapter(tmp_path / "adapter", SHIPPED)
    about = tmp_path / "adapter" / "adapter_config.json"
    about.write_text(about.read_text().replace(f'"{SHIPPED}"', '"gpt2"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassgpt.weights.push.load_config", lambda path: load_checkpoint(SHIPPED).config)
        upload = plan_push(tmp_path / "adapter", NAME)
    head = head_of(upload.card)
    assert (head["library_name"], head["base_model"]) == ("peft", "openai-community/gpt2")
    assert "license" in upload.notes[0]
    assert str(tmp_path) not in upload.card
    (folder / "MODEL_CARD.md").write_text("# mine\n\nWords.")
    card = plan_push(folder, NAME).card
    assert card.endswith("---\n\n# mine\n\nWords.\n")


def test_a_card_that_is_there_is_kept(folder: Path, server: UploadHub) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\n---\nmine")
    upload = plan_push(folder, NAME)
    assert not upload.new_card
    push(upload, endpoint=server.hub.url, token=TOKEN)
    assert server.hub.repos[NAME]["README.md"] == b"---\nlicense: mit\n---\nmine"
    for text, says in (
        ("mine", "no metadata"),
        ("---\n: [\n---\n", "not YAML"),
        ("---\n- x\n---\n", "not a table"),
        ("---\nlicense: mit\n", "not a table"),
    ):
        (folder / "README.md").write_text(text)
        with pytest.raises(FileFormatError, match=says):
            plan_push(folder, NAME)
    (folder / "README.md").write_text("---\ntags: one\n---\n")
    with pytest.raises(UserError, match="must be an array"):
        push(plan_push(folder, NAME), endpoint=server.hub.url, token=TOKEN)


@pytest.mark.parametrize(
    "name", ["", "gpt2", "a/b/c", "me/", "/x", "me/x y", "../x", "me/a--b", "me/..", "me/x@main"]
)
def test_a_name_that_the_hub_has_not(folder: Path, name: str) -> None:
    with pytest.raises(SettingError, match="OWNER/NAME"):
        plan_push(folder, name)


def test_only_a_models_files_go(folder: Path, tmp_path: Path) -> None:
    (folder / ".env").write_text("SECRET=1")
    (folder / "notes.txt").write_text("private")
    (folder / "sub").mkdir()
    names = {file.name for file, _ in plan_push(folder, NAME).files}
    assert names.isdisjoint({".env", "notes.txt", "sub"})
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "tokenizer_extra.json").symlink_to(secret)
    with pytest.raises(SettingError, match="link to elsewhere"):
        plan_push(folder, NAME)


def test_what_is_no_folder_of_a_model(tmp_path: Path) -> None:
    save_checkpoint(load_checkpoint(SHIPPED), tmp_path / "m.gguf", "gguf")
    with pytest.raises(SettingError, match="glassgpt convert"):
        plan_push(tmp_path / "m.gguf", NAME)
    save_checkpoint(load_checkpoint(SHIPPED), tmp_path / "openai", "openai")
    with pytest.raises(SettingError, match="format openai"):
        plan_push(tmp_path / "openai", NAME)
    save_checkpoint(load_checkpoint(SHIPPED), tmp_path / "hf", dtype="float16")
    with pytest.raises(SettingError, match="--license"):
        plan_push(tmp_path / "hf", NAME, "my own!")


def test_failures_are_one_line(folder: Path, server: UploadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = plan_push(folder, NAME)
    with pytest.raises(UserError, match="hf auth login"):
        push(upload, endpoint=server.hub.url, token="hf_wrong")
    server.hub.instead["/api/repos/create"] = (403, b'{"error": "no"}', {})
    with pytest.raises(UserError, match="may not write to me/my-gpt2"):
        push(upload, endpoint=server.hub.url, token=TOKEN)
    server.hub.instead["/api/repos/create"] = (500, b'{"error": "boom"}', {})
    with pytest.raises(UserError, match="the hub refused me/my-gpt2"):
        push(upload, endpoint=server.hub.url, token=TOKEN)
    with pytest.raises(UserError, match="cannot be reached"):
        push(upload, endpoint="http://127.0.0.1:9", token=TOKEN)
    monkeypatch.setattr("glassgpt.weights.push._stored_token", lambda: None)
    with pytest.raises(UserError, match="needs a token"):
        push(upload, endpoint=server.hub.url)
    assert server.commits == []


def test_the_command_shows_without_sending(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from glassgpt.cli import main

    assert main(["push", str(folder), NAME, "--dry-run", "--license", "mit"]) == 0
    shown = capsys.readouterr()
    assert "model.safetensors" in shown.out
    assert "license: mit" in shown.out
    assert "nothing was sent" in shown.err
    assert main(["push", str(folder), NAME, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"] is None
