"""Files made to do harm: each function below writes one, by hand, byte by byte where it has to."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.weights.conftest import SMALL, random_checkpoint

Maker = Callable[[Path], Path]
CASES: dict[str, tuple[Maker, str]] = {}  # name -> how to make it, what the refusal must speak of


def case(words: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        CASES[maker.__name__] = (maker, words)
        return maker

    return register


def folder_with_config(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    config = {**random_checkpoint().config.to_dict(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# Pickles: programs that run when they are opened.


class Payload:
    """Creates a file when unpickled; the test looks whether that file came to be."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


class Call:
    """Calls any function when unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def torch_zip(file: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return file


@case("open")
def pickle_in_bin(folder: Path) -> Path:
    payload = pickle.dumps({"wte.weight": Payload(folder.parent / "marker")}, protocol=2)
    return torch_zip(folder_with_config(folder) / "pytorch_model.bin", payload).parent


@case("open")
def pickle_in_checkpoint(folder: Path) -> Path:
    values = {"model_args": {}, "model": Payload(folder.parent / "marker")}
    return torch_zip(folder.with_suffix(".pt"), pickle.dumps(values, protocol=2))


@case("open")
def pickle_of_the_old_kind(folder: Path) -> Path:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    payload = pickle.dumps({"wte.weight": Payload(folder.parent / "marker")}, protocol=2)
    file = folder.with_suffix(".bin")
    parts = [pickle.dumps(part, protocol=2) for part in (1001, {}, [])]  # version, system; keys of storages
    file.write_bytes(magic + parts[0] + parts[1] + payload + parts[2])
    return file


@case("none of the known formats")
def pickle_without_torch(folder: Path) -> Path:
    file = folder.with_suffix(".bin")
    file.write_bytes(pickle.dumps(Payload(folder.parent / "marker"), protocol=2))
    return file


@case("STACK_GLOBAL")
def pickle_of_a_later_protocol(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), pickle.dumps(Payload(folder.parent / "marker"), protocol=4))


@case("bytearray")
def pickle_that_allocates(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), pickle.dumps(Call(bytearray, 10**11), protocol=2))


@case("its pickle is")
def pickle_without_end(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), b"\x80\x02" + b"]0" * 2_000_000 + b"].")


@case("cannot be opened")
def pickle_of_the_largest_size(folder: Path) -> Path:
    """Harmless, but as long as one may be: nothing must take longer to read."""
    return torch_zip(folder.with_suffix(".pt"), b"\x80\x02" + b"]0" * 124_990 + b"].")


@case("steps")
def pickle_of_too_many_steps(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), b"\x80\x02" + b"]0" * ((2**20 - 4) // 2) + b"].")


@case("nests tuples")
def tuples_that_double(folder: Path) -> Path:
    """Sixty levels, each twice the one below: to hash it as a dictionary's key takes for ever."""
    pairs = b")q\x00"
    for level in range(60):
        pairs += b"0h%ch%c\x86q%c" % (level, level, level + 1)
    return torch_zip(folder.with_suffix(".pt"), b"\x80\x02" + pairs + b"0}h%cNs." % 60)


@case("nests tuples")
def tuples_that_nest(folder: Path) -> Path:
    """Hashing 200,000 tuples within each other overflows the stack of the C code that does it."""
    return torch_zip(folder.with_suffix(".pt"), b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.")


@case("n_head in model_args is not a valid number")
def lists_that_double(folder: Path) -> Path:
    """The same with lists: harmless until somebody prints them in a message."""
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    args = {"n_layer": 1, "n_embd": 8, "block_size": 8, "vocab_size": 8, "n_head": value}
    return torch_zip(folder.with_suffix(".pt"), pickle.dumps({"model_args": args, "model": {}}, protocol=2))


@case("its own storage")
def storage_made_by_call(folder: Path) -> Path:
    data = b"\x80\x02ctorch\nFloatStorage\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85R."
    return torch_zip(folder.with_suffix(".pt"), data)


@case("broken pickle")
def pickle_of_noise(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), b"\xff" * 100)


