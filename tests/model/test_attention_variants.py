"""Attention's relatives: each against its definition; what may see what; cached, padded, traced, saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes.attention.segments import read_segments, segment_losses
from torch import Tensor
from torch.nn import functional as F

from glassgpt.backends.protocol import ScoreRequest
from glassgpt.backends.torch.backend import TorchBackend, load_model
from glassgpt.backends.torch.fast_path import can_capture, has_standard_blocks
from glassgpt.config import ATTENTIONS, Config
from glassgpt.errors import ConfigError, SettingError
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead, Patch
from glassgpt.inspect.parameters.tally import tally
from glassgpt.inspect.taps import list_steps, shape_of
from glassgpt.model import GPT2
from glassgpt.model.attention import AttentionInputs
from glassgpt.model.gpt2 import Attention
from glassgpt.model.variants.compressed import compress, visible_slots
from glassgpt.model.variants.memory import Memory
from glassgpt.model.variants.relative import scores_by_gathering, scores_by_skewing
from glassgpt.verify.checks import verify
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint
from tests.model.conftest import noisy

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL: dict[str, Any] = {"vocab_size": 101, "n_positions": 48, "n_embd": 32, "n_layer": 3, "n_head": 4}
NEAR = {"atol": 5e-5, "rtol": 0}  # some float32 roundings of logits of order 10, three blocks deep
CAUSAL: dict[str, dict[str, Any]] = {
    "relative": {"attention": "relative"},
    "clipped": {"attention": "relative", "relative_distance": 5, "absolute_positions": False},
    "memory": {"attention": "memory", "memory_length": 8},
    "local": {"attention": "local", "local_block": 6},
    "compressed": {"attention": "compressed", "local_block": 5},
}


def make(**settings: Any) -> GPT2:
    torch.manual_seed(3)
    return noisy(GPT2(Config(**(SMALL | settings)))).requires_grad_(False)


ALL = CAUSAL | {"bidirectional": {"attention": "bidirectional", "mask_token_id": 100}}


@pytest.fixture(params=ALL)
def any_model(request: pytest.FixtureRequest) -> GPT2:
    return make(**ALL[request.param])


@pytest.fixture(params=CAUSAL)
def causal(request: pytest.FixtureRequest) -> GPT2:
    return make(**CAUSAL[request.param])


def influence(model: GPT2, length: int) -> np.ndarray:
    """(length, length) of bool: whether the logits of the row change with the token of the column."""
    ids = torch.arange(5, 5 + length)[None]
    with torch.no_grad():
        plain = model(ids)[0]
        columns = []
        for j in range(length):
            changed = ids.clone()
            changed[0, j] = 77
            columns.append((model(changed)[0] != plain).any(dim=1))
    return torch.stack(columns, dim=1).numpy()


# Every causal one.


def test_the_config_lists_its_tensors(any_model: GPT2) -> None:
    state = {name: tuple(value.shape) for name, value in any_model.state_dict().items()}
    assert state == any_model.config.shapes()
    assert all(line.meaning for line in tally(any_model.config).lines)


def test_no_token_sees_a_later_one(causal: GPT2) -> None:
    seen = influence(causal, 20)
    assert not np.triu(seen, 1).any()
    assert seen.diagonal().all()


@pytest.mark.parametrize("rows", [1, 3])
def test_cached_equals_uncached(causal: GPT2, rows: int) -> None:
    assert not has_standard_blocks(causal)
    assert not can_capture(causal)
    backend = TorchBackend(causal, rows=rows)
    texts = [list(range(5 + row, 24 + 2 * row)) for row in range(rows)]
    starts = [3 + 4 * row for row in range(rows)]
    backend.extend(range(rows), [text[:start] for text, start in zip(texts, starts, strict=True)])
    backend.extend([0], [texts[0][3:7]], [3])  # some more of one row, all at once
    starts[0] = 7
    for step in range(8):
        where = [start + step for start in starts]
        ids = np.array([text[at] for text, at in zip(texts, where, strict=True)])
        found = backend.decode(range(rows), ids, where)
        for row, (text, at) in enumerate(zip(texts, where, strict=True)):
            np.testing.assert_allclose(found[row], backend.logits([text[: at + 1]])[0, -1], **NEAR)


@torch.no_grad()
def test_padded_equals_alone(causal: GPT2) -> None:
    ids = torch.tensor([[0, 0, 0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]])
    positions = torch.tensor([[-1, -1, -1, 0, 1, 2, 3, 4], list(range(8))])
    together = causal(ids, positions)
    assert together.isfinite().all()
    torch.testing.assert_close(together[0, 3:], causal(ids[:1, 3:])[0], **NEAR)
    torch.testing.assert_close(together[1], causal(ids[1:])[0], **NEAR)


def test_a_trace_shows_every_step(causal: GPT2) -> None:
    trace = GPT(TorchBackend(causal)).trace(range(5, 15))
    steps = trace.read(*list_steps(causal.config))
    for name, values in steps.items():
        assert values.shape == shape_of(causal.config, name, 10), name
    logits = causal(torch.arange(5, 15)[None])[0]
    np.testing.assert_allclose(trace["logits"], logits, **NEAR)
    np.testing.assert_allclose(trace.append(15).logits[-1], causal(torch.arange(5, 16)[None])[0, -1], **NEAR)


def test_packed_holds_it_and_no_other_program_is_given_it(any_model: GPT2, tmp_path: Path) -> None:
    tensors = {name: value.numpy() for name, value in any_model.state_dict().items()}
    checkpoint = Checkpoint(any_model.config, tensors, None, source="here")
    save_checkpoint(checkpoint, tmp_path / "packed", format="packed")
    again = load_model(load_checkpoint(tmp_path / "packed"), device="cpu")
    assert again.config == any_model.config
    assert type(again.h[0].attn) is type(any_model.h[0].attn)
    for name, value in again.state_dict().items():  # int8 has steps of a 127th of a row's largest value
        torch.testing.assert_close(
            value, any_model.state_dict()[name], atol=float(value.abs().max()) / 250, rtol=0
        )
    for name, target in {
        "hf": "out", "gguf": "out.gguf", "openai": "out", "nanogpt": "out.pt", "llmc": "out.bin"
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=f"no attention '{any_model.config.attention}'") as caught:
            save_checkpoint(checkpoint, tmp_path / name / target, format=name)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_tap_at_any_step_changes_what_follows(any_model: GPT2) -> None:
    """Each step replaced by that of another text: the pass goes on with it, and not with its own."""
    gpt = GPT(TorchBackend(any_model))
    here, there = list(range(5, 16)), list(range(25, 36))
    plain, other = gpt.trace(here), gpt.trace(there)
    last = f"h.{any_model.config.n_layer - 1}.resid_post"
    for name in list_steps(any_model.config):
        if name == "logits":  # nothing follows
            continue
        found = gpt.intervene(here, [Patch(name, there)])
        np.testing.assert_allclose(found.after[name], other[name], **NEAR, err_msg=name)
        if name != "wpe":  # positions are the same
            assert not np.allclose(found.after.logits, plain.logits, atol=1e-4), name
        if name in ("embed", last, "ln_f"):
            np.testing.assert_allclose(found.after.logits, other.logits, **NEAR, err_msg=name)
    for head in range(any_model.config.n_head):
        after = gpt.intervene(here, [AblateHead(1, head, how="zero")]).after
        assert (after["h.1.attn.z"][head] == 0).all()
    direct = gpt.attribute(here, 50, "direct_logit_attribution", 8)
    assert direct.total == pytest.approx(plain.logits[8, 50], abs=1e-3)
    gradients = gpt.attribute(here, 50, "input_x_gradient", 8).scores
    assert np.isfinite(gradients).all()
    assert gradients[0] != 0 or any_model.config.attention == "local"  # a block of 6: 0 is not seen from 8
    assert (gradients[9:] != 0).all() == (not any_model.config.is_causal)


@pytest.mark.slow
def test_every_mode_of_running_it_agrees_with_the_reference(causal: GPT2) -> None:
    """Prefill in chunks, the engine's unequal lengths, ragged batches, scores, padding: as for GPT-2's."""
    tensors = {name: value.numpy() for name, value in causal.state_dict().items()}
    checkpoint = Checkpoint(causal.config, tensors, None, source="here")
    checks = list(verify(checkpoint, [("torch", "cpu", "float32")]))
    assert len(checks) > 8
    assert all(check.ok for check in checks), [check for check in checks if not check.ok]


OWN_SETTINGS: dict[str, Any] = {
    "relative_distance": 5, "absolute_positions": False, "memory_length": 7, "local_block": 9,
    "mask_token_id": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "attention", ["causal", "relative", "memory", "local", "compressed", "bidirectional"]
)
def test_settings_of_another_attention_are_refused(attention: str) -> None:
    own = set(ATTENTIONS[attention].setting_names)
    needed = {"mask_token_id": 3} if attention == "bidirectional" else {}
    for name, value in OWN_SETTINGS.items():
        if name in own:
            settings = Config(attention=attention, **(needed | {name: value})).to_dict()
            assert settings[name] == value
            assert settings.keys().isdisjoint(OWN_SETTINGS.keys() - own)
        else:
            with pytest.raises(
                ConfigError, match=f"^{name} {value} is a setting of attention .*this model's "
            ):
                Config(attention=attention, **(needed | {name: value}))
    for name in own - {"absolute_positions"}:
        with pytest.raises(ConfigError, match=f"^{name} is -1; it must be "):
            Config(attention=attention, **(needed | {name: -1}))


# Relative.


def naive_scores(q: Tensor, table: Tensor) -> Tensor:
    """As the formula says, with a vector for each pair: (T, T, D)."""
    T, R = q.shape[2], table.shape[1]
    distance = (torch.arange(T)[:, None] - torch.arange(T)[None]).clamp(0, R - 1)
    return torch.einsum("bhid,hijd->bhij", q, table[:, distance]).tril()


@pytest.mark.parametrize("R", [1, 5, 12, 40])
def test_skewing_equals_the_naive_form(R: int) -> None:
    torch.manual_seed(R)
    q, table = torch.randn(2, 4, 12, 8), torch.randn(4, R, 8)
    naive = naive_scores(q, table)
    torch.testing.assert_close(scores_by_skewing(q, table, 12).tril(), naive, atol=1e-5, rtol=0)
    distance = (torch.arange(12)[:, None] - torch.arange(12)[None])[None]
    torch.testing.assert_close(scores_by_gathering(q, table, distance).tril(), naive, atol=1e-5, rtol=0)
    last = scores_by_skewing(q[:, :, -3:], table, 12)  # queries at the end of a longer sequence
    torch.testing.assert_close(last.tril(9), naive[:, :, -3:], atol=1e-5, rtol=0)


def test_relative_attention_equals_the_naive_form() -> None:
    model = make(attention="relative", relative_distance=7)
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        model(torch.arange(5, 25)[None], tap=lambda name, x: seen.setdefault(name, x))
    attn = model.h[1].attn
    q, k, v = (seen[f"h.1.attn.{name}"] for name in "qkv")
    table = attn.wre.weight.view(7, 4, 8).transpose(0, 1)  # (H, R, D)
    scores = (q @ k.mT + naive_scores(q, table)) / math.sqrt(8)
    later = torch.ones(20, 20, dtype=torch.bool).triu(1)
    z = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(attn.attend(q, k, v, AttentionInputs()), z, atol=1e-5, rtol=0)
    torch.testing.assert_close(seen["h.1.attn.z"], z, atol=1e-5, rtol=0)


def test_gradients_of_skewing_are_those_of_the_naive_form() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 2, 9, 4, requires_grad=True)
    table = torch.randn(2, 6, 4, requires_grad=True)
    weight = torch.randn(2, 2, 9, 9)
    found = torch.autograd.grad((scores_by_skewing(q, table, 9).tril() * weight).sum(), (q, table))
    expected = torch.autograd.grad((naive_scores(q, table) * weight).sum(), (q, table))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_without_absolute_positions_only_distances_count() -> None:
    model = make(attention="relative", absolute_positions=False)
    assert model.wpe is None
    assert "wpe.weight" not in model.state_dict()
    ids = torch.arange(5, 15)[None]
    moved = model(ids, torch.arange(30, 40)[None])
    torch.testing.assert_close(moved, model(ids), **NEAR)
    absolute = make(attention="relative")
    assert not torch.allclose(absolute(ids, torch.arange(30, 40)[None]), absolute(ids), atol=1e-2)
    with pytest.raises(ConfigError, match="relative_distance is 0; it must be a whole number"):
        Config(attention="relative", relative_distance=0)


# Memory.


def in_segments(model: GPT2, ids: Tensor, segment: int, memory_length: int) -> Tensor:
    return torch.cat([x for _, x in read_segments(model, ids, segment, memory_length)], dim=1)


@pytest.mark.parametrize("segment", [1, 5, 8])
def test_segments_with_a_long_memory_are_the_whole_text(segment: int) -> None:
    model = make(attention="memory", memory_length=8)
    ids = torch.randint(100, (2, 24), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(in_segments(model, ids, segment, 24), model.hidden(ids), **NEAR)
    assert not torch.allclose(in_segments(model, ids, segment, 0), model.hidden(ids), atol=1e-2)


def test_the_losses_of_segments_are_those_of_their_logits() -> None:
    model = make(attention="memory", memory_length=8)
    ids = torch.randint(100, (2, 25), generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")
    torch.testing.assert_close(segment_losses(model, ids, 7, 24), expected, **NEAR)


@pytest.mark.parametrize(("n_layer", "reach"), [(1, 6), (2, 12)])
def test_a_token_sees_its_segment_and_the_memory_and_through_blocks_more(n_layer: int, reach: int) -> None:
    """Segments of 4 and a memory of 6: the segment from 16 on sees 6 tokens more for each block."""
    model = make(attention="memory", memory_length=6, n_layer=n_layer)
    ids = torch.arange(5, 25)[None]
    plain = in_segments(model, ids, 4, 6)[0]
    for place in range(16):
        changed = ids.clone()
        changed[0, place] = 77
        differs = bool((in_segments(model, changed, 4, 6)[0, 16:] != plain[16:]).any())
        # A remembered token was read in its own segment, which had a memory, too: 4-token steps of it count.
        assert differs if place >= 16 - reach else not differs or n_layer > 1, place


def test_what_is_not_filled_is_not_seen() -> None:
    model = make(attention="memory", memory_length=6)
    ids = torch.arange(5, 9)[None]
    memory = Memory.empty(model.config, 1, ids.device, torch.float32)
    memory.kv.fill_(7.0)
    torch.testing.assert_close(model.hidden(ids, cache=memory), model.hidden(ids), **NEAR)
    later = memory.advance(4)
    assert int(later.filled) == 4
    assert int(later.advance(4).filled) == 6
    assert not torch.allclose(model.hidden(ids, cache=later), model.hidden(ids), atol=1e-3)
    torch.testing.assert_close(model.hidden(ids, cache=later.cleared()), model.hidden(ids), **NEAR)


def test_no_gradient_goes_into_the_memory() -> None:
    model = make(attention="memory", memory_length=6).requires_grad_(True)
    memory = Memory.empty(model.config, 1, torch.device("cpu"), torch.float32)
    model.hidden(torch.arange(5, 9)[None], cache=memory)
    memory = memory.advance(4)
    assert not memory.kv.requires_grad
    model.hidden(torch.arange(9, 13)[None], cache=memory).sum().backward()
    assert model.wte.weight.grad[9:13].any(dim=1).all()
    assert not model.wte.weight.grad[5:9].any()


# Local and compressed.


def sees(attn: Attention, length: int) -> np.ndarray:
    """(length, length) of bool: whether the output of an attention at the row changes with the input at the
    column."""
    x = torch.randn(1, length, 32, generator=torch.Generator().manual_seed(1))
    plain = attn(x, AttentionInputs())[0]
    columns = []
    for j in range(length):
        changed = x.clone()
        changed[0, j] += 1
        columns.append((attn(changed, AttentionInputs())[0] != plain).any(dim=1))
    return torch.stack(columns, dim=1).numpy()


PLACES = np.arange(20)
ROW, COLUMN = PLACES[:, None], PLACES[None]


@pytest.mark.parametrize("block", [1, 6, 20, 64])
def test_local_attention_sees_its_block_and_nothing_else(block: int) -> None:
    attn = make(attention="local", local_block=block).h[0].attn
    expected = (ROW // block == COLUMN // block) & (COLUMN <= ROW)
    np.testing.assert_array_equal(sees(attn, 20), expected)
    np.testing.assert_array_equal(influence(make(attention="local", local_block=block), 20), expected)


def test_compressed_attention_sees_slots_without_its_future_and_nothing_else() -> None:
    model = make(attention="compressed", local_block=5)
    np.testing.assert_array_equal(sees(model.h[0].attn, 20), (ROW // 5 == COLUMN // 5) & (COLUMN <= ROW))
    slot_ends = COLUMN // 3 * 3 + 2
    expected = (slot_ends <= ROW) | (
        (ROW == COLUMN) & (ROW >= 2)
    )  # itself by its query: slots to choose from
    np.testing.assert_array_equal(sees(model.h[1].attn, 20), expected)
    weights = GPT(TorchBackend(model)).trace(range(5, 25)).attention[1]  # (H, T, T)
    assert (weights[:, slot_ends <= ROW] > 0).all()
    assert (weights[:, slot_ends > ROW] == 0).all()
    assert (weights.sum(-1) < 1).all()  # the rest is on the empty slot


def test_slots_are_a_convolution_of_kernel_and_stride_three() -> None:
    attn = make(attention="compressed").h[1].attn
    k = torch.randn(2, 4, 20, 8)
    slots = compress(k, attn.k_conv)
    assert slots.shape == (2, 4, 7, 8)
    assert (slots[:, :, 0] == 0).all()
    for head in range(4):
        columns = slice(8 * head, 8 * head + 8)
        kernel = attn.k_conv.weight[:, columns].view(3, 8, 8).permute(2, 1, 0)  # (out, in, 3)
        expected = F.conv1d(k[:, head].mT, kernel, attn.k_conv.bias[columns], stride=3).mT
        torch.testing.assert_close(slots[:, head, 1:], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 20])
def test_the_ways_to_attend_to_slots_agree(length: int) -> None:
    attn = make(attention="compressed").h[1].attn
    q, k, v = torch.randn(3, 2, 4, length, 8)
    own = torch.arange(length)[None]
    fused = attn.attend(q, k, v, AttentionInputs())
    seen = visible_slots(own, torch.ones(1, length, dtype=torch.bool))
    torch.testing.assert_close(attn.attend_through_conv(q, k, v, seen, 0.0), fused, atol=1e-5, rtol=0)
    taps: list[str] = []
    shown = attn.attend(q, k, v, AttentionInputs(tap=lambda name, x: (taps.append(name), x)[1]))
    torch.testing.assert_close(shown, fused, atol=1e-5, rtol=0)
    assert taps == ["k_slots", "v_slots", "scores", "scaled", "masked", "weights", "z"]


# Bidirectional.


def test_bidirectional_attention_sees_everything() -> None:
    model = make(attention="bidirectional", mask_token_id=100)
    assert influence(model, 20).all()
    trace = GPT(TorchBackend(model)).trace(range(5, 15))
    assert (trace.attention[1] > 0).all()
    np.testing.assert_allclose(trace.attention[1].sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(trace.logits, model(torch.arange(5, 15)[None])[0], **NEAR)
    for name, values in trace.read(*list_steps(model.config)).items():
        assert values.shape == shape_of(model.config, name, 10), name


@torch.no_grad()
def test_bidirectional_attention_sees_no_padding() -> None:
    model = make(attention="bidirectional", mask_token_id=100)
    ids = torch.tensor([[0, 0, 0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]])
    positions = torch.tensor([[-1, -1, -1, 0, 1, 2, 3, 4], list(range(8))])
    together = model(ids, positions)
    assert together.isfinite().all()
    torch.testing.assert_close(together[0, 3:], model(ids[:1, 3:])[0], **NEAR)
    backend = TorchBackend(model)
    batch = backend.logits([[5, 6, 7], [1, 2, 3, 4, 5, 6]])
    np.testing.assert_allclose(batch[0, :3], backend.logits([[5, 6, 7]])[0], **NEAR)


def test_a_bidirectional_model_continues_nothing() -> None:
    gpt = GPT(TorchBackend(make(attention="bidirectional", mask_token_id=100)))
    backend = gpt.backend
    for attempt in (
        lambda: gpt.generate([5, 6], max_new_tokens=1),
        lambda: gpt.next([5, 6]),
        lambda: next(gpt.stream([5, 6])),
        lambda: gpt.generate([5, 6], beams=2),
        lambda: backend.extend([0], [[5, 6]]),
        lambda: next(backend.score([[ScoreRequest(np.array([5, 6, 7]), 1)]])),
        lambda: gpt.trace([5, 6]).append(7),
    ):
        with pytest.raises(
            SettingError, match=r"'bidirectional' sees the whole text at once.* glassgpt fill"
        ):
            attempt()
    for value, message in (
        (None, "must be a token id"),
        (101, "mask_token_id 101 is not below vocab_size 101"),
    ):
        with pytest.raises(ConfigError, match=message):
            Config(**SMALL, attention="bidirectional", mask_token_id=value)


@pytest.mark.gpu
@needs_cuda
def test_every_variant_on_a_gpu_is_what_it_is_on_a_cpu(any_model: GPT2) -> None:
    ids = torch.arange(5, 45)[None]
    expected = any_model(ids)
    torch.testing.assert_close(any_model.cuda()(ids.cuda()).cpu(), expected, atol=1e-3, rtol=0)
