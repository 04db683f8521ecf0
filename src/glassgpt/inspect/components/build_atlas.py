"""`glassgpt.atlas(gpt, corpus, out)`: what every head and neuron does over a corpus.

The model reads the corpus in windows of tokens, each after an end-of-text token as in training, and keeps
for every neuron the contexts in which it is most active, for every head the pairs of tokens that it
connects and the layer's other heads do not. Memory does not grow with the corpus but by its tokens. The
folder is saved every few windows; a scan that was interrupted goes on there, and ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError
from glassgpt.files.lock import lock_folder
from glassgpt.generate.prompt import usable_vocab_size
from glassgpt.inspect.arrays import AnyArray, to_numpy
from glassgpt.inspect.components.atlas import Atlas
from glassgpt.inspect.components.atlas_state import FILE, AtlasState, read_state
from glassgpt.inspect.components.attention_kinds import key_masks
from glassgpt.inspect.components.windows import CorpusWindow, read_windows
from glassgpt.inspect.parameters.neurons import neuron_tokens
from glassgpt.model.numpy_gpt2 import NumpyGPT2
from glassgpt.progress import Progress, no_progress
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.inspect.traceable_model import TraceableModel

LENGTH = 128  # tokens of a window
K = 20  # contexts of a neuron, pairs of a head
BATCH = 8  # windows that are computed together
SAVE_EVERY = 64  # batches
N_TOKENS = 10  # that a neuron reads and writes


def atlas(
    gpt: TraceableModel,
    corpus: Any,
    out: str | Path,
    *,
    tokens: int | None = None,
    length: int = LENGTH,
    k: int = K,
    progress: Progress = no_progress,
) -> Atlas:
    """Make the atlas of a model over a corpus (a `Path`, several, or a list of texts) in the folder `out`.

    It ends after `tokens` tokens, or with the corpus. A folder with a part of the same atlas is completed.
    """
    tokenizer = gpt.require_tokenizer("an atlas")
    check_whole("length", length, 2, gpt.config.n_positions - 1, "this model's context")
    check_whole("k", k, 1, 1000)
    if tokens is not None:
        check_whole("tokens", tokens, 1)
    folder = Path(out)
    about = {
        "model": gpt.name,
        "fingerprint": gpt.backend.fingerprint(),
        "config": gpt.config.to_dict(),
        "length": length,
        "tokens": tokens,
    }
    with lock_folder(folder, "atlas"):
        state = start_state(folder / FILE, gpt, about, k)
        tokenizer.save(folder)
        if state is not None:
            scan(
                gpt,
                state,
                read_windows(corpus, tokenizer, length, tokens),
                folder / FILE,
                about,
                tokens,
                progress,
            )
            state.save(folder / FILE, {**about, "complete": True}, promoted_tokens(gpt))
    return Atlas.load(folder)


def start_state(path: Path, gpt: TraceableModel, about: dict[str, Any], k: int) -> AtlasState | None:
    """A new state, or the one of a scan that was interrupted; None if the atlas is complete."""
    if not path.exists():
        return AtlasState(gpt.config, k)
    state, found, _ = read_state(path, gpt.config)
    different = [name for name in about if found.get(name) != about[name]]
    if different or state.k != k:
        raise SettingError(
            f"{path.parent} has another atlas ({', '.join(different) or 'k'} differs). Give a new folder, "
            "or delete it."
        )
    return None if found.get("complete") else state


def scan(
    gpt: TraceableModel,
    state: AtlasState,
    windows: Iterator[CorpusWindow],
    path: Path,
    about: dict[str, Any],
    tokens: int | None,
    progress: Progress,
) -> None:
    """Read all windows that the state has not seen."""
    with progress("reading the corpus", tokens) as advance:
        done = list(islice(windows, len(state.starts)))
        read = sum(len(window.ids) for window in done)
        if len(done) < len(state.starts) or [i for window in done for i in window.ids] != state.tokens:
            raise SettingError(
                f"{path.parent} was begun with another corpus. Give a new folder, or delete it."
            )
        advance(read)
        for number, batch in enumerate(batches(windows), start=1):
            add_batch(gpt, state, batch)
            advance(sum(len(window.ids) for window in batch))
            if number % SAVE_EVERY == 0:
                state.save(path, about)


def batches(windows: Iterator[CorpusWindow]) -> Iterator[list[CorpusWindow]]:
    """Windows of equal length together, at most BATCH of them, in order."""
    batch: list[CorpusWindow] = []
    for window in windows:
        if batch and (len(batch) == BATCH or len(window.ids) != len(batch[0].ids)):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def add_batch(gpt: TraceableModel, state: AtlasState, batch: list[CorpusWindow]) -> None:
    eot = gpt.require_tokenizer("an atlas").eot_id
    first = 0 if eot is None else 1  # what begins a text is not of it
    rows = [[*([] if eot is None else [eot]), *window.ids] for window in batch]
    starts = [window.start for window in batch]
    masks = [key_masks(row) for row in rows]

    def tap(name: str, x: AnyArray) -> AnyArray:
        parts = name.split(".", 2)
        if parts[0] != "h":
            return x
        layer, step = int(parts[1]), parts[2]
        if step == "mlp.gelu":
            state.add_neurons(layer, x[:, first:], starts)  # (B, T, M)
        elif step == "attn.weights":
            for weights, start, each in zip(to_numpy(x), starts, masks, strict=True):  # (H, T, T)
                state.add_attention(layer, weights, first, start, each)
        return x

    run_hidden(gpt.model, rows, tap)
    for window, each in zip(batch, masks, strict=True):
        state.kinds.count(each)
        state.starts.append(window.start)
        state.tokens += window.ids


def run_hidden(model: Any, rows: list[list[int]], tap: Any) -> None:
    """The forward pass of several texts of equal length, without the head."""
    if isinstance(model, NumpyGPT2):
        model.hidden(np.array(rows), tap=tap)
        return
    import torch

    with torch.no_grad():
        model.hidden(torch.tensor(rows, device=model.wte.weight.device), tap=tap)


def promoted_tokens(gpt: TraceableModel) -> dict[str, np.ndarray]:
    """The tokens that each neuron reads and writes, through the token table, (L, M, N_TOKENS)."""
    size = usable_vocab_size(gpt.backend, gpt.tokenizer)
    reads, writes = [], []
    for layer in range(gpt.config.n_layer):
        found = neuron_tokens(gpt, layer, range(gpt.config.d_mlp), size, N_TOKENS)
        reads.append(found.reads)
        writes.append(found.writes)
    return {
        "neuron_reads": np.stack(reads).astype(np.int32), "neuron_writes": np.stack(writes).astype(np.int32)
    }  # fmt: skip
