"""A folder of MIDI -> shards -> training on them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.chorales import decode_chorale, prepare_chorales
from glassgpt.music.evaluate import evaluate, read_pieces
from glassgpt.music.event_codec import Player
from glassgpt.music.interleave import interleave, split_by_time
from glassgpt.music.midi import write_midi
from glassgpt.music.prepare import prepare_midi, read_performances
from glassgpt.tokenizer import EventTokenizer
from glassgpt.train.data.loader import Loader
from glassgpt.train.data.shards import Shards
from tests.music.test_codec import assert_same_notes


def piece(seed: int, notes: int = 40, seconds: float = 20.0) -> Performance:
    rng = np.random.default_rng(seed)
    start = np.sort(rng.uniform(0, seconds - 1, notes))
    return Performance.from_notes(
        start, start + rng.uniform(0.1, 1, notes), rng.integers(40, 90, notes), rng.integers(20, 110, notes)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / "midi" / str(number)).mkdir(parents=True)
        write_midi(piece(number), tmp_path / "midi" / str(number) / f"{number}.mid")
    (tmp_path / "midi" / "broken.mid").write_bytes(b"MThd nothing")
    return tmp_path / "midi"


def test_a_folder_becomes_shards(folder: Path, tmp_path: Path) -> None:
    index = prepare_midi([folder], tmp_path / "shards", val_fraction=0.2, tempi=3, workers=1)
    assert [Path(entry["name"]).name for entry in index["skipped"]] == ["broken.mid"]
    counts = {split: entry["documents"] for split, entry in index["splits"].items()}
    assert counts["train"] + 3 * counts["val"] == 15
    assert counts["val"] == 1
    codec = PerformanceTokenizer()
    ids = next(read_pieces(tmp_path / "shards", "train"))
    assert ids[0] == 388
    played = codec.decode(ids[1:].tolist())
    originals = [codec.decode(codec.encode(piece(number))) for number in range(5)]
    assert any(len(played) == len(o) and np.allclose(played.start, o.start, atol=0.011) for o in originals)
    first, slower, faster = list(read_pieces(tmp_path / "shards", "train"))[:3]
    lengths = [codec.decode(x[1:].tolist()).seconds for x in (first, slower, faster)]
    assert lengths[1] / lengths[0] == pytest.approx(0.95, abs=0.002)
    assert lengths[2] / lengths[0] == pytest.approx(1.05, abs=0.002)


@pytest.mark.slow
def test_a_folder_called_like_a_file_is_a_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "x.mid").mkdir()
    write_midi(piece(7), folder / "x.mid" / "7.mid")
    assert len(prepare_midi([folder], tmp_path / "shards", workers=1)["sources"]) == 7
    assert len(read_performances([folder])) == 6


def test_workers_write_the_same(folder: Path, tmp_path: Path) -> None:
    one = prepare_midi([folder], tmp_path / "one", workers=1)
    assert one["splits"] == prepare_midi([folder], tmp_path / "two", workers=2)["splits"]
    with pytest.raises(SettingError, match=r"already exists\. Add --force"):
        prepare_midi([folder], tmp_path / "one", workers=1)
    prepare_midi([folder], tmp_path / "one", workers=1, force=True, events="magenta")
    assert Shards.open(tmp_path / "one").vocab_size == 311
    assert not (tmp_path / "one.part").exists()


def test_maestros_csv_decides_the_splits(folder: Path, tmp_path: Path) -> None:
    rows = ["train", "train", "validation", "test", "train"]
    lines = [f"Bach,{split},{n}/{n}.mid" for n, split in enumerate(rows)]
    (folder / "maestro.csv").write_text("\n".join(["canonical_composer,split,midi_filename", *lines]))
    index = prepare_midi([folder], tmp_path / "shards", workers=1)
    assert {split: entry["documents"] for split, entry in index["splits"].items()} == {
        "train": 3, "val": 1, "test": 1,
    }  # fmt: skip
    assert index["skipped"] == []  # the broken file is not in the table
    assert len(read_performances([folder])) == 3
    (folder / "maestro.csv").write_text("split,midi_filename\ntrain,../../secret.mid")
    with pytest.raises(FileFormatError, match="outside of its folder"):
        prepare_midi([folder], tmp_path / "other", workers=1)


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.mid").write_bytes(b"nothing")
    with pytest.raises(SettingError, match="none of these files"):
        prepare_midi([tmp_path / "a.mid"], tmp_path / "shards", workers=1)
    assert not (tmp_path / "shards.part").exists()
    with pytest.raises(SettingError, match="does not exist"):
        prepare_midi([tmp_path / "none"], tmp_path / "shards")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match=r"no \.mid"):
        prepare_midi([tmp_path / "empty"], tmp_path / "shards")


def test_melody_and_accompaniment_take_turns() -> None:
    melody, rest, tokenizer = piece(1), piece(2, 200, 30), EventTokenizer(melody=True)
    ids = interleave(melody, rest, tokenizer).tolist()
    turns = [i for i, id in enumerate(ids) if id >= 389]
    assert [ids[i] for i in turns] == [389, 390] * 4  # 30 s are four stretches of 8
    players = {389: Player(tokenizer.events), 390: Player(tokenizer.events)}
    for number, (begin, end) in enumerate(pairwise([*turns, len(ids)])):
        player = players[ids[begin]]
        player.now = number // 2 * 800
        for id in ids[begin + 1 : end]:
            player.push(id)
        assert player.now < number // 2 * 800 + 800
    assert_same_notes(players[389].performance(), melody)
    assert_same_notes(players[390].performance(), rest)


def test_a_stretch_counts_from_its_beginning() -> None:
    events = EventTokenizer().events
    # NOTE_ON, 12 s later NOTE_OFF
    assert split_by_time([60, *[355] * 12, 188], events) == [[60], [*[355] * 4, 188]]


def test_windows_are_transposed_at_random_and_always_the_same(folder: Path, tmp_path: Path) -> None:
    prepare_midi([folder], tmp_path / "shards", workers=1)
    shards, table = Shards.open(tmp_path / "shards"), EventTokenizer().transpositions(3)
    plain = Loader(shards, 32, 8, seed=1)
    moved = Loader(shards, 32, 8, seed=1, variants=table)
    found = set()
    for step in range(3):
        for before, after in zip(plain.batch(step).numpy(), moved.batch(step).numpy(), strict=True):
            (by,) = [k for k in range(7) if (table[k][before] == after).all()]
            found.add(by)
    assert len(found) >= 5
    halves = [moved.batch(2, rank, 2).numpy() for rank in range(2)]
    assert (np.concatenate(halves) == moved.batch(2).numpy()).all()


@pytest.mark.slow
def test_music_trains_generates_and_is_traced_like_text(folder: Path, tmp_path: Path) -> None:
    prepare_midi([folder], tmp_path / "shards", workers=1)
    settings = {
        "steps": 2, "shape": "1x16x2", "context": 16, "batch_size": 2, "device": "cpu", "eval_batches": 1
    }  # fmt: skip
    run = glassgpt.train(tmp_path / "shards", tmp_path / "run", transpose=3, **settings)
    assert run.finished
    gpt = glassgpt.load(tmp_path / "run")
    assert gpt.config.vocab_size == 389
    text = gpt.generate("NOTE_ON_60 TIME_SHIFT_50", max_new_tokens=5, seed=1, ignore_eot=True).text
    assert len(gpt.encode(text, allow_special=True)) == 5
    assert gpt.trace("NOTE_ON_60 TIME_SHIFT_50 NOTE_OFF_60").attention[0, 0].shape == (3, 3)
    with pytest.raises(SettingError, match="transpose is 13"):
        glassgpt.train(tmp_path / "shards", tmp_path / "other", transpose=13, **settings)


def test_transposition_is_for_music(tmp_path: Path) -> None:
    np.arange(4000, dtype="<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(SettingError, match="transpose 3 is for music"):
        glassgpt.train(
            tmp_path / "train.bin",
            tmp_path / "run",
            steps=1,
            transpose=3,
            shape="1x8x1",
            context=8,
            device="cpu",
        )


CHORALES = {
    "train": [[[72, 67, 64, 48], [72, 67, 64, 48], [74, 67, 59]]],
    "valid": [[[60.0, 48]]],
    "test": [[[], [60]]],
}


def test_chorales_are_written_voice_by_voice(tmp_path: Path) -> None:
    (tmp_path / "jsb.json").write_text(json.dumps(CHORALES))
    index = prepare_chorales(tmp_path / "jsb.json", tmp_path / "shards")
    assert {split: entry["tokens"] for split, entry in index["splits"].items()} == {
        "train": 13, "val": 5, "test": 9,
    }  # fmt: skip
    ids = next(read_pieces(tmp_path / "shards", "train")).tolist()
    assert ids == [129, 72, 67, 64, 48, 72, 67, 64, 48, 74, 67, 59, 128]
    played = decode_chorale(ids[1:])
    rows = zip(played.pitch, played.start, played.end, strict=True)
    found = [(int(p), round(float(a), 2), round(float(b), 2)) for p, a, b in rows]
    assert found == [
        (48, 0.0, 0.3), (64, 0.0, 0.3), (67, 0.0, 0.45), (72, 0.0, 0.3), (59, 0.3, 0.45), (74, 0.3, 0.45),
    ]  # fmt: skip
    deep = '{"train": ' + "[" * 100_000
    for wrong in (
        '{"train": [[[200]]]}',
        '{"train": [[[Infinity]]]}',
        '{"drums": [[[60]]]}',
        "[1]",
        "{",
        deep,
    ):
        (tmp_path / "wrong.json").write_text(wrong)
        with pytest.raises(FileFormatError, match="not a file of chorales"):
            prepare_chorales(tmp_path / "wrong.json", tmp_path / "wrong")


def test_the_likelihood_per_event_is_that_of_each_window() -> None:
    import torch

    from glassgpt.backends.torch.backend import TorchBackend
    from glassgpt.config import Config
    from glassgpt.model import GPT2

    torch.manual_seed(0)
    model = GPT2(Config(n_layer=1, n_embd=16, n_head=2, vocab_size=389, n_positions=12)).eval()
    pieces = [np.array([388, *np.random.default_rng(n).integers(0, 388, n)]) for n in (5, 40)]

    def loss(ids: np.ndarray, at: int, begin: int) -> float:
        logits = model(torch.tensor(ids[None, begin:at]))[0, -1].detach()
        return float(-torch.log_softmax(logits, -1)[int(ids[at])])

    for stride in (12, 6):
        expected = [loss(pieces[0], at, 0) for at in range(1, 6)]
        for at in range(1, 41):
            begin = 0 if at <= 12 else -(-(at - 12) // stride) * stride
            expected.append(loss(pieces[1], at, begin))
        found = evaluate(TorchBackend(model), pieces, stride=stride)
        assert (found.events, found.pieces, found.stride) == (45, 2, stride)
        assert found.nll == pytest.approx(np.mean(expected), rel=1e-5)
    for stride in (0, 13):  # nothing would end, or be left out
        with pytest.raises(SettingError, match=f"stride is {stride}; write a whole number from 1 to 12"):
            evaluate(TorchBackend(model), pieces, stride=stride)
