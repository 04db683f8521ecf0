"""The models of a server: one, or two to compare, others to switch to, and the checkpoints of a run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.generate.prompt import parse_ids, usable_vocab_size
from glassgpt.gpt import GPT, load
from glassgpt.http.errors import ApiError
from glassgpt.tokenizer import Tokenizer
from glassgpt.weights.registry import DATA, load_config, shipped_names

MAX_OPEN_CHECKPOINTS = 3  # a slider moves between neighbors


class Model:
    """A model, the texts of its tokens, and the checkpoints of its training run."""

    def __init__(self, gpt: GPT, name: str | None = None) -> None:
        self.gpt = gpt
        self.name = short_name(gpt.name) if name is None else name  # on the page, and in its links
        self.checkpoints = find_checkpoints(gpt.name)
        self._open: OrderedDict[int, GPT] = OrderedDict()
        # What neurons read and write, by checkpoint and block.
        self.neurons: dict[tuple[int | None, int], dict[int, tuple[list[int], list[int]]]] = {}

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.gpt.tokenizer

    def at(self, step: int | None) -> GPT:
        """The model, or one of its checkpoints."""
        if step is None:
            return self.gpt
        if step not in self.checkpoints:
            known = ", ".join(map(str, self.checkpoints))
            there = f"Available steps: {known}." if known else "This model is not a training run."
            raise ApiError(404, f"There is no checkpoint for step {step}. {there}", "checkpoint")
        if step not in self._open:
            self._open[step] = open_checkpoint(self.gpt, self.checkpoints[step])
            while len(self._open) > MAX_OPEN_CHECKPOINTS:
                self._open.popitem(last=False)
        self._open.move_to_end(step)
        return self._open[step]

    @property
    def n_tokens(self) -> int:
        """The number of ids that have a text; a vocabulary may be padded to a round number."""
        return usable_vocab_size(self.gpt.backend, self.tokenizer)

    @cached_property
    def texts(self) -> list[str]:
        """Every token as text; without a tokenizer, its id."""
        return [self._text(token) for token in range(self.n_tokens)]

    def text(self, token: int) -> str:
        return self.texts[token]

    def _text(self, token: int) -> str:
        data = self.token_bytes(token)
        return str(token) if data is None else piece_text(data)

    def token_bytes(self, token: int) -> bytes | None:
        if self.tokenizer is None:
            return None
        data = self.tokenizer.token_bytes(token)
        return data if data else None  # empty for a gap in the vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text; for a model without a tokenizer, the text is a list of ids."""
        if self.tokenizer is not None:
            return self.tokenizer.encode(text)
        try:
            return parse_ids(text)
        except SettingError:
            message = "This model has no tokenizer. Enter token ids, such as 0 1 2."
            raise ApiError(422, message, "text") from None

    def decode(self, ids: list[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return b"".join(self.token_bytes(i) or b"" for i in ids).decode("utf-8", "replace")

    def describe(self) -> dict[str, Any]:
        described = describe(self.name, self.gpt.config, is_shipped(self.gpt.name))
        return described | {"has_tokenizer": self.tokenizer is not None, "is_open": True}


def describe(name: str, config: Config, shipped: bool) -> dict[str, Any]:
    names = ("n_layer", "n_head", "n_embd", "d_head", "vocab_size", "n_positions", "d_mlp")
    shape = {name: getattr(config, name) for name in names}
    return {"name": name, "config": shape, "parameters": config.n_parameters, "shipped": shipped}


def is_shipped(name: str) -> bool:
    """Whether it is a shipped model, by its name or, as a server loads it, by its folder."""
    path = Path(name)
    return name in shipped_names() or (path.parent == DATA and path.name in shipped_names())


def short_name(name: str) -> str:
    """A name or relative path as it is, an absolute path without its folders: others may see the page."""
    return Path(name).name if Path(name).is_absolute() else name


@dataclass
class Models:
    """The models, by the `model` of a request: those that are open, then those that open when asked for."""

    all: list[Model]
    others: list[str] = field(default_factory=list)
    load: Callable[[str], GPT] = load
    _opened: dict[str, Model] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Model:
        if number < len(self.all):
            return self.all[number]
        if number < len(self.all) + len(self.others):
            return self._open(self.others[number - len(self.all)])
        raise ApiError(
            404,
            f"There is no model {number}. To open a second one: glassgpt explore --compare MODEL",
            "model",
        )

    def _open(self, name: str) -> Model:
        if name not in self._opened:
            self._opened[name] = Model(self.load(name))
        return self._opened[name]

    def describe(self) -> list[dict[str, Any]]:
        return [model.describe() for model in self.all] + [
            describe(short_name(name), load_config(name), is_shipped(name))
            | {"has_tokenizer": True, "is_open": name in self._opened}
            for name in self.others
        ]


def find_models(names: Iterable[str], runs: Path = Path("runs")) -> list[str]:
    """What the page's picker offers besides the open models: the shipped ones, and runs with a model."""
    offered = [*shipped_names(), *(str(path.parent) for path in sorted(runs.glob("*/config.json")))]
    known = set(names)
    return [name for name in offered if name not in known]


def piece_text(data: bytes) -> str:
    """A piece of a word; bytes that are not a whole character as hex, so that they differ."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"<{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in text)


def find_checkpoints(name: str) -> dict[int, Path]:
    """The checkpoints of a training run, by step."""
    if not (Path(name) / "checkpoints").is_dir():
        return {}
    from glassgpt.train.checkpoint.run_folder import checkpoint_step, list_checkpoints

    return {checkpoint_step(folder): folder for folder in list_checkpoints(Path(name))}


def open_checkpoint(gpt: GPT, folder: Path) -> GPT:
    """The same model with the weights of a checkpoint."""
    from glassgpt.backends.choose import load_like
    from glassgpt.weights import load_checkpoint

    checkpoint = load_checkpoint(folder)
    if checkpoint.config != gpt.config:
        raise FileFormatError(f"{folder} is not a checkpoint of {gpt.name}.")
    backend = load_like(gpt.backend, checkpoint)
    return GPT(backend, gpt.tokenizer, name=f"{gpt.name} at {folder.name}", checkpoint=checkpoint)
