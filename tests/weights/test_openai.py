"""OpenAI's TensorFlow checkpoints: the fixture that real TensorFlow wrote, our own files, hostile ones."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassgpt.config import Config
from glassgpt.errors import ConfigError, FileFormatError, UserError
from glassgpt.tokenizer import ByteTokenizer, Tokenizer
from glassgpt.weights import openai, sstable, tf_bundle
from glassgpt.weights.checkpoint import Checkpoint
from glassgpt.weights.crc32c import _plain, crc32c, masked
from tests.weights.bounded import refused
from tests.weights.fixtures.make_openai_fixture import HPARAMS, shapes, value

FIXTURE = Path(__file__).parent / "fixtures" / "openai"
INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"

one_tmp = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the fixture to do harm to."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "model"))


def read_all(path: Path) -> dict[str, np.ndarray]:
    checkpoint = openai.load(path)
    return {name: np.array(checkpoint.tensors[name]) for name in checkpoint.tensors}


# What TensorFlow wrote


def test_every_number_that_tensorflow_wrote():
    checkpoint = openai.load(FIXTURE)
    assert openai.detect(FIXTURE)
    assert checkpoint.config == Config(vocab_size=300, n_positions=16, n_embd=12, n_head=3, n_layer=2)
    assert list(checkpoint.tensors) == list(checkpoint.config.shapes())  # the step counter is left out
    for name in shapes():
        expected = value(name)[0] if name.endswith("/w") else value(name)
        found = checkpoint.tensors[openai.canonical_name(name)]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_names_go_both_ways():
    for name in Config.named("gpt2-xl").shapes():
        assert openai.canonical_name(openai.openai_name(name)) == name
    assert openai.openai_name("h.11.attn.c_attn.weight") == "model/h11/attn/c_attn/w"
    assert openai.openai_name("h.0.ln_1.weight") == "model/h0/ln_1/g"
    for other in ("wte", "model/x", "model/h0/attn", "model/h0/attn/c_attn/w/Adam", "model/hx/ln_1/g"):
        assert openai.canonical_name(other) not in Config().shapes()


def test_a_checkpoint_of_a_training_run(folder: Path):
    """gpt-2-simple and its like: another file name, told by `checkpoint`; Adam's state beside the weights."""
    table = sstable.read_table((folder / INDEX).read_bytes(), "index")
    table[b"model/wte/Adam"] = table[b"model/wte/Adam_1"] = table[b"model/wte"]
    del table[b"model/wte"]
    table[b"model/wte"] = table[b"model/wte/Adam"]
    (folder / "model-1000.index").write_bytes(sstable.write_table(table))
    (folder / DATA).rename(folder / "model-1000.data-00000-of-00001")
    (folder / "checkpoint").write_text('model_checkpoint_path: "/home/someone/run/model-1000"\n')
    np.testing.assert_array_equal(openai.load(folder).tensors["wte.weight"], value("model/wte"))


# What we write


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
def test_round_trip_is_bit_exact(tmp_path: Path, dtype: str | None):
    """The fixture's numbers are k/256 from -1 to 1: eight bits, exact in float16 and bfloat16."""
    before = openai.load(FIXTURE)
    openai.save(before, tmp_path / "out", dtype)
    after = openai.load(tmp_path / "out")
    assert after.config == before.config
    for name in before.tensors:
        expected = before.tensors[name].astype(after.tensors[name].dtype)
        assert str(expected.dtype) == ("float32" if dtype is None else dtype)
        assert after.tensors[name].tobytes() == expected.tobytes()


