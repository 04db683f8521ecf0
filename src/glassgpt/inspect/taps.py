"""The one vocabulary of steps: a name and a shape for every activation that the forward pass shows to a tap.

These names are used everywhere: by the taps of model/gpt2.py (`h.3.attn.scores`), in Python
(`trace.attn.scores[3]`), in the Explorer's JSON (`"attn.scores"`) and in its page.

Dimensions as in model/gpt2.py: T tokens, C = n_embd, H heads of size D, M = the MLP's width, V = vocabulary.
A variant may have others (config/variants/).
"""

from __future__ import annotations

import re

from glassgpt.config import ATTENTIONS, Config
from glassgpt.errors import StepIndexError, short_repr

# Within a block, in the order of computation: the dimensions of each step for one text.
BLOCK_STEPS = {
    "ln_1": "TC",
    "attn.q": "HTD",
    "attn.k": "HTD",
    "attn.v": "HTD",
    "attn.scores": "HTT",
    "attn.scaled": "HTT",
    "attn.masked": "HTT",
    "attn.weights": "HTT",
    "attn.z": "HTD",
    "attn.merged": "TC",
    "attn.proj": "TC",
    "resid_mid": "TC",
    "ln_2": "TC",
    "mlp.fc": "TM",
    "mlp.gelu": "TM",
    "mlp.proj": "TC",
    "resid_post": "TC",
}
# Steps that only some attentions have, before attn.scores.
ATTENTION_STEPS = {f"attn.{step}": dims for kind in ATTENTIONS.values() for step, dims in kind.steps.items()}
RESID_PRE = "resid_pre"  # what enters a block: another name for what left the one before, or the embedding
EMBEDDING_STEPS = {"wte": "TC", "wpe": "TC", "embedding": "TC"}
FINAL_STEPS = {"ln_f": "TC", "logits": "TV"}


# As the forward pass writes it: h.03 is the name of no step. Python does not convert much longer numbers.
BLOCK_NAME = re.compile(r"h\.(0|[1-9][0-9]{0,8})\.(.+)", re.DOTALL)


def split_name(name: str) -> tuple[int | None, str]:
    """`h.3.attn.q` is step attn.q of block 3; `ln_f` is in no block."""
    match = BLOCK_NAME.fullmatch(name)
    return (None, name) if match is None else (int(match[1]), match[2])


def resolve_name(config: Config, name: str) -> str:
    """The step behind a name: `h.3.resid_pre` is `h.2.resid_post`, all other names are steps themselves."""
    layer, step = split_name(name)
    if step != RESID_PRE or layer is None:
        return name
    layer = check_index("layer", layer, config.n_layer)
    return "embedding" if layer == 0 else f"h.{layer - 1}.resid_post"


def block_steps(config: Config, layer: int) -> dict[str, str]:
    """The steps of a block of this model, with their dimensions."""
    own = {f"attn.{step}": dims for step, dims in config.kind.steps_of(layer).items()}
    before = list(BLOCK_STEPS).index("attn.scores")
    steps = list(BLOCK_STEPS.items())
    return dict([*steps[:before], *own.items(), *steps[before:]])


def dims_of(config: Config, name: str) -> str:
    """The dimensions of a step, such as "HTD". Raises StepIndexError if this model has no such step."""
    layer, step = split_name(resolve_name(config, name))
    if layer is not None:
        check_index("layer", layer, config.n_layer)
    steps = block_steps(config, 0 if layer is None else layer)
    dims = steps.get(step) if layer is not None else (EMBEDDING_STEPS | FINAL_STEPS).get(step)
    if dims is None:
        raise StepIndexError(
            f"{name!r:.80} is not a step of the model. Steps are {', '.join(EMBEDDING_STEPS | FINAL_STEPS)} "
            f"and, with h.0 to h.{config.n_layer - 1} in front (h.0.attn.weights), {', '.join(steps)}."
        )
    return dims


def shape_of(config: Config, name: str, n_tokens: int) -> tuple[int, ...]:
    """The shape of a step for a text of `n_tokens` tokens."""
    sizes = {
        "T": n_tokens,
        "C": config.n_embd,
        "H": config.n_head,
        "D": config.d_head,
        "M": config.d_mlp,
        "V": config.vocab_size,
        **config.kind.step_sizes(n_tokens),
    }
    return tuple(sizes[dim] for dim in dims_of(config, name))


def list_steps(config: Config) -> list[str]:
    """Every step's name, in the order of computation."""
    blocks = [f"h.{layer}.{step}" for layer in range(config.n_layer) for step in block_steps(config, layer)]
    return [*EMBEDDING_STEPS, *blocks, *FINAL_STEPS]


def check_index(what: str, index: object, size: int) -> int:
    """The index counted from 0; a negative one counts from the end, as in Python."""
    try:
        if isinstance(index, bool):
            raise TypeError
        found = index.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise StepIndexError(f"{what} {short_repr(index)} is not an integer. Use 0 to {size - 1}.") from None
    if not -size <= found < size:
        raise StepIndexError(f"{what} {short_repr(found)} is out of range. Use 0 to {size - 1}.")
    return int(found) % size
