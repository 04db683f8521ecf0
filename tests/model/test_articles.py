"""The examples of The Illustrated GPT-2 and The Annotated GPT-2, as tests."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from glassgpt.config import SIZES, Config
from glassgpt.model import GPT2
from glassgpt.model.activations import gelu_tanh
from tests.model.conftest import noisy

# "robot must obey orders": what each word (row) scores for each word, before the mask.
SCORES = [
    [0.11, 0.00, 0.81, 0.79],
    [0.19, 0.50, 0.30, 0.48],
    [0.53, 0.98, 0.95, 0.14],
    [0.81, 0.86, 0.38, 0.90],
]
WEIGHTS = [[1, 0, 0, 0], [0.48, 0.52, 0, 0], [0.31, 0.35, 0.34, 0], [0.25, 0.26, 0.23, 0.26]]


@torch.no_grad()
def test_the_masked_softmax_table() -> None:
    """The article's table comes out of our attention when its scores are divided by 4: heads of width 16."""
    model = GPT2(Config(vocab_size=9, n_positions=8, n_embd=16, n_layer=1, n_head=1)).eval()
    seen = {}

    def table(name: str, x: torch.Tensor) -> torch.Tensor:
        if name == "h.0.attn.scores":
            x = torch.tensor([[SCORES]])
        seen[name] = x
        return x

    model(torch.tensor([[1, 2, 3, 4]]), tap=table)
    assert seen["h.0.attn.scaled"][0, 0, 1, 1] == 0.125
    assert (seen["h.0.attn.masked"][0, 0] == -math.inf).nonzero().tolist() == [
        [0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3],
    ]  # fmt: skip
    assert torch.equal((seen["h.0.attn.weights"][0, 0] * 100).round() / 100, torch.tensor(WEIGHTS))


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_the_parameter_tally(size: str, count: int) -> None:
    assert SIZES[size].n_parameters == count
    with torch.device("meta"):
        model = GPT2(SIZES[size])
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == SIZES[size].shapes()


@torch.no_grad()
def test_four_prefixes_in_one_pass(small: GPT2) -> None:
    """ "robot must obey orders" is four examples at once: each word predicts from those before it."""
    words = torch.tensor([[17, 42, 8, 99]])
    full = small(words)
    for length in (1, 2, 3, 4):
        alone = small(words[:, :length])
        # Fewer rows in a product may be summed in another order: a few float32 roundings of logits near 1.
        torch.testing.assert_close(full[:, length - 1], alone[:, -1], atol=2e-6, rtol=0)


@torch.no_grad()
def test_no_token_sees_the_future(small: GPT2) -> None:
    ids = torch.randint(0, 101, (1, 20))
    changed = ids.clone()
    changed[0, 12:] = (ids[0, 12:] + 1) % 101
    before, after = small(ids), small(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12], after[:, 12])


def test_initialization_as_published() -> None:
    torch.manual_seed(6)
    model = GPT2(Config(vocab_size=2000, n_embd=256, n_layer=8, n_head=4))
    for name, value in model.named_parameters():
        if name.endswith("c_proj.weight"):
            assert value.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.03), name
        elif value.ndim == 2:
            assert value.std().item() == pytest.approx(0.02, rel=0.03), name
        else:
            assert torch.equal(
                value, torch.ones_like(value) if name.endswith("weight") else torch.zeros_like(value)
            )


@pytest.mark.parametrize("where", ["embd_pdrop", "attn_pdrop", "resid_pdrop"])
def test_each_dropout_acts_in_training_only(where: str) -> None:
    torch.manual_seed(7)
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = noisy(
        GPT2(Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, **{**none, where: 0.5}))
    )
    ids = torch.randint(0, 50, (2, 16))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_training_on_one_sentence_learns_it() -> None:
    torch.manual_seed(8)
    model = GPT2(Config(vocab_size=30, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    ids = torch.randint(0, 30, (1, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = last = 0.0
    for step in range(60):
        loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        first, last = (loss.item() if step == 0 else first), loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert first == pytest.approx(math.log(30), abs=0.1)  # knows nothing at first
    assert last < 0.5


def test_the_quick_gelu_is_the_published_one() -> None:
    """Without gradients on a CPU another form of the same function is computed."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e20, -200.0, 0.0, 200.0, 1e20])])
    wanted = F.gelu(x.double(), approximate="tanh")
    with torch.no_grad():
        found = gelu_tanh(x)
    # A float32 near 12 knows steps of 1e-6; torch's own form strays by as much.
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=3e-7)


class Operations(TorchDispatchMode):
    """Counts what torch is really asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_without_a_tap_nothing_is_computed_for_one(small: GPT2) -> None:
    ids = torch.randint(0, 101, (2, 8))
    with Operations() as quiet:
        small(ids)
    with Operations() as tapped:
        small(ids, tap=lambda name, x: x)
    assert not any("softmax" in name or "bmm" in name for name in quiet.names)  # only the fused attention
    assert sum("scaled_dot_product" in name for name in quiet.names) == small.config.n_layer
    # Per block: two norms, four products, attention, GELU (by a sigmoid), two sums. Views compute nothing.
    arithmetic = [
        n for n in quiet.names if any(op in n for op in ("norm", "addmm", "attention", "sigmoid", "add."))
    ]
    assert len(arithmetic) == small.config.n_layer * 10 + 2  # + the sum of embeddings, + ln_f
    assert len(tapped.names) > len(quiet.names)


@torch.no_grad()
def test_a_tap_sees_every_step_and_may_change_it(small: GPT2) -> None:
    ids = torch.randint(0, 101, (1, 5))
    names: list[str] = []

    def watch(name: str, x: torch.Tensor) -> torch.Tensor:
        names.append(name)
        return x

    plain = small(ids)
    # The explicit attention sums in another order than the fused one: a few roundings of logits near 1.
    torch.testing.assert_close(small(ids, tap=watch), plain, atol=2e-6, rtol=0)
    block = """ln_1 attn.q attn.k attn.v attn.scores attn.scaled attn.masked attn.weights attn.z attn.merged
               attn.proj resid_mid ln_2 mlp.fc mlp.gelu mlp.proj resid_post""".split()
    blocks = [f"h.{i}.{step}" for i in range(3) for step in block]
    assert names == ["wte", "wpe", "embedding", *blocks, "ln_f", "logits"]
    silenced = small(ids, tap=lambda name, x: x * 0 if name == "h.1.mlp.proj" else x)
    assert not torch.allclose(silenced, plain, atol=1e-3)
