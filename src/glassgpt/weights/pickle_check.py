"""Reading a pickle without executing it: which functions would it call, and with what?

A pickle is a program for a small stack machine. Here its instructions are followed with placeholders on the
stack in place of values, which is enough to see every function by name, every length it claims and every
tuple it nests, and which costs nothing that the file does not contain.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")

OLD_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number, pickled

# All that state dicts and training checkpoints of GPT-2s need. torch's own list is longer and can be made
# to allocate memory (`bytearray`, `torch.Tensor`); it remains as the wall behind this one.
_ALLOWED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
    "torch Size",
    "torch device",
    *(f"torch {kind}Storage" for kind in _STORAGES),
    *(f"torch {dtype}" for dtype in DTYPES),
}
_NEVER_WRITTEN = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}

# A GPT-2 XL with its optimizer state takes 80,000 steps. Three readings of this many take 1.5 s.
INSTRUCTION_LIMIT = 250_000

# Tuples within tuples, shared, double with every level, and hashing one that is a dictionary's key visits
# them all; nested one by one, they overflow the C stack. The largest in real files counts about 30.
TUPLE_LIMIT = 1000


@dataclass(frozen=True)
class _Stand:
    """What is known about a value on the stack."""

    weight: int = 1  # how many values hang on it, if it is a tuple
    number: int = 0  # its value, or the largest in it
    name: str = ""  # the function or class it is
    mark: bool = False


def instructions(pickles: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    """The instructions by name, read but not executed."""
    for opcode, argument in _opcodes(pickles, path):
        yield opcode.name, argument


def check_instructions(pickles: bytes, path: Path) -> None:
    """Refuse a pickle that would call anything but the few functions which rebuild tensors."""
    machine = _Machine(path)
    for opcode, argument in _opcodes(pickles, path):
        name = opcode.name
        if name == "GLOBAL" and argument not in _ALLOWED:
            function = str(argument).replace(" ", ".")[:200]
            raise FileFormatError(
                f"{path} refused: opening it would call {function}, which no weight file needs. "
                "It may be an attack; use a .safetensors file from a source you trust."
            )
        if name in _NEVER_WRITTEN:
            raise FileFormatError(f"{path} refused: its pickle uses {name}, which torch.save never writes.")
        machine.step(opcode, argument)


def _opcodes(pickles: bytes, path: Path) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    stream, count = BytesIO(pickles), 0
    # An old file starts with five: a magic number, a version, the system, the data, the storages' keys.
    for _ in range(5 if pickles.startswith(OLD_START) else 1):
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                count += 1
                if count > INSTRUCTION_LIMIT:
                    raise FileFormatError(
                        f"{path} refused: its pickle has over {INSTRUCTION_LIMIT:,} instructions."
                    )
                yield opcode, argument
        except FileFormatError:
            raise
        except Exception as error:
            reason = str(error)[:100]
            raise FileFormatError(f"{path} has a broken pickle: {reason}. Download the file again.") from None


class _Machine:
    """The stack and the memo of the pickle machine, with placeholders for values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.stack: list[_Stand] = []
        self.memo: dict[int, _Stand] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name == "STOP":
            self.stack.clear()
            self.memo.clear()
        elif name == "MARK":
            self.stack.append(_Stand(mark=True))
        elif name in _PUT:
            self.memo[argument] = self._pop(1)[0]
            self.stack.append(self.memo[argument])
        elif name in _GET:
            self.stack.append(self.memo.get(argument, _Stand()))
        elif name == "DUP":
            top = self._pop(1)
            self.stack += top * 2
        elif name == "GLOBAL":
            self.stack.append(_Stand(name=argument))
        else:
            self._replace(opcode, argument if isinstance(argument, int) else 0)

    def _replace(self, opcode: pickletools.OpcodeInfo, number: int) -> None:
        """Pop the instruction's operands from the stack and push its results."""
        taken: list[_Stand] = []
        needed = len(opcode.stack_before)
        if pickletools.markobject in opcode.stack_before:
            while not (top := self._pop(1)[0]).mark:
                taken.append(top)
            needed = opcode.stack_before.index(pickletools.markobject)
        taken += self._pop(needed)
        weight = 1
        if opcode.name in {"REDUCE", "NEWOBJ"} and taken[0].name.endswith("Storage"):
            raise FileFormatError(f"{self.path} refused: it makes its own storage. It may be an attack.")
        if opcode.name == "BINPERSID" and taken[0].number > self.size:
            # The tuple that names a storage contains its length, allocated as soon as it is read.
            raise FileFormatError(
                f"{self.path} refused: it claims a storage of {min(taken[0].number, 10**18):,} numbers "
                f"but is {self.size:,} bytes long."
            )
        if opcode.name in _TUPLES:
            weight += sum(item.weight for item in taken)
            number = max((item.number for item in taken), default=0)
            if weight > TUPLE_LIMIT:
                raise FileFormatError(
                    f"{self.path} refused: its pickle nests tuples without need. It may be an attack."
                )
        self.stack += [_Stand(weight, number)] * len(opcode.stack_after)

    def _pop(self, count: int) -> list[_Stand]:
        if count > len(self.stack):
            raise FileFormatError(
                f"{self.path} has a broken pickle: nothing on its stack. Download it again."
            )
        popped = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return popped
