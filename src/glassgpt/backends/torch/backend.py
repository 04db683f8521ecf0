"""The torch backend: the one forward pass with a KV cache, and on a GPU its captured steps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from glassgpt.backends.protocol import (
    Array,
    LowRankFactors,
    ScoredBatch,
    ScoreRequest,
    StoredModel,
    WantedLogits,
    check_adapter,
    check_ids,
    check_lengths,
    check_places,
    check_requests,
    check_rows,
    check_texts,
)
from glassgpt.backends.torch.adapters import RowAdapters
from glassgpt.backends.torch.cuda_graphs import LONG, CapturedFunction, GraphRunner, on_device
from glassgpt.backends.torch.decode import attend_each_row, decode_hidden
from glassgpt.backends.torch.fast_path import can_capture, has_standard_blocks
from glassgpt.backends.torch.scoring import BatchLimits, batch_limits, score
from glassgpt.config import check_can_continue
from glassgpt.errors import SettingError
from glassgpt.model.cache import Cache
from glassgpt.model.gpt2 import GPT2, Projection

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

# Measured with MKL on an AVX-512 CPU, one and two threads: a row of a matrix product comes out bit for bit
# the same for any number of rows that is a multiple of four, differently where one to three are left over.
# So a backend made for several sequences multiplies whole fours, and a sequence's values do not depend on
# its neighbors. One made for a single sequence keeps the single-row product, which is twice as fast.
ROWS_TOGETHER = 4


class TorchBackend:
    """Implements `glassgpt.backends.protocol.Backend` on any torch device."""

    def __init__(self, model: GPT2, rows: int = 1, context: int | None = None) -> None:
        check_rows(rows)
        self.model = model.eval()
        self.config = model.config
        self.rows = rows
        self.context = self.config.n_positions if context is None else min(context, self.config.n_positions)
        self.device = model.wte.weight.device
        self.dtype = model.wte.weight.dtype
        allocated = rows if rows == 1 or self.device.type == "cuda" else in_fours(rows)
        self.cache = Cache.empty(self.config, allocated, self.context, self.device, self.dtype)
        self.score_limits: BatchLimits | None = None
        self.adapters: RowAdapters | None = None
        self._row_adapters = [0] * allocated
        captured = self.device.type == "cuda" and can_capture(model)
        self.graphs = GraphRunner(model, self.cache) if captured else None
        self.prefill_chunk = 64 if self.graphs is None else LONG[1]  # a graph reads fewer in the same time

    @classmethod
    def load(
        cls, checkpoint: StoredModel, *, device: str | None = None, dtype: str | None = None
    ) -> TorchBackend:
        """A backend from a file's contents; `None` picks the best device, and the dtype that suits it."""
        return cls(load_model(checkpoint, device=device, dtype=dtype))

    def with_rows(self, rows: int) -> TorchBackend:
        """The same weights with another cache, for this number of sequences."""
        other = TorchBackend(self.model, rows, self.context)
        other.adapters = self.adapters
        return other

    def add_adapter(self, factors: LowRankFactors) -> int:
        if self.adapters is None:
            self.adapters, self.graphs = RowAdapters(self.model), None  # a captured step has none
        return self.adapters.add(factors)

    def set_adapter(self, row: int, number: int) -> None:
        check_adapter(self.rows, 0 if self.adapters is None else self.adapters.count, row, number)
        self._row_adapters[row] = number

    @contextmanager
    def _adapting(self, rows: slice) -> Iterator[None]:
        """The projections compute with the adapters of these rows of the cache."""
        if self.adapters is None:
            yield
            return
        self.adapters.choose(self._row_adapters[rows], self.device)
        try:
            yield
        finally:
            self.adapters.numbers = None

    @torch.inference_mode()
    def extend(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int] | None = None,
        logits: WantedLogits = "last",
    ) -> Array:
        check_can_continue(self.config)
        check_lengths(rows, tokens, starts)
        check_ids(tokens, self.config.vocab_size)
        starts = [0] * len(rows) if starts is None else starts
        check_places(self, rows, starts, [len(ids) for ids in tokens])
        if self.graphs is not None and logits != "all":
            last = self.graphs.extend(rows, tokens, starts)  # (len(rows), V)
            return None if logits == "none" else last
        outputs = []
        for row, ids, start in zip(rows, tokens, starts, strict=True):  # each alone: none affects another
            own = self.cache.view(slice(row, row + 1), start + len(ids))
            positions = None if start == 0 else self._tensor([list(range(start, start + len(ids)))])
            with self._adapting(slice(row, row + 1)):
                x = self.model.hidden(self._tensor([list(ids)]), positions, own)  # (1, T, C)
            if logits != "none":
                outputs.append(self.model.head(x if logits == "all" else x[:, -1:])[0])  # (T or 1, V)
        return None if logits == "none" else self._out(torch.cat(outputs))

    @torch.inference_mode()
    def decode(self, rows: Sequence[int], ids: Array, positions: Sequence[int]) -> Array:
        if not isinstance(ids, Tensor):
            ids = np.asarray(ids).reshape(-1)
        check_lengths(rows, ids, positions)
        check_places(self, rows, positions, [1] * len(rows))
        if not isinstance(ids, Tensor):
            check_ids([ids], self.config.vocab_size)
        width = self.cache.kv.shape[2]
        if self.graphs is None:  # a captured step always runs the whole cache
            width = min(in_fours(max(rows) + 1), width)
        everyone = list(rows) == list(range(width))
        where = np.full(width, -1, np.int64)  # -1: padding, which keeps idle rows out of the way
        where[list(rows)] = positions
        if not isinstance(ids, Tensor):
            tokens = np.zeros(width, np.int64)
            tokens[list(rows)] = ids
            ids = self._tensor(tokens)
        elif not everyone:
            ids = ids.new_zeros(width).index_copy(0, self._tensor(list(rows)), ids)
        if self.graphs is not None:
            logits = self.graphs.decode(ids, where)  # (width, V)
        else:
            view = self.cache.view(slice(0, width), self.context)
            columns, slots = ids[:, None], self._tensor(where)[:, None]  # (width, 1) each
            with self._adapting(slice(0, width)):
                if has_standard_blocks(self.model):
                    x = decode_hidden(self.model, columns, slots, view, attend_each_row)  # (width, 1, C)
                else:
                    x = self.model.hidden(columns, slots, view)
            logits = self.model.head(x)[:, 0]  # (width, V)
        return self._out(logits if everyone else logits[self._tensor(list(rows))])

    @torch.inference_mode()
    def copy(self, source: int, rows: Sequence[int], length: int) -> None:
        everyone = [source, *rows]
        check_places(self, everyone, [0] * len(everyone), [length] * len(everyone))
        prefix = self.cache.kv[:, :, source : source + 1, :, :length].clone()
        for row in rows:
            self.cache.kv[:, :, row : row + 1, :, :length] = prefix

    def score(
        self, groups: Sequence[Sequence[ScoreRequest]], excluded: Sequence[int] = ()
    ) -> Generator[ScoredBatch, None, None]:
        check_can_continue(self.config)
        check_requests(groups, excluded, self.config)
        if self.score_limits is None:  # once: later, the allocator's cache would count as used
            self.score_limits = batch_limits(self.model)
        return score(self.model, groups, excluded, self.score_limits)

    def fingerprint(self) -> str:
        hasher = hashlib.sha256(repr(self.config).encode())
        for name, values in self.model.state_dict().items():
            hasher.update(name.encode())
            hasher.update(values.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        hasher.update(f"{self.dtype} {self.device.type}".encode())
        return hasher.hexdigest()[:32]

    @torch.inference_mode()
    def logits(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        check_texts(batch, self.config)
        longest = max(len(ids) for ids in batch)
        padded = np.zeros((len(batch), longest), np.int64)
        positions = padded - 1  # padding
        for row, where, ids in zip(padded, positions, batch, strict=True):
            row[: len(ids)] = ids
            where[: len(ids)] = np.arange(len(ids))
        # Padding at the end cannot affect what precedes it, unless the model looks ahead.
        exposed = not self.config.is_causal and bool((positions < 0).any())
        logits: Tensor = self.model(
            self._tensor(padded), self._tensor(positions) if exposed else None
        )  # (B, longest, V)
        return logits.float().cpu().numpy()

    def capture(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.graphs is None else torch.inference_mode()(CapturedFunction(function))

    def array(self, values: np.ndarray) -> Array:
        return self._tensor(values) if self.device.type == "cuda" else values

    def fetch(self, values: Array) -> Callable[[], np.ndarray]:
        if not isinstance(values, Tensor):
            return lambda: values
        if not values.is_cuda:
            return values.numpy
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(values.device))

        def wait() -> np.ndarray:
            copied.synchronize()
            return host.numpy()

        return wait

    def _tensor(self, values: np.ndarray | list[int] | list[list[int]]) -> Tensor:
        host = np.asarray(values)
        if self.device.type == "cuda":
            return on_device(host, self.device)
        return torch.from_numpy(host).to(self.device)

    def _out(self, logits: Tensor) -> Array:
        """Logits leave in float32, as a numpy array unless they live on a CUDA device."""
        return logits.float() if logits.is_cuda else logits.float().cpu().numpy()


def in_fours(rows: int) -> int:
    return -(-rows // ROWS_TOGETHER) * ROWS_TOGETHER


def load_model(checkpoint: StoredModel, *, device: str | None = None, dtype: str | None = None) -> GPT2:
    """The torch model with a checkpoint's weights."""
    where = choose_device(device)
    torch_dtype = choose_dtype(dtype, where)
    with torch.device("meta"), SkipInit():  # shapes only: the file will replace all values anyway
        model = GPT2(checkpoint.config)
    state = {
        name: _to_torch(checkpoint.tensors[name]).to(where, torch_dtype)
        for name in checkpoint.config.shapes()
    }
    model.load_state_dict(state, assign=True)
    return arrange_for_gpu(model.requires_grad_(False))


class SkipInit(TorchFunctionMode):
    """Initializers do nothing: on meta tensors they would make torch load its compiler, for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def arrange_for_gpu(model: GPT2) -> GPT2:
    """On a GPU, store matrices column by column, as its products read them; the shape stays (in, out)."""
    if model.wte.weight.is_cuda:
        for module in model.modules():
            if isinstance(module, Projection):
                module.weight.data = module.weight.data.t().contiguous().t()
    return model


def _to_torch(values: np.ndarray) -> Tensor:
    if values.dtype.name == "bfloat16":  # numpy's stand-in type; the bits are the same
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    # A copy, because a file mapped into memory is read-only and torch has no such notion.
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def choose_device(name: str | None) -> torch.device:
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"device {name!r} is not one torch knows. Try cpu, cuda, cuda:1 or mps.") from None
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "xpu": torch.xpu.is_available(),
    }
    if not present.get(device.type, False):
        raise SettingError(
            f"device {name!r} is not on this machine. Leave --device out to use the best there is."
        )
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise SettingError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return device


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    if name is None:
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    if name not in DTYPES:
        raise SettingError(f"dtype {name!r} is not one of {', '.join(DTYPES)} for the torch backend.")
    return DTYPES[name]
