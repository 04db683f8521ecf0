"""The protocol between the engine and whatever computes: a native engine for CPUs, torch on any device,
or numpy where there is neither.

A backend owns the weights and a preallocated KV cache of `rows` rows. It has no other state: the caller
knows which row belongs to which sequence and how long each is, and passes that in on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from glassgpt.config import Config
from glassgpt.errors import SettingError, short_repr

# A numpy array, or an array of the backend's own device that follows the array API (a torch tensor).
Array = Any
WantedLogits = Literal["last", "all", "none"]
# Low-rank changes (LoRA) to matrices of blocks: the name of W -> A (in, r) and B (r, out), float32: W + A B.
LowRankFactors = Mapping[str, tuple[np.ndarray, np.ndarray]]
MAX_ROWS = 65_536  # of a cache, as in native/cpp/engine.cpp


def array_namespace(*arrays: Array) -> Any:
    """The functions of the array API for these arrays. numpy has them itself: importing array_api_compat's
    for numpy would take a seventh of the time to the first token."""
    if isinstance(arrays[0], np.ndarray):
        return np
    import array_api_compat

    return array_api_compat.array_namespace(*arrays)


class ScoreRequest(NamedTuple):
    """A window of tokens whose last ones are scored, each given all tokens before it in the window."""

    ids: np.ndarray  # int64, at most one more than the context: the last is only a target
    first: int  # ids[first:] are scored; at least 1
    exclude: bool = False  # also report whether ids[first] is the most likely token that is not excluded

    @property
    def n_scored(self) -> int:
        return len(self.ids) - self.first


class TokenScores(NamedTuple):
    """The scores of a request's scored tokens."""

    logprobs: np.ndarray  # float64
    greedy: np.ndarray  # bool: is it the argmax?
    greedy_allowed: np.ndarray  # bool: the argmax without the excluded tokens? For `first`, with `exclude`

    @property
    def total(self) -> float:
        return float(self.logprobs.sum())


# The requests of a batch by (group, index), and their scores.
ScoredBatch = tuple[list[tuple[int, int]], list[TokenScores]]


