"""What a file is by its content, where somebody gives another kind for a file of token ids.

Any bytes at all are 2-byte ids: a novel, or a model's weights, would be learned from without a complaint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LOOKED_AT = 1 << 16  # bytes
CONTROL_SHARE = 1 / 200  # of control characters, up to which it is text; half of the bytes of small ids are

PREPARE = "Make token ids of it with: glassgpt prepare {path} -o shards/"
UNPACK = "Unpack it, and make token ids of the text with: glassgpt prepare TEXT -o shards/"
NO_TEXT = "Make token ids of a text with: glassgpt prepare TEXT -o shards/"
MODEL = "A model is named by --init-from MODEL; --data is for token ids: glassgpt prepare TEXT -o shards/"
ARRAY = "Write the ids alone, as nanoGPT does: numpy.load(FILE).astype('uint16').tofile('train.bin')"

# Each of at least four bytes: ids that happen to begin so are one file in billions.
BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (rb"GGUF", "a GGUF model", MODEL),
    (rb"\x66\xd7\x34\x01", "llm.c's weights", MODEL),
    (rb"PK\x03\x04", "a zip file (as torch.save writes them)", MODEL),
    (rb"\x80[\x02-\x05][\x8a\x95}\](c].{61}", "a Python pickle", MODEL),
    (rb"PAR1", "a Parquet table", PREPARE),
    (rb"\x93NUMPY", "a numpy array with its header", ARRAY),
    (rb"\x1f\x8b\x08[\x00-\x1f]", "packed by gzip", UNPACK),
    (rb"\xfd7zXZ\x00", "packed by xz", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "packed by zstd", UNPACK),
    (rb"BZh[1-9]1AY", "packed by bzip2", UNPACK),
    (rb"\x89PNG|\xff\xd8\xff[\xc0-\xff]|GIF8|RIFF....WEBP", "a picture", NO_TEXT),
    (rb"%PDF-", "a PDF", NO_TEXT),
    (rb"\x89HDF", "an HDF5 file", NO_TEXT),
    (rb"SQLite format", "a database", NO_TEXT),
    (rb"\x7fELF", "a program", NO_TEXT),
    (rb"\xff\xfe\x00\x00|\xff\xfe[ -~]\x00|\xfe\xff\x00[ -~]", "a text in UTF-16 or UTF-32", PREPARE),
)


@dataclass(frozen=True)
class Kind:
    name: str
    next_step: str

    def advice(self, path: Path) -> str:
        return self.next_step.replace("{path}", str(path))


def kind_of_content(path: Path) -> Kind | None:
    """What a file is that holds no token ids; None if it may hold some."""
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    for pattern, name, advice in BEGINNINGS:
        if re.match(pattern, head, re.DOTALL):
            return Kind(name, advice)
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= length <= path.stat().st_size - 8 and b'"' in head[9:64]:
        return Kind("a safetensors file", MODEL)
    if is_text(head):
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        return Kind("JSON" if first == b"{" else "text", PREPARE)
    return None


def is_text(head: bytes) -> bool:
    """Letters, in UTF-8 or an older encoding that has ASCII's, and hardly a control character."""
    plain = head.translate(None, bytes([*range(9), 11, *range(14, 32), 127]))
    if len(head) - len(plain) > CONTROL_SHARE * len(head) or len(head) < 4:
        return False
    ascii_only = plain.translate(None, bytes(range(128, 256)))
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_off = error.start >= len(head) - 3 and len(head) == LOOKED_AT
        return cut_off or len(ascii_only) > 0.7 * len(head)
    return True
