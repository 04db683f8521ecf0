"""The cases: each kind of attack is a function from a random generator and a folder to something to run."""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import inspect
import json
import lzma
import os
import random
import shutil
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any

from glassgpt.cli import COMMANDS, main
from tests.fuzz import mutate

Case = tuple[str, Callable[[], int]]  # a name for the report, and the work

NUMBERS = [
    *"0 -1 1 2 3 8 nan inf -inf none 1e400 1e25 -1e25 100000000 1e-300 0.5 1.5 0x10 1_0 ٣ true".split(),
    *"4294967296 9223372036854775808 18446744073709551616 -9223372036854775809".split(),
    *("", " 4 ", "--", "1" + 25 * "0", "1" * 5000),
]
PATHS = [
    *". .. / ~ nosuch nosuch/deep/er model model.gguf book.txt book.txt.gz lines.jsonl shards run".split(),
    *"run/checkpoints run/log.jsonl precious.txt fifo loop nowhere file file/below full zero".split(),
    *"~nosuchuser/x new new.gguf new.bin new.pt model/config.json model/model.safetensors a/b".split(),
    *"shards/index.json tiny * [ - gpt2@../x @ bytes chars bpe ./model model/ owner/name@v1 //".split(),
    *("", " ", "model\n", "http://127.0.0.1:9/x", "/nosuch/x", "a" * 300, "a" * 5000, "\udcff"),
]
WORDS = [
    *"cpu cuda cuda:99 mps float32 bfloat16 int3 gpt2 1x16x2 0x0x0 1000000x32x2 1x17x2 ax-bxc".split(),
    *"smoke perplexity lambada,piqa wandb cosine 🙂 <|endoftext|> 1:2 1:nan a:b 99999999:1 none".split(),
    *("ddp", "tp", "hf", "gguf", "", " ", "A ferry", "0.0.0.0", "::", "x" * 5000, "\udcff"),
]
# Arguments with which each command runs, so that the fuzzed options are reached.
SMALL_RUN = "--shape 1x16x2 --context 16 --batch-size 2 --eval-batches 1 --save-every 2".split()
USUAL = {
    "generate": ["A ferry", "--model", "model", "--max-new-tokens", "3"],
    "next": ["A ferry", "--model", "model", "-k", "3"],
    "tokens": ["A ferry", "--model", "model"],
    "info": ["model"],
    "convert": ["model", "new"],
    "prepare": ["book.txt", "-o", "new", "--tokenizer", "bytes", "--workers", "1"],
    "train": ["--data", "shards", "--out", "new", *SMALL_RUN, "--steps", "2"],
    "tune": ["book.txt", "--model", "model", "--out", "new", "--minutes", "0.02"],
    "eval": ["model", "book.txt", "--suite", "perplexity", "--cache", "cache", "--limit", "2"],
    "verify": ["model", "--dtype", "float32", "--device", "cpu"],
    "completion": ["bash"],
    "explore": ["A ferry", "--model", "nosuch", "--no-browser", "--port", "0"],  # fails before it listens
}  # fmt: skip


@lru_cache
def options_of(name: str) -> dict[str, type]:
    """The options of a command and the types of their values."""
    command = importlib.import_module(f"glassgpt.cli.commands.{name}").command
    hints = typing.get_type_hints(command)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            inner = typing.get_type_hints(kind)
            found |= {field.name: inner[field.name] for field in dataclasses.fields(kind)}
        else:
            found[name] = kind
    return found


def kinds_of(kind: Any) -> set[Any]:
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return {inner for part in typing.get_args(kind) for inner in kinds_of(part)}
    return {kind}


def argument(rng: random.Random, name: str, kind: Any) -> list[str]:
    option = ("-" if len(name) == 1 else "--") + name.replace("_", "-")
    kinds = kinds_of(kind)
    if bool in kinds:
        return [option]
    if kinds & {int, float} and rng.random() < 0.9:
        return [option, rng.choice(NUMBERS)]
    return [option, rng.choice(rng.choice([PATHS, WORDS, NUMBERS]))]


