"""The page's `music-events.js` against the codec: the same notes from the same events."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from glassgpt.music import PerformanceTokenizer
from glassgpt.tokenizer import EventTokenizer
from tests.music.test_prepare import piece

MODULE = Path(__file__).resolve().parents[2] / "src/glassgpt/explorer/page/music/music-events.js"
SCRIPT = """
const { notesOf } = await import(process.argv[1]);
let input = "";
for await (const chunk of process.stdin) input += chunk;
console.log(JSON.stringify(JSON.parse(input).map(notesOf)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_plays_what_the_codec_decodes() -> None:
    codec, tokenizer = PerformanceTokenizer(), EventTokenizer()
    rows = [[388, *codec.encode(piece(seed)).tolist()] for seed in range(3)]
    texts = [[{"text": tokenizer.decode([id])} for id in ids] for ids in rows]
    words = [{"text": word} for word in " A robot must obey".split(" ")]
    made = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT, MODULE.as_uri()],
        input=json.dumps([*texts, words]), capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    *found, text = json.loads(made.stdout)
    assert text is None  # not music
    for ids, notes in zip(rows, found, strict=True):
        wanted = codec.decode(ids[1:])
        notes.sort(key=lambda note: (round(note["start"], 4), note["pitch"]))
        assert [note["pitch"] for note in notes] == wanted.pitch.tolist()
        assert [note["velocity"] for note in notes] == wanted.velocity.tolist()
        assert np.allclose([note["start"] for note in notes], wanted.start)
        assert np.allclose([note["end"] for note in notes], wanted.end)
        assert all(tokenizer.names[ids[note["token"]]] == f"NOTE_ON_{note['pitch']}" for note in notes)
