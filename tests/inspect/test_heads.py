"""What heads do: scores against plain loops, against the full matrices, and on heads whose weights were set
by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.cli import main
from glassgpt.config import ATTENTIONS, Config
from glassgpt.errors import SettingError
from glassgpt.gpt import GPT
from glassgpt.inspect.components.attention_kinds import KINDS, key_masks
from glassgpt.model import GPT2

from .conftest import SMALL, random_model, some_ids


def plain_share(weights: np.ndarray, ids: list[int], kind: str) -> float:
    """The mean over queries of the attention on keys of a kind, one by one."""
    shares = []
    for query in range(2, len(ids)):
        copies = [key for key in range(query) if ids[key] == ids[query]]
        keys = {
            "previous_token": [query - 1],
            "duplicate_token": copies,
            "induction": [key + 1 for key in copies],
            "first_token": [0],
            "current_token": [query],
        }[kind]
        if keys:
            shares.append(sum(weights[query, key] for key in keys))
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_on_texts_are_those_of_plain_loops(gpt: GPT, kind: str) -> None:
    ids = some_ids(20, seed=3)
    ids[10:16] = ids[2:8]
    scores = gpt.heads([ids])
    attention = gpt.trace(ids).attention
    for layer in range(SMALL.n_layer):
        for head in range(SMALL.n_head):
            expected = plain_share(attention[layer, head], ids, kind)
            assert scores.at(kind=kind, layer=layer, head=head).values == pytest.approx(expected, abs=1e-6)


def test_masks_of_random_repeated_tokens(gpt: GPT) -> None:
    """On a repeated sequence a duplicate stands `length` tokens back, what followed it one less."""
    scores = gpt.heads(length=10, sequences=1, seed=5)
    ids = repeated(gpt, 10, 5)
    attention = gpt.trace(ids).attention
    for name, back in (("duplicate_token", 10), ("induction", 9)):
        queries = range(len(ids) - 10, len(ids))
        expected = np.mean([attention[1, 2][query, query - back] for query in queries])
        assert scores.at(kind=name, layer=1, head=2).values == pytest.approx(expected, abs=1e-6)


def repeated(gpt: GPT, length: int, seed: int) -> list[int]:
    from glassgpt.inspect.components.head_scores import repeated_tokens

    return repeated_tokens(gpt, length, 1, seed)[0]


def test_a_text_without_copies_has_no_induction_score(gpt: GPT) -> None:
    scores = gpt.heads([list(range(12))])
    assert np.isnan(scores.at(kind="induction").values).all()
    assert np.isfinite(scores.at(kind="previous_token").values).all()
    assert not any(mask[:2].any() for mask in key_masks([1, 1, 1, 1]).values())


def test_copying_is_the_eigenvalues_of_the_whole_circuit(gpt: GPT) -> None:
    weights = gpt.weights
    scores = gpt.heads([some_ids(9)]).at(kind="copying")
    for layer, head in ((0, 0), (2, 3)):
        circuit = weights.W_E @ weights.W_V[layer, head] @ weights.W_O[layer, head] @ weights.W_U  # (V, V)
        values = np.linalg.eigvals(circuit.astype(np.float64))
        assert scores[layer, head] == pytest.approx(values.real.sum() / np.abs(values).sum(), abs=1e-4)


def test_a_head_made_to_attend_backwards_is_found() -> None:
    """Positions are one-hot; a head whose keys are shifted by one is a previous-token head."""
    config = Config(vocab_size=40, n_positions=40, n_embd=80, n_layer=1, n_head=2, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = GPT2(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.h[0].ln_1.weight.fill_(1)  # type: ignore[union-attr, operator]
        model.ln_f.weight.fill_(1)
        model.wte.weight[:, :40] = 0.01 * torch.eye(40)
        assert model.wpe is not None
        model.wpe.weight[:, 40:] = torch.eye(40)
        c_attn = model.h[0].attn.c_attn.weight  # type: ignore[union-attr]
        for position in range(40):  # head 0: the query of a position asks for the key of the one before
            if position:
                c_attn[40 + position, position - 1] = 20  # type: ignore[index, operator]
            c_attn[40 + position, 80 + position] = 20  # type: ignore[index, operator]
    gpt = GPT(TorchBackend(model.eval().requires_grad_(False)), name="by hand")
    scores = gpt.heads(length=12, sequences=2)
    assert scores.strongest("previous_token", 1)[0][:2] == (0, 0)
    assert scores.at(kind="previous_token", layer=0, head=0).values > 0.99
    assert scores.at(kind="previous_token", layer=0, head=1).values < 0.2  # even over all tokens


def test_the_same_seed_gives_the_same_scores(gpt: GPT) -> None:
    np.testing.assert_array_equal(gpt.heads(length=8, seed=1).values, gpt.heads(length=8, seed=1).values)
    assert not np.allclose(gpt.heads(length=8, seed=1).values, gpt.heads(length=8, seed=2).values)


def test_what_cannot_be_measured_is_an_error(gpt: GPT) -> None:
    with pytest.raises(SettingError, match=r"length 30, repeated, does not fit.*at most 24"):
        gpt.heads(length=30)
    with pytest.raises(SettingError, match="length"):
        gpt.heads(length=2)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_has_scores(attention: str) -> None:
    gpt = random_model(Config(
        vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, attention=attention,
        mask_token_id=49 if attention == "bidirectional" else None
    ))  # fmt: skip
    scores = gpt.heads(length=9, sequences=2)
    assert np.isfinite(scores.values).all()
    assert (scores.values[:-1] >= 0).all()
    assert (scores.values[:-1] <= 1 + 1e-6).all()


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", "tiny", "-k", "2", "--length", "12", "--sequences", "2"]) == 0
    out = capsys.readouterr().out
    assert "induction" in out
    assert "copying" in out
    story = tmp_path / "story.txt"
    story.write_text("The old house stood at the end of the lane, and the old house was dark. " * 9, "utf-8")
    assert main(["heads", "tiny", "--text", str(story), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert set(scores) == {*KINDS, "copying"}
    assert np.array(scores["induction"]).shape == (5, 4)


@pytest.mark.parametrize("line", ['{"text": [[]]}', '{"words": 1}', "[]", "{", '{"text":' + "9" * 5000 + "}"])
def test_a_record_without_a_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one two three"}\n' + line + "\n")
    assert main(["heads", "tiny", "--text", str(tmp_path / "a.jsonl")]) == 2
    assert "a.jsonl, record 2: " in capsys.readouterr().err
