"""CUDA graphs and Triton kernels against the plain pass on the CPU. Skipped where there is no CUDA device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from glassgpt.backends.torch.backend import TorchBackend, arrange_for_gpu
from glassgpt.backends.torch.fast_path import can_capture
from glassgpt.config import Config
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from tests.backends.test_fast_paths import MODELS
from tests.generate.test_threads import together
from tests.model.conftest import noisy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Heads of 16, 48 (not a power of two) and 64; an MLP of another width; another activation.
SHAPES = {
    "narrow": {"n_embd": 64, "n_head": 4},
    "odd head": {"n_embd": 96, "n_head": 2},
    "wide": {"n_embd": 256, "n_head": 4, "n_inner": 700},
    "relu": {"n_embd": 128, "n_head": 2, "activation_function": "relu"},
    "by layer": {"n_embd": 128, "n_head": 2, "scale_attn_by_inverse_layer_idx": True},
    "untied": {"n_embd": 128, "n_head": 2, "tie_word_embeddings": False},
}


def pair(shape: dict[str, object]) -> tuple[GPT2, GPT2]:
    torch.manual_seed(9)
    plain = noisy(GPT2(Config(vocab_size=331, n_positions=300, n_layer=3, **shape))).requires_grad_(False)
    return plain, arrange_for_gpu(copy.deepcopy(plain).cuda())


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_float32_equals_the_cpu(shape: dict[str, object], rows: int) -> None:
    plain, fast = pair(shape)
    cpu, gpu = TorchBackend(plain, rows=rows), TorchBackend(fast, rows=rows)
    lengths = [5, 200, 64, 129, 1, 65, 30, 290][:rows]
    prompts = [torch.randint(0, 331, (n,)).tolist() for n in lengths]
    expected, found = cpu.extend(range(rows), prompts), gpu.extend(range(rows), prompts).cpu().numpy()
    # A few float32 roundings of logits of order 10, three blocks deep.
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    for step in range(9):
        ids, positions = [(7 * step + r) % 331 for r in range(rows)], [n + step for n in lengths]
        expected = cpu.decode(range(rows), ids, positions)
        found = gpu.decode(range(rows), ids, positions).cpu().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rows", [3, 8])
def test_bfloat16_rows_do_not_depend_on_their_neighbors_bit_for_bit(rows: int) -> None:
    _, fast = pair({"n_embd": 256, "n_head": 4})
    model = fast.to(torch.bfloat16)
    prompts = {0: [1, 2, 3], 1: [9] * 250, 2: [50, 60] * 40, rows - 1: [4]}

    def play(some: dict[int, list[int]]) -> dict[int, list[torch.Tensor]]:
        backend = TorchBackend(model, rows=rows)
        first = backend.extend(list(some), list(some.values()))
        seen = {row: [logits] for row, logits in zip(some, first, strict=True)}
        for step in range(12):
            latest = [int(seen[row][-1].argmax()) for row in some]
            logits = backend.decode(list(some), latest, [len(ids) + step for ids in some.values()])
            for row, row_logits in zip(some, logits, strict=True):
                seen[row].append(row_logits)
        return seen

    together = play(prompts)
    for row, ids in prompts.items():
        assert all(map(torch.equal, play({row: ids})[row], together[row]))


def test_the_same_seed_gives_the_same_text_in_any_company() -> None:
    _, fast = pair({"n_embd": 256, "n_head": 4})
    prompts = [[i + 1] * (3 * i + 1) for i in range(8)]
    gpt = GPT(TorchBackend(fast.to(torch.bfloat16), rows=8))
    settings = {"max_new_tokens": 40, "temperature": 0.9, "top_p": 0.9, "seed": 5, "ignore_eot": True}
    together = [generation.tokens for generation in gpt.generate(prompts, **settings)]
    reordered = [generation.tokens for generation in gpt.generate(prompts[::-1], **settings)]
    assert together == reordered[::-1]


def test_past_the_context_and_greedy_like_the_cpu() -> None:
    plain, fast = pair({"n_embd": 64, "n_head": 4})
    settings = {"max_new_tokens": 400, "temperature": 0, "ignore_eot": True}
    expected = GPT(TorchBackend(plain)).generate([3, 1, 4, 1, 5], **settings)
    found = GPT(TorchBackend(fast)).generate([3, 1, 4, 1, 5], **settings)
    assert found.tokens == expected.tokens
    assert found.notes == expected.notes
    assert len(found.notes) == 1


def test_float64_keeps_its_precision() -> None:
    """The kernels sum in float32, so it goes another way."""
    plain, fast = (model.double() for model in pair({"n_embd": 64, "n_head": 4}))
    cpu, gpu = TorchBackend(plain), TorchBackend(fast)
    ids = [3, 1, 4, 1, 5]
    for backend in (cpu, gpu):
        backend.extend([0], [ids[:2]])
    for position in (2, 3, 4):
        expected = cpu.decode([0], [ids[position]], [position])
        found = gpu.decode([0], [ids[position]], [position]).cpu().numpy()
        np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)  # the logits leave in float32


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", ["relu", "lora", "another attention", "chained attention", "hooked"])
def test_a_model_that_is_not_quite_gpt2_equals_the_cpu(name: str, rows: int) -> None:
    plain, fast = MODELS[name](), MODELS[name]().cuda()
    cpu, gpu = TorchBackend(plain, rows=rows), TorchBackend(fast, rows=rows)
    assert (gpu.graphs is not None) == can_capture(plain)
    prompts = [list(range(2 + row, 9 + 2 * row)) for row in range(rows)]
    expected, found = cpu.extend(range(rows), prompts), gpu.extend(range(rows), prompts).cpu().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    for step in range(6):
        ids, positions = [7 + step + row for row in range(rows)], [len(ids) + step for ids in prompts]
        expected = cpu.decode(range(rows), ids, positions)
        found = gpu.decode(range(rows), ids, positions).cpu().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["lora", "another attention"])
def test_a_model_that_is_not_quite_gpt2_writes_and_is_traced(name: str) -> None:
    here, there = GPT(TorchBackend(MODELS[name]())), GPT(TorchBackend(MODELS[name]().cuda()))
    settings = {"max_new_tokens": 30, "temperature": 0, "ignore_eot": True}
    expected = here.generate([[3, 1, 4], [1, 5]], **settings)
    assert [g.tokens for g in there.generate([[3, 1, 4], [1, 5]], **settings)] == [g.tokens for g in expected]
    assert there.generate([3, 1, 4], **settings).tokens == expected[0].tokens
    mine, theirs = here.trace(range(5, 15)), there.trace(range(5, 15))
    for step in ("h.1.attn.weights", "h.2.mlp.gelu", "logits"):
        np.testing.assert_allclose(theirs[step], mine[step], atol=1e-4, rtol=0, err_msg=step)


@torch.no_grad()
@pytest.mark.parametrize("name", ["plain", "relu", "lora", "another attention"])
def test_the_head_keeps_the_float32_sums_of_a_half_precision_product(name: str) -> None:
    model = MODELS[name]().cuda().to(torch.bfloat16)
    x = model.hidden(torch.arange(5, 25, device="cuda")[None])
    logits = model.head(x)
    assert logits.dtype == torch.float32
    weight = model.wte.weight.float()
    # The products of bfloat16 numbers are exact in float32; only their sum rounds.
    torch.testing.assert_close(logits, x.float() @ weight.t(), atol=1e-3, rtol=1e-5)


def test_many_threads_write_and_look_inside_at_the_same_time() -> None:
    """The first calls capture their steps, which what other threads ask of the device must not break."""
    _, fast = pair({"n_embd": 64, "n_head": 4})
    settings = {"max_new_tokens": 20, "seed": 5, "ignore_eot": True}

    def questions(gpt: GPT) -> list[Callable[[], object]]:
        return [
            lambda: gpt.generate([1, 2, 3], **settings).tokens,
            lambda: [g.tokens for g in gpt.generate([[1, 2], [3], [4, 5, 6]], **settings)],
            lambda: list(gpt.stream([7, 8], **settings)),
            lambda: gpt.trace(range(5, 15)).logits_at().argmax().item(),
            lambda: gpt.logits([[1, 2, 3]])[0].argmax(-1).tolist(),
            lambda: [g.tokens for g in gpt.generate([1, 2], beams=3, samples=3, max_new_tokens=9).samples],
            lambda: gpt.next_ids([3, 4], k=3)[0][0],
        ] * 2

    alone = [question() for question in questions(GPT(TorchBackend(fast)))]
    assert together(questions(GPT(TorchBackend(fast)))) == alone


@pytest.fixture
def unwritten_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def relative_by_definition(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    position = torch.arange(q.shape[2], device="cuda")
    distance = position[:, None] - position
    rows = table[:, distance.clamp(0, table.shape[1] - 1)]  # (H, T, T, D)
    scores = (q @ k.mT + torch.einsum("bhtd,htsd->bhts", q, rows)) * q.shape[3] ** -0.5
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


# Whole tiles and not, tables shorter and longer than the text, with tiles out of their reach and without.
@pytest.mark.parametrize(
    ("length", "clip", "width", "dtype"),
    [
        (70, 70, 32, torch.float32),
        (200, 64, 32, torch.float32),
        (128, 300, 32, torch.float32),
        (1, 4, 16, torch.float32),
        (130, 1, 16, torch.float32),
        (130, 50, 128, torch.float32),
        (640, 640, 64, torch.bfloat16),
        (640, 128, 64, torch.bfloat16),
        (333, 100, 64, torch.float16),
        (384, 200, 128, torch.bfloat16),
    ],
)
@pytest.mark.usefixtures("unwritten_memory_is_nan")
def test_the_kernel_of_relative_attention_is_its_definition(
    length: int, clip: int, width: int, dtype: torch.dtype
) -> None:
    from glassgpt.model.variants.relative_kernel import relative_attention

    torch.manual_seed(0)
    projection = torch.randn(3, length, 3 * 2 * width, device="cuda", dtype=dtype)
    inputs = [x.view(3, length, 2, width).transpose(1, 2) for x in projection.chunk(3, dim=2)]
    inputs.append(torch.randn(2, clip, width, device="cuda", dtype=dtype))
    exact = [x.double().requires_grad_() for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    expected = relative_by_definition(*exact)
    out = relative_attention(*inputs)
    weight = torch.randn_like(out)
    error = 1e-4 if dtype == torch.float32 else 0.03  # of the largest value
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=error * float(expected.abs().max()))
    for got, want in zip(
        torch.autograd.grad(out, inputs, weight),
        torch.autograd.grad(expected, exact, weight.double()),
        strict=True,
    ):
        largest = max(float(want.abs().max()), 1.0)  # a table of one row has no gradient
        torch.testing.assert_close(got.double(), want, rtol=0, atol=error * largest)


def test_the_kernel_of_relative_attention_takes_any_layout_and_compiles() -> None:
    from glassgpt.model.variants.relative_kernel import relative_attention

    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, 200, 32, device="cuda", requires_grad=True) for _ in range(3)]
    inputs.append(torch.randn(90, 2, 32, device="cuda").transpose(0, 1).requires_grad_())
    results = []
    for attend in (relative_by_definition, relative_attention, torch.compile(relative_attention)):
        out = attend(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for found in results[1:]:
        for got, want in zip(found, results[0], strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-3 * float(want.abs().max()))
