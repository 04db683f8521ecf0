"""What a task is: a text format with marked roles, the fields that fill them, and how to decode.

A definition is a small TOML file:

    format = "{source}<to-fr>{target}<|endoftext|>"     # start, source, separator, target, end
    tokens = ["<to-fr>"]                                # added to the vocabulary
    source = "en"                                       # the fields of a record
    target = "fr"
    max_target_tokens = 100
    keep = "start"                                      # which part of a long source to keep

    [decoding]                                          # any setting of `generate`
    beams = 4

Everything outside the braces is written by the task itself, so tokens are recognized there; a user's text
is always ordinary text. A task with `labels` classifies: without `{target}` in its format it is read by a
linear head at the format's last token (GPT-1's scheme); with `{target}` the labels' log-probabilities are
compared. Several `[directions.NAME]`, each with its own fields, let one model work in both directions. A
table `[chat]` in place of the format writes the turns of a conversation: see chat.py.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, SettingError, short_repr
from glassgpt.files import expand_user
from glassgpt.generate.sampling.params import DRAWING, SamplingParams
from glassgpt.ranges import check_number, check_whole
from glassgpt.tasks.chat import ChatFormat

DEFINITIONS = Path(__file__).with_name("definitions")
FILE = "task.toml"  # in a model's folder
KEEP = ("start", "end", "both")
MAX_FILE = 1 << 16
MAX_DOTS = 1000  # in a line: Python reads a.a.a. in quadratic time, 7 s for those that fit in a file
SOURCE, TARGET = "{source}", "{target}"
_KINDS = {
    "name": str, "format": str, "source": str, "target": str, "tokens": list, "labels": list, "keep": str,
    "max_target_tokens": int, "sentences": int, "lm_weight": float, "decoding": dict, "directions": dict,
    "chat": dict,
}  # fmt: skip
_DIRECTION_KINDS = {"format": str, "source": str, "target": str}


@dataclass(frozen=True)
class Direction:
    """The format of one way to use a task, and the fields of a record that fill it."""

    name: str  # "" if the task has only one
    source: str
    target: str
    start: str  # before the source
    separator: str  # between source and target; for a classifier all that follows the source
    end: str  # after the target
    has_target: bool = True  # False: a head reads the label

    @classmethod
    def parse(cls, name: str, format: str, source: str, target: str) -> Direction:
        before, has_source, rest = format.partition(SOURCE)
        separator, has_target, end = rest.partition(TARGET)
        if not has_source or SOURCE in rest or TARGET in before or TARGET in end:
            raise SettingError(
                f"format {short_repr(format)} must have {SOURCE} once and {TARGET} at most once, after it."
            )
        return cls(name, source, target, before, separator, end, bool(has_target))


@dataclass(frozen=True)
class Task:
    """A task definition, checked."""

    name: str
    directions: tuple[Direction, ...]
    tokens: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    keep: str = "start"
    max_target_tokens: int = 100
    sentences: int | None = None  # keep only this many generated sentences
    lm_weight: float = 0.5  # of the auxiliary language modelling loss of a classifier (GPT-1)
    decoding: dict[str, Any] = dataclasses.field(default_factory=dict)
    has_head: bool = False  # a classifier read by a linear head
    text: str = ""  # the file
    chat: ChatFormat | None = None  # how the turns of a conversation are written

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise SettingError(f"keep {self.keep!r} is not one of {', '.join(KEEP)}.")
        check_whole("max_target_tokens", self.max_target_tokens, 1, 10**6)
        if self.sentences is not None:
            check_whole("sentences", self.sentences, 1, 10**6)
        check_number("lm_weight", self.lm_weight, 0, 1000, "GPT-1 used 0.5")
        for names in (self.tokens, self.labels):
            if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
                raise SettingError(
                    f"{short_repr(list(names))} must be different strings, none of them empty."
                )
        if len(self.labels) == 1:
            raise SettingError(f"one label, {self.labels[0]!r}, leaves nothing to choose. Give at least two.")
        if self.has_head and not all(map(self._ends_with_a_token, self.directions)):
            raise SettingError(
                f"a format without {TARGET} must end with one of its tokens, which is nowhere else in it: "
                'the label is read at it. Such as tokens = ["<extract>"], format = "{source}<extract>"'
            )
        self.settings()

    def _ends_with_a_token(self, direction: Direction) -> bool:
        """Whether a head finds its place: a user's text never has the task's tokens."""
        written = direction.start + direction.separator
        return any(direction.separator.endswith(name) and written.count(name) == 1 for name in self.tokens)

    @property
    def classifies(self) -> bool:
        return bool(self.labels)

    def settings(self, **changes: Any) -> SamplingParams:
        """How to decode: `changes`, else what the definition says, else greedily."""
        fields = {"temperature": 0.0, "max_new_tokens": self.max_target_tokens, **self.decoding, **changes}
        if fields.get("beams") is not None:  # a search draws nothing
            left_out = {"temperature"} if "beams" in self.decoding else DRAWING
            fields = {k: v for k, v in fields.items() if k not in left_out or k in changes}
        return SamplingParams.of(**fields)

    def direction(self, name: str | None = None) -> Direction:
        if name is None:
            if len(self.directions) > 1:
                raise SettingError(f"say which way: {_ways(self)}.")
            return self.directions[0]
        for direction in self.directions:
            if direction.name == name:
                return direction
        raise SettingError(f"{self.name} has no direction {short_repr(name)}. Choose {_ways(self)}.")


def _ways(task: Task) -> str:
    return " or ".join(repr(direction.name) for direction in task.directions)


def definition_names() -> list[str]:
    """The definitions that come with the package."""
    return sorted(file.stem for file in DEFINITIONS.glob("*.toml"))


def load_task(name_or_path: str | Path) -> Task:
    """A definition by the name of a shipped one, or a TOML file, or a model folder that has one."""
    if str(name_or_path) in definition_names():
        return read_task(DEFINITIONS / f"{name_or_path}.toml")
    path = expand_user(name_or_path)
    if path.is_dir():
        path /= FILE
    if not path.is_file():
        raise SettingError(
            f"there is no task {str(name_or_path)!r}, nor a file of that name; the shipped tasks are "
            f"{', '.join(definition_names())}. docs/tasks.md shows how to write one."
        )
    return read_task(path)


def read_task(file: Path) -> Task:
    """Read and check a definition file."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise FileFormatError(f"{file} is larger than {MAX_FILE:,} bytes: it is not a task definition.")
        return parse_task(text.decode("utf-8"), file.stem if file.name != FILE else file.parent.name)
    except SettingError as error:
        raise FileFormatError(f"{file}: {str(error).rstrip('.')}. docs/tasks.md shows an example.") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{file} is not UTF-8 text: it is not a task definition.") from None
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}. Check the path.") from None


