"""The quick parser against tyro: what it reads, tyro reads the same, and what it leaves, tyro reports."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.cli import COMMANDS, parse, tyro_parse
from glassgpt.cli.quick_parse import quick_parse
from glassgpt.errors import UserError

QUICK = [
    "generate hello",
    "generate",
    "generate - --json",
    "generate 'A robot must' --max-new-tokens 5 --seed 1 --temperature 0.5 --top-k none --top-p .9",
    "generate x --model=tiny --device cpu --dtype float32 --allow-special --ignore-eot --logprobs none",
    "generate --stop a --stop=b --stop-tokens 3 --banned-words x --samples 2 --best-of 3 -- ".replace(
        "-- ", ""
    ),
    "generate None --model None",
    "next 'A robot' -k 3 --json",
    "next --k 3",
    "tokens 'a b' --ids --merges",
    "tokens - --model tiny",
    "info gpt2 --every-block",
    "info",
    "convert a b --format gguf --dtype float16 --force",
    "explore hello --port 9000 --no-browser --compare tiny",
]
FOR_TYRO = [
    "eval default --suite paper --limit 5 --json",
    "generate --help",
    "generate a b",
    "generate --top-k",
    "generate --top-k -1",
    "generate --top-k x",
    "generate --top-p 0",
    "generate --seed 1 --seed 2",
    "generate --logit-bias 5 2.5",
    "generate --max_new_tokens 5",
    "generate --max-new 5",
    "generate --json=1",
    "generate -x",
    "generate -- -x",
    "generate --model ''",
    "convert a",
    "convert a b --format nothing",
    "info --no-json",
    "train --data x",
]


def by_tyro(name: str, args: list[str]):
    return tyro_parse.parse(name, COMMANDS[name], parse.load_command(name), args, {})


def arguments_of(call) -> dict:
    """All arguments, with the defaults of those that were not typed."""
    import inspect

    bound = inspect.signature(call.func).bind(**call.keywords)
    bound.apply_defaults()
    return dict(bound.arguments)


@pytest.mark.parametrize("line", QUICK)
def test_what_is_read_quickly_is_what_tyro_reads(line: str) -> None:
    name, *args = shlex.split(line)
    assert quick_parse(parse.load_command(name), args) is not None
    assert arguments_of(parse.parse(name, COMMANDS[name], args)) == arguments_of(by_tyro(name, args))


@pytest.mark.parametrize("line", FOR_TYRO)
def test_the_rest_is_left_to_tyro(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *args = shlex.split(line)
    asked = []
    monkeypatch.setattr(tyro_parse, "parse", lambda *given: asked.append(given))
    parse.parse(name, COMMANDS[name], args)
    assert asked


WORDS = st.sampled_from(
    """hello - -- -x --json --top-k --top-k=3 --seed 5 -1 0.5 none None --stop a= --stop=-b --samples --beams
    --model tiny --ids=1 --temperature --min-p 1e3 nan inf 1_0 --Seed --see --ignore-eot --no-json""".split()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=5))
def test_any_words(args: list[str]) -> None:
    try:
        quick = quick_parse(parse.load_command("generate"), args)
    except (UserError, ValueError, TypeError):
        quick = None
    if quick is not None:
        found = arguments_of(parse.parse("generate", COMMANDS["generate"], args))
        assert repr(found) == repr(
            arguments_of(by_tyro("generate", args))
        )  # repr: nan is not equal to itself
