"""Evaluation data sets: where their files are, and whether they are the published ones.

A data set is a file in its published format. It comes from a folder (`--data`), compressed or not, or from
the hub, whose rows are converted to that format. Either way there is one parser per format, and a hash that
tells whether results are comparable with others.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from glassgpt.errors import FileFormatError, UserError
from glassgpt.files.text import COMPRESSIONS, read_bytes

TEST_BYTES = 5_000_000  # of enwik8 and text8: the last twentieth is the test set


# Commits of the hub, so that a later change there changes no result; LAMBADA and WikiText are hashed as
# well. Of cam-cst/cbt and lighteval/winograd_wsc the newest is read: no commit of theirs was confirmed here.
REVISIONS = {
    "EleutherAI/lambada_openai": "900124bf3b8235c6daf21033af9948b3f07346c4",
    "Rowan/hellaswag": "218ec52e09a7e7462a5400043bb9a69a41d06b76",
    "Salesforce/wikitext": "b08601e04326c79dfdd32d625aee71d232d685c3",
    "allenai/ai2_arc": "210d026faf9955653af8916fad021475a3f00453",
    "allenai/winogrande": "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
    "baber/piqa": "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
}


class Unavailable(UserError, LookupError):
    """The file was not found."""


class Altered(UserError, ValueError):
    """The file is not the published one."""


class Hub(NamedTuple):
    path: str
    config: str | None
    split: str
    write: Callable[[Iterable[dict[str, Any]]], str]  # rows to the published format
    exact: bool = False  # whether `write` gives the published file byte for byte, so that its hash applies


@dataclass(frozen=True)
class Dataset:
    name: str
    files: tuple[str, ...]  # its possible names
    hash: str | None  # "sha256:..." or "md5:..." of the decompressed file; None if none was published
    hub: Hub | None = None
    last_bytes: int | None = None  # the test set is the end of the file


def load(dataset: Dataset, folder: Path | None, check: bool = True) -> tuple[str, bool]:
    """The text of a data set, from the folder or else from the hub, and whether its hash differs.

    With `check` a different hash is an error.
    """
    data, known = from_hub(dataset) if folder is None else (find_file(dataset, folder), dataset.hash)
    wrong = None if known is None else difference(known, data)
    if wrong is not None and check:
        raise Altered(
            f"altered: the hash of {dataset.files[0]} is {wrong}. "
            "Download it again, or add --any-data to score it anyway."
        )
    return decoded(dataset, data), wrong is not None


def find_file(dataset: Dataset, folder: Path) -> bytes:
    if folder.is_file():  # `perplexity FILE`
        return read_file(folder)
    if not folder.is_dir():
        raise Unavailable(f"{folder} is not a folder")
    for name in dataset.files:
        for compression in ("", *COMPRESSIONS):
            path = folder / (name + compression)
            if path.is_file():
                return read_file(path)
    raise Unavailable(f"{folder} has no {dataset.files[0]} (or .gz, .xz, .zst)")


def read_file(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileFormatError as error:
        raise Altered(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None


def difference(known: str, data: bytes) -> str | None:
    """None if the data has the known hash, otherwise both hashes."""
    kind, _, expected = known.partition(":")
    actual = hashlib.new(kind, data).hexdigest()
    return None if actual == expected else f"{actual[:16]}..., that of the published file {expected[:16]}..."


def decoded(dataset: Dataset, data: bytes) -> str:
    if dataset.last_bytes is not None and len(data) > dataset.last_bytes:
        data = data[-dataset.last_bytes :]
        while data and data[0] & 0xC0 == 0x80:  # the rest of a character that was cut in two
            data = data[1:]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Altered(f"{dataset.files[0]} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def from_hub(dataset: Dataset) -> tuple[bytes, str | None]:
    """The hub's rows as the published file, and its hash if the conversion is exact."""
    hub = dataset.hub
    if hub is None:
        raise Unavailable(f"not on the hub. Put {dataset.files[0]} into a folder and pass --data DIR")
    try:
        import datasets as library
    except ModuleNotFoundError:
        raise Unavailable(
            'pass a folder of files (--data DIR), or install the hub client: pip install "glassgpt[eval]"'
        ) from None
    try:
        with offline_unless(library, online=hub_is_reachable()):
            rows = library.load_dataset(
                hub.path, hub.config, split=hub.split, revision=REVISIONS.get(hub.path, "main")
            )
    except Exception as error:  # `datasets` raises many types: no network, no such data, no space
        reason = " ".join(str(error).split())[:120]
        raise Unavailable(
            f"{hub.path} cannot be loaded from the hub ({reason}). Pass a folder: --data DIR"
        ) from None
    return hub.write(rows).encode("utf-8"), dataset.hash if hub.exact else None


