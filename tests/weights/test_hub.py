"""The hub: found, fetched, resumed, checked, cached, and what is said when it is not there."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassgpt import __version__
from glassgpt.cli import progress_bar
from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError, UserError
from glassgpt.weights import hub, huggingface, load_checkpoint, load_config, load_tokenizer
from tests.weights import standin_hub
from tests.weights.conftest import assert_same, random_checkpoint, write_shards
from tests.weights.standin_hub import COMMIT, Hub, Running

SRC = Path(__file__).resolve().parents[2] / "src"
REPO = "someone/small-gpt2"
WEIGHTS = "model.safetensors"


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture
def model(tmp_path: Path) -> dict[str, bytes]:
    """The files of a model as its owner uploaded them."""
    huggingface.save(random_checkpoint(), tmp_path / "upload")
    return {**files_of(tmp_path / "upload"), **tokenizer_files(), "README.md": b"words"}


def tokenizer_files() -> dict[str, bytes]:
    """The smallest GPT-2 tokenizer: 256 bytes and no merges."""
    from glassgpt.tokenizer.pre_tokenizer import bytes_to_unicode

    vocabulary = {char: byte for byte, char in enumerate(bytes_to_unicode())}
    return {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": b"#version: 0.2\n"}


@pytest.fixture
def server(model: dict[str, bytes]) -> Iterator[Hub]:
    with Running() as running:
        running.repos[REPO] = model
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fetch(server: Hub, cache: Path, name: str = REPO, **options: bool) -> Path:
    return hub.fetch(name, endpoint=server.url, cache=cache, **options)


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*incomplete*") if path.is_file()]


def test_only_the_files_needed_are_fetched(server: Hub, cache: Path, model: dict[str, bytes]) -> None:
    folder = fetch(server, cache)
    assert files_of(folder) == {name: model[name] for name in model if name != "README.md"}
    assert_same(huggingface.load(folder).tensors, random_checkpoint().tensors)
    assert leftovers(cache) == []


@pytest.fixture
def hub_is_here(server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a model by name asks the stand-in."""
    ask_it = functools.partial(hub.fetch, endpoint=server.url, cache=cache)
    monkeypatch.setattr(hub, "fetch", ask_it)


def fetched(server: Hub, model: dict[str, bytes]) -> set[str]:
    return {name for name in model if server.asked("GET", f"/{name}")}


@pytest.mark.usefixtures("hub_is_here")
def test_a_tokenizer_or_a_config_alone_fetches_no_weights(server: Hub, model: dict[str, bytes]) -> None:
    assert load_config(REPO) == random_checkpoint().config
    assert fetched(server, model) == {"config.json"}
    assert load_tokenizer(REPO).encode("glass") == list(b"glass")
    assert fetched(server, model) == {"config.json", "vocab.json", "merges.txt"}
    server.log.clear()
    assert load_config(REPO, offline=True) == random_checkpoint().config
    assert load_tokenizer(REPO).vocab_size == 256
    assert server.log == []


@pytest.mark.usefixtures("hub_is_here")
def test_parts_that_are_there_are_not_a_whole_model(server: Hub, model: dict[str, bytes]) -> None:
    load_tokenizer(REPO)
    with pytest.raises(ModelNotFoundError, match="offline"):
        load_checkpoint(REPO, offline=True)
    server.log.clear()
    assert_same(load_checkpoint(REPO).tensors, random_checkpoint().tensors)
    assert fetched(server, model) == {WEIGHTS, "generation_config.json"}