def command_line(rng: random.Random, folder: Path) -> Case:
    """A command with usual arguments, some of them replaced, and some of its options with hostile values."""
    command = rng.choice([name for name in USUAL if name in COMMANDS])
    words = list(USUAL[command])
    if rng.random() < 0.4:
        spots = [i for i, word in enumerate(words) if not word.startswith("-")]
        for spot in rng.sample(spots, min(len(spots), rng.choice([1, 1, 2]))):
            words[spot] = rng.choice(rng.choice([PATHS, WORDS, NUMBERS]))
    known = options_of(command)
    for name in rng.sample(sorted(known), min(len(known), rng.choice([0, 1, 1, 2, 3]))):
        if name == "host" or (command == "explore" and name == "model"):
            continue  # it would start to serve
        words += argument(rng, name, known[name])
    if command == "explore" and "model" in words:
        words[words.index("model")] = "nosuch"
    words = [word.replace("\0", "") for word in words]
    return f"glassgpt {command} {' '.join(map(repr, words))}", lambda: main([command, *words])


def model_folder(rng: random.Random, folder: Path) -> Case:
    """Damage one file of a model, then use the model."""
    model = folder / "victim"
    shutil.copytree(folder / "model", model)
    if rng.random() < 0.25:  # sharded, with an index
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").unlink()
        (model / "model-00001-of-00001.safetensors").write_bytes(weights)
        names = [
            name
            for name in json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
            if name != "__metadata__"
        ]
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    target = rng.choice(sorted(path for path in model.iterdir() if path.is_file()))
    name = f"victim ({damage(rng, target)})"
    source = "victim"
    if rng.random() < 0.2:
        target = folder / "victim.gguf"
        target.write_bytes(mutate.data(rng, (folder / "model.gguf").read_bytes()))
        name, source = "victim.gguf", "victim.gguf"
    words = rng.choice(
        [
            ["generate", "A ferry", "--model", source, "--max-new-tokens", "3"],
            ["next", "A ferry", "--model", source, "-k", "3"],
            ["info", source],
            ["convert", source, "new"],
            ["convert", source, "new.gguf"],
            ["tokens", "A ferry", "--model", source],
            ["train", "--data", "shards", "--out", "new", *SMALL_RUN[2:], "--steps", "1",
             "--init-from", source],
        ]
    )  # fmt: skip
    return f"{name}: {' '.join(words)}", lambda: main(words)


def packed_model(rng: random.Random, folder: Path) -> Case:
    """Damage a file that the native engine maps or reads by itself, before or while it is in use."""
    kind = rng.choice(["int8", "int4", "rows"])
    model = folder / "victim"
    shutil.copytree(folder / f"model-{kind}", model)
    weights = model / f"model.{'int4' if kind == 'int4' else 'int8'}.safetensors"
    way = rng.random()
    if way < 0.15:
        return f"{kind}, truncated while it is in use", lambda: use_truncated(rng, weights)
    if way < 0.45:
        name = damage_header(rng, weights)
    elif way < 0.65:
        name = damage_numbers(rng, weights)
    elif way < 0.75:
        name = "config.json changed"
        config = json.loads((model / "config.json").read_text())
        key = rng.choice(["n_embd", "n_layer", "n_head", "vocab_size", "n_positions", "n_inner"])
        config[key] = rng.choice([0, 1, 2, 15, 17, 32, 64, 255, 320, 4096, 2**24, 2**31, -1])
        (model / "config.json").write_text(json.dumps(config))
    else:
        name = damage(rng, rng.choice([weights, weights, model / "config.json"]))
    words = rng.choice(
        [
            ["generate", "A ferry", "--model", "victim", "--max-new-tokens", "3"],
            ["generate", "A ferry", "--model", "victim", "--max-new-tokens", "3", "--dtype", "int4"],
            ["next", "A ferry", "--model", "victim", "-k", "3", "--dtype", rng.choice(["float32", "int8"])],
            ["info", "victim"],
            ["convert", "victim", "new"],
            ["convert", "victim", "new", "--dtype", rng.choice(["int4", "int8"])],
        ]
    )
    return f"{kind}, {name}: {' '.join(words)}", lambda: main(words)


def damage_header(rng: random.Random, file: Path) -> str:
    """Change values of a safetensors header, whose length is right."""
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = mutate.json_text(rng, raw[8:end].decode()).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:  # the arrays swapped, or of another type
        entries = json.loads(raw[8:end])
        one, other = rng.sample(sorted(set(entries) - {"__metadata__"}), 2)
        what = rng.choice(["shape", "dtype", "data_offsets"])
        entries[one][what], entries[other][what] = entries[other][what], entries[one][what]
        header = json.dumps(entries).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[end:])
    return f"the header of {file.name} changed"