def parse_saved_task(text: str, model: str) -> Task:
    """The task that a model's folder holds."""
    try:
        return parse_task(text, model)
    except SettingError as error:
        raise FileFormatError(
            f"{FILE} of {model}: {str(error).rstrip('.')}. Correct it, or remove it."
        ) from None


def parse_task(text: str, name: str = "task") -> Task:
    """A task from the text of its definition."""
    values = _parse_toml(text)
    _check_kinds(values, _KINDS)
    chat = ChatFormat.parse(values["chat"]) if "chat" in values else None
    if chat is not None:
        if "format" in values or "directions" in values or "labels" in values:
            raise SettingError(
                "chat is the format of a conversation. Leave out format, directions and labels"
            )
        values = {**values, "format": chat.pair}
    directions = _parse_directions(values)
    labels = tuple(values.get("labels", ()))
    has_target = all(direction.has_target for direction in directions)
    if not labels and not has_target:
        raise SettingError(f"format has no {TARGET}. Add it, or labels to choose from.")
    optional = ("keep", "max_target_tokens", "sentences", "lm_weight", "decoding")
    return Task(
        name=values.get("name", name),
        directions=directions,
        tokens=tuple(values.get("tokens", ())),
        labels=labels,
        has_head=bool(labels) and not has_target,
        text=text,
        chat=chat,
        **{key: values[key] for key in optional if key in values},
    )


def _parse_toml(text: str) -> dict[str, Any]:
    if any(line.count(".") > MAX_DOTS for line in text.split("\n")):
        raise SettingError(f"it has a line of more than {MAX_DOTS:,} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SettingError("it is nested too deeply") from None
    except ValueError as error:  # also a number of thousands of digits
        raise SettingError(str(error)) from None


def _parse_directions(values: dict[str, Any]) -> tuple[Direction, ...]:
    tables: dict[str, dict[str, Any]] = values.get("directions", {"": {}})
    if not tables:
        raise SettingError("directions is empty. Leave it out, or add a table such as [directions.fr]")
    directions = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingError(f"directions.{name} is {short_repr(table)}, not a table")
        _check_kinds(table, _DIRECTION_KINDS)
        whole = {**values, **table}
        if "format" not in whole:
            raise SettingError(f'format is missing, such as format = "{SOURCE} TL;DR: {TARGET}"')
        directions.append(
            Direction.parse(
                name, whole["format"], whole.get("source", "source"), whole.get("target", "target")
            )
        )
    return tuple(directions)


def _check_kinds(values: dict[str, Any], kinds: Mapping[str, type]) -> None:
    for key, value in values.items():
        if key not in kinds:
            raise SettingError(f"there is no key {key!r}; there are {', '.join(kinds)}")
        allowed = (int, float) if kinds[key] is float else kinds[key]
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise SettingError(f"{key} is {short_repr(value)}, not a {kinds[key].__name__}")
