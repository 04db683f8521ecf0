"""Interventions: doing nothing changes nothing, and a whole patch reproduces the other prompt."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import Config
from glassgpt.errors import SettingError, StepIndexError, UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import (
    AblateAttention,
    AblateBlock,
    AblateHead,
    AblateMLP,
    AblateNeuron,
    Edit,
    Patch,
    Steer,
    SteerToken,
    Trace,
    edit_from_dict,
)
from glassgpt.inspect.divergence import kl_divergence
from glassgpt.inspect.edits.edit_data import EDIT_KINDS, Positions, edit_fields
from glassgpt.inspect.edits.edits import Vector
from glassgpt.inspect.taps import BLOCK_STEPS, list_steps
from glassgpt.model import GPT2

from .conftest import SMALL, random_model, some_ids

A, B = some_ids(9, seed=1), some_ids(9, seed=2)


@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_no_edits_change_nothing(gpt: GPT, size: int) -> None:
    ids = some_ids(size)
    plain = gpt.trace(ids)
    edits: list[list[Edit]] = [[], [Steer("h.1.resid_post", np.zeros(32))], [Patch("h.0.attn.z", ids)]]
    for done in [
        Trace.from_tokens(gpt, ids, lambda name, x: x),
        *(gpt.intervene(ids, edit).after for edit in edits),
    ]:
        for name in list_steps(SMALL):
            np.testing.assert_array_equal(done[name], plain[name], err_msg=name)
        np.testing.assert_array_equal(done.lens(3).ids, plain.lens(3).ids)
        # Of the lens only the changed layers are computed: a product of another size rounds differently.
        np.testing.assert_allclose(done.lens(3).p, plain.lens(3).p, rtol=1e-5)
    nothing = gpt.intervene(ids)
    assert nothing.kl == 0
    assert not nothing.kl_per_token.any()
    assert nothing.top_changes() == []
    np.testing.assert_array_equal(nothing.logits, nothing.logits_before)


@pytest.mark.parametrize("step", ["embedding", "wte", *(f"h.{i}.resid_post" for i in range(3)), "ln_f"])
def test_a_whole_patch_reproduces_the_other_prompt(gpt: GPT, step: str) -> None:
    done = gpt.intervene(A, Patch(step, B))
    assert repr(done).startswith("Intervention(1 edit, KL ")
    np.testing.assert_array_equal(done.after.logits, gpt.trace(B).logits)  # bit for bit
    assert done.kl > 0.01


@pytest.mark.slow
def test_the_same_with_the_shipped_model(shipped: GPT) -> None:
    one = shipped.trace("The old house stood at the end of the lane")
    other = shipped.trace("She had never seen so many people in one")
    other = other if len(other) == len(one) else shipped.trace(other.tokens[: len(one)])
    one = shipped.trace(one.tokens[: len(other)])
    for layer in range(4):
        done = shipped.intervene(one, Patch(f"h.{layer}.resid_post", other))
        np.testing.assert_array_equal(done.after.logits, other.logits)


def test_patching_all_heads_one_by_one_is_patching_z(gpt: GPT) -> None:
    heads = [Patch("h.1.attn.z", B, head=head) for head in range(4)]
    full = gpt.intervene(A, Patch("h.1.attn.z", B))
    np.testing.assert_array_equal(gpt.intervene(A, heads).after.logits, full.after.logits)
    assert gpt.intervene(A, heads[:3]).kl != full.kl


def test_patching_positions(gpt: GPT) -> None:
    source = gpt.trace(B)
    done = gpt.intervene(A, Patch("h.1.resid_post", source, positions=(2, -1)))
    stream, before = done.after.residual[2], done.before.residual[2]
    np.testing.assert_array_equal(stream[[2, 8]], source.residual[2][[2, 8]])
    rest = [0, 1, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(stream[rest], before[rest])
    np.testing.assert_array_equal(done.after.logits[:2], done.before.logits[:2])  # no looking ahead
    elsewhere = Patch("h.1.resid_post", source, positions=(4,), source_positions=(0,))
    np.testing.assert_array_equal(gpt.intervene(A, elsewhere).after.residual[2][4], source.residual[2][0])
    longer = some_ids(20, seed=5)
    np.testing.assert_array_equal(
        gpt.intervene(A, Patch("h.0.mlp.gelu", longer, positions=(1,))).after.mlp.gelu[0, 1],
        gpt.trace(longer).mlp.gelu[0, 1],
    )


def by_hand(gpt: GPT, ids: list[int], steps: dict[str, Any]) -> np.ndarray:
    """The same with a bare tap of the model."""

    def tap(name: str, x: torch.Tensor) -> torch.Tensor:
        return steps[name](x.clone()) if name in steps else x

    model: GPT2 = gpt.backend.model
    with torch.no_grad():
        return model(torch.tensor([ids]), tap=tap)[0].numpy()


def zero_head(x: torch.Tensor) -> torch.Tensor:
    x[:, 2] = 0
    return x


def mean_neuron(x: torch.Tensor) -> torch.Tensor:
    x[0, :, 77] = x[0, :, 77].mean()
    return x


CASES: list[tuple[Edit, dict[str, Any]]] = [
    (AblateHead(1, 2), {"h.1.attn.z": zero_head}),
    (AblateNeuron(0, 77, "mean"), {"h.0.mlp.gelu": mean_neuron}),
    (AblateAttention(-1), {"h.2.attn.proj": lambda x: x * 0}),
    (AblateMLP(1, "mean"), {"h.1.mlp.proj": lambda x: x.mean(1, keepdim=True).expand_as(x)}),
    (AblateBlock(0), {"h.0.attn.proj": lambda x: x * 0, "h.0.mlp.proj": lambda x: x * 0}),
    (Steer("h.1.resid_mid", np.arange(32), 0.5), {"h.1.resid_mid": lambda x: x + torch.arange(32) / 2}),
]


@pytest.mark.parametrize(("edit", "steps"), CASES, ids=lambda value: type(value).__name__)
def test_edits_are_what_they_say(gpt: GPT, edit: Edit, steps: dict[str, Any]) -> None:
    done = gpt.intervene(A, edit)
    np.testing.assert_allclose(done.after.logits, by_hand(gpt, A, steps), atol=2e-5)
    p, q = done.p_before.astype(np.float64), done.p.astype(np.float64)
    assert done.kl == pytest.approx((p * np.log(p / q)).sum(), rel=1e-3, abs=1e-6)
    assert done.kl_per_token.shape == (9,)
    assert done.kl > 1e-6
    changes = done.top_changes(5)
    change = np.abs(p - q)
    assert [m.id for m in changes] == np.argsort(-change)[:5].tolist()
    assert changes[0].after == pytest.approx(q[changes[0].id])
    np.testing.assert_allclose(
        done.lens().p[-1], [row.max() for row in softmax(done.after.logits)], rtol=1e-4
    )


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_an_ablated_block_hands_its_stream_on(gpt: GPT) -> None:
    after = gpt.intervene(A, AblateBlock(1)).after
    np.testing.assert_array_equal(after.residual[2], after.residual[1])
    assert not np.array_equal(after.residual[3], after.residual[2])


def test_the_mean_of_another_text(gpt: GPT) -> None:
    done = gpt.intervene(A, AblateHead(1, 0, "mean", reference=B))
    expected = gpt.trace(B).attn.z[1, 0].mean(0)
    np.testing.assert_allclose(done.after.attn.z[1, 0], np.tile(expected, (9, 1)), rtol=1e-6)


def test_steering_towards_a_token_raises_it(gpt: GPT) -> None:
    up = gpt.intervene(A, SteerToken(2, 40, 2.0))
    down = gpt.intervene(A, SteerToken(2, 40, -2.0))
    assert down.p[40] < up.p_before[40] < up.p[40]
    only_last = gpt.intervene(A, SteerToken(2, 40, 2.0, positions=(-1,)))
    assert not only_last.kl_per_token[:-1].any()
    assert only_last.kl > 0


def test_edits_compose_in_order(gpt: GPT) -> None:
    off_then_on = gpt.intervene(A, [AblateMLP(1), Patch("h.1.mlp.proj", A)])
    np.testing.assert_array_equal(off_then_on.after.logits, off_then_on.before.logits)
    on_then_off = gpt.intervene(A, [Patch("h.1.mlp.proj", A), AblateMLP(1)])
    assert not on_then_off.after.mlp.proj[1].any()


def test_an_appended_trace_is_computed_again(gpt: GPT) -> None:
    appended = gpt.trace(A[:5])
    for token in A[5:]:
        appended = appended.append(token)
    assert gpt.intervene(appended).kl == 0
    np.testing.assert_array_equal(
        gpt.intervene(appended, Patch("embedding", B)).after.logits, gpt.trace(B).logits
    )
    with pytest.raises(UserError, match="has edits"):
        gpt.intervene(A, AblateMLP(1)).after.append(3)


@settings(max_examples=40, deadline=None)
@given(
    step=st.sampled_from([*BLOCK_STEPS, "wte", "wpe", "embedding", "ln_f"]),
    layer=st.integers(0, 1),
    positions=st.none() | st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True),
)
def test_a_patch_is_found_where_it_was_put(step: str, layer: int, positions: list[int] | None) -> None:
    config = Config(vocab_size=31, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    gpt = TINY.setdefault("gpt", random_model(config))
    one, other = some_ids(7, 1, config), some_ids(7, 2, config)
    name = f"h.{layer}.{step}" if step in BLOCK_STEPS else step
    where = None if positions is None else tuple(positions)
    done = gpt.intervene(one, Patch(name, other, positions=where))
    rows = list(range(7)) if positions is None else positions
    np.testing.assert_array_equal(done.after[name][..., rows, :], gpt.trace(other)[name][..., rows, :])
    left = [row for row in range(7) if row not in rows]
    np.testing.assert_array_equal(done.after[name][..., left, :], done.before[name][..., left, :])


TINY: dict[str, GPT] = {}


@pytest.mark.parametrize(
    ("values", "edit"),
    [
        ({"kind": "ablate_head", "layer": 2, "head": 3, "how": "mean"}, AblateHead(2, 3, "mean")),
        ({"kind": "ablate_head", "layer": 2, "head": 3, "positions": [1]}, AblateHead(2, 3, positions=(1,))),
        ({"kind": "ablate_neuron", "layer": 0, "neuron": 9, "how": "zero"}, AblateNeuron(0, 9)),
        ({"kind": "ablate_attention", "layer": 1, "how": "zero"}, AblateAttention(1)),
        ({"kind": "ablate_mlp", "layer": 1, "how": "mean"}, AblateMLP(1, "mean")),
        ({"kind": "ablate_block", "layer": 1}, AblateBlock(1)),
        ({"kind": "steer_token", "layer": 1, "token": 5, "strength": 2}, SteerToken(1, 5, 2.0)),
        (
            {"kind": "patch", "step": "h.0.attn.z", "source": [1, 2], "head": 1, "positions": [0, 1]},
            Patch("h.0.attn.z", [1, 2], 1, (0, 1)),
        ),
    ],
)
def test_edits_from_dicts(values: dict[str, Any], edit: Edit) -> None:
    assert edit_from_dict(values) == edit


def test_a_source_by_its_name(gpt: GPT) -> None:
    trace = gpt.trace(B)
    edit = edit_from_dict({"kind": "patch", "step": "embedding", "source": "t1"}, {"t1": trace})
    np.testing.assert_array_equal(gpt.intervene(A, edit).after.logits, trace.logits)
    with pytest.raises(SettingError, match="'t2'"):
        edit_from_dict({"kind": "patch", "step": "embedding", "source": "t2"}, {"t1": trace})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "unknown kind of edit None"),
        ("head", "unknown kind of edit 'head'"),
        ({"kind": "ablate_head", "layer": 1}, "needs 'head'"),
        ({"kind": "ablate_head", "layer": 1, "head": 1.5}, "head is 1.5"),
        ({"kind": "ablate_head", "layer": True, "head": 1}, "layer is True"),
        ({"kind": "ablate_head", "layer": 1, "head": 1, "how": "half"}, "how is 'half'"),
        ({"kind": "ablate_head", "layer": 1, "head": 1, "neuron": 4}, "has no 'neuron'"),
        ({"kind": "ablate_mlp", "layer": 1, "positions": ["a"]}, "positions is ['a']"),
        ({"kind": "steer_token", "layer": 1, "token": 1, "strength": float("nan")}, "strength is nan"),
        ({"kind": "patch", "step": 3, "source": "x"}, "step is 3"),
    ],
)
def test_invalid_dicts(values: Any, says: str) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        edit_from_dict(values)


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (AblateHead(3, 0), StepIndexError, "layer 3"),
        (AblateHead(0, 4), StepIndexError, "head 4 is out of range. Use 0 to 3"),
        (AblateNeuron(0, 128), StepIndexError, "neuron 128 is out of range. Use 0 to 127"),
        (AblateMLP(0, positions=(9,)), StepIndexError, "position 9"),
        (AblateMLP(0, "most"), SettingError, "how is 'most'"),  # type: ignore[arg-type]
        (Patch("h.0.resid", B), StepIndexError, "'h.0.resid' is not a step"),
        (Patch("logits", B), StepIndexError, "logits are the output"),
        (Patch("ln_f", B, head=1), StepIndexError, "ln_f has no heads"),
        (Patch("ln_f", B[:4]), SettingError, "9 tokens, but the source of the patch has 4"),
        (Patch("ln_f", B, positions=(1, 2), source_positions=(1,)), SettingError, "does not fit"),
        (Patch("h.0.attn.scores", some_ids(12), positions=(1,)), SettingError, "does not fit"),
        (Steer("ln_f", [1.0, 2.0]), SettingError, "shape (2,)"),
        (Steer("ln_f", np.zeros(32), float("inf")), SettingError, "strength is inf"),
        (Patch(f"h.{'9' * 5000}.attn.z", B), StepIndexError, "is not a step of the model"),
        (Patch("h.01.attn.z", B), StepIndexError, "'h.01.attn.z' is not a step"),  # it would change nothing
        (AblateHead(10**5000, 0), StepIndexError, "layer a whole number of about 5,001 digits is out of"),
        (Steer("ln_f", np.zeros(32), 10**400), SettingError, "strength is a whole number of about 401 dig"),
        ({"kind": "ablate_mlp", "layer": [10**5000]}, SettingError, "layer is [a whole number of about"),
        (SteerToken(0, 101), StepIndexError, "token id 101"),
        ("head", SettingError, "is not an edit"),
        ([3], SettingError, "3 is not an edit"),
    ],
)
def test_edits_that_do_not_fit(gpt: GPT, edit: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        gpt.intervene(A, edit).logits  # noqa: B018


def test_kl_divergence_is_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p, log_q = (torch.randn(5, 40, generator=generator).double().log_softmax(-1) for _ in range(2))
    expected = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(kl_divergence(log_p, log_q), expected)
    assert kl_divergence(log_p, log_p).tolist() == [0] * 5
    excluded = torch.tensor([0.0, -torch.inf])
    assert kl_divergence(excluded, torch.tensor([0.5, 0.5]).log()).item() == pytest.approx(np.log(2))


@pytest.mark.parametrize("kind", EDIT_KINDS)
def test_the_json_of_an_edit_is_its_dataclass(kind: str) -> None:
    edit = EDIT_KINDS[kind]
    names = [each.name for each in dataclasses.fields(edit) if each.name != "reference"]  # type: ignore[arg-type]
    assert list(edit_fields(edit)) == names
    examples = {int: 1, str: "ln_f", float: 1.5, Positions: [0, 2], Vector: [0.5, 1.0], Any: [1, 2]}
    values = {name: examples.get(each.type, "mean") for name, each in edit_fields(edit).items()}
    made = edit_from_dict({"kind": kind, **values})
    assert type(made) is edit
    for name, value in values.items():
        assert getattr(made, name) == (
            value if name == "source" or not isinstance(value, list) else tuple(value)
        )


def test_a_token_to_steer_to_may_be_a_text(shipped: GPT) -> None:
    (token,) = shipped.encode(" sea")
    text = "The old house stood at the"
    by_text, by_id = (shipped.intervene(text, SteerToken(1, one, 2.0)) for one in (" sea", token))
    np.testing.assert_array_equal(by_text.logits, by_id.logits)
    with pytest.raises(SettingError, match=r"token ' seaside resort' is . tokens. Pass one token"):
        shipped.intervene(text, SteerToken(1, " seaside resort"))


def test_resid_pre_is_edited_as_the_step_before(gpt: GPT) -> None:
    a, b, vector = some_ids(8), some_ids(8, seed=1), np.ones(32, np.float32)
    for layer, same in ((0, "embedding"), (2, "h.1.resid_post")):
        for edit in (lambda step: Patch(step, b, positions=(3,)), lambda step: Steer(step, vector)):
            one, other = (gpt.intervene(a, edit(step)) for step in (f"h.{layer}.resid_pre", same))
            np.testing.assert_array_equal(one.logits, other.logits)
            assert one.kl > 0


def test_one_edit_is_singular(gpt: GPT) -> None:
    assert repr(gpt.intervene(some_ids(4), AblateHead(0, 0))).startswith("Intervention(1 edit, ")
    assert repr(gpt.intervene(some_ids(4), [])).startswith("Intervention(0 edits, ")


def test_path_patching_changes_one_path(gpt: GPT) -> None:
    """The recipe of docs/inspect.md: what head 0.1 writes for another, read by the queries of head 2.3."""
    clean, corrupted = gpt.trace(some_ids(8)), gpt.trace(some_ids(8, seed=1))
    frozen: list[Edit] = [
        Patch(f"h.{layer}.attn.z", clean, head)
        for layer in range(3) for head in range(4) if (layer, head) != (0, 1)
    ]  # fmt: skip
    frozen += [Patch(f"h.{layer}.mlp.proj", clean) for layer in range(3)]
    sent = gpt.intervene(clean, [*frozen, Patch("h.0.attn.z", corrupted, 1)]).after
    done = gpt.intervene(clean, Patch("h.2.attn.q", sent, 3))
    w, layer_norm = gpt.weights, gpt.backend.model.h[2].ln_1
    direct = (corrupted.attn.z[0, 1] - clean.attn.z[0, 1]) @ w.W_O[0, 1]  # (T, C): what the head adds
    stream = torch.from_numpy(clean.resid_pre[2] + direct)
    expected = layer_norm(stream).numpy() @ w.W_Q[2, 3] + w.b_Q[2, 3]
    # sums of 32 products in float32, through one LayerNorm
    np.testing.assert_allclose(done.after.attn.q[2, 3], expected, atol=1e-4)
    np.testing.assert_array_equal(done.after.attn.q[2, 2], clean.attn.q[2, 2])
    assert done.kl > 0
