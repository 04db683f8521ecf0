"""File access for the whole package: bounded reads of files that may be hostile, and atomic writes.

Read in this order: read.py (text and JSON of bounded size), byte_reader.py (parts of large files), lock.py
(one process at a time), write.py (temporary name, fsync, rename). Nothing here imports torch.
"""

from glassgpt.files.lock import lock_folder
from glassgpt.files.read import (
    JSON_LIMIT,
    expand_user,
    file_crc32,
    file_size,
    parse_json,
    path_inside,
    read_bytes,
    read_json,
    read_text,
)
from glassgpt.files.write import (
    atomic_symlink,
    atomic_write,
    check_new_file,
    check_not_device,
    check_target,
    find_interrupted_writes,
    fsync,
    recover_interrupted_write,
    remove,
    replace_path,
    resolve_symlink,
    write_text_files,
)
from glassgpt.files.write_errors import wrap_write_errors

__all__ = [
    "JSON_LIMIT",
    "atomic_symlink",
    "atomic_write",
    "check_new_file",
    "check_not_device",
    "check_target",
    "expand_user",
    "file_crc32",
    "file_size",
    "find_interrupted_writes",
    "fsync",
    "lock_folder",
    "parse_json",
    "path_inside",
    "read_bytes",
    "read_json",
    "read_text",
    "recover_interrupted_write",
    "remove",
    "replace_path",
    "resolve_symlink",
    "wrap_write_errors",
    "write_text_files",
]