def damage_numbers(rng: random.Random, file: Path) -> str:
    """Overwrite numbers: scales that are infinite, values that no quantizer writes."""
    raw = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(rng.choice([1, 10, 1000])):
        at = rng.randrange(begin, len(raw))
        piece = rng.choice([b"\x80", b"\xff" * 8, b"\x00\x7c" * 4, b"\x7f" * 40, rng.randbytes(16)])
        raw[at : at + len(piece)] = piece[: len(raw) - at]
    file.write_bytes(raw)
    return f"numbers of {file.name} overwritten"


def use_truncated(rng: random.Random, file: Path) -> int:
    """Cut the file of a loaded model: its texts, or one line."""
    import glassgpt
    from glassgpt.errors import UserError

    gpt = glassgpt.load(file.parent, device="cpu")
    file.write_bytes(b"") if rng.random() < 0.2 else os.truncate(file, rng.randrange(file.stat().st_size))
    for _ in range(3):
        try:
            gpt.generate("A ferry", max_new_tokens=3)
        except UserError as error:
            print(error)
    return 0


def damage(rng: random.Random, target: Path) -> str:
    """Damage one file, and describe how."""
    kind = rng.random()
    if kind < 0.06:
        target.unlink()
        return f"{target.name} removed"
    if kind < 0.1:
        target.unlink()
        target.mkdir()
        return f"{target.name} is a folder"
    if target.suffix == ".json" and kind < 0.85:
        target.write_text(
            mutate.json_text(rng, target.read_text("utf-8", "replace")), "utf-8", "surrogatepass"
        )
    elif target.suffix == ".jsonl" and kind < 0.6:
        lines = target.read_text("utf-8", "replace").splitlines()
        if lines:
            at = rng.randrange(len(lines))
            lines[at] = mutate.json_text(rng, lines[at])
        target.write_text("\n".join(lines), "utf-8", "surrogatepass")
    else:
        target.write_bytes(mutate.data(rng, target.read_bytes()))
    return f"{target.name} damaged"


def run_folder(rng: random.Random, folder: Path) -> Case:
    """Damage one file of a training run, then resume or use it."""
    run = folder / "run"
    done = []
    for _ in range(rng.choice([1, 1, 2])):
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "lock")
        if files:
            done.append(damage(rng, rng.choice(files)))
    if rng.random() < 0.1:
        (run / "checkpoints" / rng.choice(["step-abc", "step-", "step-99999999999999999999", "x"])).mkdir(
            parents=True
        )
        done.append("a strange checkpoint")
    words = rng.choice(
        [
            ["train", "--data", "shards", "--out", "run", "--steps", "6", *SMALL_RUN, "--resume"],
            ["train", "--data", "shards", "--out", "run", "--steps", "6", *SMALL_RUN],
            ["generate", "A ferry", "--model", "run", "--max-new-tokens", "3"],
            ["info", "run"],
            ["convert", "run", "new"],
        ]
    )
    return f"run ({', '.join(done)}): {' '.join(words)}", lambda: main(words)


def text_file(rng: random.Random, folder: Path) -> Case:
    """Damage a text file, plain or compressed, then prepare, tune or evaluate with it."""
    name = rng.choice(
        [
            "book.txt",
            "lines.jsonl",
            "book.txt.gz",
            "book.txt.xz",
            "lines.jsonl.gz",
            "lines.jsonl.xz",
            "book.bin",
        ]
    )
    source = folder / f"victim-{name}"
    base = (folder / "lines.jsonl" if "lines" in name else folder / "book.txt").read_bytes()
    inner = mutate.data(rng, base) if rng.random() < 0.7 else base
    if "lines" in name and rng.random() < 0.5:
        lines = inner.decode("utf-8", "replace").splitlines()
        if lines:
            at = rng.randrange(len(lines))
            lines[at] = mutate.json_text(rng, lines[at])
            inner = "\n".join(lines).encode("utf-8", "surrogatepass")
    packed = (
        gzip.compress(inner)
        if name.endswith(".gz")
        else lzma.compress(inner)
        if name.endswith(".xz")
        else inner
    )
    source.write_bytes(mutate.data(rng, packed) if rng.random() < 0.5 else packed)
    words = rng.choice(
        [
            ["prepare", source.name, "-o", "new", "--tokenizer", "bytes", "--workers", "1"],
            ["prepare", source.name, "book.txt", "-o", "new", "--tokenizer", "chars", "--workers", "1"],
            ["tune", source.name, "--model", "model", "--out", "new", "--dry-run"],
            ["train", "--data", source.name, "--out", "new", *SMALL_RUN, "--steps", "1"],
            ["eval", "model", source.name, "--suite", "perplexity", "--cache", "cache", "--limit", "2"],
        ]
    )  # fmt: skip
    return f"{source.name}: {' '.join(words)}", lambda: main(words)