class Backend(Protocol):
    """A backend may also have

    - `prefill_chunk`: how many tokens of a prompt it prefers to read in one call, at least (64 otherwise).
      Prompts are cut at multiples of it, and begin alike only in whole chunks.
    - `draw_tokens`: its own `generate.sampling.draw_tokens`, which draws the same tokens. It gets `allowed`
      as bits, 32 tokens in each int32, the lowest first.
    - `verify_cost`: the cost of reading several tokens at once, as `generate.speculation.Cost`.
    - `set_up_row(row, setup)`: called when a sequence takes a row, with the `row_setup` of its request, which
      is None for most. It holds from the row's next prompt on. Rows with equal setups may copy each other.
    - `is_rounded`: whether `extend` and `decode` round more than float32 does, for speed. Then it has
      `exact_backend()`, the same with its own cache and without that rounding, from which log-probabilities
      are reported; `score` and `logits` never round more.
    - `add_adapter(factors)`, which returns the number of these `LowRankFactors`, and
      `set_adapter(row, number)`: `extend` and `decode` then compute that row with them, 0 with none of them.
    """

    config: Config
    rows: int  # how many sequences the cache holds side by side
    context: int  # how many positions a row holds, at most config.n_positions

    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: WantedLogits = "last",
    ) -> Array:
        """Read tokens into rows, those of row i at positions starts[i], starts[i] + 1, ...

        A row must hold its first starts[i] positions already; what it held after them is forgotten. No
        starts means 0 for all: prefill. Any split of a text into calls gives the same logits, to rounding,
        and a row's values do not depend on the other rows.

        Returns float32 logits: after the last token of each row, (len(rows), V); after all tokens, row after
        row, (sum of the lengths, V); or None.
        """
        ...

    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        """Read one token per row at its position; the logits after each, (len(rows), V), float32.

        `ids` are host integers, or an array that sampling left on the device: nothing waits for it.
        """
        ...

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        """Make `rows` hold the first `length` positions of `source`: samples and beams share a prompt."""
        ...

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        """Score tokens without the cache, and without ever holding the logits of all of them.

        Requests of a group may begin alike: a backend may read their common prefix once. Batches come in any
        order, as they are computed; close the iterator (`contextlib.closing`) when leaving it early.
        """
        ...

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        """All logits of sequences of any lengths, without the cache: (B, longest, V), float32.

        Sequences shorter than the longest are padded at the end; the values there are meaningless.
        """
        ...

    def capture(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, perhaps faster, since it is called at every step (a CUDA graph).

        Its arguments are arrays with a row for each sequence, nested tuples of them, and plain values; it
        returns a tuple of such arrays. No row may depend on another.
        """
        ...

    def array(self, values: np.ndarray) -> Array:
        """Move host values to where the logits live."""
        ...

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        """Start copying to the host; calling the result waits for the copy."""
        ...

    def with_rows(self, rows: int) -> Backend:
        """The same weights with another cache, for this many sequences."""
        ...

    def fingerprint(self) -> str:
        """A hash of what this backend computes: of its weights, dtype and kind of device."""
        ...


def check_rows(rows: int) -> None:
    """Whether a cache can have this many rows."""
    if not (_is_whole(rows) and 1 <= rows <= MAX_ROWS):
        raise SettingError(
            f"a cache cannot have {short_repr(rows)} rows. Give a whole number from 1 to {MAX_ROWS:,}."
        )


def check_lengths(rows: Sequence[int], tokens: Sequence[Any], starts: Sequence[int] | None = None) -> None:
    """Whether a call has tokens and a start for each row, and at least one row."""
    if len(rows) != len(tokens) or (starts is not None and len(rows) != len(starts)):
        counts = f"{len(rows)} rows, {len(tokens)} texts"
        raise SettingError(
            f"{counts if starts is None else f'{counts} and {len(starts)} starts'} were given. "
            "Give one of each for every row."
        )
    if len(rows) == 0:
        raise SettingError("no rows were given. Give at least one.")


def check_places(backend: Backend, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
    """Whether the cache has these rows, and room for counts[i] tokens in row i from starts[i] on. Arrays
    would take -1 for the last row, and a slice would end where the cache does."""
    for row, start, count in zip(rows, starts, counts, strict=True):
        if not (_is_whole(row) and 0 <= row < backend.rows):
            raise SettingError(
                f"{short_repr(row)} is not a row of the cache. Give whole numbers below {backend.rows}."
            )
        if not (_is_whole(start) and _is_whole(count) and 0 <= start <= start + count <= backend.context):
            raise SettingError(
                f"{short_repr(count)} tokens from {short_repr(start)} on are outside the {backend.context} "
                "positions of the cache."
            )


def check_adapter(rows: int, adapters: int, row: int, number: int) -> None:
    """Whether the cache has this row and the model this adapter, where 0 is none."""
    for what, index, size in (("row", row, rows), ("adapter", number, adapters + 1)):
        if not (_is_whole(index) and 0 <= index < size):
            raise SettingError(f"no such {what}: {short_repr(index)}. Give a whole number below {size}.")


def check_ids(tokens: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Whether the tokens that a call reads are in the vocabulary: arrays would take -1 for the last."""
    for ids in tokens:
        if len(ids) == 0:
            raise SettingError("a row without tokens was given. Give each at least one token id.")
        for token in ids:
            if not (_is_whole(token) and 0 <= token < vocab_size):
                raise _wrong_id(token, vocab_size)


def check_texts(texts: Sequence[Sequence[int]], config: Config) -> None:
    """Whether texts can be read without the cache."""
    if len(texts) == 0:
        raise SettingError("no texts were given. Give at least one.")
    check_ids(texts, config.vocab_size)
    longest = max(map(len, texts))
    if longest > config.n_positions:
        raise SettingError(f"a text has {longest} tokens, and the model reads {config.n_positions}.")


def check_requests(groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int], config: Config) -> None:
    """Whether all of these tokens can be scored."""
    check_ids([list(excluded)] if len(excluded) else [], config.vocab_size)
    for request in (request for group in groups for request in group):
        ids, first = request.ids, request.first
        if not (isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu"):
            raise SettingError("a request's ids are not a one-dimensional array of whole numbers.")
        if not (_is_whole(first) and 1 <= first < len(ids) <= config.n_positions + 1):
            raise SettingError(
                f"a request of {len(ids)} tokens is scored from {short_repr(first)} on. Score one or more, "
                f"after one or more and at most {config.n_positions}."
            )
        if not 0 <= ids.min() <= ids.max() < config.vocab_size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise _wrong_id(wrong, config.vocab_size)


def _wrong_id(token: object, vocab_size: int) -> SettingError:
    return SettingError(f"{token} is not a token id. Give whole numbers from 0 to {vocab_size - 1}.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer)


class StoredModel(Protocol):
    """What a backend reads of a model's file: a `weights.Checkpoint`."""

    @property
    def config(self) -> Config: ...

    @property
    def tensors(self) -> Mapping[str, np.ndarray]:
        """By the names of `Config.shapes`; each may be read from the file anew."""
        ...

    def stored_dtype(self, name: str) -> str:
        """The name of the dtype in which the file stores a tensor."""
        ...

    def packed(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The int8 values and scales of a tensor, if the file has them."""
        ...

    def panels(self, name: str, mapped: bool = False) -> StoredPanels | None:
        """A matrix in the native engine's layout, if the file has it; `mapped`: not copied, if possible."""
        ...

    def rows_in_file(self, name: str) -> StoredRows | None:
        """Where the file has the int8 rows of a matrix, if it has them."""
        ...


class StoredPanels(Protocol):
    """A matrix in the layout of native/cpp/layout.h."""

    @property
    def dtype(self) -> str: ...

    @property
    def data(self) -> np.ndarray: ...

    @property
    def scale(self) -> np.ndarray | None: ...

    @property
    def mapped(self) -> bool: ...


class StoredRows(Protocol):
    """int8 rows, (out, in), at a position of an open file."""

    @property
    def file(self) -> HasFileno: ...

    @property
    def begin(self) -> int: ...

    @property
    def scale(self) -> Callable[[], np.ndarray]: ...


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def shared_length(requests: Sequence[ScoreRequest]) -> int:
    """How many tokens all requests begin with, of those before the first scored one."""
    length = min(request.first for request in requests)
    first = requests[0].ids
    for request in requests[1:]:
        same = first[:length] == request.ids[:length]
        length = length if same.all() else int(same.argmin())
    return length


class HostArrays:
    """The methods of a backend that have nothing to do where logits are numpy arrays on the host."""

    def capture(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def array(self, values: np.ndarray) -> Array:
        return values

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        return lambda: values