def test_a_branch_that_stands_for_a_whole_copy_stays_there(
    server: Hub, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = {name: model.pop(name) for name in ("vocab.json", "merges.txt")}
    full = fetch(server, cache)
    model.update(tokenizer)  # the owner uploads a tokenizer: a new commit
    monkeypatch.setattr(standin_hub, "COMMIT", "beef" * 10)
    assert hub.fetch(REPO, ("tokenizer",), endpoint=server.url, cache=cache) != full
    assert fetch(server, cache, offline=True) == full


def test_a_model_without_a_tokenizer_says_so(
    server: Hub, hub_is_here: None, model: dict[str, bytes], tmp_path: Path
) -> None:
    for name in tokenizer_files():
        del model[name]
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(REPO)


def test_a_cached_copy_needs_no_network(server: Hub, cache: Path) -> None:
    folder = fetch(server, cache)
    server.log.clear()
    assert fetch(server, cache) == folder
    assert fetch(server, cache, f"{REPO}@main") == folder
    assert fetch(server, cache, f"{REPO}@{COMMIT}") == folder
    assert server.log == []


def test_the_cache_is_the_one_of_huggingface_hub(server: Hub, cache: Path) -> None:
    from huggingface_hub import hf_hub_download

    folder = fetch(server, cache)
    server.log.clear()
    theirs = hf_hub_download(REPO, WEIGHTS, cache_dir=cache, endpoint=server.url)
    assert Path(theirs) == folder / WEIGHTS
    assert server.asked("GET", WEIGHTS) == []  # asked whether it is current, not for the bytes


def test_a_copy_that_huggingface_hub_fetched_is_used(server: Hub, cache: Path) -> None:
    from huggingface_hub import hf_hub_download

    for name in ("config.json", WEIGHTS, "vocab.json", "merges.txt"):
        theirs = hf_hub_download(REPO, name, cache_dir=cache, endpoint=server.url)
    server.log.clear()
    assert fetch(server, cache) == Path(theirs).parent
    assert server.log == []


def test_an_empty_file_is_fetched(server: Hub, cache: Path) -> None:
    server.repos[REPO]["generation_config.json"] = b""
    assert (fetch(server, cache) / "generation_config.json").read_bytes() == b""


def test_an_interrupted_transfer_resumes(server: Hub, cache: Path) -> None:
    server.break_after[WEIGHTS] = [5_000, 7_000]
    folder = fetch(server, cache)
    assert server.asked("GET", WEIGHTS)[-1] == "bytes=12000-"
    assert_same(huggingface.load(folder).tensors, random_checkpoint().tensors)


def test_a_later_run_resumes_an_earlier_one(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.weights.download.ATTEMPTS", 1)
    server.break_after[WEIGHTS] = [6_000, 0]
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        fetch(server, cache)
    (part,) = leftovers(cache)
    assert part.stat().st_size == 6_000
    assert hub.cached(REPO, "main", cache) is None  # half a model is not a model
    server.log.clear()
    fetch(server, cache)
    assert set(server.asked("GET", WEIGHTS)) == {"bytes=6000-"}
    assert leftovers(cache) == []


def test_a_server_that_ignores_ranges_starts_again(server: Hub, cache: Path) -> None:
    server.ignore_range = True
    server.break_after[WEIGHTS] = [5_000]
    folder = fetch(server, cache)
    assert_same(huggingface.load(folder).tensors, random_checkpoint().tensors)


@pytest.mark.parametrize("name", [WEIGHTS, "vocab.json"])
def test_a_damaged_file_is_refused_and_removed(server: Hub, cache: Path, name: str) -> None:
    server.corrupt.add(name)
    with pytest.raises(FileFormatError, match=f"{name} is damaged") as caught:
        fetch(server, cache)
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []
    assert not list(cache.rglob(name))
    server.corrupt.clear()
    assert fetch(server, cache).is_dir()


def test_sharded_weights(server: Hub, cache: Path, tmp_path: Path) -> None:
    write_shards(random_checkpoint(), tmp_path / "sharded")
    server.repos[REPO] = {**files_of(tmp_path / "sharded"), **tokenizer_files()}
    folder = fetch(server, cache)
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert_same(huggingface.load(folder).tensors, random_checkpoint().tensors)
    server.log.clear()
    assert fetch(server, cache, offline=True) == folder


def test_a_shard_name_that_leads_out_of_the_folder_is_refused(server: Hub, cache: Path) -> None:
    files = server.repos[REPO]
    del files[WEIGHTS]
    index = {"weight_map": {"wte.weight": "../../../../etc/passwd"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["../../../../etc/passwd"] = b"root"
    with pytest.raises(FileFormatError, match="not a plain file name"):
        fetch(server, cache)
    assert server.asked("GET", "passwd") == []


def test_another_architecture_is_refused_before_its_weights_are_fetched(server: Hub, cache: Path) -> None:
    server.repos[REPO]["config.json"] = b'{"model_type": "llama", "vocab_size": 32000}'
    with pytest.raises(UserError, match="'llama'"):
        fetch(server, cache)
    assert server.asked("GET", WEIGHTS) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("someone/nothing", "someone/nothing is not on the hub"),
        (f"{REPO}@never", "no revision 'never'"),
        ("gpt2", r"gpt2 \(openai-community/gpt2\) is not on the hub"),
    ],
)
def test_what_the_hub_does_not_have(server: Hub, cache: Path, name: str, words: str) -> None:
    with pytest.raises(ModelNotFoundError, match=words) as caught:
        fetch(server, cache, name)
    assert "\n" not in str(caught.value)


def test_a_repository_without_weights(server: Hub, cache: Path) -> None:
    del server.repos[REPO][WEIGHTS]
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        fetch(server, cache)


def test_without_a_server_nothing_is_waited_for_and_the_error_says_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nobody else can listen there meanwhile
        port = unheard.getsockname()[1]
        with pytest.raises(ModelNotFoundError, match="put the model's") as caught:
            hub.fetch("gpt2", endpoint=f"http://127.0.0.1:{port}", cache=cache)
    assert pauses == []
    assert "\n" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ModelNotFoundError, match="cannot be reached"):
            hub.fetch("gpt2", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", cache=cache)


def test_offline_uses_the_cache_and_nothing_else(server: Hub, cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="offline mode is on"):
        fetch(server, cache, offline=True)
    assert server.log == []
    folder = fetch(server, cache)
    assert fetch(server, cache, offline=True) == folder


def test_a_copy_without_tokenizer_is_completed_online_and_good_enough_offline(
    server: Hub, cache: Path
) -> None:
    folder = fetch(server, cache)
    (folder / "vocab.json").unlink()
    assert fetch(server, cache, offline=True) == folder
    assert not (folder / "vocab.json").exists()
    assert fetch(server, cache) == folder
    assert (folder / "vocab.json").exists()


def test_the_environment_variables_of_huggingface_hub(server: Hub, cache: Path) -> None:
    """HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE are read when huggingface_hub starts."""
    code = (
        "import sys; from glassgpt.weights import load_checkpoint as load\n"
        f"c = load({REPO!r}); print(c.format, c.source, c.tokenizer.vocab_size, 'torch' in sys.modules)"
    )
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path, "HF_HUB_CACHE": str(cache)}
    runs = []
    for more in ({"HF_ENDPOINT": server.url}, {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "1"}):
        server.log.clear()
        run = subprocess.run(
            [sys.executable, "-c", code], env={**settings, **more}, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        runs.append((run.stdout.strip(), len(server.log) > 0))
    assert runs == [(f"hf {REPO} 256 False", True), (f"hf {REPO} 256 False", False)]


def test_the_hub_learns_nothing_about_this_machine(
    server: Hub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub asks the endpoint which environment variables it wants to know about, and reports them;
    a list there made it fail."""
    harnesses = b'{"standardEnvVars": [], "harnesses": {"spied": {"envVars": {"SECRET": "*"}}}}'
    for answer in (harnesses, b"[1]"):
        server.instead["/api/agent-harnesses"] = (200, answer, {})
        server.log.clear()
        path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
        code = (
            "import huggingface_hub.constants; from glassgpt.weights import load_checkpoint as load\n"
            f"load({REPO!r}); from glassgpt.weights.download import request_headers; print(request_headers())"
        )
        env = {
            **os.environ, "PYTHONPATH": path, "HF_HUB_CACHE": str(cache / str(len(answer))),
            "HF_ENDPOINT": server.url, "SECRET": "x", "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_1",
        }  # fmt: skip
        env.pop("HF_HUB_DISABLE_TELEMETRY", None)
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert server.log
        assert not [path for _, path, _ in server.log if path.startswith("/api/agent")]
        headers = {"User-Agent": f"glassgpt/{__version__}", "Accept-Encoding": "identity"}
        assert run.stdout.strip() == str({**headers, "Authorization": "Bearer hf_1"})


def test_a_published_model_cached_under_its_short_name_is_found(
    server: Hub, cache: Path, model: dict[str, bytes]
) -> None:
    """`GPT2LMHeadModel.from_pretrained("gpt2")` leaves it so."""
    from huggingface_hub import hf_hub_download

    server.repos["gpt2"] = model
    for name in ("config.json", WEIGHTS, "vocab.json", "merges.txt"):
        theirs = hf_hub_download("gpt2", name, cache_dir=cache, endpoint=server.url)
    assert fetch(server, cache, "gpt2", offline=True) == Path(theirs).parent


def test_progress_is_shown_on_a_terminal(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassgpt.weights.download._CHUNK", 10_000)  # from this size on a file is waited for
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    hub.fetch(REPO, endpoint=server.url, cache=cache, progress=progress_bar.progress)
    displayed = capsys.readouterr()
    assert WEIGHTS in displayed.err
    assert "config.json" not in displayed.err
    assert displayed.out == ""


def test_names() -> None:
    for name in ("gpt2", "gpt2-xl", "distilgpt2", "gpt2@main", "owner/name", "owner/name@v1.0"):
        assert hub.is_hub_name(name), name
    for name in ("gpt3", "a/b/c", "/a/b", "../x", "owner/", "owner/name@", "own er/name", "x" * 300):
        assert not hub.is_hub_name(name), name


@pytest.mark.parametrize(
    ("typo", "meant"), [("gtp2", "gpt2"), ("gpt2-mediun", "gpt2-medium"), ("distilgpt", "distilgpt2")]
)
def test_a_typo_gets_a_suggestion(typo: str, meant: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"Did you mean '{meant}'"):
        load_checkpoint(typo)


def test_a_full_disk_says_so(server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(UserError, match="the disk is full") as caught:
        fetch(server, cache)
    assert "\n" not in str(caught.value)


PAGE = b"<!doctype html><title>Welcome to the Grand Hotel</title>"
NONSENSE: dict[str, tuple[int, bytes, dict[str, str], str]] = {
    "a login page": (
        200,
        PAGE,
        {"Content-Type": "text/html"},
        "returned a web page, so it is not the hub",
    ),
    "no JSON": (200, b"{", {}, "an invalid response"),
    "nothing": (200, b"", {}, "an invalid response"),
    "a list": (200, b"[1, 2]", {}, "an invalid response"),
    "deep": (200, b"[" * 100_000, {}, "an invalid response"),
    "no commit": (200, b'{"sha": 7, "siblings": []}', {}, "an invalid response"),
    "files that are none": (200, b'{"sha": "%s", "siblings": [7]}' % (b"a" * 40), {}, "invalid response"),
    "no hash": (
        200,
        b'{"sha": "%s", "siblings": [{"rfilename": "config.json", "blobId": 7, "size": "9"}]}' % (b"a" * 40),
        {},
        "gives no hash for config.json",
    ),
    "half a surrogate pair": (
        200,
        b'{"sha": "%s", "siblings": [{"rfilename": "\\ud800"}]}' % (b"a" * 40),
        {},
        "an invalid response",
    ),
    "a deep error": (401, b"[" * 100_000, {"Content-Type": "application/json"}, "an invalid response"),
    "an error in a list": (403, b"[1]", {"Content-Type": "application/json"}, "an invalid response"),
    "errors that are numbers": (
        400,
        b'{"errors": [1]}',
        {"Content-Type": "application/json"},
        "an invalid response",
    ),
    "a host of no name": (302, b"", {"Location": f"http://{'a' * 300}.xn--/"}, "cannot be reached"),
    "an error in no alphabet": (404, b"", {"X-Error-Message": "\xff"}, "cannot be downloaded"),
    "a broken hub": (500, PAGE, {}, "cannot be downloaded"),
    "round in circles": (302, b"", {"Location": "/api/models/"}, "cannot be reached"),
    "out of room": (200, b"x" * 2000, {}, "sent more than 1,000 bytes"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_whoever_is_not_the_hub_is_a_one_line_error(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    *answer, said = NONSENSE[name]
    if name == "out of room":
        monkeypatch.setattr("glassgpt.weights.download.MAX_RESPONSE_BYTES", 1000)
    server.instead["/api/models/"] = tuple(answer)
    with pytest.raises(UserError, match=said) as caught:
        fetch(server, cache)
    assert "\n" not in str(caught.value)
    assert not any(path.is_file() for path in cache.rglob("*"))


@pytest.mark.parametrize(
    "endpoint",
    ["", "hub", "ftp://a.b", "http://", "http://a:x", "http://a:0", "http://[::1", "http://\n", "\udcff", "http://a..b",
     f"http://{'a' * 64}"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(cache: Path, endpoint: str) -> None:
    with pytest.raises(SettingError, match=r"the hub's address '.*' is not a URL .* HF_ENDPOINT"):
        hub.fetch(REPO, endpoint=endpoint, cache=cache)


@pytest.mark.parametrize("endpoint", ["http://a:x", "http://[::1", "hub"])
def test_an_address_in_the_environment_that_is_none(tmp_path: Path, endpoint: str) -> None:
    """With some of them huggingface_hub raises errors while it is imported."""
    run = subprocess.run(
        [sys.executable, "-m", "glassgpt", "info", REPO],
        env={**os.environ, "PYTHONPATH": str(SRC), "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr.startswith(f"glassgpt: the hub's address '{endpoint}' is not a URL")


def test_a_token_that_no_header_can_carry(server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("hf_\xe9", "\udcff"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UserError, match=r"^the token of the hub .* is not ASCII"):
            fetch(server, cache)
    assert server.log == []


def test_an_answer_without_an_end_is_given_up(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.weights.download.MAX_RESPONSE_SECONDS", -1)
    with pytest.raises(ModelNotFoundError, match=r"cannot be reached .*TimeoutError"):
        fetch(server, cache)


def test_what_has_arrived_is_not_lost_to_a_login_page(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.weights.download.ATTEMPTS", 1)
    server.break_after[WEIGHTS] = [6_000, 0]
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        fetch(server, cache)
    server.instead["/cdn/"] = (200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        fetch(server, cache)
    (part,) = leftovers(cache)
    assert part.stat().st_size == 6_000


def test_the_bytes_that_were_hashed_are_those_that_are_used(server: Hub, cache: Path) -> None:
    """The network is not asked for them a second time, and a link to others is made anew."""
    folder = fetch(server, cache)
    assert [verb for verb, _, _ in server.log if verb != "GET"] == []
    assert len(server.asked("GET", "/config.json")) == 1
    for name in (WEIGHTS, "config.json"):
        assert (folder / name).is_symlink()
        assert (folder / name).resolve().parent == (folder / "../../blobs").resolve()
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("others")
    (folder / "vocab.json").unlink()  # so that the copy is completed
    assert fetch(server, cache) == folder
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gpt2"


@pytest.mark.parametrize(
    "revision", ["../x", "../../../etc", "a/../b", "/etc", ".hidden", "-x", "a//b", "a/", "x\0"]
)
def test_a_revision_that_leads_out_of_the_cache_is_refused(server: Hub, cache: Path, revision: str) -> None:
    for name in ("gpt2", REPO):
        with pytest.raises(ModelNotFoundError, match="is not a branch, tag or commit"):
            fetch(server, cache, f"{name}@{revision}")
    assert server.log == []
    assert not cache.exists()


def test_published_models_stand_for_one_commit() -> None:
    assert {hub.KNOWN[name] for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")} == hub.PINNED.keys()
    for pin in hub.PINNED.values():
        assert len(bytes.fromhex(pin.commit)) == 20
        assert all(len(bytes.fromhex(hash)) == 32 for hash in pin.sha256.values())


@pytest.fixture
def pinned(server: Hub, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The hashes by which the model is known as gpt2, on a hub whose main has gone on since."""
    import hashlib

    known = {name: hashlib.sha256(model[name]).hexdigest() for name in (WEIGHTS, "vocab.json")}
    monkeypatch.setitem(hub.PINNED, hub.KNOWN["gpt2"], hub.Pin(COMMIT, known))
    server.repos[hub.KNOWN["gpt2"]] = model
    return known


@pytest.mark.usefixtures("pinned")
def test_a_published_model_is_fetched_by_its_commit(server: Hub, cache: Path) -> None:
    folder = fetch(server, cache, "gpt2")
    assert folder.name == COMMIT
    assert {path for _, path, _ in server.log if "/api/" in path} == {
        f"/api/models/openai-community/gpt2/revision/{COMMIT}"
    }
    server.log.clear()
    assert fetch(server, cache, "gpt2") == folder
    assert fetch(server, cache, "gpt2@main", offline=True) == folder  # as transformers would ask
    assert server.log == []


@pytest.mark.parametrize("name", [WEIGHTS, "vocab.json"])
def test_a_hub_with_another_gpt2_is_not_believed(
    server: Hub, cache: Path, pinned: dict[str, str], name: str
) -> None:
    """Its description is consistent with its bytes: only we know better."""
    pinned[name] = "0" * 64
    with pytest.raises(FileFormatError, match=f"{name} of openai-community/gpt2 is not the published one"):
        fetch(server, cache, "gpt2")
    assert not list(cache.rglob(name))


@pytest.mark.usefixtures("pinned")
def test_another_commit_than_was_asked_for_is_refused(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"sha": "b" * 40, "siblings": []}).encode()
    server.instead["/api/models/"] = (200, body, {})
    with pytest.raises(FileFormatError, match=f"another commit than {COMMIT}"):
        fetch(server, cache, "gpt2")
