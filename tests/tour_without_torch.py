"""The README's tour in a Python without torch: `python -P tests/tour_without_torch.py --block FOLDER`
pretends that it is not installed. test_without_torch.py runs it, also with a new environment's Python.

It stands on nothing but the package and its light dependencies. With `-- WORDS` it is the program `glassgpt`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TEXT = "A robot must obey the orders given it"
MODEL = "tiny"


class NoTorch:
    """An import hook: torch is not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--block", action="store_true")
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path)
    own, separator, words = split(sys.argv[1:])
    options = parser.parse_args(own)
    if options.block:
        sys.meta_path.insert(0, NoTorch())
    if separator:
        from glassgpt.cli import main as program

        sys.exit(program(words))
    check_commands(options.folder)
    check_library(options.folder)
    if options.explore:
        check_explorer(["--block"] if options.block else [])
    assert "torch" not in sys.modules
    print("all of the tour works without torch")


def split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    where = words.index("--") if "--" in words else len(words)
    return words[:where], where < len(words), words[where + 1 :]


def glassgpt(*words: str | Path, code: int = 0) -> tuple[str, str]:
    """Run a command in this process: what it prints, on stdout and stderr."""
    from glassgpt.cli import main as program

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = program([str(word) for word in words])
    assert found == code, (words, found, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()


def check_commands(folder: Path) -> None:
    with contextlib.suppress(ModuleNotFoundError):
        assert importlib.util.find_spec("torch") is None, "torch is installed: use --block"
    out, _ = glassgpt("generate", TEXT, "--model", MODEL, "--max-new-tokens", "8", "--seed", "1")
    assert out.startswith(TEXT), out
    assert len(out.strip()) > len(TEXT)
    assert len(json.loads(glassgpt("next", TEXT, "--model", MODEL, "--json")[0])["next"]) == 10
    assert "orders" in glassgpt("tokens", TEXT, "--model", MODEL)[0]
    assert "wte.weight" in glassgpt("info", MODEL, "--json")[0]
    for name in ("folder", "model.gguf", "model.safetensors", "llmc.bin"):
        glassgpt("convert", MODEL, folder / name)
    glassgpt("convert", folder / "model.gguf", folder / "openai", "--format", "openai")
    for dtype in ("int8", "int4"):
        glassgpt("convert", MODEL, folder / dtype, "--dtype", dtype)
        assert f"stored as: {dtype}" in glassgpt("info", folder / dtype)[0]
    plain, _ = glassgpt("generate", TEXT, "--model", MODEL, "--max-new-tokens", "8", "--temperature", "0")
    for name in ("folder", "openai", "model.gguf", "int8"):
        words = ("generate", TEXT, "--model", folder / name, "--max-new-tokens", "8", "--temperature", "0")
        assert glassgpt(*words)[0] == plain, name
    assert "agree with the reference" in glassgpt("verify", MODEL)[1]
    text = folder / "text.txt"
    text.write_text(TEXT)
    glassgpt("prepare", text, "-o", folder / "shards", "--tokenizer", MODEL)
    for words in (
        ("train", "--data", folder / "shards", "--out", folder / "run", "--steps", "1"),
        ("tune", text),
        ("convert", MODEL, folder / "nano.pt"),
        ("generate", TEXT, "--device", "cuda"),
    ):
        _, err = glassgpt(*words, code=2)
        assert len(err.strip().splitlines()) == 1, err
        assert "`make full`" in err, err
        assert "pip install 'glassgpt[torch]'" in err, err


def check_library(folder: Path) -> None:
    import numpy as np

    import glassgpt as package
    from glassgpt.errors import UserError
    from glassgpt.inspect import AblateHead, Trace

    gpt = package.load(MODEL)
    trace = gpt.trace(TEXT)
    assert np.allclose(trace.attention[1, 2].sum(axis=-1), 1, atol=1e-5)
    trace.save(folder / "trace.safetensors", "h.*.attn.weights")
    assert Trace.load(folder / "trace.safetensors").lens().texts.shape == trace.lens().texts.shape
    assert "<svg" in trace.to_svg()
    assert gpt.intervene(trace, AblateHead(0, 1)).kl > 0
    assert gpt.attribute(trace, method="direct_logit_attribution").heads.shape[0] == gpt.config.n_layer
    message = ""
    try:
        gpt.attribute(trace, method="integrated_gradients")
    except UserError as error:
        message = str(error)
    assert "`make full`" in message


def check_explorer(options: list[str]) -> None:
    """A real server, asked for everything that the page asks for."""
    command = [sys.executable, "-P", __file__, *options, "--", "explore", "--model", MODEL, "--no-browser"]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://[\w.:]+", server.stdout.readline())
            assert found is not None
            check_routes(found[0])
        finally:
            server.terminate()


def check_routes(address: str) -> None:
    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{address}/api/v1{path}", data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            content = answer.read()
        return json.loads(content) if answer.headers["content-type"] == "application/json" else content

    with urllib.request.urlopen(address, timeout=300) as page:
        assert b"<html" in page.read()
    assert ask("/model")["models"][0]["name"] == MODEL
    assert ask("/tally")["total"] > 0
    assert len(ask("/vocabulary")["texts"]) > 1000
    id = ask("/trace", {"text": TEXT})["id"]
    assert len(ask(f"/trace/{id}/append", {"token": 5})["tokens"]) > 1
    for path in (
        "patterns?layer=1",
        "head?layer=1&head=0&position=3",
        "mlp?layer=0&position=2",
        "next?position=4",
    ):
        assert ask(f"/trace/{id}/{path}")
    edits = [{"kind": "ablate_head", "layer": 1, "head": 2}, {"kind": "steer_token", "layer": 0, "token": 9}]
    assert ask("/intervene", {"id": id, "edits": edits})["kl"] > 0
    attribution = {"id": id, "target": 7, "position": 3}
    assert "heads" in ask("/attribute", {**attribution, "method": "direct_logit_attribution"})
    status, message = 200, ""
    try:
        ask("/attribute", {**attribution, "method": "integrated_gradients"})
    except urllib.error.HTTPError as error:
        status, message = error.code, json.load(error)["error"]["message"]
    assert status == 400
    assert "`make full`" in message
    ids = [token["id"] for token in ask("/trace", {"text": TEXT})["tokens"]]
    events = ask("/generate", {"ids": ids, "max_new_tokens": 5, "seed": 1})
    assert events.count(b"data:") == 6, events
    assert b"glass-offline" in ask("/export", {"ids": ids, "hash": ""})


if __name__ == "__main__":
    main()
