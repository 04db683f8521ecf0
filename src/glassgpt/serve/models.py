"""The models of a server: named when it starts, loaded when they are requested, within a memory limit.

A request can only choose among these names: no name in it is ever looked up as a file or on the hub.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from anyio import CapacityLimiter

import glassgpt
from glassgpt.config import check_can_continue
from glassgpt.errors import SettingError
from glassgpt.generate.service.fair_queue import QueueLimits
from glassgpt.generate.service.service import Service
from glassgpt.gpt import GPT
from glassgpt.http.errors import ApiError
from glassgpt.progress import Progress, no_progress
from glassgpt.serve.logprobs import TokenTexts
from glassgpt.serve.weight_files import WeightFiles, hash_files

if TYPE_CHECKING:
    from glassgpt.generate.engine.pool import EnginePool

Loader = Callable[[Path], GPT]


@dataclass(frozen=True)
class ModelSpec:
    """A model by the name that requests use, and where its files are."""

    name: str
    path: Path
    base: str | None = None  # the name of the model that this one, an adapter, is computed with


def find_models(
    names: Sequence[str], progress: Progress = no_progress, adapters: Sequence[str] = ()
) -> list[ModelSpec]:
    """The models of `--model NAME` or `--model NAME=PATH`, downloaded now if necessary, and refused now if
    they cannot continue a text. `adapters` are `NAME=FOLDER`, low-rank changes to the first of them."""
    from glassgpt.weights.registry import load_adapter, load_config, resolve_model

    specs: dict[str, ModelSpec] = {}
    for argument in names:
        alias, separator, source = argument.partition("=")
        if separator and not (alias.strip() and source.strip()):
            raise SettingError(f"--model {argument!r} lacks a part. Write NAME=MODEL, or just MODEL.")
        name = alias if separator and source else argument
        if name in specs:
            raise SettingError(
                f"two models are named {name!r}. Give one another name: --model NAME={source or argument}"
            )
        path, _ = resolve_model(source if separator and source else argument, progress=progress)
        check_can_continue(load_config(path))
        specs[name] = ModelSpec(name, path)
    if not specs:
        raise SettingError("a server needs a model. Write --model default, for example.")
    first = next(iter(specs.values()))
    for argument in adapters:
        name, _, folder = argument.partition("=")
        if not (name.strip() and folder.strip()):
            raise SettingError(f"--lora {argument!r} lacks a part. Write NAME=FOLDER.")
        if name in specs:
            raise SettingError(f"two models are named {name!r}. Give the adapter another name.")
        path, _ = resolve_model(Path(folder))
        load_adapter(path, load_config(first.path), first.name)  # a wrong one is known now
        specs[name] = ModelSpec(name, path, first.name)
    return list(specs.values())


@dataclass(eq=False)
class LoadedModel:
    """A model in memory, with the service that computes with it."""

    spec: ModelSpec
    gpt: GPT
    service: Service
    texts: TokenTexts
    fingerprint: str
    files: WeightFiles
    users: int = 0  # requests using it now
    queue: QueueLimits = field(default_factory=QueueLimits)
    edited: EnginePool | None = None  # for requests with edits, once there was one
    edited_requests: int = 0  # now
    preparing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))  # the edits of requests
    adapter: int = 0  # the number of an adapter that the backend computes with
    adapters: dict[str, LoadedModel] = field(default_factory=dict)  # those that share this model, by name

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        loader: Loader,
        max_batch_size: int | None,
        queue: QueueLimits,
        adapters: Sequence[ModelSpec] = (),
    ) -> LoadedModel:
        files = WeightFiles(spec.path)
        gpt = loader(spec.path)
        numbers = {each: gpt.add_adapter(each.path) for each in adapters}
        service = gpt.start_service(max_batch_size, queue)
        model = cls(
            spec,
            gpt,
            service,
            TokenTexts(gpt.tokenizer, service.engine.vocab_size),
            f"fp_{gpt.backend.fingerprint()[:12]}",
            files,
            queue=queue,
        )
        for each, number in numbers.items():
            digest = hashlib.sha256(f"{model.fingerprint} {hash_files(each.path)}".encode()).hexdigest()
            model.adapters[each.name] = replace(
                model, spec=each, fingerprint=f"fp_{digest[:12]}", files=WeightFiles(each.path),
                adapter=number, adapters={},
            )  # fmt: skip
        return model

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def context(self) -> int:
        return self.service.engine.backend.context

    @property
    def memory(self) -> int:
        """Bytes of weights and cache, as float32 would take: an upper bound."""
        config = self.gpt.config
        copies = 1 if self.edited is None else 2
        services = [self.service, *([self.edited.service] if self.edited and self.edited.service else [])]
        rows = sum(service.rows for service in services)
        return copies * config.n_parameters * 4 + config.kv_bytes(rows * self.context)

    def edited_service(self, rows: int) -> Service:
        """The service for requests with edits. One thread at a time asks for it."""
        from glassgpt.inspect.edits.edited_backend import edited_engines

        if self.edited is None:
            self.edited = edited_engines(self.gpt)
        if self.edited.service is None:
            self.edited.start_service(rows, self.queue)
        assert self.edited.service is not None
        return self.edited.service

    def stop(self) -> None:
        self.gpt.stop_service()
        if self.edited is not None:
            self.edited.stop_service()

    def check_files(self) -> None:
        """Raise if the weights were overwritten since they were loaded."""
        changed = self.files.find_changed()
        if changed is not None:
            raise ApiError(
                503, f"The file {changed.name} of the model {self.name} was changed while it was served. "
                "Restart the server. Next time, write a new file and rename it.",
                "model", code="weights_changed",
            )  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """The ids of a text. A text that is only the name of the end-of-text token is that token."""
        if self.gpt.tokenizer is None:
            raise ApiError(400, f"The model {self.name} has no tokenizer. Send token ids.", "prompt")
        special = self.eos_text
        if special is not None and text == special:
            assert self.gpt.tokenizer.eot_id is not None
            return [self.gpt.tokenizer.eot_id]
        return self.gpt.tokenizer.encode(text)

    @property
    def eos_text(self) -> str | None:
        tokenizer = self.gpt.tokenizer
        if tokenizer is None or tokenizer.eot_id is None:
            return None
        return tokenizer.decode([tokenizer.eot_id])


def ignore_garbage() -> None:
    """Exclude existing objects from garbage collection: walking a vocabulary stops all requests for 50 ms."""
    gc.collect()
    gc.freeze()


class ModelPool:
    """All models of a server. Loading happens in a thread, one at a time, while others are served."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        loader: Loader = glassgpt.load,
        *,
        max_batch_size: int | None = None,
        queue: QueueLimits | None = None,
        max_memory: int | None = None,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.loader = loader
        self.max_batch_size = max_batch_size
        self.queue = QueueLimits() if queue is None else queue
        self.max_memory = max_memory
        self.created = int(time.time())
        self.ready = False  # whether all were loaded once
        self.contexts: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.loaded: dict[str, LoadedModel] = {}  # the least recently used one first
        self._loading = asyncio.Lock()

    async def load_all(self) -> None:
        """Load every model once, so that a broken one is known at the start. The most recently used stay."""
        for name in reversed(list(self.specs)):  # the first one is the default, and the last to be unloaded
            async with self.use(name):
                pass
        self.ready = True

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """A model for one request; it is not unloaded meanwhile."""
        name = next(iter(self.specs)) if name is None else name
        if name not in self.specs:
            raise ApiError(
                404, f"The model {name[:100]!r} does not exist. There are: {', '.join(self.specs)}.",
                "model", code="model_not_found",
            )  # fmt: skip
        base = self.specs[name].base
        loaded = await self._get(name if base is None else base)
        model = loaded if base is None else loaded.adapters[name]
        model.check_files()
        loaded.users += 1
        try:
            yield model
        finally:
            loaded.users -= 1

    async def _get(self, name: str) -> LoadedModel:
        if name not in self.loaded:
            async with self._loading:
                if name not in self.loaded:
                    self._make_room(self.sizes.get(name, 0))
                    model = await anyio.to_thread.run_sync(
                        LoadedModel.load, self.specs[name], self.loader, self.max_batch_size, self.queue,
                        [spec for spec in self.specs.values() if spec.base == name],
                    )  # fmt: skip
                    self._check_size(model)
                    for each in (name, *model.adapters):
                        self.contexts[each] = model.context
                    self.sizes[name] = model.memory
                    self._make_room(model.memory)  # its size is not known before the first time
                    self.loaded[name] = model
                    ignore_garbage()
        self.loaded[name] = self.loaded.pop(name)
        return self.loaded[name]

    def _make_room(self, needed: int) -> None:
        """Unload models that are not in use, the least recently used first, until `needed` bytes fit."""
        if self.max_memory is None:
            return
        for name, model in list(self.loaded.items()):
            if self.memory + needed <= self.max_memory:
                return
            if not model.users:
                gc.unfreeze()
                del self.loaded[name]
                model.stop()
        if self.memory + needed > self.max_memory:
            raise ApiError(
                503, "The memory for models is full, and all of them are in use. Try again in a moment.",
                "model", {"retry-after": "1"}, code="models_busy",
            )  # fmt: skip

    def _check_size(self, model: LoadedModel) -> None:
        if self.max_memory is not None and model.memory > self.max_memory:
            model.stop()
            raise SettingError(
                f"{model.name} takes {model.memory / 1e9:.1f} GB with its cache, more than the "
                f"{self.max_memory / 1e9:.1f} GB of --max-model-memory. Raise it, or lower --max-batch-size."
            )

    def check_files(self) -> None:
        """Raise if the weights of a model were overwritten since they were loaded."""
        for model in self.loaded.values():
            for each in (model, *model.adapters.values()):
                each.check_files()

    def find_loaded(self, name: str) -> LoadedModel | None:
        """A model by its name, if it is in memory."""
        base = self.specs[name].base
        if base is None:
            return self.loaded.get(name)
        return self.loaded[base].adapters[name] if base in self.loaded else None

    def is_loaded(self, name: str) -> bool:
        base = self.specs[name].base
        return (name if base is None else base) in self.loaded

    @property
    def memory(self) -> int:
        return sum(model.memory for model in self.loaded.values())

    def close(self) -> None:
        for model in self.loaded.values():
            model.stop()
        self.loaded.clear()
        gc.unfreeze()
