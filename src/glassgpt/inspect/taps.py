"""The steps of the forward pass by name, their shapes, and errors for those that are not there.

Letters: T tokens, C = n_embd, H heads of D numbers, M inside the MLP, V the vocabulary, as in model/gpt2.py.
"""

from __future__ import annotations

from glassgpt.config import Config
from glassgpt.errors import PlaceError

# Within a block, in the order in which a token meets them: what each holds for one text.
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
BEFORE = {"wte": "TC", "wpe": "TC", "embedding": "TC"}
AFTER = {"ln_f": "TC", "logits": "TV"}


def split_name(name: str) -> tuple[int | None, str]:
    """`h.3.attn.q` is step attn.q of block 3; `ln_f` belongs to none."""
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "h" and parts[1].isascii() and parts[1].isdigit():
        return int(parts[1]), parts[2]
    return None, name


def letters(config: Config, name: str) -> str:
    """The shape of a step in letters, once it is sure that this model has it."""
    layer, step = split_name(name)
    found = BLOCK_STEPS.get(step) if layer is not None else (BEFORE | AFTER).get(step)
    if found is None:
        raise PlaceError(
            f"{name!r} is not a step of the model. Steps are {', '.join(BEFORE | AFTER)} and, for instance, "
            f"h.0.attn.weights, with h.0 to h.{config.n_layer - 1} followed by {', '.join(BLOCK_STEPS)}."
        )
    if layer is not None:
        checked_index("layer", layer, config.n_layer)
    return found


def shape_at(config: Config, name: str, tokens: int) -> tuple[int, ...]:
    """The shape of what a step holds for a text of so many tokens."""
    sizes = {
        "T": tokens,
        "C": config.n_embd,
        "H": config.n_head,
        "D": config.d_head,
        "M": config.d_mlp,
        "V": config.vocab_size,
    }
    return tuple(sizes[letter] for letter in letters(config, name))


def all_steps(config: Config) -> list[str]:
    """Every name, in the order in which a token meets it."""
    blocks = [f"h.{layer}.{step}" for layer in range(config.n_layer) for step in BLOCK_STEPS]
    return [*BEFORE, *blocks, *AFTER]


def checked_index(what: str, index: object, size: int) -> int:
    """An index from 0 on; a negative one counts from the end, as in Python."""
    try:
        if isinstance(index, bool):
            raise TypeError
        found = index.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise PlaceError(f"{what} {index!r} is not a whole number. Use 0 to {size - 1}.") from None
    if not -size <= found < size:
        raise PlaceError(f"{what} {found} is not there: this goes from 0 to {size - 1}.")
    return int(found) % size
