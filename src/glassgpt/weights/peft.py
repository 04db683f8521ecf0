"""Folders of Hugging Face's PEFT: LoRA for a GPT-2, `adapter_config.json` and `adapter_model.safetensors`.

PEFT stores a factor as torch's `nn.Linear` would, `lora_A` (r, in) and `lora_B` (out, r), and multiplies
their product by lora_alpha / r. Here they become those of `weights.adapter`: A (in, r), and B (r, out) with
that scale in it. What PEFT can do besides is refused by name: it would compute something else.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, short_repr
from glassgpt.files import atomic_write, expand_user, read_json
from glassgpt.weights import safetensors_file
from glassgpt.weights.adapter import A, B, changed_tensors, low_rank_factors
from glassgpt.weights.checkpoint import Array, Checkpoint, LazyTensor
from glassgpt.weights.huggingface import read_task, write_task
from glassgpt.weights.tokenizers import find_tokenizer

if TYPE_CHECKING:
    from glassgpt.backends.protocol import LowRankFactors

FILE, PICKLED, ABOUT = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
# Matrices that PEFT is told to change, by the ends of their names: the blocks' four.
TARGETS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
LARGEST_ALPHA = 1e6  # usual ones are below 1,000
MOST_PATTERNS = 1000  # a model has at most 192 such matrices
_F32 = np.dtype(np.float32)
# Fields with which PEFT computes something else than W + A B, unless they are empty.
_OTHER_WAYS = (
    "use_dora", "lora_bias", "use_qalora", "layer_replication", "megatron_config", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "velora_config", "use_bdlora",
)  # fmt: skip
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")  # initializations that subtract from the base


def detect(path: str | Path) -> bool:
    folder = Path(path)
    return (folder / ABOUT).is_file() and any((folder / name).is_file() for name in (FILE, PICKLED))


def load(path: str | Path) -> Checkpoint:
    """The model that the adapter is for, with its changes; computed at every access."""
    folder = Path(path)
    base = _load_base(folder)
    tensors = changed_tensors(base, _open_entries(folder, base.config), base.config, folder / FILE)
    tokenizer, notes = find_tokenizer(folder)
    if tokenizer is None:
        tokenizer = base.tokenizer
    return Checkpoint(base.config, tensors, tokenizer, "peft", str(path), notes, read_task(folder))


def load_config(path: str | Path) -> Config:
    from glassgpt.weights.registry import load_config

    return load_config(read_base(Path(path)))


def read_base(folder: Path) -> str:
    """The name of the model that an adapter is for; a relative path is relative to the current folder, as in
    PEFT, or to the adapter's."""
    base = read_json(folder / ABOUT).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise FileFormatError(
            f"{folder / ABOUT}: base_model_name_or_path is {short_repr(base)}; it must name a model."
        )
    beside = folder / base
    return str(beside) if not expand_user(base).exists() and beside.exists() else base


def read_low_rank(folder: Path, config: Config, source: str) -> LowRankFactors:
    """The factors of an adapter that changes nothing but the matrices of the blocks."""
    return low_rank_factors(_open_entries(folder, config), config, source, folder / FILE)