@functools.cache
def hub_is_reachable() -> bool:
    """Whether the hub can be reached. Checked once: `datasets` would retry for a minute per data set."""
    from huggingface_hub import constants

    if urllib.request.getproxies():
        return True  # only the proxy can tell
    host = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = host.port if host.port is not None else 443
        socket.create_connection((host.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def offline_unless(library: Any, online: bool) -> Iterator[None]:
    """Restrict `datasets` to its cache unless `online`, and tell the hub nothing about this machine. These
    settings are read at every call; other code in this process reads them as well, so they are restored."""
    from huggingface_hub import constants

    settings: tuple[Any, Any] = (constants, library.config)
    before = [setting.HF_HUB_OFFLINE for setting in settings]
    quiet = constants.HF_HUB_DISABLE_TELEMETRY
    for setting in settings:
        setting.HF_HUB_OFFLINE = setting.HF_HUB_OFFLINE or not online
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        for setting, was in zip(settings, before, strict=True):
            setting.HF_HUB_OFFLINE = was
        constants.HF_HUB_DISABLE_TELEMETRY = quiet


# From the hub's rows to the published files.


def as_text_records(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps({"text": row["text"]}) + "\n" for row in rows)


def as_lines(rows: Iterable[dict[str, Any]]) -> str:
    """WikiText: a row is a line; a line of one space is an empty row."""
    return "".join(row["text"] if row["text"] else " \n" for row in rows)


def as_cbt(rows: Iterable[dict[str, Any]]) -> str:
    written = []
    for row in rows:
        written += [f"{number} {line}" for number, line in enumerate(row["sentences"], start=1)]
        number = len(row["sentences"]) + 1
        written += [f"{number} {row['question']}\t{row['answer']}\t\t{'|'.join(row['options'])}", ""]
    return "\n".join(written) + "\n"


def records(read: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Iterable[dict[str, Any]]], str]:
    return lambda rows: "".join(json.dumps(read(row)) + "\n" for row in rows)


def hellaswag_row(row: dict[str, Any]) -> dict[str, Any]:
    query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return {"query": query, "label": int(row["label"]), "endings": row["endings"]}


def piqa_row(row: dict[str, Any]) -> dict[str, Any]:
    query = f"Question: {row['goal']}\n"
    return {"query": query, "choices": [row["sol1"], row["sol2"]], "gold": row["label"]}


def arc_row(row: dict[str, Any]) -> dict[str, Any]:
    gold = row["choices"]["label"].index(row["answerKey"])
    return {"query": f"Question: {row['question']}", "choices": row["choices"]["text"], "gold": gold}


def winogrande_row(row: dict[str, Any]) -> dict[str, Any]:
    before, _, after = row["sentence"].partition("_")
    options = [before + row["option1"], before + row["option2"]]
    return {"context_options": options, "continuation": after.strip(), "gold": int(row["answer"]) - 1}


ARTICLES_AND_PRONOUNS = frozenset("A An The She He It They My His Her Their".split())


def winograd_row(row: dict[str, Any]) -> dict[str, Any]:
    """The pronoun is replaced by each candidate: with `'s` for possessives, lower case within a sentence."""
    text, place = row["text"].replace("  ", " "), row["pronoun_loc"]
    options = []
    for option in row["options"]:
        if row["pronoun"].lower() in ("my", "his", "her", "our", "their"):
            option += "'s"
        first = option.split()[0]
        if text[place - 2] != "." and first in ARTICLES_AND_PRONOUNS:
            option = option.replace(first, first.lower())
        options.append(text[:place] + option)
    ending = text[place + len(row["pronoun"]) :]
    return {"context_options": options, "continuation": ending.strip(), "gold": row["label"]}


def wikitext(name: str, hash: str, config: str, *files: str) -> Dataset:
    return Dataset(name, files, f"sha256:{hash}", Hub("Salesforce/wikitext", config, "test", as_lines, True))


LAMBADA = Dataset(
    "lambada",
    ("lambada_test.jsonl",),
    "sha256:4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226",
    Hub("EleutherAI/lambada_openai", "default", "test", as_text_records, True),
)
WIKITEXT_2 = wikitext(
    "wikitext-2",
    "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    "wikitext-2-v1",
    "wikitext-2.test.tokens",
    "wikitext-2/wiki.test.tokens",
)
WIKITEXT_2_RAW = wikitext(
    "wikitext-2-raw",
    "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
    "wikitext-2-raw-v1",
    "wikitext-2-raw.test",
    "wikitext-2-raw/wiki.test.raw",
)
WIKITEXT_103 = wikitext(
    "wikitext-103",
    "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
    "wikitext-103-v1",
    "wikitext-103.test.tokens",
    "wikitext-103/wiki.test.tokens",
)
PTB = Dataset("ptb", ("ptb.test.txt",), "md5:8b80168b89c18661a38ef683c0dc3721")
ENWIK8 = Dataset(
    "enwik8",
    ("enwik8",),
    "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    last_bytes=TEST_BYTES,
)
TEXT8 = Dataset("text8", ("text8",), "md5:3bea1919949baf155f99411df5fada7e", last_bytes=TEST_BYTES)
ONE_BILLION = Dataset("1bw", ("news.en.heldout-00000-of-00050", "1bw.test.txt"), None)
CBT_CN = Dataset("cbt-cn", ("cbtest_CN_test_2500ex.txt",), None, Hub("cam-cst/cbt", "CN", "test", as_cbt))
CBT_NE = Dataset("cbt-ne", ("cbtest_NE_test_2500ex.txt",), None, Hub("cam-cst/cbt", "NE", "test", as_cbt))
HELLASWAG = Dataset(
    "hellaswag",
    ("hellaswag_val.jsonl",),
    "sha256:0bea3eeb5d6eca1eb004c98f8ce7856a0c30ea72554e91835128c54c01188ce3",
    Hub("Rowan/hellaswag", None, "validation", records(hellaswag_row)),
)
PIQA = Dataset(
    "piqa",
    ("piqa.jsonl",),
    "sha256:d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0",
    Hub("baber/piqa", None, "validation", records(piqa_row)),
)
WINOGRANDE = Dataset(
    "winogrande",
    ("winogrande.jsonl",),
    "sha256:ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7",
    Hub("allenai/winogrande", "winogrande_xl", "validation", records(winogrande_row)),
)
ARC_EASY = Dataset(
    "arc_easy",
    ("arc_easy.jsonl",),
    "sha256:d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5",
    Hub("allenai/ai2_arc", "ARC-Easy", "test", records(arc_row)),
)
WSC273 = Dataset(
    "wsc273",
    ("winograd_wsc.jsonl",),
    "sha256:746336c27cd2e39a554cb1b8b4869d0f1ae2577ac5bfe799842d26bca5a5bf5e",
    Hub("lighteval/winograd_wsc", "wsc273", "test", records(winograd_row)),
)
