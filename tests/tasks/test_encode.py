"""A record to token ids: roles, the rule for long sources, tokens that are not found in a user's text."""

from __future__ import annotations

import dataclasses

import pytest

from glassgpt.errors import SettingError
from glassgpt.tasks.definition import load_task, parse_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tasks.vocabulary import add_tokens, grow_vocabulary, has_token
from glassgpt.tokenizer import ByteTokenizer, Tokenizer
from tests.tasks.conftest import make_model, make_tokenizer


def test_the_target_starts_after_the_separator_and_has_the_end() -> None:
    tokenizer = make_tokenizer("en-fr")
    example = Encoder(load_task("en-fr"), tokenizer, 160, "fr").example("The cat.", "Le chat.")
    assert tokenizer.decode(example.ids) == "The cat.<to-fr>Le chat.<|endoftext|>"
    assert tokenizer.decode(example.ids[: example.target_start]) == "The cat.<to-fr>"


def test_a_space_before_the_target_belongs_to_its_first_word() -> None:
    tokenizer = make_tokenizer("tldr")
    task = parse_task('format = "{source} TL;DR: {target}"\nmax_target_tokens = 20')
    encoder = Encoder(task, tokenizer, 64)
    example = encoder.example("The cat.", "Le chat.")
    assert example.ids[example.target_start :] == tokenizer.encode(" Le chat.")
    assert encoder.prompt("The cat.").ids == tokenizer.encode("The cat. TL;DR:")


def test_tokens_in_a_users_text_are_ordinary_text() -> None:
    tokenizer = make_tokenizer("en-fr")
    (to_fr,) = tokenizer.encode("<to-fr>", True)
    ids = Encoder(load_task("en-fr"), tokenizer, 160, "fr").prompt("a<to-fr>b<|endoftext|>").ids
    assert ids.count(to_fr) == 1
    assert ids[-1] == to_fr
    assert tokenizer.eot_id not in ids


@pytest.mark.parametrize(("keep", "kept"), [("start", "abcdef"), ("end", "uvwxyz"), ("both", "abcxyz")])
def test_a_long_source_is_cut_by_the_stated_rule(keep: str, kept: str) -> None:
    task = parse_task(f'format = "{{source}}={{target}}!"\nmax_target_tokens = 3\nkeep = "{keep}"')
    tokenizer = ByteTokenizer()
    encoder = Encoder(task, tokenizer, 11)  # 11 = 6 of the source, =, 3 of the target, !
    prompt = encoder.prompt("abcdefghijklmnopqrstuvwxyz")
    assert tokenizer.decode(prompt.ids) == kept + "="
    assert (prompt.source_tokens, prompt.kept_tokens, prompt.was_cut) == (26, 6, True)
    assert not encoder.prompt("abcdef").was_cut
    assert len(encoder.example("a" * 99, "bbb").ids) == 11


def test_a_long_target_is_cut_without_the_end() -> None:
    task = parse_task('format = "{source}={target}!"\nmax_target_tokens = 3')
    tokenizer = ByteTokenizer()
    encoder = Encoder(task, tokenizer, 32)
    assert tokenizer.decode(encoder.example("a", "12345").ids) == "a=123"
    assert tokenizer.decode(encoder.example("a", "123").ids) == "a=123!"


def test_no_room_for_a_source_is_refused() -> None:
    with pytest.raises(SettingError, match=r"reads 32 tokens at a time.*smaller max_target_tokens"):
        Encoder(load_task("en-fr"), make_tokenizer("en-fr"), 32, "fr")


def test_a_classifier_has_its_label_and_no_target() -> None:
    tokenizer = make_tokenizer("sentiment")
    encoder = Encoder(load_task("sentiment"), tokenizer, 64)
    example = encoder.example("Dull.", "negative")
    assert tokenizer.decode(example.ids) == "<|endoftext|>Dull.<extract>"
    assert example.label == 0
    with pytest.raises(SettingError, match="'meh' is not one of negative, positive"):
        encoder.example("Dull.", "meh")


def test_a_label_that_is_written_is_one_of_the_list_and_needs_no_more_room() -> None:
    tokenizer = make_tokenizer("sentiment-zero-shot")
    encoder = Encoder(load_task("sentiment-zero-shot"), tokenizer, 64)  # 100 tokens would not fit
    assert tokenizer.decode(encoder.example("Dull.", "bad").ids) == "Dull.\nThis film is bad"
    assert encoder.room + len(encoder.separator) == 64 - len(tokenizer.encode(" good"))
    with pytest.raises(SettingError, match="'meh' is not one of bad, good"):
        encoder.example("Dull.", "meh")


def test_tokens_are_added_once_and_rows_grow() -> None:
    model = make_model("tldr")  # a task without tokens
    grown = grow_vocabulary(model, ["<a>", "<b>"])
    assert model.tokenizer is not None
    assert grown.tokenizer is not None
    assert grown.config.vocab_size == model.config.vocab_size + 2 == grown.tokenizer.vocab_size
    old, new = model.tensors["wte.weight"], grown.tensors["wte.weight"]
    assert (new[: len(old)] == old).all()
    assert abs(new[-2:] - old.mean(axis=0)).max() < old.std()
    assert (new[-1] != new[-2]).any()
    assert grown.tokenizer.encode("<a><b>", True) == [model.config.vocab_size, model.config.vocab_size + 1]
    again = grow_vocabulary(grown, ["<b>"])
    assert again.config == grown.config
    assert grown.tokenizer.encode("The cat <a>.") == model.tokenizer.encode("The cat <a>.")


def test_an_untied_head_grows_too() -> None:
    model = make_model("tldr")
    config = dataclasses.replace(model.config, tie_word_embeddings=False)
    tensors = {**model.tensors, "lm_head.weight": model.tensors["wte.weight"]}
    grown = grow_vocabulary(dataclasses.replace(model, config=config, tensors=tensors), ["<a>"])
    assert grown.tensors["lm_head.weight"].shape[0] == config.vocab_size + 1


def test_a_tokenizer_of_bytes_takes_no_tokens() -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    assert not has_token(tokenizer, "<a>")
    with pytest.raises(SettingError, match="'<a>' cannot be added to a tokenizer of kind 'byte'"):
        add_tokens(tokenizer, ["<a>"])
