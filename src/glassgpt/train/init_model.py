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
    """At least these: a published size keeps its 1,024 positions, any other has those of the context."""
    return SIZES[shape].n_positions if shape in SIZES else 1


def sides(config: Config) -> tuple[int, int, int]:
    return config.n_layer, config.n_embd, config.n_head


def format_shape(config: Config) -> str:
    return "x".join(map(str, sides(config)))


def init_model(options: RunConfig, tokenizer: Tokenizer | None) -> GPT2:
    """A model with random weights, or with those of `init_from`."""
    shape = SHAPE if options.shape is None else options.shape
    dropout = DROPOUT if options.dropout is None else options.dropout
    attn_pdrop = dropout if options.attention_dropout is None else options.attention_dropout
    if options.init_from is not None:
        checkpoint = load_checkpoint(options.init_from)
        if options.shape is not None and sides(parse_shape(shape)) != sides(checkpoint.config):
            raise SettingError(
                f"shape {shape} differs from {format_shape(checkpoint.config)} of {options.init_from}. "
                "Leave out --shape or --init-from."
            )
        if tokenizer is not None:
            check_vocabulary(tokenizer, checkpoint, options.init_from)
        for name, value, of_model in differing_attention(options, checkpoint.config):
            raise SettingError(
                f"{name} {value} differs from {of_model} of {options.init_from}. "
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
    config = dataclasses.replace(parse_shape(shape), **(changes | new_attention(options, vocab_size)))
    n_positions = max(options.settings.context + config.kind.n_past(config), published_positions(shape))
    config = dataclasses.replace(config, n_positions=n_positions)
    weights, memory = 4 * config.n_parameters, total_memory()
    if weights > memory:
        raise SettingError(
            f"a model of shape {shape} with {config.n_positions:,} positions has {config.n_parameters:,} "
            f"parameters, {weights / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB of "
            "memory. Choose a smaller --shape or --context."
        )
    return GPT2(config)


def new_attention(options: RunConfig, vocab_size: int) -> dict[str, Any]:
    """The attention of a new model, its settings and their defaults, as changes to its Config."""
    typed = attention_settings(options)
    kind = ATTENTIONS.get(typed.get("attention", Config.attention))
    defaults = {} if kind is None else kind.defaults_for(options.settings.context, vocab_size)
    return defaults | typed


def attention_settings(options: RunConfig) -> dict[str, Any]:
    """The attention and those of its settings that were given."""
    names = ["attention", *(name for kind in ATTENTIONS.values() for name in kind.setting_names)]
    typed = {name: getattr(options, name, None) for name in names}  # not all of them are options
    return {name: value for name, value in typed.items() if value is not None}


def differing_attention(options: RunConfig, config: Config) -> Iterator[tuple[str, Any, Any]]:
    """Each given setting of the attention that differs from the config: its name and both values."""
    for name, value in attention_settings(options).items():
        if value != getattr(config, name):
            yield name, value, getattr(config, name)


def check_vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint, model: str) -> None:
    """Refuse data that was tokenized with another tokenizer than the model's, as far as that is known."""
    why_not = checkpoint.notes.get("tokenizer")
    if why_not is not None:
        raise SettingError(
            f"the tokenizer of {model} cannot be read ({why_not.rstrip('.')}), so it is unknown whether the "
            "data was tokenized with it. Put the model's own tokenizer.json next to its weights."
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