def save_peft(
    changes: Mapping[str, Array], base_model: str, out: str | Path, task: str | None = None
) -> None:
    """Write a PEFT folder of low-rank changes to matrices of the blocks, named as in `weights.adapter`."""
    ranks = {len(value) for name, value in changes.items() if name.endswith(B)}
    assert len(ranks) == 1, "one rank for all matrices"
    rank = ranks.pop()
    about = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model, "r": rank,
        "lora_alpha": rank, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": True,
        "target_modules": list(TARGETS), "inference_mode": True,
    }  # fmt: skip
    outgoing = []
    for name, value in changes.items():
        module, _, factor = name.rpartition(".weight.")
        array = np.ascontiguousarray(value.T, np.float32)
        stored = f"base_model.model.transformer.{module}.{factor}.weight"
        outgoing.append(
            safetensors_file.TensorToWrite(
                stored, array.shape, array.dtype, functools.partial(lambda a: a, array)
            )
        )
    with atomic_write(out, folder=True, needs=safetensors_file.size_of(outgoing)) as part:
        safetensors_file.write_tensors(part / FILE, outgoing, {"format": "pt"})
        (part / ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        write_task(task, part)


def _load_base(folder: Path) -> Checkpoint:
    from glassgpt.weights.registry import detect_format, load_checkpoint, resolve_model

    path, _ = resolve_model(read_base(folder))
    if detect_format(path) in ("adapter", "peft"):  # they could name each other endlessly
        raise FileFormatError(f"{folder / ABOUT} names {path}, another adapter. Name a whole model.")
    return load_checkpoint(path)


def _open_entries(folder: Path, config: Config) -> dict[str, LazyTensor]:
    """The tensors of the file, named and oriented as in `weights.adapter`."""
    about = _read_about(folder)
    if not (folder / FILE).is_file():
        raise FileFormatError(
            f"{folder} has {PICKLED}, which could run code. Save it as {FILE}: "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    stored, _ = safetensors_file.open_tensors(folder / FILE)
    shapes = config.shapes()
    entries = {}
    for name, entry in stored.items():
        if ".original_module." in name:  # of modules_to_save, beside its trained copy: the base's own
            continue
        plain = name.removeprefix("base_model.model.").removeprefix("transformer.")
        plain = plain.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
        module, found, factor = plain.rpartition(".lora_")
        if found and factor in ("A.weight", "B.weight") and len(entry.shape) == 2:
            rank = entry.shape[0 if factor[0] == "A" else 1]
            if rank > max(3 * config.n_embd, config.d_mlp):
                raise FileFormatError(
                    f"{folder / FILE}: {name} has rank {rank:,}, more than a matrix of this model can have."
                )
            scale = 1.0 if factor[0] == "A" else _scale(about, module, rank, folder)
            entries[f"{module}.weight" + (A if factor[0] == "A" else B)] = _transposed(entry, scale)
        elif plain in shapes:  # trained in full: a bias, or one of modules_to_save
            entries[plain] = entry
        else:
            raise FileFormatError(
                f"{folder / FILE}: {short_repr(name)} is not a LoRA factor of a matrix of GPT-2's blocks, "
                "nor one of its tensors. Merge the adapter with PEFT (merge_and_unload), and open the result."
            )
    return entries


def _read_about(folder: Path) -> dict[str, Any]:
    about = read_json(folder / ABOUT)
    if about.get("peft_type") != "LORA":
        raise FileFormatError(
            f"{folder / ABOUT}: peft_type is {short_repr(about.get('peft_type'))}, and only LORA is read. "
            "Merge the adapter with PEFT (merge_and_unload), and open the result."
        )
    start = about.get("init_lora_weights")
    names = [name for name in _OTHER_WAYS if about.get(name)]
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        names.append("init_lora_weights")
    if names:
        raise FileFormatError(
            f"{folder / ABOUT}: {names[0]} is {short_repr(about[names[0]])}, which is more than W + A B. "
            "Merge the adapter with PEFT (merge_and_unload), and open the result."
        )
    return about


def _scale(about: Mapping[str, Any], module: str, rank: int, folder: Path) -> float:
    """What PEFT multiplies A B by."""
    alpha = about.get("lora_alpha")
    patterns = about.get("alpha_pattern")
    patterns = patterns if isinstance(patterns, dict) else {}
    if len(patterns) > MOST_PATTERNS:
        raise FileFormatError(
            f"{folder / ABOUT}: alpha_pattern has {len(patterns):,} names; the most is {MOST_PATTERNS:,}."
        )
    for pattern, value in patterns.items():
        if module.endswith(f".{pattern}") or pattern == module or _matches(pattern, module, folder):
            alpha = value
            break
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if alpha is None or not is_number or not abs(alpha) <= LARGEST_ALPHA or rank < 1:  # also NaN
        raise FileFormatError(f"{folder / ABOUT}: lora_alpha is {short_repr(alpha)}; it must be a number.")
    return float(alpha / (rank**0.5 if about.get("use_rslora") else rank))


def _matches(pattern: str, module: str, folder: Path) -> bool:
    """As PEFT compares them: a regular expression for the end of a module's name.

    Repetitions within repetitions, such as (.+)+, could take hours.
    """
    if len(pattern) > 200 or re.search(r"\)[*+?{]", pattern) or len(re.findall(r"[*+?{]", pattern)) > 3:
        raise FileFormatError(
            f"{folder / ABOUT}: the alpha_pattern {short_repr(pattern)} is too complex. "
            "Name the ends of modules, such as mlp.c_fc."
        )
    compiled = _compile(pattern)
    return compiled is not None and compiled.match(f"transformer.{module}") is not None


@functools.lru_cache(MOST_PATTERNS)
def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():  # of what Python may change about sets one day
            warnings.simplefilter("ignore")
            return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, OverflowError, RecursionError):
        return None


def _transposed(entry: LazyTensor, scale: float) -> LazyTensor:
    def read() -> Array:
        return np.ascontiguousarray(entry.read().astype(_F32).T * np.float32(scale))

    return LazyTensor((entry.shape[1], entry.shape[0]), _F32, read)
