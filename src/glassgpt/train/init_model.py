"""The model a run starts with: random weights of a given shape, or those of another model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glassgpt.backends.torch.backend import load_model
from glassgpt.config import ATTENTIONS, SIZES, Config
from glassgpt.errors import SettingError
from glassgpt.model import GPT2
from glassgpt.ranges import check_whole
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.micro_batch import total_memory
from glassgpt.weights import Checkpoint, load_checkpoint

if TYPE_CHECKING:
    from glassgpt.train.trainer import RunConfig

MAX_BLOCKS = 1_000  # the deepest that was published (DeepNet, 2022)
MAX_WIDTH = 65_536  # four times those of the largest models
SHAPE, DROPOUT = "6x384x6", 0.1  # defaults


def parse_shape(shape: str) -> Config:
    if isinstance(shape, str) and shape in SIZES:
        return SIZES[shape]
    try:
        n_layer, n_embd, n_head = (int(part) for part in shape.lower().split("x"))
    except (ValueError, AttributeError):
        raise SettingError(
            f"shape {shape!r} is not a shape. Write layers x width x heads, such as 6x384x6, "
            f"or one of {', '.join(SIZES)}."
        ) from None
    check_whole("the number of layers in shape", n_layer, 1, MAX_BLOCKS)
    check_whole("the width in shape", n_embd, 1, MAX_WIDTH)
    return Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head)


def published_positions(shape: str) -> int:
    """A published size keeps its 1,024 positions; any other has as many as the context."""
    return SIZES[shape].n_positions if shape in SIZES else 1


def sides(config: Config) -> tuple[int, int, int]:
    return config.n_layer, config.n_embd, config.n_head


def format_shape(config: Config) -> str:
    return "x".join(map(str, sides(config)))


def init_model(asked: RunConfig, tokenizer: Tokenizer | None) -> GPT2:
    """A model with random weights, or with those of `init_from`."""
    shape = SHAPE if asked.shape is None else asked.shape
    dropout = DROPOUT if asked.dropout is None else asked.dropout
    attn_pdrop = dropout if asked.attention_dropout is None else asked.attention_dropout
    if asked.init_from is not None:
        checkpoint = load_checkpoint(asked.init_from)
        if asked.shape is not None and sides(parse_shape(shape)) != sides(checkpoint.config):
            raise SettingError(
                f"shape {shape} differs from {format_shape(checkpoint.config)} of {asked.init_from}. "
                "Leave out --shape or --init-from."
            )
        if tokenizer is not None:
            check_vocabulary(tokenizer, checkpoint, asked.init_from)
        for name, value, of_model in differing_attention(asked, checkpoint.config):
            raise SettingError(
                f"{name} {value} differs from {of_model} of {asked.init_from}. "
                f"Leave out --{name.replace('_', '-')} or --init-from."
            )
        config = dataclasses.replace(
            checkpoint.config, embd_pdrop=dropout, attn_pdrop=attn_pdrop, resid_pdrop=dropout
        )
        model = load_model(dataclasses.replace(checkpoint, config=config), device="cpu", dtype="float32")
        return model.requires_grad_(True)
    # nanoGPT's and llm.c's files do not name their tokenizer; it is GPT-2's.
    vocab_size = Config().vocab_size if tokenizer is None else tokenizer.vocab_size
    eot = None if tokenizer is None else tokenizer.eot_id
    changes = {
        "vocab_size": vocab_size, "bos_token_id": eot, "eos_token_id": eot,
        "embd_pdrop": dropout, "attn_pdrop": attn_pdrop, "resid_pdrop": dropout,
    }  # fmt: skip
    config = dataclasses.replace(parse_shape(shape), **(changes | new_attention(asked, vocab_size)))
    n_positions = max(asked.settings.context + config.kind.n_past(config), published_positions(shape))
    config = dataclasses.replace(config, n_positions=n_positions)
    weights, memory = 4 * config.n_parameters, total_memory()
    if weights > memory:
        raise SettingError(
            f"a model of shape {shape} with {config.n_positions:,} positions has {config.n_parameters:,} "
            f"parameters, {weights / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB of "
            "memory. Choose a smaller --shape or --context."
        )
    return GPT2(config)


def new_attention(asked: RunConfig, vocab_size: int) -> dict[str, Any]:
    """The attention of a new model, its settings, and what they change in its Config."""
    typed = attention_settings(asked)
    kind = ATTENTIONS.get(typed.get("attention", Config.attention))
    defaults = {} if kind is None else kind.defaults_for(asked.settings.context, vocab_size)
    return defaults | typed


def attention_settings(asked: RunConfig) -> dict[str, Any]:
    """Those that were given."""
    names = ["attention", *(name for kind in ATTENTIONS.values() for name in kind.setting_names)]
    typed = {name: getattr(asked, name, None) for name in names}  # not all of them are options
    return {name: value for name, value in typed.items() if value is not None}


def differing_attention(asked: RunConfig, config: Config) -> Iterator[tuple[str, Any, Any]]:
    """The name of each setting of the attention that was given and is another in the config; both values."""
    for name, value in attention_settings(asked).items():
        if value != getattr(config, name):
            yield name, value, getattr(config, name)


def check_vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint, model: str) -> None:
    """Refuse data that was tokenized with another tokenizer than the model's, as far as that is known."""
    why_not = checkpoint.notes.get("tokenizer")
    if why_not is not None:
        raise SettingError(
            f"the tokenizer of {model} cannot be read ({why_not.rstrip('.')}), so it is unknown whether the "
            "data was tokenized with it. Put the model's own tokenizer.json beside its weights."
        )
    if checkpoint.tokenizer is None:  # weights alone: compare the sizes
        size = checkpoint.config.vocab_size
        if not tokenizer.fits(size):
            raise SettingError(
                f"the data was tokenized with a vocabulary of {tokenizer.vocab_size:,}, and {model} has "
                f"{size:,}. Prepare it again with the model's own."
            )
    elif tokenizer.hash != checkpoint.tokenizer.hash:
        raise SettingError(
            f"the data was tokenized with another vocabulary than {model}'s. "
            f"Prepare it again with --tokenizer {model}."
        )
