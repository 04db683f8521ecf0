"""A real, very small GPT-2 in numpy behind the Backend seam, and a tokenizer: what these tests run on.

Every row is computed on its own, so a difference between alone and batched is the engine's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from glassgpt.backends.protocol import (
    ScoredBatch,
    ScoreRequest,
    TokenScores,
    check_ids,
    check_lengths,
    check_places,
    check_requests,
    check_rows,
    check_texts,
)
from glassgpt.config import Config
from glassgpt.tokenizer import Tokenizer

EOT = 0


class LetterTokenizer(Tokenizer):
    """Id 0 is end-of-text; the others are the bytes of a small alphabet, among them parts of characters."""

    kind = "letters"
    eot_id: int | None = EOT
    alphabet = b" abcdefghijklmnopqrstuvwxyz\xc3\xa9\xe2\x82\xac\n."
    vocab_size = text_size = len(alphabet) + 1

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        return [self.alphabet.index(bytes([byte])) + 1 for byte in text.encode()]

    def token_bytes(self, token: int) -> bytes:
        return b"<eot>" if token == EOT else self.alphabet[token - 1 : token]

    def files(self) -> dict[str, str]:
        return {}

    def vocabulary(self) -> object:
        return self.alphabet.decode()


VOCAB = len(LetterTokenizer.alphabet) + 1
TINY = Config(vocab_size=VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=2, eos_token_id=EOT)


class TinyBackend:
    """Counts its calls and checks what the seam promises: rows in range, positions that follow each other."""

    def __init__(
        self,
        rows: int = 1,
        config: Config = TINY,
        seed: int = 0,
        device: bool = False,
        sharpness: float = 3.0,
    ) -> None:
        check_rows(rows)
        self.config, self.rows, self.context = config, rows, config.n_positions
        rng = np.random.default_rng(seed)
        self.w = {name: rng.normal(0, 0.25, shape) for name, shape in config.shapes().items()}
        self.w["wte.weight"] *= sharpness
        for name in self.w:
            if ".ln_" in name or name.startswith("ln_f"):
                self.w[name] = np.ones_like(self.w[name]) if name.endswith("weight") else self.w[name]
        self.kv: list[list[np.ndarray]] = [[] for _ in range(rows)]  # per row, per position: (L, 2, C)
        self.seed, self.device, self.sharpness = seed, device, sharpness
        self.prefilled = self.decoded = 0
        self.waits = 0  # how often the host waited for values

    def with_rows(self, rows: int) -> TinyBackend:
        return TinyBackend(rows, self.config, self.seed, self.device, self.sharpness)

    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: str = "last",
    ) -> object:
        check_lengths(rows, tokens, starts)
        check_ids(tokens, self.config.vocab_size)
        starts = [0] * len(rows) if starts is None else starts
        check_places(self, rows, starts, [len(ids) for ids in tokens])
        found = []
        for row, ids, start in zip(rows, tokens, starts, strict=True):
            assert start <= len(self.kv[row])
            self.kv[row] = list(self.kv[row][:start])
            self.prefilled += 1
            every = [self._token(row, int(token)) for token in ids]
            found += every if logits == "all" else every[-1:]
        return None if logits == "none" else self._out(np.stack(found))

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_requests(groups, excluded, self.config)
        for number, group in enumerate(groups):
            for i, (ids, first, exclude) in enumerate(group):
                logits = self.logits([ids[:-1].tolist()])[0, first - 1 :].astype(np.float64)  # (N, V)
                targets = np.asarray(ids[first:])
                total = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
                allowed = np.zeros(len(targets), bool)
                if exclude:
                    others = logits[0].copy()
                    others[list(excluded)] = -np.inf
                    allowed[0] = others.argmax() == targets[0]
                logprobs = logits[np.arange(len(targets)), targets] - total
                yield [(number, i)], [TokenScores(logprobs, logits.argmax(-1) == targets, allowed)]

    def fingerprint(self) -> str:
        return f"tiny-{self.seed}-{self.sharpness}-{hash(self.config)}"

    def capture(self, function: Callable[..., object]) -> Callable[..., object]:
        return function

    def decode(self, rows: Sequence[int], ids: object, positions: Sequence[int]) -> object:
        ids = np.asarray(ids).reshape(-1)
        check_lengths(rows, ids, positions)
        check_places(self, rows, positions, [1] * len(rows))
        assert len(rows) == len(set(rows))
        self.decoded += 1
        result = []
        for row, token, position in zip(rows, ids, positions, strict=True):
            assert position <= len(self.kv[row])
            self.kv[row] = list(self.kv[row][:position])  # guesses that were wrong
            result.append(self._token(row, int(token)))
        return self._out(np.stack(result))

    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        everyone = [source, *rows]
        check_places(self, everyone, [0] * len(everyone), [length] * len(everyone))
        assert length <= len(self.kv[source])
        for row in rows:
            self.kv[row] = list(self.kv[source][:length])

    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        scratch = TinyBackend(1, self.config, self.seed, sharpness=self.sharpness)
        out = np.zeros((len(batch), max(map(len, batch)), self.config.vocab_size), np.float32)
        for i, ids in enumerate(batch):
            scratch.kv[0] = []
            for t, token in enumerate(ids):
                out[i, t] = scratch._token(0, int(token))
        return out

    def array(self, values: np.ndarray) -> object:
        return self._torch(values) if self.device else values

    def fetch(self, values: object) -> Callable[[], np.ndarray]:
        def wait() -> np.ndarray:
            self.waits += 1
            return np.asarray(values)

        return wait

    def _out(self, logits: np.ndarray) -> object:
        logits = logits.astype(np.float32)
        return self._torch(logits) if self.device else logits

    @staticmethod
    def _torch(values: np.ndarray) -> object:
        import torch

        return torch.from_numpy(np.ascontiguousarray(values))

    def _token(self, row: int, token: int) -> np.ndarray:
        w, c = self.w, self.config
        assert 0 <= token < c.vocab_size
        x = w["wte.weight"][token] + w["wpe.weight"][len(self.kv[row])]  # (C,)
        own = np.empty((c.n_layer, 2, c.n_embd))
        self.kv[row] = [*self.kv[row], own]
        for i in range(c.n_layer):
            h = f"h.{i}."
            q, k, v = np.split(self._linear(self._norm(x, h + "ln_1"), h + "attn.c_attn"), 3)
            own[i] = k, v
            past = np.stack([kv[i] for kv in self.kv[row]])  # (T, 2, C)
            heads = (-1, c.n_head, c.d_head)
            keys, values = past[:, 0].reshape(heads), past[:, 1].reshape(heads)  # (T, H, D)
            scores = np.einsum("hd,thd->ht", q.reshape(heads[1:]), keys) / np.sqrt(c.d_head)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            z = np.einsum("ht,thd->hd", weights, values).reshape(-1)
            x = x + self._linear(z, h + "attn.c_proj")
            u = self._linear(self._norm(x, h + "ln_2"), h + "mlp.c_fc")
            gelu = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
            x = x + self._linear(gelu, h + "mlp.c_proj")
        return self._norm(x, "ln_f") @ w["wte.weight"].T  # (V,)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name + ".weight"] + self.w[name + ".bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean()) / np.sqrt(x.var() + self.config.layer_norm_epsilon)
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]


def run(engine, max_steps: int = 10_000) -> list:
    """All events until the engine is idle."""
    events = []
    for _ in range(max_steps):
        if not engine.busy:
            return events
        events += engine.step()
    raise AssertionError("the engine did not become idle")


def finished(events) -> dict:
    """(request, sample) -> Generation."""
    return {(e.request, e.sample): e.generation for e in events if e.generation is not None}