@case("compressed")
def zip_bomb(folder: Path) -> Path:
    return torch_zip(folder.with_suffix(".pt"), bytes(100_000_000), zipfile.ZIP_DEFLATED)


@case("a zip of 25,001 entries")
def zip_of_too_many_entries(folder: Path) -> Path:
    file = folder.with_suffix(".pt")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
        for number in range(25_000):
            archive.writestr(f"archive/data/{number}", b"")
    return file


@case("claim")
def zip_that_lies_about_sizes(folder: Path) -> Path:
    """The directory says 4 GB where 100 bytes are, in both fields, so that it looks uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(100))
    data = bytearray(buffer.getvalue())
    directory = data.rfind(b"PK\x01\x02")
    data[directory + 20 : directory + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    folder.with_suffix(".pt").write_bytes(data)
    return folder.with_suffix(".pt")


@case("no directory")
def zip_cut_short(folder: Path) -> Path:
    file = torch_zip(folder.with_suffix(".pt"), b"x" * 5000)
    file.write_bytes(file.read_bytes()[:3000])
    return file


@case("1,000,000,000,000 numbers")
def storage_that_is_not_there(folder: Path) -> Path:
    """A state dict whose one tensor claims a terabyte of storage."""
    return torch_zip(folder.with_suffix(".pt"), tensor_pickle(10**12, (10**6, 10**6), (10**6, 1)))


@case("more than the file contains")
def tensor_blown_up_by_strides(folder: Path) -> Path:
    """Strides of 0 make four numbers look like any number of them."""
    file = folder_with_config(folder) / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", tensor_pickle(4, (10**6, 10**6), (0, 0)))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", bytes(16))
        archive.writestr("archive/byteorder", "little")
    return folder


def tensor_pickle(numbers: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """What torch.save writes for {"wte.weight": a tensor}, with numbers of our choice in it."""

    def put(*values: int) -> bytes:
        return b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values)

    storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        + storage
        + put(numbers)
        + b"tq\x07Q"  # the storage, by its persistent id, which the real pickler also memorises
        + put(0)
        + b"("
        + put(*size)
        + b"t("
        + put(*stride)
        + b"t\x89ccollections\nOrderedDict\n)RtR"
    )
    return b"\x80\x02}X\x0a\x00\x00\x00wte.weight" + tensor + b"s."


# Safetensors: no program, but a header that lies.


def safetensors(folder: Path, header: object, data: bytes = bytes(64), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    file = folder_with_config(folder) / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + text + data)
    return folder


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@case("its header claims")
def header_longer_than_the_file(folder: Path) -> Path:
    return safetensors(folder, {}, length=2**62)


@case("its header is")
def header_of_a_hundred_megabytes(folder: Path) -> Path:
    safetensors(folder, b"{", length=100_000_000)
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(200_000_000)  # sparse: takes no room on the disk
    return folder


@case("overlaps")
def overlapping_tensors(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 40, [10]), "b": tensor(24, 64, [10])})


@case("overlaps")
def one_place_for_two_tensors(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 64, [16]), "b": tensor(0, 64, [16])})


@case("hole")
def hole_between_tensors(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 16, [4]), "b": tensor(32, 64, [8])})


@case("but the file at byte")
def bytes_behind_the_last_tensor(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 16, [4])})


@case("but the file at byte")
def tensor_past_the_end(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 4 * 10**12, [10**12])})


@case("say otherwise")
def shape_larger_than_its_bytes(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 64, [2**31, 2**31, 4])})


@case("say otherwise")
def dtype_that_does_not_fit(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 64, [16], "F64")})


@case("has shape")
def negative_shape(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 64, [-4, -4])})


@case("has shape")
def offsets_that_are_no_numbers(folder: Path) -> Path:
    return safetensors(folder, {"a": {"dtype": "F32", "shape": [16], "data_offsets": ["0", "64"]}})


@case("occurs twice")
def one_name_twice(folder: Path) -> Path:
    entry = json.dumps(tensor(0, 64, [16]))
    return safetensors(folder, f'{{"a": {entry}, "a": {entry}}}'.encode())


@case("not JSON")
def nesting_without_end(folder: Path) -> Path:
    return safetensors(folder, b'{"a":' + b"[" * 1_000_000)


@case("is not described by")
def header_of_the_largest_size(folder: Path) -> Path:
    """A megabyte that takes as much memory as it can once parsed."""
    return safetensors(folder, b'{"a":[' + b"[]," * 345_000 + b"[]]}")


@case("not JSON")
def header_of_noise(folder: Path) -> Path:
    return safetensors(folder, b"{" + bytes(range(128, 255)))


@case("which GPT-2 weights do not use")
def unknown_dtype(folder: Path) -> Path:
    return safetensors(folder, {"a": tensor(0, 64, [16], "F99")})


@case("__metadata__")
def metadata_that_are_no_strings(folder: Path) -> Path:
    return safetensors(folder, {"__metadata__": {"config": [1]}, "a": tensor(0, 64, [16])})


@case("has shape (1000000, 1000000)")
def tensor_larger_than_the_config_says(folder: Path) -> Path:
    """A sparse file can really be as large as it says; the config knows better."""
    size = 4 * 10**12
    header = {name: tensor(size, size, [0]) for name in random_checkpoint().config.shapes()}
    header["wte.weight"] = tensor(0, size, [10**6, 10**6])
    safetensors(folder, header, data=b"")
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(file.seek(0, 2) + size)
    return folder


# Configs and indexes.


@case("layers, but there are only")
def config_of_a_billion_layers(folder: Path) -> Path:
    safetensors(folder, {"wte.weight": tensor(0, 64, [16])})
    (folder / "config.json").write_text(json.dumps({**SMALL, "n_layer": 10**9}))
    return folder


@case("bytes; at most")
def index_of_absurd_size(folder: Path) -> Path:
    file = folder_with_config(folder) / "model.safetensors.index.json"
    with open(file, "wb") as handle:
        handle.write(b'{"weight_map": ')
        handle.truncate(3_000_000_000)
    return folder


@case("not a plain file name")
def index_that_leads_out(folder: Path) -> Path:
    index = {"weight_map": {"wte.weight": "../../../../../../etc/passwd"}}
    (folder_with_config(folder) / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@case("not a plain file name")
def index_with_an_absolute_path(folder: Path) -> Path:
    index = {"weight_map": {"wte.weight": "/etc/passwd"}}
    (folder_with_config(folder) / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@case("which is missing")
def shard_that_is_a_device(folder: Path) -> Path:
    index = {"weight_map": {"wte.weight": "model-1.safetensors"}}
    (folder_with_config(folder) / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").symlink_to("/dev/zero")
    return folder


@case("neither a folder nor a regular file")
def device_as_a_model(folder: Path) -> Path:
    folder.symlink_to("/dev/zero")
    return folder


# llm.c: sizes in a header.


def llmc_header(folder: Path, *words: int, data: bytes = b"") -> Path:
    header = np.zeros(256, "<i4")
    header[: len(words)] = words
    file = folder.with_suffix(".bin")
    file.write_bytes(header.tobytes() + data)
    return file


@case("is not possible")
def llmc_of_absurd_counts(folder: Path) -> Path:
    big = 2**31 - 1
    return llmc_header(folder, 20240326, 3, big, big, big, 1, big, big)


@case("header describes")
def llmc_larger_than_its_file(folder: Path) -> Path:
    return llmc_header(folder, 20240326, 3, 1024, 50257, 48, 25, 1600, 50304, data=bytes(4096))


@case("is not a valid model")
def llmc_of_negative_sizes(folder: Path) -> Path:
    return llmc_header(folder, 20240326, 5, -1, -1, -1, -1, -1, -1)


@case("within its header")
def llmc_cut_short(folder: Path) -> Path:
    file = llmc_header(folder, 20240326, 3)
    file.write_bytes(file.read_bytes()[:100])
    return file
