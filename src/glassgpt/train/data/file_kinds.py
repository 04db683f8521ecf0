"""Detect what a file is by its content, to refuse anything but token ids as training data.

Any bytes can be read as 2-byte ids: without this check a run would train on a novel or on model weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 1 << 16
MAX_CONTROL_FRACTION = 1 / 200  # control characters in a text; small ids are half control bytes

PREPARE = "Tokenize it with: glassgpt prepare {path} -o shards/"
DECOMPRESS = "Decompress it, then tokenize the text with: glassgpt prepare TEXT -o shards/"
NO_TEXT = "Tokenize a text with: glassgpt prepare TEXT -o shards/"
MODEL = "Pass a model with --init-from MODEL; --data takes token ids: glassgpt prepare TEXT -o shards/"
ARRAY = "Write the raw ids, as nanoGPT does: numpy.load(FILE).astype('uint16').tofile('train.bin')"

# At least four bytes each: ids that start like this are one file in billions.
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (rb"GGUF", "a GGUF model", MODEL),
    (rb"\x66\xd7\x34\x01", "llm.c's weights", MODEL),
    (rb"PK\x03\x04", "a zip file (as torch.save writes them)", MODEL),
    (rb"\x80[\x02-\x05][\x8a\x95}\](c].{61}", "a Python pickle", MODEL),
    (rb"PAR1", "a Parquet table", PREPARE),
    (rb"\x93NUMPY", "a numpy array with its header", ARRAY),
    (rb"\x1f\x8b\x08[\x00-\x1f]", "compressed by gzip", DECOMPRESS),
    (rb"\xfd7zXZ\x00", "compressed by xz", DECOMPRESS),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", DECOMPRESS),
    (rb"BZh[1-9]1AY", "compressed by bzip2", DECOMPRESS),
    (rb"\x89PNG|\xff\xd8\xff[\xc0-\xff]|GIF8|RIFF....WEBP", "an image", NO_TEXT),
    (rb"%PDF-", "a PDF", NO_TEXT),
    (rb"\x89HDF", "an HDF5 file", NO_TEXT),
    (rb"SQLite format", "a database", NO_TEXT),
    (rb"\x7fELF", "a program", NO_TEXT),
    (rb"\xff\xfe\x00\x00|\xff\xfe[ -~]\x00|\xfe\xff\x00[ -~]", "a text in UTF-16 or UTF-32", PREPARE),
)


@dataclass(frozen=True)
class ContentKind:
    name: str
    hint: str  # what to type instead

    def hint_for(self, path: Path) -> str:
        return self.hint.replace("{path}", str(path))


def detect_content(path: Path) -> ContentKind | None:
    """The kind of a file that is not one of token ids; None if it may be one."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for pattern, name, hint in SIGNATURES:
        if re.match(pattern, head, re.DOTALL):
            return ContentKind(name, hint)
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= length <= path.stat().st_size - 8 and b'"' in head[9:64]:
        return ContentKind("a safetensors file", MODEL)
    if is_text(head):
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        return ContentKind("JSON" if first == b"{" else "text", PREPARE)
    return None


def is_text(head: bytes) -> bool:
    """Text in UTF-8 or another superset of ASCII, with hardly a control character."""
    plain = head.translate(None, bytes([*range(9), 11, *range(14, 32), 127]))
    if len(head) - len(plain) > MAX_CONTROL_FRACTION * len(head) or len(head) < 4:
        return False
    ascii_only = plain.translate(None, bytes(range(128, 256)))
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        truncated = error.start >= len(head) - 3 and len(head) == HEAD_BYTES
        return truncated or len(ascii_only) > 0.7 * len(head)
    return True
