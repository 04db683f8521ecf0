"""Task definitions: what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.tasks.definition import definition_names, load_task, parse_saved_task, parse_task, read_task


@pytest.mark.parametrize("name", definition_names())
def test_those_that_come_along_are_valid(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    assert task.text
    assert all(token in direction_text(task.text) for token in task.tokens)


def direction_text(text: str) -> str:
    return "".join(line for line in text.splitlines() if "format" in line or "{text}" in line)


def test_a_format_has_marked_roles() -> None:
    task = parse_task('format = "<s>{source} TL;DR: {target}<e>"\nsource = "document"')
    (direction,) = task.directions
    assert (direction.start, direction.separator, direction.end) == ("<s>", " TL;DR: ", "<e>")
    assert (direction.source, direction.target) == ("document", "target")
    assert not task.classifies


def test_a_chat_is_a_pair_of_turns() -> None:
    task = load_task("chat")
    assert task.chat is not None
    (direction,) = task.directions
    assert (direction.start, direction.separator) == ("<|user|>", "<|assistant|>")
    assert direction.end == "<|endoftext|>"
    plain = parse_task('[chat]\nuser = "Q: {text}\\n"\nassistant = "A: {text}\\n"')
    assert plain.chat is not None
    assert (plain.directions[0].separator, plain.chat.lead) == ("\nA: ", " ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[chat]\nuser = "{text}"', "chat.assistant is missing"),
        ('[chat]\nuser = "{text}"\nassistant = "x"', "must have {text} once"),
        ('[chat]\nuser = "{text}"\nbot = "{text}"', "no role 'bot'"),
        ('format = "{source}{target}"\n[chat]\nuser = "{text}"\nassistant = "{text}"', "Leave out format"),
    ],
)
def test_a_wrong_chat_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse_task(text)


def test_directions_share_what_they_do_not_say_themselves() -> None:
    task = load_task("en-fr")
    assert [(d.name, d.source, d.target, d.separator) for d in task.directions] == [
        ("fr", "en", "fr", "<to-fr>"),
        ("en", "fr", "en", "<to-en>"),
    ]
    assert task.direction("en").source == "fr"
    with pytest.raises(SettingError, match=r"no direction 'de'\. Choose 'fr' or 'en'"):
        task.direction("de")
    with pytest.raises(SettingError, match="which way: 'fr' or 'en'"):
        task.direction()


def test_labels_make_a_classifier_and_a_target_makes_it_zero_shot() -> None:
    assert load_task("sentiment").has_head
    zero_shot = load_task("sentiment-zero-shot")
    assert zero_shot.classifies
    assert not zero_shot.has_head


def test_decoding_is_greedy_unless_the_task_or_the_caller_says_otherwise() -> None:
    task = parse_task('format = "{source}{target}"\nmax_target_tokens = 7')
    assert (task.settings().temperature, task.settings().max_new_tokens) == (0, 7)
    assert task.settings(beams=4).beams == 4
    tldr = load_task("tldr").settings()
    assert (tldr.top_k, tldr.temperature, tldr.max_new_tokens) == (2, 1.0, 100)
    assert (load_task("tldr").settings(beams=4).beams, load_task("tldr").settings(beams=4).top_k) == (
        4,
        load_task("summarize").settings().top_k,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "format is missing"),
        ('format = "{target}"', "must have {source} once"),
        ('format = "{source}{source}{target}"', "must have {source} once"),
        ('format = "{source}"', "no {target}"),
        ('format = "{source}{target}"\ncolour = 1', "no key 'colour'"),
        ('format = "{source}{target}"\nkeep = "middle"', "keep 'middle' is not one of start, end, both"),
        ('format = "{source}{target}"\nmax_target_tokens = "x"', "max_target_tokens is 'x'"),
        ('format = "{source}{target}"\n[decoding]\nbeems = 4', "no setting 'beems'"),
        ('format = "{source}<x>"\nlabels = ["a"]', "leaves nothing to choose"),
        ('format = "{source}<x>"\nlabels = ["a", "a"]', "different strings"),
        ('format = "{source}<x>"\nlabels = [["a"], ["b"]]', "different strings"),
        ('format = "{source}\\nLabel:"\nlabels = ["a", "b"]', "must end with one of its tokens"),
        ('format = "<x>{source}<x>"\ntokens = ["<x>"]\nlabels = ["a", "b"]', "which is nowhere else in it"),
        ('format = "{source}{target}"\ndirections = {}', "directions is empty"),
        ("format = {source}", "line 1"),
        ("a = " + "[" * 30_000, "nested too deeply"),
        ("keep = 1" + "0" * 5_000, "digits"),
        ("a" + ".a" * 30_000 + " = 1", "a line of more than 1,000 dots"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(FileFormatError) as caught:
        read_task(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 30_000, "keep = 1" + "0" * 5_000])
def test_a_saved_definition_that_cannot_be_parsed_is_one_line(text: str) -> None:
    with pytest.raises(FileFormatError, match=r"task\.toml of mine: .*Correct it, or remove it"):
        parse_saved_task(text, "mine")


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(SettingError, match=r"~nosuchuser/t\.toml: there is no user nosuchuser"):
        load_task("~nosuchuser/t.toml")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"no task 'sumarize'.*summarize"):
        load_task("sumarize")
