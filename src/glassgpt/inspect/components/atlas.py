"""An atlas: for every head and neuron of a model, where in a corpus it is most active. Made by
`glassgpt.atlas`."""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, UserError
from glassgpt.inspect.components.atlas_state import FILE, AtlasState, read_state
from glassgpt.inspect.components.attention_kinds import KINDS
from glassgpt.inspect.taps import check_index
from glassgpt.tokenizer import Tokenizer

BEFORE, AFTER = 24, 8  # tokens of the context that are shown


@dataclass(frozen=True)
class NeuronContext:
    """A token at which a neuron is active, and the text around it."""

    activation: float
    before: str
    token: str
    after: str
    place: int  # among the tokens of the corpus


@dataclass(frozen=True)
class NeuronEntry:
    layer: int
    neuron: int
    contexts: list[NeuronContext]  # most active first
    mean: float
    std: float
    active: float  # the fraction of tokens at which it is above zero
    reads: list[str]  # the tokens whose embedding excites it most
    writes: list[str]  # the tokens that it makes more likely

    def __str__(self) -> str:
        lines = [
            f"neuron {self.layer}.{self.neuron}: active at {self.active:.2%} of tokens, "
            f"mean {self.mean:.3f}, standard deviation {self.std:.3f}",
            f"  reads  {'  '.join(map(repr, self.reads))}",
            f"  writes {'  '.join(map(repr, self.writes))}",
        ]
        for each in self.contexts:
            lines.append(
                f"{each.activation:8.2f}  …{each.before}[{each.token}]{each.after}…".replace("\n", "⏎")
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class HeadPair:
    """A token (the query) that attends to another (the key) more than the layer's other heads do."""

    more: float  # its weight minus the mean weight of the other heads
    weight: float
    query: str
    key: str
    text: str  # from the key to the query, with a little around them
    query_place: int
    key_place: int


@dataclass(frozen=True)
class HeadEntry:
    layer: int
    head: int
    kinds: dict[str, float]  # the mean fraction of attention that each kind of token gets
    pairs: list[HeadPair]

    def __str__(self) -> str:
        shares = ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in self.kinds.items())
        lines = [f"head {self.layer}.{self.head}: {shares}"]
        for pair in self.pairs:
            shown = f"{pair.query!r} → {pair.key!r}"
            lines.append(f"{pair.more:6.2f}  {shown:<28} …{pair.text}…".replace("\n", "⏎"))
        return "\n".join(lines)


class Atlas:
    """`atlas.neuron(3, 17)` and `atlas.head(5, 1)` are its pages. No model is needed to read it."""

    def __init__(
        self, state: AtlasState, tokenizer: Tokenizer, about: dict[str, Any], more: dict[str, np.ndarray]
    ) -> None:
        self.state = state
        self.config = state.config
        self.tokenizer = tokenizer
        self.about = about
        self._more = more

    @classmethod
    def load(cls, folder: str | Path) -> Atlas:
        """Open a folder that `glassgpt atlas` wrote; a part of an atlas as well."""
        from glassgpt.weights.safetensors_file import open_tensors

        path = Path(folder) / FILE
        if not path.exists():
            raise UserError(f"{folder} has no atlas. Make one: glassgpt atlas MODEL --data TEXTS -o {folder}")
        _, metadata = open_tensors(path)
        try:
            values = json.loads(metadata.get("about", ""))["config"]
            if not isinstance(values, dict):
                raise ValueError("it has no config")
            config = Config.from_dict(values, str(path))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a valid atlas: {error}. Make it again.") from None
        state, about, more = read_state(path, config)
        tokenizer = Tokenizer.load(folder)
        if not tokenizer.fits(config.vocab_size):
            raise FileFormatError(f"the tokenizer of {folder} is not that of its atlas. Make it again.")
        return cls(state, tokenizer, about, more)

    def __repr__(self) -> str:
        config, tokens = self.config, len(self.state.tokens)
        part = "" if self.about.get("complete") else ", not complete"
        return (
            f"Atlas({self.about.get('model', '')!r}, {config.n_layer * config.n_head} heads, "
            f"{config.n_layer * config.d_mlp:,} neurons, {tokens:,} tokens{part})"
        )

    def neuron(self, layer: int, neuron: int) -> NeuronEntry:
        layer = check_index("layer", layer, self.config.n_layer)
        neuron = check_index("neuron", neuron, self.config.d_mlp)
        state, count = self.state, max(1, len(self.state.tokens))
        mean = state.neuron_sum[layer, neuron] / count
        variance = max(0.0, state.neuron_squares[layer, neuron] / count - mean**2)
        contexts = [
            self._context(float(value), int(place))
            for value, place in zip(
                state.neuron_value[layer, neuron], state.neuron_place[layer, neuron], strict=True
            )
            if place >= 0
        ]
        return NeuronEntry(
            layer, neuron, contexts, float(mean), float(np.sqrt(variance)),
            float(state.neuron_active[layer, neuron] / count),
            self._tokens("neuron_reads", layer, neuron), self._tokens("neuron_writes", layer, neuron),
        )  # fmt: skip

    def head(self, layer: int, head: int) -> HeadEntry:
        layer = check_index("layer", layer, self.config.n_layer)
        head = check_index("head", head, self.config.n_head)
        state = self.state
        means = state.kinds.means[:, layer, head]
        kinds = {kind: float(mean) for kind, mean in zip(KINDS, means, strict=True) if np.isfinite(mean)}
        rows = zip(
            *(getattr(state, f"pair_{name}")[layer, head] for name in ("value", "weight", "query", "key")),
            strict=True,
        )
        pairs = [
            self._pair(float(value), float(weight), int(query), int(key))
            for value, weight, query, key in rows
            if query >= 0
        ]
        return HeadEntry(layer, head, kinds, pairs)

    def _context(self, activation: float, place: int) -> NeuronContext:
        start, end = self._window(place)
        return NeuronContext(
            activation,
            self._text(max(start, place - BEFORE), place),
            self._text(place, place + 1),
            self._text(place + 1, min(end, place + 1 + AFTER)),
            place,
        )

    def _pair(self, value: float, weight: float, query: int, key: int) -> HeadPair:
        start, end = self._window(query)
        text = self._text(max(start, key - AFTER), min(end, query + 1 + AFTER))
        return HeadPair(
            value, weight, self._text(query, query + 1), self._text(key, key + 1), text, query, key
        )

    def _window(self, place: int) -> tuple[int, int]:
        """The tokens that the model read together with this one."""
        after = bisect.bisect_right(self.state.starts, place)
        starts = [*self.state.starts[after - 1 : after + 1], len(self.state.tokens)]
        return starts[0], starts[1]

    def _text(self, start: int, end: int) -> str:
        return self.tokenizer.decode(self.state.tokens[start:end])

    def _tokens(self, name: str, layer: int, neuron: int) -> list[str]:
        if name not in self._more:
            return []
        return [self.tokenizer.decode([int(token)]) for token in self._more[name][layer, neuron]]
