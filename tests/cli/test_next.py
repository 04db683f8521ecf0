"""`glassgpt next`: the table, the JSON, and the interactive mode."""

from __future__ import annotations

import json
import os

import pytest

import glassgpt as package
from glassgpt.cli import terminal
from glassgpt.cli.commands.next import COLUMNS, next_candidates
from glassgpt.cli.commands.next.keyboard import Keyboard
from glassgpt.weights import save_checkpoint

from .conftest import program, random_checkpoint


def test_ten_candidates_most_likely_first(glassgpt, tiny):
    answer = glassgpt("next", "A robot", "--model", tiny)
    assert answer.code == 0
    rows = answer.out.splitlines()[1:]
    assert len(rows) == 10
    assert [int(row.split()[0]) for row in rows] == list(range(1, 11))
    chances = [float(row.split("%")[0].split()[-1]) for row in rows]
    assert chances == sorted(chances, reverse=True)
    expected = package.load(tiny).next_ids("A robot", 10)
    assert [int(row.split()[-1]) for row in rows] == [token_id for token_id, _ in expected]


def test_those_that_min_p_leaves(glassgpt, tiny):
    answer = glassgpt("next", "A robot", "--min-p", "0.01", "--json", "--model", tiny)
    found = [each["probability"] for each in json.loads(answer.out)["next"]]
    every = [p for _, p in package.load(tiny).next("A robot", 500)]
    assert found == pytest.approx([p for p in every if p >= 0.01 * every[0]])
    assert len(found) > 10  # not the usual ten
    answer = glassgpt("next", "A robot", "--min-p", "0.01", "-k", "3", "--json", "--model", tiny)
    assert [each["probability"] for each in json.loads(answer.out)["next"]] == found[:3]
    answer = glassgpt("next", "A robot", "--min-p", "2", "--model", tiny)
    assert (answer.code, "--min-p is 2" in answer.err) == (2, True)


def test_the_table_in_a_pipe_is_the_one_on_a_terminal(capsys):
    """Written without rich's tables: the same text, wide letters and all."""
    rows = [["1", "数", "99.00%", terminal.plain_bar(1, 30), "7"], ["10", "␣old", "0.50%", "", "50256"]]
    terminal.write_plain_table([">#", *COLUMNS], rows)
    plain = capsys.readouterr().out
    table = terminal.table(">#", *COLUMNS)
    for row in rows:
        table.add_row(*row)
    terminal.show(table)
    assert plain == capsys.readouterr().out


def test_json_has_the_probabilities_of_the_model(glassgpt, tiny):
    found = json.loads(glassgpt("next", "A robot", "--model", tiny, "--json", "-k", "3").out)
    expected = package.load(tiny).next("A robot", k=3)
    assert [(one["text"], pytest.approx(one["probability"])) for one in found["next"]] == expected


def test_probabilities_sum_to_one(glassgpt, tiny):
    found = json.loads(glassgpt("next", "A", "--model", tiny, "--json", "-k", "257").out)
    assert sum(one["probability"] for one in found["next"]) == pytest.approx(1, abs=1e-5)


def test_errors(glassgpt, tiny):
    assert glassgpt("next", "", "--model", tiny).is_one_line_error("empty")
    assert glassgpt("next", "A", "--model", tiny, "-k", "0").is_one_line_error("k is 0")


def test_keys(tiny):
    gpt = package.load(tiny)
    board = Keyboard(gpt, gpt.encode("Hi"))
    found = [token_id for token_id, _ in next_candidates(gpt, board.ids)]
    board.press("3", found)
    board.press("0", found)
    board.press("\n", found)
    assert board.ids == [*b"Hi", found[2], found[9], found[0]]
    board.press("u", found)
    board.press("+ you", found)
    assert board.ids == [*b"Hi", found[2], found[9], *b" you"]
    for _ in range(3):
        board.press("u", found)
    assert board.ids == list(b"Hi")
    board.press("u", found)
    assert board.message == "nothing to undo"
    board.press("z", found)
    assert "'z'" in board.message
    board.press("9", found[:4])
    assert board.ids == list(b"Hi")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_interactive_mode_on_a_terminal(tiny):
    """A session: pick the second, undo, type text, pick the most likely, quit; the text is the last line.

    The escape sequence of Delete contains a 3 and that of the arrow an A; neither counts as a key.
    """
    import pty
    import subprocess

    gpt = package.load(tiny)
    ids = gpt.encode("Hi you")
    expected = gpt.decode([*ids, next_candidates(gpt, ids)[0][0]])
    command, env = program("next", "Hi", "--model", tiny, TERM="xterm", COLUMNS="80", LINES="24")
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    screen = b""

    def read_until(wanted: bytes) -> None:
        nonlocal screen
        screen = b""
        while wanted not in screen:
            try:
                screen += os.read(leader, 4096)
            except OSError:
                pytest.fail(f"it exited early: {screen.decode()}")

    read_until(b"q quit")
    for keys in (b"2", b"u", b"\x1b[3~", b"\x1b[A", b"\xc3\xa9", b"+ you\n", b"\n"):
        os.write(leader, keys)
        read_until(b"unknown key" if keys[0] in b"\x1b\xc3" else b"q quit")
    os.write(leader, b"q")
    rest = b""
    try:
        while chunk := os.read(leader, 4096):
            rest += chunk
    except OSError:  # on Linux: the other end is closed
        pass
    assert process.wait(timeout=300) == 0
    last = rest.split(b"\x1b[J")[-1].replace(b"\r\n", b"\n").decode()
    assert last.rstrip("\n").startswith("Hi you")
    if expected.isprintable():
        assert last == expected + "\n"


def test_a_padded_vocabulary_and_one_that_is_too_small(glassgpt, tmp_path):
    save_checkpoint(random_checkpoint(vocab_size=300), tmp_path / "padded")
    answer = glassgpt("next", "x", "-k", "300", "--json", "--model", tmp_path / "padded")
    found = json.loads(answer.out)["next"]
    assert sorted(candidate["id"] for candidate in found) == list(range(257))
    answer = glassgpt("generate", "x", "--model", tmp_path / "padded", "--top-k", "none", "--ignore-eot")
    assert answer.code == 0
    save_checkpoint(random_checkpoint(vocab_size=200), tmp_path / "small")
    for verb in ("next", "generate"):
        assert glassgpt(verb, "x", "--model", tmp_path / "small").is_one_line_error("257", "200", "small")