def shards_folder(rng: random.Random, folder: Path) -> Case:
    """Damage prepared data, then train on it or verify it."""
    shutil.copytree(folder / "shards", folder / "victim")
    done = damage(rng, rng.choice(sorted(path for path in (folder / "victim").iterdir() if path.is_file())))
    train = [
        "train",
        "--data",
        "victim",
        "--steps",
        "4",
        "--shape",
        "1x16x2",
        "--context",
        "16",
        "--batch-size",
        "2",
    ]
    train += ["--eval-batches", "1", "--save-every", "2"]
    words = rng.choice([[*train, "--out", "new"], [*train, "--out", "run", "--resume"], ["verify", "victim"]])
    return f"shards ({done}): {' '.join(words)}", lambda: main(words)


EDITS = [{"kind": "head", "layer": 0, "head": 0}, {"kind": "steer", "layer": 0, "token": 3}]
ROUTES = ["trace", "compare", "intervene", "attribute", "generate", "export", "nosuch"]


def make_requests(rng: random.Random, id: str) -> Iterator[tuple[str, str, bytes]]:
    """Requests to the Explorer: method, path and body."""
    valid: dict[str, Any] = {
        "trace": {"text": "A ferry"},
        "compare": {"text": "A ferry", "a": {"model": 0}, "b": {"model": 0}},
        "intervene": {"id": id, "edits": EDITS},
        "attribute": {"id": id, "token": 1, "target": 3, "method": "gradient"},
        "generate": {"ids": [1, 2], "max_new_tokens": 3, "seed": 1},
        "export": {"text": "A", "hash": "", "requests": []},
        "nosuch": {},
    }  # fmt: skip
    for _ in range(40):
        if rng.random() < 0.6:
            route = rng.choice(ROUTES)
            text = mutate.json_text(rng, json.dumps(valid[route]))
            body = text.encode("utf-8", "surrogatepass")
            yield "POST", f"/api/v1/{route}", mutate.data(rng, body) if rng.random() < 0.2 else body
        else:
            part = rng.choice(["patterns", "head", "mlp", "next", "append", "", "x"])
            query = "&".join(
                f"{name}={rng.choice(NUMBERS)[:50]}"
                for name in ("layer", "head", "token")
                if rng.random() < 0.8
            )
            where = rng.choice([id, "x", "..%2f..", "%00", "a" * 500])
            method = rng.choice(["GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
            yield method, f"/api/v1/trace/{where}/{part}?{query}", b""


@lru_cache
def explorer(folder: Path) -> Any:
    from starlette.testclient import TestClient

    import glassgpt
    from glassgpt.explorer.app import make_app

    app = make_app(glassgpt.load(folder, device="cpu", dtype="float32"))
    return TestClient(app, base_url="http://127.0.0.1:8124", raise_server_exceptions=False)


def request(rng: random.Random, folder: Path) -> Case:
    """Forty requests to the Explorer in a row; a 500 is a fault, and it must still respond afterwards."""

    def work() -> int:
        client = explorer(folder / "model")
        id = client.post("/api/v1/trace", json={"text": "A ferry"}).json()["id"]
        for method, path, body in make_requests(rng, id):
            headers = {
                "content-type": rng.choice(
                    ["application/json"] * 5 + ["text/plain", "", "application/json; charset=x"]
                )
            }
            answer = client.request(method, path, content=body, headers=headers)
            if answer.status_code >= 500 and answer.status_code != 503:
                print(
                    f"Traceback: {answer.status_code} for {method} {path} {body[:300]!r}: {answer.text[:300]}"
                )
                return 1
        return 0 if client.get("/api/v1/model").status_code == 200 else 9

    return "40 requests", work


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    "command lines": command_line,
    "model folders": model_folder,
    "packed models": packed_model,
    "run folders": run_folder,
    "text files": text_file,
    "prepared data": shards_folder,
    "Explorer requests": request,
}
