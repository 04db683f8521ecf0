"""Quicker ways and models that are not quite GPT-2: the same numbers as the plain way, or not taken."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassgpt.config import Config
from glassgpt.errors import SettingError
from glassgpt.evaluate.batching import plain_sheet, read
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.windows import Row
from glassgpt.gpt import GPT
from glassgpt.model import GPT2, TorchBackend
from glassgpt.model.fast_path import (
    can_capture,
    can_skip_unscored,
    can_use_triton_block,
    has_standard_attention,
    is_unmodified,
)
from glassgpt.model.gpt2 import Attention, Projection
from glassgpt.train.distributed.parallelize import check_dividable
from glassgpt.train.float8 import use_float8
from glassgpt.train.lora import Ranks, add_low_rank, merged_state
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
    return noisy(add_low_rank(plain(), Ranks(2, 2)))


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
    backend.prefill(range(rows), [text[:4] for text in texts])
    for step in range(4, 12):
        found = backend.decode(range(rows), np.array([text[step] for text in texts]), [step] * rows)
        for row, text in enumerate(texts):
            with torch.no_grad():
                whole = model(torch.tensor([text[: step + 1]]))[0, -1].numpy()
            np.testing.assert_allclose(found[row], whole, **NEAR)


@every_model
def test_reading_few_tokens_equals_reading_all(make) -> None:
    model = make()
    rows = [Row(np.arange(3, 20), 15), Row(np.arange(40, 52), 9)]
    sheet = plain_sheet(rows)
    with torch.no_grad():
        found = read(model, sheet)
        whole = model.hidden(torch.from_numpy(sheet.ids)).flatten(0, 1)[torch.from_numpy(sheet.wanted)]
    np.testing.assert_allclose(found.numpy(), whole.numpy(), **NEAR)


@every_model
def test_endings_of_one_beginning_score_as_they_do_alone(make) -> None:
    model = make()
    beginning = list(range(10, 22))
    rows = [Row(np.array([*beginning, *ending]), 12) for ending in ([1, 2, 3], [4, 5], [6, 7, 8, 9])]
    (scores,) = Scorer(TorchBackend(model)).score([rows])
    for row, found in zip(rows, scores, strict=True):
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


def test_what_a_logit_is_owed_to_counts_loras_corrections() -> None:
    lora = with_lora()
    merged = plain()
    merged.load_state_dict(merged_state(lora))
    found, wanted = (
        GPT(TorchBackend(model)).attribute(range(5, 15), target=7, method="direct")
        for model in (lora, merged)
    )
    np.testing.assert_allclose(found.heads, wanted.heads, **NEAR)
    np.testing.assert_allclose(found.logit, wanted.logit, **NEAR)


def test_a_page_that_would_compute_another_attention_is_refused() -> None:
    from glassgpt.explorer.routes.export import carried_json  # here: a machine with a GPU may have no fastapi
    from glassgpt.http.errors import Refusal

    for make, allowed in ((with_lora, True), (lambda: another_attention(plain(), Normed), False)):
        gpt = GPT(TorchBackend(make()))
        held = SimpleNamespace(gpt=gpt, trace=gpt.trace(range(5, 9)), id="x")
        if allowed:
            assert len(carried_json(held)["layers"]) == 3
        else:
            with pytest.raises(Refusal, match="attention"):
                carried_json(held)


# Its blocks by our kernels; its attention by another way; its last block for few tokens; recorded as a whole.
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
def test_which_quicker_ways_are_for_which_model(name) -> None:
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
    use_float8(model)
    assert not can_use_triton_block(model.h[0])


def test_a_model_of_another_class_is_not_recorded() -> None:
    class Scaled(GPT2):
        def head(self, x, tap=None):
            return super().head(x, tap) / 2

    assert not can_capture(Scaled(Config(**SMALL)))
    assert is_unmodified(Projection(2, 2), Projection)


def test_only_our_own_layers_are_divided_among_processes() -> None:
    model = plain()
    check_dividable(model)
    use_float8(model)
    check_dividable(model)
    for wrong in (with_lora(), another_attention(plain(), Normed)):
        with pytest.raises(SettingError, match="fsdp"):
            check_dividable(wrong)
