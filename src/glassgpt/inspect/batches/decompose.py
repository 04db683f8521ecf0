"""The residual stream as a sum over what was written to it, and what each part adds to a logit.

    stream = wte + wpe + sum of heads (z_h @ W_O[h]) + sum of attention biases + sum of MLPs + rounding

`rounding` is what float32 lost: with it the sum, in float64, is the model's stream exactly. The bias of the
output projection belongs to no head. An MLP has its bias in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.inspect.arrays import AnyArray, concat, to_float64
from glassgpt.inspect.batches.named_array import Array, NamedArray, numbered
from glassgpt.inspect.forward import Forward, make_forward

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure
    from glassgpt.inspect.batches.traces import Traces

TOKENS = 2048  # of a batch: more make no product faster on a CPU
PARTS = ("wte", "wpe", "z", "mlps", "final", "normed")


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(NamedArray):
    """(prompt, component, C) in float64; `total` is its sum, the residual stream after the last block."""

    @property
    def total(self) -> Array:
        """(prompt, C): the stream after the last block."""
        found: Array = self.values.sum(axis=self.axis("component"))
        return found

    def figure(self) -> Figure:
        """The norm of what each block wrote, as a heat map."""
        norms = self.without("dimension", np.linalg.norm(self.values, axis=-1))
        return by_layer(norms, "norm of what was written").figure()


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution(NamedArray):
    """(prompt, component): what each adds to the logit. The components sum to `logit`."""

    logit: Array = None  # type: ignore[assignment]  # (prompt,): of the model's final vector
    n_head: int = 0

    def figure(self) -> Figure:
        """What each block adds: its heads, the bias of attention and the MLP."""
        return by_layer(self, self.name).figure()

    @property
    def heads(self) -> NamedArray:
        """(prompt, layer, head)"""
        n_layer = len([label for label in self.labels["component"] if label.startswith("mlp ")])
        shape = (len(self), n_layer, self.n_head)
        labels = {**self.labels, "layer": numbered(n_layer), "head": numbered(self.n_head)}
        return NamedArray(
            self.values[:, self._columns("head ")].reshape(shape),
            ("prompt", "layer", "head"),
            {dim: labels[dim] for dim in ("prompt", "layer", "head")},
            self.name,
        )

    @property
    def mlps(self) -> NamedArray:
        """(prompt, layer)"""
        columns = self._columns("mlp ")
        labels = {"prompt": self.labels["prompt"], "layer": numbered(len(columns))}
        return NamedArray(self.values[:, columns], ("prompt", "layer"), labels, self.name)

    @property
    def total(self) -> Array:
        """(prompt,): the sum of all components, which is the logit."""
        found: Array = self.values.sum(axis=1)
        return found

    def _columns(self, start: str) -> list[int]:
        return [i for i, label in enumerate(self.labels["component"]) if label.startswith(start)]

    def more_arrays(self) -> dict[str, Array]:
        return {"logit": self.logit}

    def more_metadata(self) -> dict[str, str]:
        return {"n_head": str(self.n_head)}

    @classmethod
    def of_file(cls, values: Any, dims: Any, labels: Any, name: str, arrays: Any, metadata: Any) -> Self:
        return cls(values, dims, labels, name, arrays["logit"], int(metadata["n_head"]))


def by_layer(array: NamedArray, name: str) -> NamedArray:
    """Of (prompt, component), the components of blocks as (prompt, layer, part)."""
    labels = array.labels["component"]
    width = labels.index("mlp 0") - 1  # after wte and wpe: heads, bias, MLP
    n_layer = sum(label.startswith("mlp ") for label in labels)
    parts = (*numbered(width - 2), "bias", "mlp")
    return NamedArray(
        array.values[:, 2 : 2 + n_layer * width].reshape(len(array), n_layer, width),
        ("prompt", "layer", "part"),
        {"prompt": array.labels["prompt"], "layer": numbered(n_layer), "part": parts},
        name,
    )


@dataclass(frozen=True, eq=False)
class Written:
    """What was written to the stream at one position of each prompt, in float64; heads before W_O."""

    wte: Array  # (prompt, C)
    wpe: Array  # (prompt, C)
    z: Array  # (prompt, layer, C): the heads side by side
    mlps: Array  # (prompt, layer, C)
    final: Array  # (prompt, C): the stream after the last block
    normed: Array  # (prompt, C): the same after ln_f, which the head reads


def component_names(config: Config) -> list[str]:
    """The components in the order of computation."""
    names = ["wte", "wpe"]
    for layer in range(config.n_layer):
        heads = [f"head {layer}.{head}" for head in range(config.n_head)]
        names += [*heads, f"attn bias {layer}", f"mlp {layer}"]
    return names


def collect(
    forward: Forward, rows: Sequence[Sequence[int]], positions: Sequence[int], at_once: int
) -> Written:
    """Read each text's parts in one pass over its blocks, texts of one length `at_once` tokens together."""
    by_length: dict[int, list[int]] = {}
    for number, ids in enumerate(rows):
        by_length.setdefault(len(ids), []).append(number)
    found: dict[str, list[Array]] = {name: [None] * len(rows) for name in PARTS}  # type: ignore[list-item]
    for length, same in by_length.items():
        count = max(1, at_once // length)
        for start in range(0, len(same), count):
            chunk = same[start : start + count]
            read = read_parts(forward, [rows[i] for i in chunk], [positions[i] for i in chunk])
            for name, values in read.items():
                for row, number in enumerate(chunk):
                    found[name][number] = values[row]
    return Written(**{name: np.stack(values) for name, values in found.items()})


def read_parts(forward: Forward, rows: list[Sequence[int]], positions: list[int]) -> dict[str, Array]:
    """The parts of a batch of texts of one length, one row each."""
    where = (np.arange(len(rows)), np.array(positions))
    steps: dict[str, list[Array]] = {"wte": [], "wpe": [], "attn.merged": [], "mlp.proj": []}

    def keep(name: str, x: AnyArray) -> AnyArray:
        if name in ("attn.merged", "mlp.proj"):
            steps[name].append(to_float64(x[where]))
        return x

    def embed(ids: Sequence[int], position: int) -> AnyArray:
        def keep_tables(name: str, x: AnyArray) -> AnyArray:
            if name in ("wte", "wpe"):
                steps[name].append(to_float64(x[0, position]))
            return x

        return forward.embed(ids, keep_tables)

    stream = concat([embed(ids, position) for ids, position in zip(rows, positions, strict=True)])
    layers = range(forward.config.n_layer)
    final = forward.blocks(layers, stream, rows, dict.fromkeys(layers, keep))[where]  # (B, C)
    return {
        "wte": np.stack(steps["wte"]),
        "wpe": np.stack(steps["wpe"]),
        "z": np.stack(steps["attn.merged"], axis=1),
        "mlps": np.stack(steps["mlp.proj"], axis=1),
        "final": to_float64(final),
        "normed": to_float64(forward.final_norm(final)),
    }


def decompose(traces: Traces, positions: list[int], memory_bytes: int) -> Decomposition:
    """See `Traces.decompose`."""
    forward = make_forward(traces.gpt.model).at_least_float32()
    config = forward.config
    names = [*component_names(config), "rounding"]
    size = 8 * len(traces) * len(names) * config.n_embd
    if size > memory_bytes:
        raise SettingError(
            f"the decomposition of {len(traces):,} prompts takes {size / 2**30:.1f} GiB, more than memory="
            f"{memory_bytes / 2**30:g}. Give fewer prompts at a time, or memory={-(-size // 2**30)}."
        )
    written = collect(forward, traces.tokens, positions, 1)  # each by itself: the bits of its trace
    values = np.empty((len(traces), len(names), config.n_embd))
    values[:, 0], values[:, 1] = written.wte, written.wpe
    column = 2
    for layer in range(config.n_layer):
        weight, bias = map(to_float64, forward.attention_output(layer))
        z = written.z[:, layer].reshape(len(traces), config.n_head, config.d_head)
        per_head = weight.reshape(config.n_head, config.d_head, config.n_embd)
        values[:, column : column + config.n_head] = np.einsum("phd,hdc->phc", z, per_head, optimize=True)
        column += config.n_head
        values[:, column], values[:, column + 1] = bias, written.mlps[:, layer]
        column += 2
    values[:, column] = written.final - values[:, :column].sum(axis=1)
    labels = {
        "prompt": numbered(len(traces)),
        "component": tuple(names),
        "dimension": numbered(config.n_embd),
    }
    return Decomposition(values, ("prompt", "component", "dimension"), labels, "residual stream")


def attribute_logits(
    traces: Traces, answers: list[int], others: list[int] | None, positions: list[int]
) -> LogitAttribution:
    """See `Traces.attribute_logits`. The scale of ln_f is that of each prompt's own stream."""
    forward = make_forward(traces.gpt.model).at_least_float32()
    config = forward.config
    pairs = [[token] for token in answers]
    if others is not None:
        pairs = [[*pair, other] for pair, other in zip(pairs, others, strict=True)]
    written = collect(forward, traces.tokens, positions, TOKENS)
    signs = np.array([1.0, -1.0][: len(pairs[0])])
    rows = np.stack([signs @ np.stack([to_float64(forward.head_row(i)) for i in pair]) for pair in pairs])
    ln_f_weight, ln_f_bias = map(to_float64, forward.final_norm_parameters())
    scale = 1 / np.sqrt(written.final.var(axis=1, keepdims=True) + config.layer_norm_epsilon)
    directions = ln_f_weight * rows * scale  # (prompt, C)
    directions -= directions.mean(axis=1, keepdims=True)  # ln_f subtracts the mean of what it reads

    def contribution(parts: Array) -> Array:
        """Of parts of the stream (prompt, ..., C): (prompt, ...)."""
        found: Array = np.einsum("p...c,pc->p...", parts, directions)
        return found

    columns = [contribution(written.wte)[:, None], contribution(written.wpe)[:, None]]
    for layer in range(config.n_layer):
        weight, bias = map(to_float64, forward.attention_output(layer))
        per_dimension = directions @ weight.T  # (prompt, C): what each dimension of z adds
        by_head = (written.z[:, layer] * per_dimension).reshape(len(traces), config.n_head, -1).sum(axis=2)
        columns += [by_head, (directions @ bias)[:, None], contribution(written.mlps[:, layer])[:, None]]
    columns.append((rows @ ln_f_bias)[:, None])
    logit = (written.normed * rows).sum(axis=1)
    values = np.concatenate(columns, axis=1)
    values = np.concatenate([values, (logit - values.sum(axis=1))[:, None]], axis=1)
    names = (*component_names(config), "ln_f bias", "rounding")
    return LogitAttribution(
        values,
        ("prompt", "component"),
        {"prompt": numbered(len(traces)), "component": names},
        "logit" if others is None else "logit_diff",
        logit,
        config.n_head,
    )
