"""The backends of this package, each put to the same tests; and how `load` finds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

import glassgpt
from glassgpt.backends import choose as registry
from glassgpt.backends.native import NativeBackend, is_available
from glassgpt.backends.native.weights import Weights
from glassgpt.backends.numpy import NumpyBackend
from glassgpt.backends.torch import cuda_graphs
from glassgpt.backends.torch.backend import TorchBackend, arrange_for_gpu
from glassgpt.config import Config
from glassgpt.errors import SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2, NumpyGPT2
from glassgpt.weights import Checkpoint
from tests.backends.conformance import BackendConformance, Make
from tests.backends.test_fast_paths import MODELS
from tests.generate.tiny import TINY, TinyBackend
from tests.model.conftest import noisy

SMALL = Config(vocab_size=101, n_positions=48, n_embd=32, n_layer=3, n_head=4)


def small_model(**changes: object) -> GPT2:
    torch.manual_seed(4)
    return noisy(GPT2(dataclasses.replace(SMALL, **changes))).requires_grad_(False)


def numpy_twin(model: GPT2) -> NumpyGPT2:
    return NumpyGPT2(model.config, {name: values.numpy() for name, values in model.state_dict().items()})


class TestTorch(BackendConformance):
    @pytest.fixture
    def make(self) -> Make:
        model = small_model()
        return lambda rows: TorchBackend(model, rows=rows)


class TestTorchInFloat64(BackendConformance):
    tolerance = 2e-6  # logits leave in float32

    @pytest.fixture
    def make(self) -> Make:
        model = small_model().double()
        return lambda rows: TorchBackend(model, rows=rows)


class TestTorchOfAnotherModel(BackendConformance):
    """One that no fast path was made for."""

    @pytest.fixture(params=["lora", "another attention", "relu"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        model = MODELS[request.param]()
        return lambda rows: TorchBackend(model, rows=rows)


@pytest.mark.skipif(not is_available(), reason="the native engine was not built")
class TestNative(BackendConformance):
    @pytest.fixture(params=["float32", "int8", "int4", "int8 exact", "int4 exact"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        model = small_model()
        tensors = {name: values.numpy() for name, values in model.state_dict().items()}
        dtype, *exact = request.param.split()
        weights = Weights(Checkpoint(model.config, tensors), dtype=dtype)
        if exact:
            return lambda rows: NativeBackend(weights, rows=rows).exact_backend()
        return lambda rows: NativeBackend(weights, rows=rows)


class TestNumpy(BackendConformance):
    @pytest.fixture
    def make(self) -> Make:
        model = numpy_twin(small_model())
        return lambda rows: NumpyBackend(model, rows=rows)


class TestNumpyInFloat64(BackendConformance):
    tolerance = 2e-6  # logits leave in float32

    @pytest.fixture
    def make(self) -> Make:
        model = numpy_twin(small_model().double())
        return lambda rows: NumpyBackend(model, rows=rows)


class TestStandIn(BackendConformance):
    """The stand-in that the engine's tests run on."""

    @pytest.fixture
    def make(self) -> Make:
        return lambda rows: TinyBackend(rows, TINY)


class GraphConformance(BackendConformance):
    tolerance = 1e-4

    @pytest.mark.parametrize("sizes", [(100, 100), (64, 1, 200), (130, 20), (3, 290)])
    def test_long_texts_in_chunks(self, make: Make, sizes: tuple[int, ...]) -> None:
        """Across the chunks of a graph, and from the graph for short texts to the one for long ones."""
        backend = make(2)
        text = torch.randint(0, 101, (sum(sizes),)).tolist()
        start = 0
        for size in sizes:
            last = backend.extend([1], [text[start : start + size]], [start])
            start += size
            self.close(last[0], backend.logits([text[:start]])[0, -1])

    def test_many_rows_of_all_lengths(self, make: Make) -> None:
        backend = make(11)
        texts = [[i % 101 for i in range(1, n + 1)] for n in (1, 64, 65, 128, 5, 6, 7, 8, 9, 10, 100)]
        starts = [0, 10, 60, 64, 0, 1, 2, 3, 4, 5, 99]
        rows = [row for row, start in enumerate(starts) if start]
        backend.extend(rows, [texts[row][: starts[row]] for row in rows], logits="none")
        last = backend.extend(
            range(11), [text[start:] for text, start in zip(texts, starts, strict=True)], starts
        )
        for row, text in enumerate(texts):
            self.close(last[row], backend.logits([text])[0, -1])


