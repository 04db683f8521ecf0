"""`gpt.intervene(text, edits)`: a text with edits to the forward pass, compared with the plain pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError, short_repr
from glassgpt.inspect.arrays import kl_divergence, largest, to_numpy
from glassgpt.inspect.edits.edit_data import edit_from_dict
from glassgpt.inspect.edits.edits import Edit, EditContext, compose
from glassgpt.inspect.figures.display import Displayable
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.taps import check_index, split_name
from glassgpt.inspect.traces.indexing import Array
from glassgpt.inspect.traces.lens import Lens
from glassgpt.inspect.traces.trace import Trace

if TYPE_CHECKING:
    from glassgpt.figures.figure import Figure
    from glassgpt.generate.prompt import Prompt
    from glassgpt.inspect.traceable_model import TraceableModel


@dataclass(frozen=True)
class ProbabilityChange:
    """A next token's probability before and after the edits."""

    id: int
    text: str
    before: float
    after: float


class Intervention(Displayable):
    """The effect of edits: two traces, `.before` and `.after`, and their predictions at `.position`."""

    def __init__(self, before: Trace, after: Trace, edits: Sequence[Edit], position: int = -1) -> None:
        self.before = before
        self.after = after
        self.edits = tuple(edits)
        self.position = check_index("position", position, len(before))

    def at(self, position: int) -> Intervention:
        """The same run, seen at another position."""
        found = Intervention(self.before, self.after, self.edits, position)
        if "kl_per_token" in self.__dict__:
            found.kl_per_token = self.kl_per_token
        return found

    def __repr__(self) -> str:
        top = self.top_changes(1)
        change = f", {top[0].text!r} {top[0].before:.1%} -> {top[0].after:.1%}" if top else ""
        count = "1 edit" if len(self.edits) == 1 else f"{len(self.edits)} edits"
        return f"Intervention({count}, KL {self.kl:.4g} nats{change})"

    def figure(self) -> Figure:
        from glassgpt.inspect.figures.plots import plot_intervention

        return plot_intervention(self)

    @property
    def logits(self) -> Array:
        """The next-token logits with the edits, (V,)."""
        return self.after.logits_at(self.position)

    @property
    def logits_before(self) -> Array:
        return self.before.logits_at(self.position)

    @cached_property
    def p(self) -> Array:
        """The next-token probabilities with the edits, (V,)."""
        return self.after.p_at(self.position)

    @cached_property
    def p_before(self) -> Array:
        return self.before.p_at(self.position)

    @cached_property
    def kl(self) -> float:
        """KL(before || after) of the next-token distribution, in nats."""
        if "kl_per_token" in self.__dict__:
            return float(self.kl_per_token[self.position])
        p, q = (log_softmax(x[: self.before.vocabulary.size]) for x in (self.logits_before, self.logits))
        return max(0.0, float((np.exp(p) * (p - q)).sum()))

    @cached_property
    def kl_per_token(self) -> Array:
        """The same at every position, (T,)."""
        return kl_per_token(self.before, self.after)

    def top_changes(self, k: int = 10) -> list[ProbabilityChange]:
        """The k tokens whose probability changed most, without those that did not change."""
        change = np.abs(self.p - self.p_before)
        order = largest(change, k)
        text = self.before.vocabulary.text
        return [
            ProbabilityChange(int(i), text(int(i)), float(self.p_before[i]), float(self.p[i]))
            for i in order
            if change[i] > 0
        ]

    def lens(self, k: int | None = None) -> Lens:
        """The logit lens with the edits."""
        return self.after.lens(k)


def intervene(gpt: TraceableModel, text: Prompt | Trace, edits: Any = (), position: int = -1) -> Intervention:
    """See `GPT.intervene`."""
    before = unmodified_trace(gpt, text)
    parsed = parse_edits(edits)
    tap, steps = compose(parsed, make_edit_context(gpt, before.tokens))
    after = Trace.from_tokens(gpt, before.tokens, tap)
    after.reuse_residuals(before, first_changed_layer(steps, gpt.config.n_layer))
    return Intervention(before, after, parsed, position)


def make_edit_context(gpt: TraceableModel, tokens: Sequence[int], length: int | None = None) -> EditContext:
    """What edits need to be bound to a text of this model, which may grow to `length` tokens."""
    return EditContext(
        make_forward(gpt.model),
        tokens,
        lambda source: as_trace(gpt, source),
        lambda token: encode_token(gpt, "token", token) if isinstance(token, str) else token,
        length,
    )


def kl_per_token(first: Trace, second: Trace) -> Array:
    """KL(one || other) of the next-token distributions at every position, (T,), in nats."""
    if len(first.tokens) != len(second.tokens):
        raise ValueError(
            f"the traces have {len(first.tokens)} and {len(second.tokens)} tokens: compare one text"
        )
    ones, others = first.log_probs(), second.log_probs()
    p, q, divergences = next(ones), next(others), []
    while p is not None and q is not None:  # after append(), a trace has other chunks
        n = min(len(p), len(q))
        divergences.append(to_numpy(kl_divergence(p[:n], q[:n])))
        p = p[n:] if n < len(p) else next(ones, None)
        q = q[n:] if n < len(q) else next(others, None)
    return np.concatenate(divergences)


def log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


def parse_edits(edits: Any) -> list[Edit]:
    """One edit or several, as objects or as dicts."""
    several = [edits] if isinstance(edits, Edit | Mapping) else edits
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise SettingError(
            f"{short_repr(edits)} is not an edit. Use AblateHead(2, 5), for instance, or a list of edits."
        )
    parsed = [edit_from_dict(edit) if isinstance(edit, Mapping) else edit for edit in several]
    for edit in parsed:
        if not isinstance(edit, Edit):
            raise SettingError(f"{short_repr(edit)} is not an edit. Use AblateHead(2, 5), for instance.")
    return parsed


def as_trace(gpt: TraceableModel, source: Prompt | Trace) -> Trace:
    return source if isinstance(source, Trace) else gpt.trace(source)


def encode_token(gpt: TraceableModel, what: str, text: str) -> int:
    """The id of a text that is one token."""
    ids = gpt.encode(text)
    if len(ids) != 1:
        raise SettingError(
            f"{what} {short_repr(text)} is {len(ids)} tokens. Pass one token (most start with a "
            "space) or its id."
        )
    return ids[0]


def unmodified_trace(gpt: TraceableModel, text: Prompt | Trace) -> Trace:
    """A trace with the bits of one plain pass: not loaded from a file, not computed token by token."""
    if not isinstance(text, Trace):
        return gpt.trace(text)
    if text.config.shapes() != gpt.config.shapes():
        raise UserError("the trace is of a model of another shape. Trace the text with this model.")
    return text if text.is_unmodified_pass_of(gpt) else gpt.trace(text.tokens)


def first_changed_layer(steps: Iterable[str], n_layer: int) -> int | None:
    """The first block whose output may differ; None if the embedding changes."""
    first = n_layer
    for step in steps:
        layer = split_name(step)[0]
        if layer is None and step != "ln_f":
            return None
        first = min(first, n_layer if layer is None else layer)
    return first