def test_the_tokenizer_goes_along(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("The miller's cat sat by the millpond and the miller sat by the cat. " * 20)
    tokenizer = Tokenizer.train([text], 300)
    tensors = read_all(FIXTURE)
    config = Config(vocab_size=300, n_positions=16, n_embd=12, n_head=3, n_layer=2)
    openai.save(Checkpoint(config, tensors, tokenizer), tmp_path / "out")
    assert {"encoder.json", "vocab.bpe"} <= {file.name for file in (tmp_path / "out").iterdir()}
    after = openai.load(tmp_path / "out")
    assert after.tokenizer is not None
    assert after.tokenizer.hash == tokenizer.hash
    assert after.config.eos_token_id == tokenizer.eot_id
    openai.save(Checkpoint(config, tensors, ByteTokenizer()), tmp_path / "bytes")
    assert isinstance(openai.load(tmp_path / "bytes").tokenizer, ByteTokenizer)


def test_what_the_format_cannot_say_is_refused(tmp_path: Path):
    config = Config(vocab_size=8, n_positions=4, n_embd=4, n_head=2, n_layer=1, n_inner=8)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
    with pytest.raises(ConfigError, match="d_mlp"):
        openai.save(Checkpoint(config, tensors), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# The parts


@given(st.binary(max_size=5000))
def test_crc_equals_the_loop_over_bytes(data: bytes):
    assert crc32c(data) == _plain(memoryview(data))


def test_crc_known_values():
    """The vectors of RFC 3720, appendix B.4, and one long message in all lengths of its odd beginning."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    data = np.random.default_rng(0).bytes(200_000)
    for cut in (0, 1, 2, 3, 65_535, 65_536, 65_537):
        assert crc32c(memoryview(data)[cut:]) == _plain(memoryview(data)[cut:])


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=300), max_size=200))
def test_table_round_trip(table: dict[bytes, bytes]):
    assert sstable.read_table(sstable.write_table(table), "here") == table


def snappy(data: bytes) -> bytes:
    """A plain compressor: the longest match among the last bytes, else one literal; every form there is."""
    out = bytearray(sstable.varint(len(data)))
    at = 0
    while at < len(data):
        best, distance = 0, 0
        for back in range(1, min(at, 3000) + 1):
            length = 0
            while length < 64 and at + length < len(data) and data[at + length] == data[at - back + length]:
                length += 1
            if length > best:
                best, distance = length, back
        if 4 <= best <= 11 and distance < 2048:
            out += bytes([1 | (best - 4) << 2 | distance >> 8 << 5, distance & 255])
        elif best >= 4:
            tag, width = (3, 4) if at % 2 else (2, 2)
            out += bytes([tag | (best - 1) << 2]) + distance.to_bytes(width, "little")
        else:
            best = min(70, len(data) - at) if at == 0 else 1
            out += bytes([60 << 2, best - 1]) if best > 60 else bytes([best - 1 << 2])
            out += data[at : at + best]
        at += best
    return bytes(out)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"ab", b"model/h0/", b"\0\0\0", b"xyz!"]), max_size=120))
def test_snappy_round_trip(parts: list[bytes]):
    data = b"".join(parts)
    assert sstable.unsnappy(snappy(data), 10**6, "here") == data


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_snappy_never_breaks(data: bytes):
    with contextlib.suppress(FileFormatError):
        assert len(sstable.unsnappy(data, 1000, "here")) <= 1000


def with_block(contents: bytes, kind: int) -> bytes:
    """A table whose one data block is given as it lies in the file."""
    out = bytearray(contents + bytes([kind]))
    out += struct.pack("<I", masked(crc32c(bytes(out))))
    handle = sstable.varint(0) + sstable.varint(len(contents))
    meta = sstable._append_block(out, [])
    index = sstable._append_block(out, [(b"z", handle)])
    return bytes(out) + (meta + index).ljust(40, b"\0") + sstable.MAGIC


def test_a_compressed_block():
    entries = bytearray()
    handle = sstable._append_block(entries, [(b"model/wte", b"1" * 50), (b"model/wto", b"2")])
    size = sstable.read_varint(handle, 1, "")[0]
    table = sstable.read_table(with_block(snappy(bytes(entries[:size])), kind=1), "here")
    assert table == {b"model/wte": b"1" * 50, b"model/wto": b"2"}
    refused(lambda: sstable.read_table(with_block(bytes(entries[:size]), kind=7), "here"), "unknown way 7")


# Hostile files


@one_tmp
@given(where=st.integers(0, 10**9), bits=st.integers(1, 255), file=st.sampled_from([INDEX, DATA]))
def test_any_flipped_byte_is_noticed_or_harmless(tmp_path: Path, where: int, bits: int, file: str):
    target = tmp_path / "model"
    shutil.copytree(FIXTURE, target, dirs_exist_ok=True)
    data = bytearray((FIXTURE / file).read_bytes())
    data[where % len(data)] ^= bits
    (target / file).write_bytes(data)
    try:
        tensors = read_all(target)
    except FileFormatError:
        return
    for name, array in read_all(FIXTURE).items():  # only bytes that no tensor owns may change unseen
        np.testing.assert_array_equal(tensors[name], array)


@one_tmp
@given(keep=st.integers(0, 10**9), file=st.sampled_from([INDEX, DATA]))
def test_any_truncation_is_refused(tmp_path: Path, keep: int, file: str):
    target = tmp_path / "model"
    shutil.copytree(FIXTURE, target, dirs_exist_ok=True)
    data = (FIXTURE / file).read_bytes()
    (target / file).write_bytes(data[: keep % len(data)])
    with pytest.raises(FileFormatError):
        read_all(target)


@settings(one_tmp, max_examples=150)
@given(st.data())
def test_forged_index_with_right_checksums(tmp_path: Path, data: st.DataObject):
    """Past the checksums: any entry changed or added, and the table written anew around it."""
    target = tmp_path / "model"
    shutil.copytree(FIXTURE, target, dirs_exist_ok=True)
    table = sstable.read_table((FIXTURE / INDEX).read_bytes(), "index")
    key = data.draw(st.sampled_from(sorted(table)))
    entry = bytearray(table[key])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(entry)))
        if data.draw(st.booleans()) and at < len(entry):
            entry[at] = data.draw(st.integers(0, 255))
        else:
            entry[at:at] = data.draw(st.binary(max_size=4))
    table[data.draw(st.sampled_from([key, key, key + b"x", b"\xff\xfe"]))] = bytes(entry)
    (target / INDEX).write_bytes(sstable.write_table(table))
    with contextlib.suppress(FileFormatError):
        read_all(target)


def forge(folder: Path, name: bytes, *fields: bytes) -> None:
    table = sstable.read_table((folder / INDEX).read_bytes(), "index")
    table[name] = b"".join(fields)
    (folder / INDEX).write_bytes(sstable.write_table(table))


def test_lying_entries(folder: Path):
    original = (folder / INDEX).read_bytes()
    huge = sstable.varint(2**40)
    dims = b"\x12" + tf_bundle._sized(b"\x12\x07\x08" + huge + b"\x12\x02\x08\x0c")
    cases = {
        "would hold": (b"\x08\x01", dims, b"\x28" + sstable.varint(100)),
        "long, but": (b"\x08\x01", dims, b"\x28" + sstable.varint(2**40 * 48)),
        "no file has": (b"\x08\x01", b"\x20" + b"\xff" * 9 + b"\x01"),
        "data file 5 of 1": (b"\x08\x01", b"\x18\x05"),
        "in slices": (b"\x08\x01", b"\x3a\x00"),
        "9 dimensions": (b"\x08\x01", b"\x12" + tf_bundle._sized(b"\x12\x02\x08\x01" * 9)),
        "number where": (b"\x08\x01", b"\x10\x05"),
        "bytes where": (b"\x0a\x01\x01",),
        "unknown kind": (b"\x0b",),
        "longer than its message": (b"\x12\x7f",),
        "more than 64 bits": (b"\x08" + b"\xff" * 11,),
        "inside a number": (b"\x08\xff",),
    }
    for message, fields in cases.items():
        (folder / INDEX).write_bytes(original)
        forge(folder, b"model/wpe", *fields)
        refused(lambda: read_all(folder), message)
    (folder / INDEX).write_bytes(original)
    forge(folder, b"model/zzz", sstable.read_table(original, "")[b"model/wpe"])
    refused(lambda: read_all(folder), "puts model/zzz inside model/wpe")
    headers = {b"\x08\x01\x10\x01": "big-endian", b"\x08" + huge: "data files", b"": "data files"}
    for header, message in headers.items():
        (folder / INDEX).write_bytes(original)
        forge(folder, b"", header)
        refused(lambda: read_all(folder), message)


def test_bombs_in_the_index(folder: Path):
    index = folder / INDEX

    def opened() -> None:
        read_all(folder)

    # Snappy that says it grows to 1 GB; and one that does grow, from 6 bytes a step.
    index.write_bytes(with_block(sstable.varint(10**9) + b"\0x", kind=1))
    refused(opened, "grow to")
    bomb = sstable.varint(sstable.FILE_LIMIT) + b"\0x" + b"\xfe\x01\x00" * (sstable.FILE_LIMIT // 64 + 9)
    index.write_bytes(with_block(bomb, kind=1))
    refused(opened)
    # Keys that share all of an ever longer key; far too many entries; far too many restarts.
    grow = b"\x00" + sstable.varint(4000) + b"\x00" + b"k" * 4000
    grow += b"".join(sstable.varint(4000 + i) + b"\x01\x00k" for i in range(100_000))
    index.write_bytes(with_block(grow + struct.pack("<II", 0, 1), kind=0))
    refused(opened, "larger than its block")
    many = b"".join(b"\x00\x04\x00" + struct.pack(">I", i) for i in range(100_000))
    index.write_bytes(with_block(many + struct.pack("<II", 0, 1), kind=0))
    refused(opened, "more than 65,536")
    index.write_bytes(with_block(struct.pack("<I", 2**31), kind=0))
    refused(opened, "restarts")
    # A thousand handles that all lead to the one large block.
    out = bytearray()
    handle = sstable._append_block(out, [(b"", b"x" * 10**6)])
    meta = sstable._append_block(out, [])
    again = sstable._append_block(out, [(struct.pack(">I", i), handle) for i in range(1000)])
    index.write_bytes(bytes(out) + (meta + again).ljust(40, b"\0") + sstable.MAGIC)
    refused(opened, "inside the one before it")
    # A gigabyte of nothing (sparse: it takes no disk).
    with open(index, "wb") as file:
        file.truncate(10**9)
    refused(opened, "at most")


def test_wrong_folders(folder: Path, tmp_path: Path):
    hparams = folder / "hparams.json"
    for change, message in [
        ({"n_layer": 10**9}, "has 1,000,000,000 layers"),
        ({"n_layer": 3}, "missing"),
        ({"n_layer": 1}, "unknown tensor"),
        ({"n_embd": 24}, "shape"),
        ({"n_head": 5}, "n_head"),
        ({"n_ctx": "16"}, "n_positions"),
        ({"rotary": True}, "rotary"),
    ]:
        hparams.write_text(json.dumps(HPARAMS | change))
        refused(lambda: read_all(folder), message)
    hparams.write_text('{"n_vocab": 300}')
    refused(lambda: read_all(folder), "n_ctx")
    hparams.write_text("[" * 100_000)
    refused(lambda: read_all(folder), "hparams.json")
    shutil.copy(FIXTURE / "hparams.json", hparams)
    (folder / "checkpoint").write_text('model_checkpoint_path: ".."\n')
    with pytest.raises(UserError):
        read_all(folder)
    (folder / "checkpoint").unlink()
    assert read_all(folder)
    shutil.copy(folder / INDEX, folder / "other.index")
    refused(lambda: read_all(folder), "has 2 files")
    (folder / "other.index").unlink()
    (folder / DATA).unlink()
    refused(lambda: read_all(folder), "does not exist")
    assert not openai.detect(tmp_path)
    assert not openai.detect(hparams)
