"""LoRA: nothing is changed at first, only the corrections learn, and merging gives one plain matrix."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import SIZES, Config
from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train.layers.lora import (
    LoRALayer,
    Ranks,
    add_lora,
    choose_ranks,
    count_trainable_parameters,
    merged_state_dict,
)
from glassgpt.train.report.samples import generate_sample
from tests.train.test_loop import loss_of

CONFIG = Config(vocab_size=61, n_positions=16, n_embd=32, n_layer=2, n_head=2)
RANK = 3
RANKS = Ranks(RANK, 2)


def fresh() -> GPT2:
    torch.manual_seed(5)
    return GPT2(CONFIG).eval()


def some_ids() -> torch.Tensor:
    return torch.randint(61, (3, 12), generator=torch.Generator().manual_seed(1))


def taught(steps: int = 5) -> GPT2:
    model = add_lora(fresh(), RANKS)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = some_ids()
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_of(model, ids[:, :-1], ids[:, 1:]) / 33).backward()
        optimizer.step()
    return model


def test_doing_nothing_changes_nothing() -> None:
    plain = fresh()
    wanted = plain(some_ids())
    model = add_lora(copy.deepcopy(plain), RANKS)
    assert sum(isinstance(module, LoRALayer) for module in model.modules()) == 4 * CONFIG.n_layer + 1
    assert torch.equal(model(some_ids()), wanted)
    state = merged_state_dict(model)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == CONFIG.shapes()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())


def test_only_corrections_and_vectors_learn() -> None:
    before, after = fresh().state_dict(), taught().state_dict()
    for name, tensor in after.items():
        if name.endswith((".lora_A", ".lora_B")):
            assert tensor.abs().sum() > 0
        else:
            same = torch.equal(tensor, before[name.replace(".base_layer.", ".")])
            assert same == (tensor.ndim == 2), name
    assert (merged_state_dict(taught())["h.0.mlp.c_fc.weight"] != before["h.0.mlp.c_fc.weight"]).any()


def test_the_merged_model_computes_the_same() -> None:
    model = taught(20)
    merged = GPT2(CONFIG).eval()
    merged.load_state_dict(merged_state_dict(model))
    exact = copy.deepcopy(model).double()(some_ids())
    reference = (model(some_ids()) - exact).abs().max()  # what float32 itself costs on the way
    assert (merged(some_ids()) - exact).abs().max() < 4 * reference
    assert (merged(some_ids()) - fresh()(some_ids())).abs().max() > 1000 * reference  # it did learn


def test_merging_gives_the_same_bits_every_time() -> None:
    model = taught()
    first = merged_state_dict(model)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = merged_state_dict(model)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], tensor) for name, tensor in merged_state_dict(model).items())


def test_the_correction_has_the_rank_asked_for() -> None:
    change = merged_state_dict(taught(20))["h.1.attn.c_attn.weight"] - fresh().h[1].attn.c_attn.weight
    sizes = torch.linalg.svdvals(change.detach().double())
    assert sizes[RANK - 1] > 1e-4
    assert sizes[RANK] < 1e-6  # float32's rounding of the sum


SHIPPED = [
    Config(vocab_size=4096, n_positions=256, n_embd=192, n_layer=4, n_head=6),
    Config(vocab_size=16384, n_positions=1024, n_embd=512, n_layer=12, n_head=8),
]


@pytest.mark.parametrize("config", SHIPPED)
def test_at_most_two_percent_are_learned(config: Config) -> None:
    model = add_lora(GPT2(config), choose_ranks(config))
    most = 0.02 * config.n_parameters
    assert most - (config.vocab_size + config.n_embd) < count_trainable_parameters(model) <= most


@pytest.mark.parametrize("config", [*SHIPPED, *SIZES.values()])
def test_the_embedding_has_at_least_the_rank_of_the_blocks(config: Config) -> None:
    ranks = choose_ranks(config)
    assert 2 <= ranks.blocks <= ranks.embedding < 3 * ranks.blocks


def test_an_untied_head_is_corrected() -> None:
    torch.manual_seed(5)
    config = dataclasses.replace(CONFIG, tie_word_embeddings=False)
    plain = GPT2(config).eval()
    wanted = plain(some_ids())
    model = add_lora(plain, RANKS)
    assert torch.equal(model(some_ids()), wanted)
    ids = some_ids()
    loss_of(model, ids[:, :-1], ids[:, 1:]).backward()
    assert model.lm_head.lora_A.grad.abs().sum() > 0
    assert {name: tuple(tensor.shape) for name, tensor in merged_state_dict(model).items()} == config.shapes()


def test_a_model_too_small_is_refused() -> None:
    with pytest.raises(SettingError, match="Leave out --lora"):
        choose_ranks(CONFIG)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lora", [False, True])
def test_on_a_gpu_a_model_writes_while_it_learns(lora: bool) -> None:
    torch.manual_seed(5)
    model = GPT2(dataclasses.replace(CONFIG, vocab_size=257, n_positions=96))
    model = (add_lora(model, RANKS) if lora else model).cuda().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = torch.randint(257, (3, 12), device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        (loss_of(model, ids[:, :-1], ids[:, 1:]) / 33).backward()
        optimizer.step()
        assert generate_sample(model, ByteTokenizer(), "Day").startswith("Day")
        assert model.training
        there = copy.deepcopy(model).cpu()
        settings = {"max_new_tokens": 20, "temperature": 0, "ignore_eot": True}
        expected = GPT(TorchBackend(there)).generate([1, 2, 3], **settings).tokens
        assert GPT(TorchBackend(model)).generate([1, 2, 3], **settings).tokens == expected
        model.train()
