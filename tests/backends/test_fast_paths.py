"""Every fast path against the plain forward pass, also on models it was not made for: the same values, or not
taken. (CUDA graphs and Triton kernels: test_gpu.py, on the same models.)
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.backends.torch.fast_path import (
    can_capture,
    can_skip_unscored,
    can_use_triton_block,
    has_standard_attention,
    is_unmodified,
)
from glassgpt.backends.torch.scoring_batches import pack_texts, scored_hidden
from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2, activations
from glassgpt.model.activations import can_use_fast_gelu, fast_gelu_tanh
from glassgpt.model.gpt2 import Attention, Projection
from glassgpt.model.head import can_return_float32
from glassgpt.train.distributed.parallelize import check_tensor_parallel
from glassgpt.train.layers.float8 import apply_float8
from glassgpt.train.layers.lora import Ranks, add_lora, merged_state_dict
from glassgpt.train.objectives.loss import head_and_loss
from tests.model.conftest import noisy

SMALL = {"vocab_size": 101, "n_positions": 48, "n_embd": 32, "n_layer": 3, "n_head": 4}
# Some float32 roundings of logits of order 10, three blocks deep.
NEAR = {"atol": 5e-5, "rtol": 0}


class Normed(Attention):
    """Queries and keys of length one, and half of what comes of it."""

    def split_heads(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(super().split_heads(x), dim=-1)

    def forward(self, *inputs) -> Tensor:
        return super().forward(*inputs) / 2


class Chained(Attention):
    """Adds what the attention of the block before has found: not a function of the stream alone."""

    def forward(self, *inputs) -> Tensor:
        self.found = super().forward(*inputs)
        return sum((other.found for other in self.before), self.found)


def another_attention(model: GPT2, kind: type[Attention]) -> GPT2:
    before: list[nn.Module] = []
    for block in model.h:
        block.attn.__class__ = kind
        block.attn.before, before = before, [block.attn]
    return model


def plain(**options: object) -> GPT2:
    torch.manual_seed(3)
    return noisy(GPT2(Config(**{**SMALL, **options}))).requires_grad_(False)


def with_lora() -> GPT2:
    return noisy(add_lora(plain(), Ranks(2, 2)))


def hooked() -> GPT2:
    model = plain()
    model.h[-1].attn.c_attn.register_forward_hook(lambda part, given, found: found * 0.7)
    model.h[1].attn.register_forward_hook(lambda part, given, found: found * 0.7)
    return model


MODELS = {
    "plain": plain,
    "relu": lambda: plain(activation_function="relu"),
    "exact gelu": lambda: plain(activation_function="gelu"),
    "by layer": lambda: plain(scale_attn_by_inverse_layer_idx=True),
    "lora": with_lora,
    "another attention": lambda: another_attention(plain(), Normed),
    "chained attention": lambda: another_attention(plain(), Chained),
    "hooked": hooked,
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_model
@pytest.mark.parametrize("rows", [1, 3])
def test_decoding_equals_the_whole_pass(make, rows) -> None:
    model = make()
    backend = TorchBackend(model, rows=rows)
    texts = [list(range(5 + row, 17 + 2 * row)) for row in range(rows)]
    backend.extend(range(rows), [text[:4] for text in texts])
    for step in range(4, 12):
        found = backend.decode(range(rows), np.array([text[step] for text in texts]), [step] * rows)
        for row, text in enumerate(texts):
            with torch.no_grad():
                full = model(torch.tensor([text[: step + 1]]))[0, -1].numpy()
            np.testing.assert_allclose(found[row], full, **NEAR)


@every_model
def test_reading_few_tokens_equals_reading_all(make) -> None:
    model = make()
    batch = pack_texts([ScoreRequest(np.arange(3, 20), 15), ScoreRequest(np.arange(40, 52), 9)])
    with torch.no_grad():
        found = scored_hidden(model, batch)
        full = model.hidden(torch.from_numpy(batch.ids)).flatten(0, 1)[torch.from_numpy(batch.scored)]
    np.testing.assert_allclose(found.numpy(), full.numpy(), **NEAR)


@every_model
def test_endings_of_one_beginning_score_as_they_do_alone(make) -> None:
    model = make()
    beginning = list(range(10, 22))
    endings = ([1, 2, 3], [4, 5], [6, 7, 8, 9])
    rows = [ScoreRequest(np.array([*beginning, *ending]), 12) for ending in endings]
    scores = {i: one for found in TorchBackend(model).score([rows]) for i, one in zip(*found, strict=True)}
    for i, row in enumerate(rows):
        found = scores[0, i]
        with torch.no_grad():
            log_p = model(torch.from_numpy(row.ids)[None])[0].log_softmax(-1)
        wanted = [float(log_p[i - 1, row.ids[i]]) for i in range(row.first, len(row.ids))]
        np.testing.assert_allclose(found.logprobs, wanted, **NEAR)


@every_model
def test_looking_into_a_block_shows_what_the_whole_pass_had(make) -> None:
    model = make()
    gpt = GPT(TorchBackend(model))
    trace = gpt.trace(range(5, 15))
    assert trace.residual[1].shape == (10, 32)
    gpt.trace(range(50, 60)).norms  # noqa: B018  # another text in between
    names = ("h.2.mlp.gelu", "h.2.attn.proj", "h.1.attn.merged")
    found = {name: trace[name] for name in names}
    seen: dict[str, Tensor] = {}

    def tap(name: str, x: Tensor) -> Tensor:
        seen[name] = x[0]
        return x

    with torch.no_grad():
        model(torch.arange(5, 15)[None], tap=tap)
    for name in names:
        np.testing.assert_allclose(found[name], seen[name].numpy(), **NEAR)


class TestFastGelu:
    def test_equals_the_plain_one(self) -> None:
        x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e20, -200.0, 0.0, 200.0, 1e20])])
        with torch.no_grad():
            assert can_use_fast_gelu(x)
            # Both round in float32; the largest finite argument of interest is 12.
            torch.testing.assert_close(
                fast_gelu_tanh(x), F.gelu(x.double(), approximate="tanh").float(), atol=2e-6, rtol=1e-6
            )

    def test_is_for_float32_on_a_cpu_without_gradients(self) -> None:
        x = torch.randn(3)
        assert not can_use_fast_gelu(x)  # gradients are on: it works in place
        with torch.no_grad():
            assert not can_use_fast_gelu(x.double())
            assert not can_use_fast_gelu(x.bfloat16())
            assert not can_use_fast_gelu(x.to("meta"))

    @every_model
    def test_a_model_computes_the_same_with_and_without_it(self, make, monkeypatch) -> None:
        model, ids = make(), torch.arange(5, 25)[None]
        with torch.no_grad():
            fast = model(ids)
            monkeypatch.setattr(activations, "can_use_fast_gelu", lambda x: False)
            np.testing.assert_allclose(fast.numpy(), model(ids).numpy(), **NEAR)

    def test_other_activations_never_meet_it(self, monkeypatch) -> None:
        monkeypatch.setattr(activations, "fast_gelu_tanh", None)
        with torch.no_grad():
            for name in ("gelu", "relu", "silu", "tanh"):
                assert plain(activation_function=name)(torch.arange(5)[None]).isfinite().all()


def test_the_head_returns_float32_on_cuda_in_half_precision_without_gradients_only() -> None:
    def on(is_cuda: bool, dtype: torch.dtype) -> SimpleNamespace:
        return SimpleNamespace(is_cuda=is_cuda, element_size=lambda: dtype.itemsize)

    with torch.no_grad():
        assert can_return_float32(on(True, torch.bfloat16))
        assert can_return_float32(on(True, torch.float16))
        assert not can_return_float32(on(False, torch.bfloat16))
        assert not can_return_float32(on(True, torch.float32))
    assert not can_return_float32(on(True, torch.bfloat16))  # training rounds like the rest of the pass


def cross_entropy_with_grad(logits: Tensor, targets: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    loss = F.cross_entropy(logits, targets, reduction="sum")
    return loss, logits.softmax(-1) - F.one_hot(targets, vocab_size)


@pytest.mark.parametrize("name", ["plain", "relu", "lora", "another attention"])
def test_the_chunked_loss_equals_the_plain_one(name) -> None:
    ids = torch.randint(0, 101, (200, 48), generator=torch.Generator().manual_seed(1))  # more than a chunk
    found = []
    for chunked in (True, False):
        model = MODELS[name]().requires_grad_(True)
        head = model.wte if model.lm_head is None else model.lm_head
        if chunked:
            x = model.hidden(ids[:, :-1]).flatten(0, 1)
            loss = head_and_loss(x, head.weight, ids[:, 1:].flatten(), cross_entropy_with_grad)
        else:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (loss, grads), (plain_loss, plain_grads) = found
    torch.testing.assert_close(loss, plain_loss)
    assert grads.keys() == plain_grads.keys()
    for parameter, grad in grads.items():
        # Sums of 9,400 float32 terms in another order.
        atol = 1e-4 * plain_grads[parameter].abs().max().item()
        torch.testing.assert_close(grad, plain_grads[parameter], atol=atol, rtol=1e-3, msg=parameter)


def test_what_a_logit_is_owed_to_counts_loras_corrections() -> None:
    lora = with_lora()
    merged = plain()
    merged.load_state_dict(merged_state_dict(lora))
    found, wanted = (
        GPT(TorchBackend(model)).attribute(range(5, 15), target=7, method="direct_logit_attribution")
        for model in (lora, merged)
    )
    np.testing.assert_allclose(found.heads, wanted.heads, **NEAR)
    np.testing.assert_allclose(found.logit, wanted.logit, **NEAR)


def test_a_page_that_would_compute_another_attention_is_refused() -> None:
    from glassgpt.explorer.routes.export import (
        activations_json,  # here: a machine with a GPU may have no fastapi
    )
    from glassgpt.http.errors import ApiError

    for make, allowed in ((with_lora, True), (lambda: another_attention(plain(), Normed), False)):
        gpt = GPT(TorchBackend(make()))
        held = SimpleNamespace(gpt=gpt, trace=gpt.trace(range(5, 9)), id="x")
        if allowed:
            assert len(activations_json(held)["layers"]) == 3
        else:
            with pytest.raises(ApiError, match="attention"):
                activations_json(held)


# Triton blocks; one-token attention; the last block for scored tokens only; CUDA graphs.
DECISIONS = {
    "plain": (True, True, True, True),
    "relu": (False, True, True, True),
    "exact gelu": (False, True, True, True),
    "by layer": (True, True, True, True),
    "lora": (False, True, False, True),
    "another attention": (False, False, False, False),
    "chained attention": (False, False, False, False),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_which_fast_paths_are_for_which_model(name) -> None:
    model = MODELS[name]()
    last = model.h[-1]
    assert (
        can_use_triton_block(last), has_standard_attention(last), can_skip_unscored(last), can_capture(model)
    ) == DECISIONS[name]  # fmt: skip


def test_kernels_are_for_what_they_were_written_for() -> None:
    def fits(change=None) -> bool:
        block = copy.deepcopy(plain().h[0])
        if change is not None:
            change(block)
        return can_use_triton_block(block)

    def replace_norm(block) -> None:
        block.ln_2 = nn.RMSNorm(32)

    assert fits()
    assert fits(lambda block: block.to(torch.bfloat16))
    assert not fits(lambda block: block.double())
    assert not fits(lambda block: block.train())
    assert not fits(lambda block: block.mlp.half())
    assert not fits(replace_norm)
    assert not fits(lambda block: setattr(block.mlp, "forward", lambda x, tap: x))
    assert not fits(lambda block: block.mlp.c_fc.register_forward_pre_hook(lambda part, given: given))
    assert not can_use_triton_block(nn.Identity())
    model = plain()
    apply_float8(model)
    assert not can_use_triton_block(model.h[0])


def test_a_model_of_another_class_is_not_captured() -> None:
    class Scaled(GPT2):
        def head(self, x, tap=None):
            return super().head(x, tap) / 2

    assert not can_capture(Scaled(Config(**SMALL)))
    assert is_unmodified(Projection(2, 2), Projection)


def test_only_our_own_layers_are_divided_among_processes() -> None:
    model = plain()
    check_tensor_parallel(model)
    apply_float8(model)
    check_tensor_parallel(model)
    for wrong in (with_lora(), another_attention(plain(), Normed)):
        with pytest.raises(SettingError, match="fsdp"):
            check_tensor_parallel(wrong)
