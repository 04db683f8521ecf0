"""Every file format, there and back; files that are wrong are refused with their place."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassgpt.errors import FileFormatError, ModelNotFoundError, UserError
from glassgpt.tokenizer import BPETokenizer, Tokenizer

from .conftest import random_texts

TEXTS = random_texts(300, seed=10)


def assert_same(tokenizer: Tokenizer, other: Tokenizer) -> None:
    assert tokenizer.hash == other.hash
    assert tokenizer.encode_batch(TEXTS) == other.encode_batch(TEXTS)
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (other.vocab_size, other.eot_id)


def test_what_save_writes(trained_folder: Path) -> None:
    names = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in trained_folder.iterdir()} == names


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "merges.txt", "."])
def test_load_from_any_of_its_files(trained: BPETokenizer, trained_folder: Path, name: str) -> None:
    assert_same(Tokenizer.load(trained_folder / name), trained)
    assert_same(Tokenizer.load(str(trained_folder / name)), trained)


def test_openais_names(trained: BPETokenizer, trained_folder: Path, tmp_path: Path) -> None:
    shutil.copy(trained_folder / "vocab.json", tmp_path / "encoder.json")
    shutil.copy(trained_folder / "merges.txt", tmp_path / "vocab.bpe")
    for path in (tmp_path, tmp_path / "encoder.json", tmp_path / "vocab.bpe"):
        assert_same(Tokenizer.load(path), trained)


def write_tiktoken(tokenizer: BPETokenizer, path: Path) -> None:
    lines = [
        f"{base64.b64encode(token).decode()} {i}\n"
        for i, token in enumerate(tokenizer.data.tokens)
        if i != tokenizer.eot_id and token is not None
    ]
    path.write_text("".join(lines), encoding="ascii")


def test_tiktokens_ranks(trained: BPETokenizer, tmp_path: Path) -> None:
    write_tiktoken(trained, tmp_path / "mine.tiktoken")
    for path in (tmp_path / "mine.tiktoken", tmp_path):
        assert_same(Tokenizer.load(path), trained)


def test_tiktoken_file_with_a_gap_for_end_of_text(trained: BPETokenizer, tmp_path: Path) -> None:
    """As p50k_base has: the special token's id lies between the ranks."""
    path = tmp_path / "gap.tiktoken"
    write_tiktoken(trained, path)
    lines = path.read_text(encoding="ascii").splitlines()
    lines = [line if i < 1500 else f"{line.split()[0]} {i + 1}" for i, line in enumerate(lines)]
    path.write_text("\n".join(lines), encoding="ascii")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.eot_id == 1500
    assert tokenizer.vocab_size == 2000
    for text in TEXTS:
        assert tokenizer.encode(text) == [i if i < 1500 else i + 1 for i in trained.encode(text)]


