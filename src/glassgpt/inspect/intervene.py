"""`gpt.intervene(text, edits)`: the same text with something changed inside, beside the text as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from glassgpt.errors import SettingError, UserError
from glassgpt.inspect.display import Shown
from glassgpt.inspect.edit_data import edit_from_dict
from glassgpt.inspect.edits import Edit, Scene, compose
from glassgpt.inspect.indexing import Array
from glassgpt.inspect.lens import Lens
from glassgpt.inspect.taps import checked_index, split_name
from glassgpt.inspect.trace import Trace

if TYPE_CHECKING:
    from glassgpt.gpt import GPT, Prompt
    from glassgpt.inspect.svg import Picture


@dataclass(frozen=True)
class Moved:
    """A token and its probability as the next one, before and after."""

    id: int
    text: str
    before: float
    after: float


class Intervention(Shown):
    """What edits did. `.before` and `.after` are traces; the rest compares their answers at `.position`."""

    def __init__(self, before: Trace, after: Trace, edits: Sequence[Edit], position: int = -1) -> None:
        self.before = before
        self.after = after
        self.edits = tuple(edits)
        self.position = checked_index("position", position, len(before))

    def __repr__(self) -> str:
        top = self.moved(1)
        what = f", {top[0].text!r} {top[0].before:.1%} -> {top[0].after:.1%}" if top else ""
        return f"Intervention({len(self.edits)} edits, KL {self.kl:.4g} nats{what})"

    def picture(self) -> Picture:
        from glassgpt.inspect.plots import of_intervention

        return of_intervention(self)

    @property
    def logits(self) -> Array:
        """The changed scores of every token as the next one, (V,)."""
        return self.after.logits_at(self.position)

    @property
    def logits_before(self) -> Array:
        return self.before.logits_at(self.position)

    @cached_property
    def p(self) -> Array:
        """The changed next-token distribution."""
        return self.after.p_at(self.position)

    @cached_property
    def p_before(self) -> Array:
        return self.before.p_at(self.position)

    @property
    def kl(self) -> float:
        """How far the answer moved: KL(before || after) in nats."""
        return float(self.kl_per_token[self.position])

    @cached_property
    def kl_per_token(self) -> Array:
        """The same after every position, (T,)."""
        found = []
        for one, other in zip(self.before.final_log_p(), self.after.final_log_p(), strict=True):
            kl = torch.where(one > -torch.inf, one.exp() * (one - other), 0.0).sum(dim=-1)
            found.append(kl.clamp(min=0).float().cpu().numpy())
        return np.concatenate(found)

    def moved(self, k: int = 10) -> list[Moved]:
        """The k tokens whose probability changed most; those that did not move at all are left out."""
        change = np.abs(self.p - self.p_before)
        order = np.argsort(-change, kind="stable")[:k]
        text = self.before.vocabulary.text
        return [
            Moved(int(i), text(int(i)), float(self.p_before[i]), float(self.p[i]))
            for i in order
            if change[i] > 0
        ]

    def lens(self, k: int | None = None) -> Lens:
        """The logit lens of the changed pass."""
        return self.after.lens(k)


def intervene(gpt: GPT, text: Prompt | Trace, edits: Any = (), position: int = -1) -> Intervention:
    """See `GPT.intervene`."""
    model = gpt.torch_model
    before = fresh(gpt, text)
    listed = as_edits(edits)
    scene = Scene(model, before.tokens, lambda source: trace_of(gpt, source))
    tap, steps = compose(listed, scene)
    after = Trace.of(gpt, before.tokens, tap)
    after.begin_as(before, first_changed_layer(steps, gpt.config.n_layer))
    return Intervention(before, after, listed, position)


def as_edits(edits: Any) -> list[Edit]:
    """One edit or several, as objects or as plain data."""
    several = [edits] if isinstance(edits, Edit | Mapping) else edits
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise SettingError(
            f"{edits!r:.80} is no edit. Use AblateHead(2, 5), for instance, or a list of edits."
        )
    made = [edit_from_dict(edit) if isinstance(edit, Mapping) else edit for edit in several]
    for edit in made:
        if not isinstance(edit, Edit):
            raise SettingError(f"{edit!r:.80} is no edit. Use AblateHead(2, 5), for instance.")
    return made


def trace_of(gpt: GPT, source: Prompt | Trace) -> Trace:
    return source if isinstance(source, Trace) else gpt.trace(source)


def fresh(gpt: GPT, text: Prompt | Trace) -> Trace:
    """A trace whose bits are those of one plain pass: not read from a file, not grown token by token."""
    if not isinstance(text, Trace):
        return gpt.trace(text)
    if text.config.shapes() != gpt.config.shapes():
        raise UserError("the trace is one of a model of another shape. Trace the text with this model.")
    return text if text.is_plain_pass_of(gpt) else gpt.trace(text.tokens)


def first_changed_layer(steps: Iterable[str], n_layer: int) -> int | None:
    """Blocks before this one compute what they did; None if the embedding changes already."""
    first = n_layer
    for step in steps:
        layer = split_name(step)[0]
        if layer is None and step != "ln_f":
            return None
        first = min(first, n_layer if layer is None else layer)
    return first