class Again:
    """In place of a CUDA graph: the same buffers, computed again."""

    def __init__(self, inputs: torch.Tensor, forward: Callable[[], torch.Tensor]) -> None:
        self.inputs, self.replay = inputs, forward
        forward()


class TestGraphsWithoutADevice(GraphConformance):
    """What surrounds the graphs (staging caches, chunks, positions), with stand-ins for what needs CUDA."""

    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> Make:
        monkeypatch.setattr(cuda_graphs, "CapturedGraph", Again)
        monkeypatch.setattr(cuda_graphs, "on_device", lambda values, device: torch.from_numpy(values))
        monkeypatch.setattr(cuda_graphs, "KERNEL_DTYPES", ())
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)
        model = small_model(n_positions=300)

        def made(rows: int) -> TorchBackend:
            backend = TorchBackend(model, rows=rows)
            backend.graphs = cuda_graphs.GraphRunner(model, backend.cache)
            return backend

        return made


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda(GraphConformance):
    @pytest.fixture
    def make(self) -> Make:
        model = arrange_for_gpu(small_model(n_positions=300).cuda())
        return lambda rows: TorchBackend(model, rows=rows)


class TestRegistry:
    def test_on_a_cpu_native_is_the_default_where_it_was_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = NativeBackend if is_available() else TorchBackend
        assert type(glassgpt.load("tiny", device="cpu").backend) is kind
        monkeypatch.setattr("glassgpt.backends.native.is_available", lambda: False)
        assert type(glassgpt.load("tiny", device="cpu").backend) is TorchBackend

    @pytest.mark.parametrize(
        ("changes", "device", "dtype"),
        [({"attention": "relative"}, "cpu", None), ({}, "cuda", None), ({}, "cpu", "float64")],
    )
    def test_torch_does_what_native_cannot(
        self, changes: dict[str, object], device: str, dtype: str | None
    ) -> None:
        config = dataclasses.replace(SMALL, **changes)
        assert registry.default_backend(config, device, dtype) == "torch"

    def test_torch_is_the_default_where_a_gpu_may_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "may_have_gpu", lambda: True)
        assert registry.default_backend(SMALL) == "torch"

    @pytest.mark.parametrize("name", ["abacus", ""])
    def test_an_unknown_name_is_refused_with_the_list(self, name: str) -> None:
        with pytest.raises(SettingError, match=rf"backend '{name}' is not one of native, torch, numpy\."):
            glassgpt.load("tiny", backend=name)

    def test_one_that_is_not_installed_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registry.BACKENDS, "fast", "no_such_library.backend:Fast")
        with pytest.raises(
            UserError, match=r"needs no_such_library\. Install it with: pip install 'glassgpt\[fast\]'"
        ):
            glassgpt.load("tiny", backend="fast")

    def test_another_backend_is_loaded_by_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            TinyBackend, "load", staticmethod(lambda checkpoint, **_: TinyBackend()), raising=False
        )
        monkeypatch.setitem(registry.BACKENDS, "tiny", "tests.generate.tiny:TinyBackend")
        backend = registry.load_backend(None, "tiny")  # type: ignore[arg-type]
        assert isinstance(backend, TinyBackend)
        with pytest.raises(UserError, match="this backend does not show its steps"):
            GPT(backend).torch_model  # noqa: B018
