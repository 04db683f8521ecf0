"""Loads and saves checkpoints by name or path: finds the model, detects the format, calls its module.

The format is detected from the contents of the file or folder, not only from its name. The modules are
imported when needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError
from glassgpt.files import check_not_device, expand_user
from glassgpt.progress import Progress, no_progress
from glassgpt.weights.checkpoint import Checkpoint
from glassgpt.weights.tokenizers import find_tokenizer

if TYPE_CHECKING:
    from glassgpt.backends.protocol import LowRankFactors
    from glassgpt.tokenizer import Tokenizer


def shipped_folder() -> Path:
    """Of the shipped models: in a checkout `data/`; installed from a package index the package
    `glassgpt_models`, a distribution of its own. Without either, a folder that has none."""
    here = Path(__file__).resolve().parent.parent / "data"
    if not any(here.glob("*/config.json")):
        models = importlib.util.find_spec("glassgpt_models")
        if models is not None and models.origin is not None:
            return Path(models.origin).parent
    return here


DATA = shipped_folder()
MODELS = ("default", "en-fr", "music", "summarize", "tiny")  # that a complete installation has

FORMATS = {
    "hf": "huggingface",
    "gguf": "gguf",
    "openai": "openai",
    "nanogpt": "nanogpt",
    "llmc": "llmc",
    "packed": "packed",
    "run": "run_checkpoint",
    "adapter": "adapter",
    "peft": "peft",
}
WRITABLE = tuple(name for name in FORMATS if name not in ("run", "adapter", "peft"))
# The order of detection: a nanoGPT file is also a torch.save file, which the Hugging Face module accepts.
_READING_ORDER = ("adapter", "peft", "run", "packed", "llmc", "nanogpt", "hf", "gguf", "openai")
_FORMAT_OF_SUFFIX = {".gguf": "gguf", ".bin": "llmc", ".pt": "nanogpt", ".safetensors": "hf"}
_TOKENIZER_SUFFIXES = (".json", ".txt", ".bpe", ".tiktoken")
_UNCLEAR_SUFFIXES = {".ckpt", ".pth", ".onnx", ".h5", ".msgpack", ".npz", ".json"}


def shipped_names() -> list[str]:
    """The models that ship with the package."""
    return sorted(folder.name for folder in DATA.glob("*/") if (folder / "config.json").is_file())


def load_checkpoint(
    name_or_path: str | Path, *, offline: bool = False, progress: Progress = no_progress
) -> Checkpoint:
    """Load a shipped model, a file or folder in any known format, or a model from the hub."""
    path, source = resolve_model(name_or_path, offline=offline, progress=progress)
    with _readable(path):
        checkpoint: Checkpoint = _module(detect_format(path)).load(path)
    checkpoint.source = source
    return checkpoint


def load_config(name_or_path: str | Path, *, offline: bool = False) -> Config:
    """The config only: from the hub it downloads config.json, from a file it reads the header."""
    path, _ = resolve_model(name_or_path, ("config",), offline=offline)
    with _readable(path):
        if not contains_weights(path) and (path / "config.json").is_file():
            from glassgpt.weights.huggingface import read_config

            return read_config(path / "config.json")
        module = _module(detect_format(path))
        config: Config = (
            module.load_config(path) if hasattr(module, "load_config") else module.load(path).config
        )
    return config


def load_tokenizer(name_or_path: str | Path, *, offline: bool = False) -> Tokenizer:
    """The tokenizer only, of a model or of a tokenizer file or folder. Weights are not read."""
    path, source = resolve_model(name_or_path, ("tokenizer",), offline=offline)
    from glassgpt.tokenizer import Tokenizer

    tokenizer: Tokenizer | None
    with _readable(path):
        run = _module("run")
        if run.detect(path):
            path = run.run_folder(path)
        if path.is_dir() or path.suffix.lower() in _TOKENIZER_SUFFIXES:
            return Tokenizer.load(path)
        if detect_format(path) == "gguf":
            tokenizer, why_not = _module("gguf").load_tokenizer(path)
        else:
            tokenizer, notes = find_tokenizer(path.parent)
            why_not = notes.get("tokenizer")
    if tokenizer is None:
        reason = "" if why_not is None else f" ({why_not})"
        raise ModelNotFoundError(
            f"{source} has no tokenizer{reason}. Put tokenizer.json next to it, or name a folder with one."
        )
    return tokenizer


def resolve_model(
    name_or_path: str | Path,
    parts: Collection[str] | None = None,
    *,
    offline: bool = False,
    progress: Progress = no_progress,
) -> tuple[Path, str]:
    """The path of a model, with these parts (all of them: None) downloaded from the hub if necessary, and its
    display name."""
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in shipped_names():
        return DATA / name, name
    if not name:  # pathlib would take it for the current folder
        raise ModelNotFoundError(
            "the model's name is empty. Give a name (default, tiny, gpt2, owner/name), a folder or a file; "
            "the current folder is . (a dot)."
        )
    path = expand_user(name_or_path)
    if path.exists():
        return path, str(path)
    if isinstance(name_or_path, Path) or _looks_like_a_path(name):
        raise ModelNotFoundError(f"{path} does not exist. Check the path.")
    from glassgpt.weights import hub

    if not hub.is_hub_name(name):
        raise ModelNotFoundError(_unknown(name, [*shipped_names(), *hub.KNOWN]))
    return hub.fetch(name, hub.PARTS if parts is None else parts, offline=offline, progress=progress), name


def contains_weights(path: Path) -> bool:
    """Whether this is a file or a folder with weights, rather than a folder with only a config.json."""
    return not path.is_dir() or any(_module(name).detect(path) for name in _READING_ORDER)


def detect_format(path: str | Path) -> str:
    """The format of a file or folder, a key of `FORMATS`."""
    path = Path(path)
    if not path.is_dir() and not path.is_file():
        raise FileFormatError(f"{path} is neither a folder nor a regular file. Check the path.")
    try:
        for name in _READING_ORDER:
            if _module(name).detect(path):
                return name
        if path.is_dir():
            held = sorted(entry.name for entry in path.iterdir())
            files = ", ".join(held[:5]) + (", ..." if len(held) > 5 else "") if held else "nothing"
            raise ModelNotFoundError(
                f"{path} contains no model ({files}). A model folder has config.json and model.safetensors, "
                "or the files of another format in docs/formats.md."
            )
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    raise FileFormatError(
        f"{path} is in none of the known formats ({', '.join(FORMATS)}). Check that the file is complete."
    )


def save_checkpoint(
    checkpoint: Checkpoint, path: str | Path, format: str = "hf", dtype: str | None = None
) -> None:
    """Write a checkpoint, replacing what is at `path`, unless that is a folder with other files in it."""
    path = Path(path)
    check_only_model_files(path)
    writer(format).save(checkpoint, path, dtype)


def load_adapter(folder: str | Path, config: Config, source: str) -> LowRankFactors:
    """The low-rank changes of an adapter's folder, for a model that others share."""
    path = expand_user(folder)
    with _readable(path):
        format = detect_format(path)
        if format not in ("adapter", "peft"):
            raise FileFormatError(f"{path} is a whole model, not an adapter. Serve it with --model.")
        factors: LowRankFactors = _module(format).read_low_rank(path, config, source)
    return factors


