"""The tokenizers of music: names <-> ids, files, transposition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import FileFormatError, SettingError
from glassgpt.tokenizer import ChoraleTokenizer, EventTokenizer, Tokenizer
from tests.music.test_codec import ARTICLE_IDS

ALL = [EventTokenizer(), EventTokenizer(melody=True), EventTokenizer("magenta"), ChoraleTokenizer()]


@pytest.mark.parametrize(
    ("tokenizer", "size", "eot"),
    list(zip(ALL, (389, 391, 311, 130), (388, 388, 310, 129), strict=True)),
)
def test_the_vocabularies(tokenizer: Tokenizer, size: int, eot: int) -> None:
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (size, eot)


def test_text_is_the_names_of_events() -> None:
    text = EventTokenizer().decode(ARTICLE_IDS)
    assert text.startswith(" VELOCITY_20 NOTE_ON_60 TIME_SHIFT_50 NOTE_ON_64")
    assert EventTokenizer().encode(text) == ARTICLE_IDS
    assert EventTokenizer().encode("NOTE_ON_60\n  TIME_SHIFT_1\t") == [60, 256]


@given(st.data())
def test_every_sequence_of_ids_has_a_text(data: st.DataObject) -> None:
    tokenizer = data.draw(st.sampled_from(ALL))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    assert tokenizer.encode(tokenizer.decode(ids), allow_special=True) == ids
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(SettingError, match="'hello' is not an event"):
        EventTokenizer().encode("NOTE_ON_60 hello")
    with pytest.raises(SettingError, match="endoftext"):
        EventTokenizer().encode("<|endoftext|>")
    with pytest.raises(SettingError, match="389 is not a token id"):
        EventTokenizer().token_bytes(389)


@pytest.mark.parametrize("tokenizer", ALL)
def test_saved_and_loaded_it_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash
    assert len({other.hash for other in ALL}) == len(ALL)


def test_a_file_with_unknown_events_is_refused(tmp_path: Path) -> None:
    content = {"version": "1.0", "glassgpt_tokenizer": "performance", "events": "drums"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="'drums'"):
        Tokenizer.load(tmp_path)


def test_transposition_moves_pitches_and_nothing_else() -> None:
    tokenizer = EventTokenizer(melody=True)
    table = tokenizer.transpositions(3)
    assert table.shape == (7, 391)
    assert (table[3] == np.arange(391)).all()
    assert tokenizer.decode(table[6][ARTICLE_IDS[:3]]) == " VELOCITY_20 NOTE_ON_63 TIME_SHIFT_50"
    assert table[0, [60, 188]].tolist() == [57, 185]
    assert (table[:, 256:] == np.arange(256, 391)).all()
    assert table[6, 127] == 118  # an octave lower: there is no 130
    magenta = EventTokenizer("magenta")
    names = [magenta.names[i] for i in magenta.transpositions(1)[0]]
    assert names[magenta.names.index("NOTE_ON_21")] == "NOTE_ON_32"
