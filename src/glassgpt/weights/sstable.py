"""A sorted table of keys and values in a file, in LevelDB's format, which TensorFlow's checkpoint index uses.

The file ends in a footer with two handles (offset, size): of an empty "meta" block and of the index block,
whose values are in turn the handles of the data blocks. A block is a run of entries, each
    (bytes shared with the key before, bytes that are its own, bytes of the value, its own key bytes, value)
then the positions of entries that share nothing (for searching), then how many those are; it is followed by
one byte for its compression and a checksum. All sizes are checked before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn

from glassgpt.errors import FileFormatError
from glassgpt.weights.crc32c import crc32c, masked

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER = 48
TRAILER = 5  # one byte of compression, four of checksum

# GPT-2 XL's index has 581 entries in 27 kB; these leave room for a model many times as deep.
FILE_LIMIT = 2**20
ENTRY_LIMIT = 2**16
KEY_LIMIT = 4096

_PLAIN, _SNAPPY = 0, 1
_BLOCK_TARGET = 4096  # a block is closed when it has grown to this
_RESTART_EVERY = 16


def read_table(data: bytes, where: str) -> dict[bytes, bytes]:
    """Every key and value of the table, in order."""
    if len(data) > FILE_LIMIT:
        _fail(where, f"is {len(data):,} bytes long; an index has at most {FILE_LIMIT:,}")
    if len(data) < FOOTER or data[-8:] != MAGIC:
        _fail(where, "does not end as a TensorFlow checkpoint index does")
    body, footer = data[:-FOOTER], data[-FOOTER:]
    at = _read_handle(footer, 0, where)[1]  # the meta block is empty and unused
    (offset, size), _ = _read_handle(footer, at, where)
    table: dict[bytes, bytes] = {}
    behind = (
        0  # where the block before ended: blocks may not overlap, or a small file would expand without end
    )
    budget = FILE_LIMIT
    for _, handle in _entries(_block(body, offset, size, budget, where), where):
        (offset, size), _ = _read_handle(handle, 0, where)
        if offset < behind:
            _fail(where, f"has a block at {offset} inside the one before it")
        behind = offset + size
        block = _block(body, offset, size, budget, where)
        budget -= len(block)
        for key, value in _entries(block, where):
            if len(table) == ENTRY_LIMIT:
                _fail(where, f"has more than {ENTRY_LIMIT:,} entries")
            if key in table:
                _fail(where, f"lists {key[:80]!r} twice")
            table[key] = value
    return table


def write_table(table: dict[bytes, bytes]) -> bytes:
    """The contents of a table file, with sorted keys and uncompressed, as TensorFlow writes it."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []
    grown = 0
    items = sorted(table.items())
    for number, (key, value) in enumerate(items):
        block.append((key, value))
        grown += len(key) + len(value)
        if grown >= _BLOCK_TARGET or number == len(items) - 1:
            index.append((key, _append_block(out, block)))  # a block is found by its last key
            block, grown = [], 0
    meta = _append_block(out, [])
    handles = meta + _append_block(out, index)
    return bytes(out) + handles.ljust(FOOTER - len(MAGIC), b"\0") + MAGIC


def read_varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    """A varint of up to 64 bits (7 bits per byte, lowest first), and the position after it."""
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            _fail(where, "ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    _fail(where, "has a number of more than 64 bits")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fail(where: str, what: str) -> NoReturn:
    raise FileFormatError(f"{where} {what}: damaged. Download the file again.") from None


def _read_handle(data: bytes, at: int, where: str) -> tuple[tuple[int, int], int]:
    offset, at = read_varint(data, at, where)
    size, at = read_varint(data, at, where)
    return (offset, size), at


def _block(body: bytes, offset: int, size: int, budget: int, where: str) -> bytes:
    """The contents of a block, once its checksum agrees."""
    end = offset + size
    if end + TRAILER > len(body):
        _fail(where, f"promises a block of {size:,} bytes at {offset:,} but is {len(body) + FOOTER:,} long")
    (stored,) = struct.unpack_from("<I", body, end + 1)
    if masked(crc32c(memoryview(body)[offset : end + 1])) != stored:
        _fail(where, f"has a wrong checksum on the block at {offset:,}")
    kind, contents = body[end], body[offset:end]
    if kind == _SNAPPY:
        contents = unsnappy(contents, budget, where)
    elif kind != _PLAIN:
        _fail(where, f"has a block compressed in the unknown way {kind}")
    if len(contents) > budget:
        _fail(where, f"has blocks of more than {FILE_LIMIT:,} bytes")
    return contents


def _entries(block: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        _fail(where, "has a block without an end")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        _fail(where, f"has a block with {restarts:,} restarts in {len(block):,} bytes")
    key, at = b"", 0
    for _ in range(ENTRY_LIMIT):
        if at >= end:
            return
        shared, at = read_varint(block, at, where)
        own, at = read_varint(block, at, where)
        n_value, at = read_varint(block, at, where)
        if shared > len(key) or shared + own > KEY_LIMIT or at + own + n_value > end:
            _fail(where, "has an entry larger than its block")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + n_value]
        at += n_value
    _fail(where, f"has a block of more than {ENTRY_LIMIT:,} entries")


def _append_block(out: bytearray, entries: list[tuple[bytes, bytes]]) -> bytes:
    """Write a block; return its handle."""
    block, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % _RESTART_EVERY == 0:
            restarts.append(len(block))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    if not restarts:
        restarts = [0]
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = varint(len(out)) + varint(len(block))
    block.append(_PLAIN)
    out += block + struct.pack("<I", masked(crc32c(bytes(block))))
    return handle


def unsnappy(data: bytes, limit: int, where: str) -> bytes:
    """Undo Snappy: literal bytes, and copies of what was written before, down to a distance of one."""
    promised, at = read_varint(data, 0, where)
    if promised > limit:
        _fail(where, f"has a compressed block that would grow to {promised:,} bytes")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # literal: a length up to 60 in the tag, or in the 1 to 4 bytes behind it
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(data[at : at + width], "little")
                at += width
            length += 1
            if at + length > len(data):
                _fail(where, "ends inside a compressed block")
            out += data[at : at + length]
            at += length
        else:
            width = (1, 2, 4)[(tag & 3) - 1]
            distance = int.from_bytes(data[at : at + width], "little")
            at += width
            length = (tag >> 2) + 1
            if tag & 3 == 1:  # short copies store three bits of the distance with the length
                distance |= (tag >> 5) << 8
                length = (tag >> 2 & 7) + 4
            if at > len(data) or not 0 < distance <= len(out):
                _fail(where, "has a compressed block that copies from outside itself")
            start = len(out) - distance
            pattern = bytes(out[start : start + length])  # shorter than length where it overlaps its copy
            out += (pattern * (length // len(pattern) + 1))[:length]
        if len(out) > promised:
            _fail(where, "has a compressed block longer than it says")
    if len(out) != promised:
        _fail(where, "has a compressed block shorter than it says")
    return bytes(out)
