"""Characters and bytes through the same interface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from glassgpt.tokenizer.char_level import detect_char_level


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_are_the_ids(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_characters(text: str) -> None:
    tokenizer = CharTokenizer.from_text(text + "z")
    assert tokenizer.vocab_size == len(set(text + "z")) + 1
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("<|endoftext|> ab")])
def test_end_of_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.eot_id == tokenizer.vocab_size - 1
    assert tokenizer.eot_id not in tokenizer.encode("a<|endoftext|>b")
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    assert tokenizer.encode("a<|endoftext|>b", allow_special=True) == [a, tokenizer.eot_id, b]
    assert tokenizer.decode([a, tokenizer.eot_id, b]) == "a<|endoftext|>b"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer('aé日\n"\\')])
def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "new" / "folder")
    again = Tokenizer.load(tmp_path / "new" / "folder")
    assert type(again) is type(tokenizer)
    assert again.hash == tokenizer.hash
    assert again.encode('aé日\n"\\') == tokenizer.encode('aé日\n"\\')


TEXT = "Do you see?\n\n  It's  naïve — 日本 😀\t\"\\ <|endoftext|>x\r\n. ,"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer.from_text(TEXT)])
def test_transformers_opens_the_folder_and_finds_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.encode(TEXT, allow_special=True)
    assert theirs(TEXT)["input_ids"] == ids
    assert theirs.decode(ids) == TEXT
    assert (len(theirs), theirs.eos_token_id) == (tokenizer.vocab_size, tokenizer.eot_id)


@pytest.mark.parametrize(
    "content", ['{"version": "1.0", "glassgpt_tokenizer": "byte"}',
                '{"version": "1.0", "glassgpt_tokenizer": "char", "characters": "ab"}'],
)  # fmt: skip
def test_folders_of_version_0_1_still_open(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    tokenizer = Tokenizer.load(tmp_path)
    assert isinstance(tokenizer, ByteTokenizer if "byte" in content else CharTokenizer)
    assert tokenizer.encode("ab") == ([97, 98] if "byte" in content else [0, 1])


def test_a_bpe_of_other_characters_is_not_taken_for_one() -> None:
    data = json.loads(CharTokenizer("ab").files()["tokenizer.json"])
    assert isinstance(detect_char_level(data), CharTokenizer)
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {**data["model"], "vocab": {"b": 0, "a": 1, "<|endoftext|>": 2}}},
        {"model": {**data["model"], "vocab": {"a": 0, "bc": 1, "<|endoftext|>": 2}}},
        {"model": {**data["model"], "vocab": {}}},
        {"added_tokens": []},
    ):
        assert detect_char_level({**data, **change}) is None


def test_a_character_that_was_never_seen_is_named() -> None:
    with pytest.raises(SettingError, match="'ß'"):
        CharTokenizer("abc").encode("aß")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("abc")])
def test_wrong_input(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="must be a str"):
        tokenizer.encode(b"abc")  # type: ignore[arg-type]
    for bad in (-1, tokenizer.vocab_size, 1.0):
        with pytest.raises(SettingError, match=str(bad)):
            tokenizer.decode([bad])  # type: ignore[list-item]


def test_training(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hello\r\nworld", encoding="utf-8", newline="")
    tokenizer = CharTokenizer.train(path)
    assert tokenizer.characters == "\n\rdehlorw"
    assert CharTokenizer.train([path], 10).hash == tokenizer.hash
    with pytest.raises(SettingError, match="give 10"):
        CharTokenizer.train(path, 9)
    assert ByteTokenizer.train(path).vocab_size == 257


def test_every_token_is_a_word_of_the_explanation() -> None:
    words = ByteTokenizer().explain("é")
    assert [(word.start, word.ids, word.merges) for word in words] == [
        ((b"\xc3",), (0xC3,), ()),
        ((b"\xa9",), (0xA9,), ()),
    ]


@pytest.mark.parametrize(
    "content",
    [
        '{"glassgpt_tokenizer": "word"}',
        '{"glassgpt_tokenizer": "char"}',
        '{"glassgpt_tokenizer": "char", "characters": "ba"}',
    ],
)
def test_files_that_are_wrong(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


@given(st.text())
def test_an_array_holds_the_same_ids(text):
    for tokenizer in (ByteTokenizer(), CharTokenizer.from_text(text)):
        for special in (False, True):
            assert tokenizer.encode_array(text, special).tolist() == tokenizer.encode(text, special)


@pytest.mark.parametrize("text", ["abd", "ab€", " a"])
def test_an_array_has_no_unknown_character(text):
    with pytest.raises(SettingError, match="not among the 3 characters"):
        CharTokenizer("abc").encode_array(text)
