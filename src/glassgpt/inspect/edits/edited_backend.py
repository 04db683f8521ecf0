"""A backend that computes with edits: what `gpt.generate(..., edits=...)` and a request's `edits` run on.

It runs the model with taps, each sequence by itself, so a text does not depend on the others in its batch,
whatever their edits are. Requests without edits never come here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from glassgpt.backends.numpy import target_logprobs
from glassgpt.backends.protocol import (
    Array,
    HostArrays,
    ScoredBatch,
    ScoreRequest,
    TokenScores,
    WantedLogits,
    check_ids,
    check_lengths,
    check_places,
    check_requests,
    check_rows,
    check_texts,
)
from glassgpt.config import check_can_continue
from glassgpt.errors import SettingError
from glassgpt.generate.engine.pool import EnginePool
from glassgpt.generate.prompt import check_prompt, token_ids
from glassgpt.inspect.arrays import to_numpy
from glassgpt.inspect.edits.edits import Edit, EditTap, Patch, compose
from glassgpt.inspect.edits.intervene import make_edit_context, parse_edits
from glassgpt.inspect.forward import make_forward
from glassgpt.inspect.taps import resolve_name, shape_of
from glassgpt.inspect.traceable_model import TraceableModel
from glassgpt.inspect.traces.trace import Trace

MAX_SOURCES = 4  # texts of a whole context, or more shorter ones
PATCH_BYTES = 32 << 20


class EditedBackend(HostArrays):
    """Implements `glassgpt.backends.protocol.Backend`.

    `edits` are those of every row, unless `set_up_row` gives a row its own.
    """

    def __init__(self, gpt: TraceableModel, edits: Sequence[Edit] = (), rows: int = 1) -> None:
        check_rows(rows)
        self.gpt = gpt
        self.edits = tuple(edits)
        self.config = gpt.config
        self.rows = rows
        self.context = gpt.backend.context
        self.prefill_chunk = self.context  # a prompt is read whole: an edit may need its mean
        self._forward = make_forward(gpt.model)
        self._caches: list[Any] = [None] * rows  # made when a row is first used
        self._setups = [self.edits] * rows
        self._taps: list[EditTap | None] = [None] * rows  # bound to the prompt that the row holds

    def with_rows(self, rows: int) -> EditedBackend:
        return EditedBackend(self.gpt, self.edits, rows)

    def set_up_row(self, row: int, setup: object) -> None:
        """The edits of the request that takes this row."""
        self._setups[row] = self.edits if setup is None else tuple(parse_edits(setup))

    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: WantedLogits = "last",
    ) -> Array:
        check_lengths(rows, tokens, starts)
        check_ids(tokens, self.config.vocab_size)
        starts = [0] * len(rows) if starts is None else starts
        check_places(self, rows, starts, [len(ids) for ids in tokens])
        outputs = []
        for row, ids, start in zip(rows, tokens, starts, strict=True):
            x = self._hidden(row, [int(token) for token in ids], int(start))  # (T, C)
            if logits != "none":
                outputs.append(to_numpy(self._forward.head(x if logits == "all" else x[-1:])))
        return None if logits == "none" else np.concatenate(outputs)

    def _hidden(self, row: int, ids: list[int], start: int) -> Any:
        """Read tokens into a row, with its edits; their final vectors, (T, C)."""
        if self._caches[row] is None:
            self._caches[row] = self._forward.empty_cache()
        tap = self._taps[row]
        if start == 0 or tap is None:
            tap = self._taps[row] = self._bind(self._setups[row], ids)
        tap.start = start
        return self._forward.hidden(ids, tap, start, self._caches[row])[0]

    def _bind(self, edits: Sequence[Edit], ids: Sequence[int]) -> EditTap:
        context = make_edit_context(self.gpt, ids, length=self.config.n_positions)
        return compose(edits, context)[0]

    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        return self.extend(rows, [[int(token)] for token in np.asarray(ids).reshape(-1)], positions)

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        everyone = [source, *rows]
        check_places(self, everyone, [0] * len(everyone), [length] * len(everyone))
        for row in rows:
            if self._caches[row] is None:
                self._caches[row] = self._forward.empty_cache()
            values, held = (getattr(self._caches[i], "kv", self._caches[i]) for i in (row, source))
            values[..., :length, :] = held[..., :length, :]
            self._taps[row] = self._taps[source]

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_requests(groups, excluded, self.config)
        for number, group in enumerate(groups):
            for i, request in enumerate(group):
                yield [(number, i)], [self._score(request, sorted(excluded))]

    def _score(self, request: ScoreRequest, excluded: Sequence[int]) -> TokenScores:
        targets = request.ids[request.first :]
        logits = self.logits([request.ids[:-1].tolist()])[0, request.first - 1 :]  # (N, V)
        greedy = logits.argmax(-1) == targets
        allowed = np.zeros(len(targets), bool)
        if request.exclude:
            rest = logits[0].copy()
            rest[list(excluded)] = -np.inf
            allowed[0] = rest.argmax() == targets[0]
        return TokenScores(target_logprobs(logits, targets), greedy, allowed)

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        out = np.zeros((len(batch), max(map(len, batch)), self.config.vocab_size), np.float32)
        for row, ids in zip(out, batch, strict=True):
            x = self._forward.hidden(list(ids), self._bind(self.edits, ids))[0]  # (T, C)
            row[: len(ids)] = to_numpy(self._forward.head(x))
        return out

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.gpt.backend.fingerprint()} {self.edits!r}".encode()).hexdigest()[:32]


def edited_engines(gpt: TraceableModel, edits: Any = ()) -> EnginePool:
    """Engines that generate with edits; a request may bring its own, as `row_setup`."""
    check_can_continue(gpt.config)
    engines = EnginePool(EditedBackend(gpt, parse_edits(edits)), gpt.tokenizer, prefix_cache=False)
    engines.lock = gpt.lock
    return engines


class TakenStep(Trace):
    """What a patch needs of its source: the values of one step."""

    def tensors(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._saved[name] for name in names}  # not copied: a patch only reads them


def take_patches(gpt: TraceableModel, edits: Sequence[Edit]) -> list[Edit]:
    """The edits of a request, with the values of their patches: each source is traced once, here.

    Bounds what a stranger may ask for: the tokens of all sources, and the memory of the values.
    """
    traces: dict[Any, Trace] = {}
    values: dict[tuple[Any, str], Trace] = {}
    most, left, room = MAX_SOURCES * gpt.config.n_positions, MAX_SOURCES * gpt.config.n_positions, PATCH_BYTES
    taken: list[Edit] = []
    for edit in edits:
        if not isinstance(edit, Patch) or isinstance(edit.source, Trace):
            taken.append(edit)
            continue
        given = gpt.encode(edit.source) if isinstance(edit.source, str) else token_ids(edit.source)
        ids = check_prompt(given, gpt.backend, gpt.tokenizer)
        key, step = tuple(ids), resolve_name(gpt.config, edit.step)
        shape = shape_of(gpt.config, step, len(ids))
        if key not in traces:
            left -= len(ids)
            if left < 0:
                raise SettingError(
                    f"the sources of the patches have more than {most:,} tokens together. Send fewer."
                )
            with gpt.lock.hold():
                traces[key] = gpt.trace(ids)
        if (key, step) not in values:
            room -= 4 * math.prod(shape)
            if room < 0:
                raise SettingError(
                    f"the patches take more than {PATCH_BYTES >> 20} MB. Patch fewer steps, or shorter texts."
                )
            with gpt.lock.hold():
                tensor = to_numpy(traces[key].tensors([step])[step])
            values[key, step] = TakenStep(gpt.config, ids, traces[key].texts, saved={step: tensor})
        taken.append(dataclasses.replace(edit, source=values[key, step]))
    return taken


def check_fit(gpt: TraceableModel, edits: Sequence[Edit], prompts: Sequence[Sequence[int]]) -> None:
    """Raise if the edits do not fit all prompts: what fits the shortest and the longest fits the others."""
    for ids in (min(prompts, key=len), max(prompts, key=len)):
        whole = check_prompt(ids, gpt.backend, gpt.tokenizer)  # an empty one is the beginning of a document
        compose(edits, make_edit_context(gpt, whole, length=gpt.config.n_positions))


def check_edits(gpt: TraceableModel, edits: Any, ids: Sequence[int], max_new_tokens: int) -> list[Edit]:
    """The edits, parsed, if they can be applied to a prompt and the tokens after it."""
    parsed = parse_edits(edits)
    context = gpt.backend.context
    fixed = next((edit for edit in parsed if _names_positions(edit)), None)
    if fixed is not None and len(ids) + max_new_tokens > context:
        raise SettingError(
            f"{fixed.describe()} is at fixed positions, and {len(ids)} tokens with {max_new_tokens} new ones "
            f"do not fit into this model's context of {context}. Generate at most "
            f"{max(0, context - len(ids))}."
        )
    return parsed


def _names_positions(edit: Edit) -> bool:
    return isinstance(edit, Patch) or getattr(edit, "positions", None) is not None