def test_the_published_vocabulary_in_every_format(shared: Path, tmp_path: Path) -> None:
    published = Tokenizer.load(shared / "gpt2-bpe")
    assert isinstance(published, BPETokenizer)
    published.save(tmp_path / "hf")
    write_tiktoken(published, tmp_path / "gpt2.tiktoken")
    for path in ("hf", "hf/vocab.json", "gpt2.tiktoken"):
        assert Tokenizer.load(tmp_path / path).hash == published.hash
    vocab = json.loads((shared / "gpt2-bpe" / "encoder.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "hf" / "vocab.json").read_text(encoding="utf-8")) == vocab
    assert (tmp_path / "hf" / "merges.txt").read_bytes() == (shared / "gpt2-bpe" / "vocab.bpe").read_bytes()


def test_ids_in_any_order_with_gaps(trained: BPETokenizer, trained_folder: Path, tmp_path: Path) -> None:
    vocab = json.loads((trained_folder / "vocab.json").read_text(encoding="utf-8"))
    shuffled = {token: 3 * (len(vocab) - i) for token, i in vocab.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(shuffled), encoding="utf-8")
    shutil.copy(trained_folder / "merges.txt", tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert isinstance(loaded, BPETokenizer)
    for fast in (True, False):
        tokenizer = BPETokenizer(loaded.data, fast=fast)
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert ids == [3 * (len(vocab) - i) for i in trained.encode(text)]
            assert tokenizer.decode(ids) == text
    tokenizer.save(tmp_path / "again")
    assert_same(Tokenizer.load(tmp_path / "again"), tokenizer)
    assert_same(Tokenizer.load(tmp_path / "again" / "vocab.json"), tokenizer)


def test_older_hugging_face_folders(trained: BPETokenizer, trained_folder: Path, tmp_path: Path) -> None:
    """vocab.json + merges.txt with added tokens on the side, special or not."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(trained_folder / name, tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 2000, "<name>": 2001}', encoding="utf-8")
    (tmp_path / "special_tokens_map.json").write_text(
        '{"pad_token": {"content": "<pad>"}, "eos_token": "<|endoftext|>"}', encoding="utf-8"
    )
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == 2002
    assert tokenizer.encode("<pad>") == trained.encode("<pad>")
    assert tokenizer.encode("<pad>", allow_special=True) == [2000]
    assert tokenizer.encode("a<name>") == [*trained.encode("a"), 2001]
    tokenizer.save(tmp_path / "again")
    assert_same(Tokenizer.load(tmp_path / "again"), tokenizer)


def test_older_tokenizer_json_with_merges_as_lines(
    trained: BPETokenizer, trained_folder: Path, tmp_path: Path
) -> None:
    data = json.loads((trained_folder / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    assert_same(Tokenizer.load(tmp_path), trained)


# Others read what we write.


def test_transformers_loads_the_folder(trained: BPETokenizer, trained_folder: Path) -> None:
    from transformers import AutoTokenizer, GPT2TokenizerFast

    for kind in (AutoTokenizer, GPT2TokenizerFast):
        theirs = kind.from_pretrained(str(trained_folder))
        assert len(theirs) == trained.vocab_size
        assert theirs.eos_token_id == theirs.bos_token_id == trained.eot_id
        for text in TEXTS:
            if "<|endoftext|>" not in text:  # theirs always finds it
                assert theirs.encode(text) == trained.encode(text)
            else:
                assert theirs.encode(text) == trained.encode(text, allow_special=True)
            assert theirs.decode(trained.encode(text), clean_up_tokenization_spaces=False) == text


def test_we_load_what_transformers_and_tokenizers_save(
    trained: BPETokenizer, trained_folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(trained_folder))
    theirs.add_tokens(["<name>"])
    theirs.save_pretrained(str(tmp_path))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eot_id == trained.eot_id
    for text in [*TEXTS, "a <name> b"]:
        assert tokenizer.encode(text, allow_special=True) == theirs.encode(text)


# Files that are wrong.

Change = Callable[[dict[str, Any]], None]

WRONG_JSON: dict[str, tuple[Change, str]] = {
    "other model": (lambda d: d["model"].update(type="Unigram"), "'Unigram'"),
    "no model": (lambda d: d.pop("model"), "no model"),
    "no merges": (lambda d: d["model"].pop("merges"), "no model with vocab and merges"),
    "list as vocab": (lambda d: d["model"].update(vocab=[]), "model.vocab"),
    "other cutter": (lambda d: d.update(pre_tokenizer={"type": "Metaspace"}), "pre-tokenizer 'Metaspace'"),
    "cutter chain": (
        lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": []}),
        "'Sequence'",
    ),
    "no cutter": (lambda d: d.update(pre_tokenizer=None), "pre-tokenizer 'none'"),
    "prefix": (lambda d: d["pre_tokenizer"].update(add_prefix_space=True), "add_prefix_space"),
    "no pattern": (lambda d: d["pre_tokenizer"].update(use_regex=False), "use_regex"),
    "normalizer": (lambda d: d.update(normalizer={"type": "NFC"}), "normalizer 'NFC'"),
    "suffix": (lambda d: d["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
    "fallback": (lambda d: d["model"].update(byte_fallback=True), "byte_fallback"),
    "merge of three": (lambda d: d["model"]["merges"].insert(4, ["a", "b", "c"]), "merge 5 is"),
    "unknown part": (lambda d: d["model"]["merges"].insert(4, ["Ġ", "qqqq"]), "merge 5: 'qqqq' is not in"),
    "out of order": (lambda d: d["model"]["merges"].reverse(), "out of order"),
    "bad id": (lambda d: d["model"]["vocab"].update(x="7"), "id of 'x' is '7'"),
    "huge id": (lambda d: d["model"]["vocab"].update(x=1 << 40), "not an integer from 0"),
    "same id": (lambda d: d["model"]["vocab"].update(a=5), "id 5 is assigned to two"),
    "missing byte": (lambda d: d["model"]["vocab"].pop("ÿ"), "no token for 1 of the 256 bytes, such as 0xff"),
    "no byte": (lambda d: d["model"]["vocab"].update({"日": 5000}), "does not encode a byte"),
    "half a character": (lambda d: d["model"]["vocab"].update({"\ud800": 5000}), "lone surrogate"),
    "nameless": (lambda d: d["added_tokens"].append({"id": 5}), "without content"),
    "stripping": (lambda d: d["added_tokens"][0].update(lstrip=True), "lstrip"),
}


@pytest.mark.parametrize("name", WRONG_JSON)
def test_a_wrong_tokenizer_json_is_refused_by_name(trained_folder: Path, tmp_path: Path, name: str) -> None:
    change, message = WRONG_JSON[name]
    data = json.loads((trained_folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(FileFormatError) as caught:
        Tokenizer.load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", "#version: 0.2\nĠ t\nĠ\n", "merges.txt, line 3: a merge is two tokens"),
        ("merges.txt", "Ġ t\nĠ t h\n", "merges.txt, line 2: a merge is two tokens"),
        ("merges.txt", "Ġ t\nqq zz\n", "merges.txt, line 2: 'qq' is not in the vocabulary"),
        ("vocab.json", '{\n"a": 1,\n', "enclosed in double quotes: line 3"),
        ("vocab.json", "[1, 2]", "contains a JSON list"),
        ("vocab.json", "[" * 100_000, "nested too deeply"),
        ("vocab.json", '{"a": ' + "9" * 5000 + "}", "vocab.json"),
        ("vocab.json", "{}", "no token for 256 of the 256 bytes"),
    ],
)
def test_a_wrong_pair_of_files(
    trained_folder: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(trained_folder / file, tmp_path)
    if content == "{}":
        (tmp_path / "merges.txt").write_text("")
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(FileFormatError) as caught:
        Tokenizer.load(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:9], "???", *lines[9:]], "line 10 is not a token in base64"),
        (lambda lines: [*lines[:9], "IQ== x"], "line 10 is not a token in base64"),
        (lambda lines: [*lines, "IQ== 9999"], "repeated"),
        (lambda lines: lines[1:], "no token for 1 of the 256 bytes"),
        (lambda lines: [*lines, f"{base64.b64encode(b'qzqzqz').decode()} 9999"], "not two earlier ones"),
    ],
)
def test_a_wrong_tiktoken_file(
    trained: BPETokenizer, tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "x.tiktoken"
    write_tiktoken(trained, path)
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(FileFormatError, match=message):
        Tokenizer.load(path)


def test_tiktoken_vocabularies_with_another_pattern_are_refused_by_name(tmp_path: Path) -> None:
    lines = [f"{base64.b64encode(i.to_bytes(3)).decode()} {i}" for i in range(100_256)]
    (tmp_path / "x.tiktoken").write_text("\n".join(lines))
    with pytest.raises(FileFormatError, match="cl100k_base"):
        Tokenizer.load(tmp_path)


def test_nothing_there(tmp_path: Path, trained_folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        Tokenizer.load(tmp_path / "missing")
    with pytest.raises(ModelNotFoundError, match="contains no tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "notes.md").touch()
    with pytest.raises(FileFormatError, match="is not a known tokenizer file"):
        Tokenizer.load(tmp_path / "notes.md")
    shutil.copy(trained_folder / "vocab.json", tmp_path)
    with pytest.raises(FileFormatError, match=r"needs merges\.txt beside it"):
        Tokenizer.load(tmp_path)


def test_not_text_and_too_large(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        Tokenizer.load(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: a gigabyte that takes no room
    with pytest.raises(FileFormatError, match="at most 33,554,432 are expected"):
        Tokenizer.load(path)


def test_a_failed_save_leaves_the_old_files_and_no_debris(
    trained: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="disk is full"):
        trained.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_saving_where_a_file_is_in_the_way(trained: BPETokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Choose a path"):
        trained.save(tmp_path / "file")


def test_an_id_in_a_gap_stands_for_nothing(trained: Tokenizer, tmp_path: Path) -> None:
    """A token added by hand may leave ids between it and the others; a model can draw one of those."""
    trained.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<mine>": trained.vocab_size + 3}))
    found = Tokenizer.load(tmp_path)
    gap = trained.vocab_size + 1
    assert found.vocab_size == trained.vocab_size + 4
    assert found.decode([*trained.encode("the"), gap]) == "the"
    stream = found.stream()
    assert stream.push(gap) + stream.finish() == ""