def writer(format: str) -> Any:
    """The module that writes a format."""
    if format not in FORMATS:
        raise SettingError(f"format {format!r} is not one of {', '.join(WRITABLE)}.")
    if format not in WRITABLE:
        raise SettingError(
            f"format {format!r} is written by glassgpt {'train' if format == 'run' else 'tune'} only. "
            f"Choose one of {', '.join(WRITABLE)}."
        )
    return _module(format)


def format_for(path: str | Path, dtype: str | None = None) -> str:
    """The format for a target by its suffix; a folder is a Hugging Face folder, or packed if its dtype is."""
    suffix = Path(path).suffix.lower()
    if suffix in _UNCLEAR_SUFFIXES:
        raise SettingError(
            f"{path}: {suffix} does not determine the format. Add --format {'/'.join(WRITABLE)}."
        )
    return _FORMAT_OF_SUFFIX.get(suffix, "packed" if dtype in ("int8", "int4") else "hf")


# The files of a model folder, which may be replaced as a whole.
_MODEL_FILES = (
    "*.safetensors",
    "*.index.json",
    "pytorch_model*.bin",
    "*config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "hparams.json",
    "checkpoint",
    "model.ckpt*",
    "README.md",
    "MODEL_CARD.md",
    "task.toml",
    "adapter.json",
    "log.jsonl",
    "report.html",
    "ATTRIBUTION.txt.gz",
    ".gitattributes",
)


def is_model_file(path: Path) -> bool:
    """Whether its name is that of a model's file."""
    return any(path.match(pattern) for pattern in _MODEL_FILES)


def check_only_model_files(path: Path) -> None:
    """Refuse to replace a folder that contains anything but a model, or a device."""
    check_not_device(path)
    if not path.is_dir():
        return
    foreign = sorted(entry.name for entry in path.iterdir() if entry.is_dir() or not is_model_file(entry))
    if foreign:
        raise SettingError(
            f"{path} contains {foreign[0]!r}, which is not part of a model; writing there would remove it. "
            "Choose another folder."
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror if error.strerror is not None else str(error)
        raise FileFormatError(f"{path} cannot be read: {reason}. Check the path.") from None


def _module(format: str) -> Any:
    return importlib.import_module(f"glassgpt.weights.{FORMATS[format]}")


def _looks_like_a_path(name: str) -> bool:
    """`./x`, `/x`, `~/x`, `a/b/c`, `x\\y` or anything with a suffix of a weight file."""
    starts = name.startswith((".", "/", "~", "\\"))
    suffix = Path(name).suffix.lower() in _FORMAT_OF_SUFFIX.keys() | _UNCLEAR_SUFFIXES
    return starts or name.count("/") > 1 or "\\" in name or suffix


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    if name in MODELS:
        return f"the model {name} is not installed. Type: pip install glassgpt-models"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Known names: {', '.join(known)}."
    return f"no model, file or folder is called {name!r}.{hint} Or give owner/name or a path."
