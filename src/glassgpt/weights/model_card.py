"""The card of a model on the Hugging Face hub: README.md, with facts for the hub's search at its top."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, SettingError
from glassgpt.files import read_json, read_text

CARD, OWN_CARD = "README.md", "MODEL_CARD.md"
MAX_CARD = 1 << 20  # bytes
ADAPTERS = ("adapter", "peft")


@dataclass(frozen=True)
class CardFacts:
    """What is known about a model's folder."""

    name: str  # owner/name
    format: str
    config: Config
    base_model: str | None = None
    labels: bool = False  # a classifier
    task: str | None = None
    license: str | None = None
    tags: tuple[str, ...] = field(default_factory=tuple)


def front_matter(facts: CardFacts) -> dict[str, Any]:
    """The card's metadata, by the hub's names."""
    tags = ["gpt2", "glassgpt", *facts.tags]
    if facts.format in ADAPTERS:
        tags.append("lora")
    values: dict[str, Any] = {
        "library_name": {"peft": "peft", "hf": "transformers"}.get(facts.format, "glassgpt"),
        "pipeline_tag": "text-classification" if facts.labels else "text-generation",
        "tags": tags,
    }
    if facts.license is not None:
        values["license"] = facts.license
    if facts.base_model is not None:
        values["base_model"] = facts.base_model
    return values


def make_card(facts: CardFacts, folder: Path) -> str:
    """A new card: the metadata, then MODEL_CARD.md or the model's figures and how to open it."""
    import yaml

    head = yaml.safe_dump(front_matter(facts), sort_keys=False, allow_unicode=True)
    own = folder / OWN_CARD
    body = read_text(own, limit=MAX_CARD).strip() if own.is_file() else describe(facts)
    return f"---\n{head}---\n\n{body}\n"


def describe(facts: CardFacts) -> str:
    config, name = facts.config, facts.name
    lines = [
        f"# {name.rpartition('/')[2]}",
        "",
        f"A GPT-2 of {config.n_parameters:,} parameters: {config.n_layer} blocks, {config.n_embd} wide, "
        f"{config.n_head} heads, a context of {config.n_positions:,} tokens and a vocabulary of "
        f"{config.vocab_size:,}.",
    ]
    if facts.format in ADAPTERS:
        lines[2] = f"Low-rank changes (LoRA) to {facts.base_model}, written by GlassGPT."
    lines += ["", "```python"]
    if facts.format == "peft":
        lines += [
            "from peft import AutoPeftModelForCausalLM",
            f'model = AutoPeftModelForCausalLM.from_pretrained("{name}")',
        ]
    elif facts.format == "hf" and facts.labels:
        lines += [
            "from transformers import pipeline",
            f'print(pipeline("text-classification", "{name}")("..."))',
        ]
    elif facts.format == "hf":
        lines += ["from transformers import pipeline", f'print(pipeline("text-generation", "{name}")("..."))']
    else:
        lines += [
            "import glassgpt",
            f'print(glassgpt.load("path/to/{name.rpartition("/")[2]}").generate("...").text)',
        ]
    return "\n".join([*lines, "```"])


def check_card(text: str, path: Path) -> dict[str, Any]:
    """The metadata of a card that is there already, which the hub would refuse if it were no YAML."""
    import yaml

    if not text.startswith("---\n"):
        raise FileFormatError(
            f"{path} has no metadata at its top. Add it, or remove the file: one is written."
        )
    head, found, _ = text.removeprefix("---\n").partition("\n---")
    try:
        values = yaml.safe_load(head) if found else None
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise FileFormatError(f"the metadata of {path} is not YAML: {problem}. Correct it.") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"the metadata of {path} is not a table of names and values. Correct it.")
    return values


def base_of(folder: Path, format: str) -> str | None:
    """The hub name of the model that an adapter changes, if it has one; never a path of this machine."""
    if format not in ADAPTERS:
        return None
    from glassgpt.weights import hub

    file, key = {
        "adapter": ("adapter.json", "base_model"),
        "peft": ("adapter_config.json", "base_model_name_or_path"),
    }[format]
    base = read_json(folder / file).get(key)
    if not isinstance(base, str) or not hub.is_hub_name(base):
        return None
    return hub.KNOWN.get(base, base)


def check_license(name: str | None) -> None:
    if name is not None and not (name.isascii() and name.replace("-", "").replace(".", "").isalnum()):
        raise SettingError(f"--license {name!r} is not a name such as mit, apache-2.0 or cc-by-sa-4.0.")
