"""What every backend must do, whatever it computes with: a base class of tests.

A subclass with a fixture `make`, a function (rows) -> Backend, puts a backend to it. All backends that one
fixture makes have the same weights. `tolerance`: the largest difference between two orders of summation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgpt.backends.protocol import Backend, ScoreRequest
from glassgpt.errors import SettingError, UserError

Make = Callable[[int], Backend]
LENGTHS = (1, 7, 16, 11)


class BackendConformance:
    tolerance = 5e-5

    def texts(self, backend: Backend) -> list[list[int]]:
        rng = np.random.default_rng(5)
        vocabulary = backend.config.vocab_size
        return [[int(i) for i in rng.integers(vocabulary, size=n)] for n in LENGTHS]

    def close(self, found: object, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(host(found), wanted, atol=self.tolerance, rtol=0)

    def test_prefill_gives_the_logits_of_the_plain_pass(self, make: Make) -> None:
        backend = make(4)
        texts = self.texts(backend)
        every = plain_logits(backend, texts)
        last = backend.extend(range(4), texts)
        assert host(last).dtype == np.float32
        assert host(last).shape == (4, backend.config.vocab_size)
        for row, text in enumerate(texts):
            self.close(last[row], every[row, len(text) - 1])

    @pytest.mark.parametrize("split", [(1,), (3, 3), (1, 1, 1), (2, 9), (15,)])
    def test_any_split_of_a_text_equals_one_prefill(self, make: Make, split: tuple[int, ...]) -> None:
        backend = make(1)
        text = self.texts(backend)[2]
        every, start, parts = plain_logits(backend, [text])[0], 0, []
        for size in (*split, len(text) - sum(split)):
            parts.append(host(backend.extend([0], [text[start : start + size]], [start], "all")))
            start += size
        self.close(np.concatenate(parts), every)
        self.close(backend.decode([0], [7], [len(text)])[0], plain_logits(backend, [[*text, 7]])[0, -1])

    def test_the_same_split_gives_the_same_bits(self, make: Make) -> None:
        found = []
        for _ in range(2):
            backend = make(2)
            text = self.texts(backend)[2]
            backend.extend([1], [text[:5]], logits="none")
            found.append(host(backend.extend([1], [text[5:]], [5])).copy())
        np.testing.assert_array_equal(*found)

    def test_rows_at_different_starts(self, make: Make) -> None:
        backend = make(4)
        texts, starts = self.texts(backend), [0, 3, 12, 10]
        rows = [1, 2, 3]
        backend.extend(rows, [texts[row][: starts[row]] for row in rows], logits="none")
        last = backend.extend(
            range(4), [text[start:] for text, start in zip(texts, starts, strict=True)], starts
        )
        alone = make(4)
        for row, text in enumerate(texts):
            self.close(last[row], plain_logits(backend, [text])[0, -1])
            if starts[row]:
                alone.extend([row], [text[: starts[row]]], logits="none")
            np.testing.assert_array_equal(
                host(alone.extend([row], [text[starts[row] :]], [starts[row]])[0]), host(last[row])
            )

    def test_the_logits_that_are_asked_for(self, make: Make) -> None:
        backend = make(3)
        texts = self.texts(backend)[1:]
        assert backend.extend(range(3), texts, logits="none") is None
        every = host(backend.extend(range(3), texts, logits="all"))
        assert every.shape == (sum(map(len, texts)), backend.config.vocab_size)
        assert every.dtype == np.float32
        ends = np.cumsum([len(text) for text in texts])
        self.close(backend.extend(range(3), texts), every[ends - 1])

    def test_what_stood_after_the_start_is_forgotten(self, make: Make) -> None:
        backend = make(1)
        text = self.texts(backend)[2]
        backend.extend([0], [text], logits="none")
        again = backend.extend([0], [[1, 2]], [4])
        self.close(again[0], plain_logits(backend, [[*text[:4], 1, 2]])[0, -1])

    def test_rows_that_are_not_named_keep_what_they_hold(self, make: Make) -> None:
        backend = make(3)
        one, other = self.texts(backend)[1:3]
        backend.extend([0], [one], logits="none")
        backend.extend([2], [other[:4]], logits="none")
        backend.extend([2], [other[4:]], [4], logits="none")
        backend.decode([2], [5], [len(other)])
        self.close(backend.decode([0], [9], [len(one)])[0], plain_logits(backend, [[*one, 9]])[0, -1])

    def test_after_a_copy(self, make: Make) -> None:
        backend = make(4)
        text = self.texts(backend)[2]
        backend.extend([1], [text], logits="none")
        backend.copy(1, [0, 3], 6)
        last = backend.extend([0, 3], [[4, 5, 6], [8]], [6, 6])
        self.close(last[0], plain_logits(backend, [[*text[:6], 4, 5, 6]])[0, -1])
        self.close(last[1], plain_logits(backend, [[*text[:6], 8]])[0, -1])
        self.close(backend.decode([1], [3], [len(text)])[0], plain_logits(backend, [[*text, 3]])[0, -1])

    def test_calls_with_unequal_lengths_are_refused(self, make: Make) -> None:
        backend = make(8)
        for rows, tokens, starts in (
            ([0], [[1], [2], [3]], [0, 0, 0]),
            ([0, 1], [[1]], None),
            ([0, 1], [[1], [2]], [0]),
            ([0], [[1]], [0, 0]),
        ):
            with pytest.raises(UserError, match=rf"{len(rows)} rows, {len(tokens)} texts"):
                backend.extend(rows, tokens, starts)
        for rows, ids, positions in (([0], [1, 2], [0]), ([0, 1], [1], [0, 0]), ([0, 1], [1, 2], [0])):
            with pytest.raises(UserError, match=rf"{len(rows)} rows, {len(ids)} texts"):
                backend.decode(rows, np.array(ids), positions)
        with pytest.raises(UserError, match="2 rows, 4 texts"):
            backend.decode([0, 1], np.array([[1, 2], [3, 4]]), [0, 0])

    def test_calls_without_rows_or_texts_are_refused(self, make: Make) -> None:
        backend = make(2)
        for call in (
            lambda: backend.extend([], []),
            lambda: backend.extend([], [], []),
            lambda: backend.decode([], np.zeros(0, np.int64), []),
            lambda: backend.logits([]),
            lambda: backend.logits([[1], []]),
        ):
            with pytest.raises(SettingError, match=r"Give at least one|Give each at least one"):
                call()
        backend.extend([0], [[1]])
        backend.copy(0, [], 1)  # nothing to do
        assert list(backend.score([])) == list(backend.score([[]])) == []

    @pytest.mark.parametrize("row", [-1, 2, 2**31, 2**63, 0.5])
    def test_rows_that_the_cache_lacks_are_refused(self, make: Make, row: float) -> None:
        backend = make(2)
        for call in (
            lambda: backend.extend([0, row], [[1], [2]]),
            lambda: backend.decode([row], np.array([1]), [0]),
            lambda: backend.copy(row, [0], 1),
            lambda: backend.copy(0, [1, row], 1),
        ):
            with pytest.raises(UserError):
                call()

    @pytest.mark.parametrize("rows", [0, -1, 65_537, 2**31, 2**63, 1.5, None])
    def test_a_cache_of_rows_that_cannot_be_is_refused(self, make: Make, rows: Any) -> None:
        with pytest.raises(SettingError, match=r"Give a whole number from 1 to 65,536"):
            make(1).with_rows(rows)

    def test_positions_outside_the_cache_are_refused(self, make: Make) -> None:
        backend = make(2)
        end = backend.context
        for call in (
            lambda: backend.extend([0], [[1, 2]], [end - 1]),
            lambda: backend.extend([0], [[1]], [-1]),
            lambda: backend.extend([0], [[1] * (end + 1)]),
            lambda: backend.decode([0], np.array([1]), [end]),
            lambda: backend.decode([0], np.array([1]), [-1]),
            lambda: backend.decode([0], np.array([1]), [2**63]),
            lambda: backend.copy(0, [1], end + 1),
            lambda: backend.copy(0, [1], -1),
            lambda: backend.copy(0, [1], [1]),
            lambda: backend.logits([[1] * (backend.config.n_positions + 1)]),
        ):
            with pytest.raises(UserError):
                call()

    def test_requests_that_cannot_be_scored_are_refused(self, make: Make) -> None:
        backend = make(1)
        vocabulary, longest = backend.config.vocab_size, backend.config.n_positions + 1
        for ids, first in (
            ([], 1), ([1], 1), ([1, 2], 0), ([1, 2], -1), ([1, 2], 2), ([1, 2], 1.5), ([1, vocabulary], 1),
            ([1, -1], 1), ([-1, 1], 1), ([1.0, 2.0], 1), ([[1, 2]], 1), ([1] * (longest + 1), 1),
        ):  # fmt: skip
            with pytest.raises(SettingError):
                list(backend.score([[ScoreRequest(np.array(ids), first)]]))
        for token in (-1, vocabulary):
            with pytest.raises(SettingError, match=f"^{token} is not a token id"):
                list(backend.score([[ScoreRequest(np.array([1, 2]), 1)]], [token]))
        assert len(scores_of(backend, [[ScoreRequest(np.ones(longest, np.int64), 1)]])) == 1

    @pytest.mark.parametrize("token", [-1, 101, 2**31, 2**32 + 5, 2**63 + 5, 1.5])
    def test_ids_that_are_none_are_refused(self, make: Make, token: float) -> None:
        with pytest.raises(UserError, match=rf"^{token} is not a token id"):
            make(2).extend([0, 1], [[1], [1, token]])

    def test_decoding_follows_extending(self, make: Make) -> None:
        backend = make(4)
        texts = self.texts(backend)
        backend.extend(range(4), texts, logits="none")
        new = np.array([3, 1, 4, 1])
        logits = backend.decode(range(4), backend.array(new), [len(text) for text in texts])
        for row, text in enumerate(texts):
            self.close(logits[row], plain_logits(backend, [[*text, int(new[row])]])[0, -1])

    def test_scores_are_log_probabilities(self, make: Make) -> None:
        backend = make(1)
        texts = self.texts(backend)[1:]
        prefix = texts[1][:10]
        groups = [[ScoreRequest(np.array(text), 1 + i)] for i, text in enumerate(texts)]
        groups.append([ScoreRequest(np.array([*prefix, *end]), 10) for end in ([1, 2], [3], [4, 5, 6])])
        found = scores_of(backend, groups)
        assert set(found) == {(g, i) for g, group in enumerate(groups) for i in range(len(group))}
        for (group, i), scores in found.items():
            ids, first, _ = groups[group][i]
            logits = backend.logits([ids[:-1].tolist()])[0, first - 1 :].astype(np.float64)
            best = logits.max(-1, keepdims=True)
            total = np.log(np.exp(logits - best).sum(-1)) + best[:, 0]
            targets = ids[first:]
            self.close(scores.logprobs, logits[np.arange(len(targets)), targets] - total)
            assert scores.logprobs.dtype == np.float64
            clear = np.sort(logits)[:, -1] - np.sort(logits)[:, -2] > self.tolerance
            np.testing.assert_array_equal(scores.greedy[clear], (logits.argmax(-1) == targets)[clear])
            assert not scores.greedy_allowed.any()  # nobody asked

    def test_excluded_tokens_are_not_the_likeliest(self, make: Make) -> None:
        backend = make(1)
        text = self.texts(backend)[1]
        first, second = (int(i) for i in np.argsort(-backend.logits([text])[0, -1])[:2])
        groups = [[ScoreRequest(np.array([*text, second]), len(text), True)]]
        assert not scores_of(backend, groups)[0, 0].greedy[0]
        assert scores_of(backend, groups, [first])[0, 0].greedy_allowed[0]
        assert not scores_of(backend, groups, [second])[0, 0].greedy_allowed[0]

    def test_another_cache_for_the_same_weights(self, make: Make) -> None:
        backend = make(1)
        larger = backend.with_rows(3)
        assert (larger.rows, larger.context) == (3, backend.context)
        text = self.texts(backend)[1]
        self.close(larger.extend([2], [text])[0], plain_logits(backend, [text])[0, -1])
        assert larger.fingerprint() == backend.fingerprint()


def plain_logits(backend: Backend, texts: list[list[int]]) -> np.ndarray:
    """All logits (B, longest, V) of texts that are read at once, rounded as the backend generates."""
    if not getattr(backend, "is_rounded", False):
        return backend.logits(texts)
    found = np.zeros((len(texts), max(map(len, texts)), backend.config.vocab_size), np.float32)
    for one, text in zip(found, texts, strict=True):
        one[: len(text)] = host(backend.with_rows(1).extend([0], [text], logits="all"))
    return found


def host(values: object) -> np.ndarray:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def scores_of(backend: Backend, groups, excluded=()) -> dict:
    batches = backend.score(groups, excluded)
    return {key: one for keys, scores in batches for key, one in zip(keys, scores, strict=True)}
