"""The atlas of a small model equals a scan text by text; it goes on where it stopped; its file is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgpt
from glassgpt.cli import main
from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.gpt import GPT
from glassgpt.inspect.components import build_atlas
from glassgpt.inspect.components.atlas import Atlas
from glassgpt.inspect.components.windows import read_windows

TEXTS = [
    "The old house stood at the end of the lane. Nobody had lived in it for years, and it was dark.",
    "A storm came over the hills in the night. The storm broke the old tree, and the tree lay in the lane.",
    "Her brother wrote every week. He wrote about the ship and the sea, and she read every letter twice.",
]
LENGTH, K = 6, 4


@pytest.fixture(scope="module")
def atlas(shipped: GPT, tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    return glassgpt.atlas(shipped, TEXTS, tmp_path_factory.mktemp("atlas"), length=LENGTH, k=K)


def traces(gpt: GPT) -> list[tuple[int, glassgpt.inspect.Trace]]:  # type: ignore[name-defined]
    """Every window by itself: the place of its first token, and its trace after an end-of-text token."""
    assert gpt.tokenizer is not None
    eot = gpt.tokenizer.eot_id
    return [
        (window.start, gpt.trace([eot, *window.ids]))  # type: ignore[list-item]
        for window in read_windows(TEXTS, gpt.tokenizer, LENGTH, None)
    ]


def test_neurons_are_those_of_a_plain_scan(shipped: GPT, atlas: Atlas) -> None:
    windows = traces(shipped)
    for layer in (0, 2, 4):
        all_values = np.concatenate([trace.mlp.gelu[layer][1:] for _, trace in windows])  # (N, M)
        best = np.stack([trace.mlp.gelu[layer][1:].max(0) for _, trace in windows])  # (windows, M)
        expected = -np.sort(-best, axis=0)[:K].T
        np.testing.assert_allclose(atlas.state.neuron_value[layer], expected, atol=1e-5)
        places = atlas.state.neuron_place[layer]
        found = np.take_along_axis(all_values.T, places, 1)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        page = atlas.neuron(layer, 7)
        assert page.mean == pytest.approx(all_values[:, 7].mean(), abs=1e-5)
        assert page.std == pytest.approx(all_values[:, 7].std(), abs=1e-4)
        assert page.active == pytest.approx((all_values[:, 7] > 0).mean(), abs=1e-3)
        assert [each.activation for each in page.contexts] == pytest.approx(expected[7].tolist(), abs=1e-5)


def test_pairs_are_those_of_a_plain_scan(shipped: GPT, atlas: Atlas) -> None:
    layer, head = 3, 1
    candidates = []
    for start, trace in traces(shipped):
        weights = trace.attention[layer][:, 1:, 1:]
        others = np.delete(weights, head, axis=0).mean(0)
        more = weights[head] - others
        query, key = np.unravel_index(more.argmax(), more.shape)
        candidates.append((more[query, key], weights[head, query, key], start + query, start + key))
    candidates.sort(key=lambda each: -each[0])
    page = atlas.head(layer, head)
    assert [(pair.query_place, pair.key_place) for pair in page.pairs] == [
        (query, key) for _, _, query, key in candidates[:K]
    ]
    assert [pair.more for pair in page.pairs] == pytest.approx([each[0] for each in candidates[:K]], abs=1e-5)
    assert [pair.weight for pair in page.pairs] == pytest.approx(
        [each[1] for each in candidates[:K]], abs=1e-5
    )
    assert shipped.tokenizer is not None
    scores = shipped.heads([trace.tokens for _, trace in traces(shipped)])
    for kind, share in page.kinds.items():
        assert share == pytest.approx(float(scores.at(kind=kind, layer=layer, head=head).values), abs=1e-5)


def test_pages_show_the_text(atlas: Atlas) -> None:
    for context in atlas.neuron(1, 3).contexts:
        whole = context.before + context.token + context.after
        assert any(whole in text for text in TEXTS)
    assert "reads" in str(atlas.neuron(1, 3))
    assert len(atlas.neuron(1, 3).writes) == 10
    assert "→" in str(atlas.head(0, 0))
    assert repr(atlas).startswith("Atlas('tiny', 20 heads, 2,560 neurons")


def test_an_interrupted_scan_ends_with_the_same_bits(
    shipped: GPT, atlas: Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_atlas, "SAVE_EVERY", 1)
    whole, calls = build_atlas.add_batch, []

    def stop(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(build_atlas, "add_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        glassgpt.atlas(shipped, TEXTS, tmp_path, length=LENGTH, k=K)
    part = Atlas.load(tmp_path)
    assert 0 < len(part.state.tokens) < len(atlas.state.tokens)
    assert repr(part).endswith("not complete)")
    again = glassgpt.atlas(shipped, TEXTS, tmp_path, length=LENGTH, k=K)
    for name, values in atlas.state.arrays().items():
        np.testing.assert_array_equal(again.state.arrays()[name], values, err_msg=name)
    monkeypatch.setattr(build_atlas, "add_batch", whole)
    before = (tmp_path / "atlas.safetensors").stat().st_mtime_ns
    glassgpt.atlas(shipped, TEXTS, tmp_path, length=LENGTH, k=K)  # complete: nothing to do
    assert (tmp_path / "atlas.safetensors").stat().st_mtime_ns == before
    with pytest.raises(SettingError, match="another atlas"):
        glassgpt.atlas(shipped, TEXTS, tmp_path, length=LENGTH, k=K + 1)


def test_another_corpus_is_not_mixed_in(
    shipped: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_atlas, "SAVE_EVERY", 1)
    monkeypatch.setattr(build_atlas, "promoted_tokens", lambda gpt: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        glassgpt.atlas(shipped, TEXTS, tmp_path, length=LENGTH, k=K)
    with pytest.raises(SettingError, match="begun with another corpus"):
        glassgpt.atlas(shipped, TEXTS[1:], tmp_path, length=LENGTH, k=K)


def test_damaged_files_are_refused(shipped: GPT, tmp_path: Path) -> None:
    glassgpt.atlas(shipped, TEXTS[:1], tmp_path, length=LENGTH, k=2, tokens=24)
    path = tmp_path / "atlas.safetensors"
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little")
    for old, new in (
        (b'\\"k\\": 2', b'\\"k\\": 3'),
        (b"glassgpt atlas 1", b"glassgpt atlas 9"),
        (b"neuron_place", b"neuron_plane"),
    ):
        assert old in good[: 8 + header]
        path.write_bytes(good.replace(old, new, 1))
        with pytest.raises(FileFormatError):
            Atlas.load(tmp_path)
    path.write_bytes(good[:-100])
    with pytest.raises(FileFormatError):
        Atlas.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="has no atlas"):
        Atlas.load(tmp_path)


@pytest.mark.parametrize("config", [None, [], {"n_layer": 10**9}, {"n_inner": 10**9}, {"n_head": 1}])
def test_a_config_that_lies_is_refused(shipped: GPT, tmp_path: Path, config: Any) -> None:
    """Before there is memory for as many neurons and heads as it says."""
    glassgpt.atlas(shipped, TEXTS[:1], tmp_path, length=LENGTH, k=2, tokens=24)
    path = tmp_path / "atlas.safetensors"
    good = path.read_bytes()
    size = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:size])
    about = json.loads(header["__metadata__"]["about"])
    about["config"] = {**about["config"], **config} if isinstance(config, dict) else config
    header["__metadata__"]["about"] = json.dumps(about)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + good[size:])
    with pytest.raises(FileFormatError, match="not a valid atlas"):
        Atlas.load(tmp_path)


def test_windows_are_parts_of_texts(shipped: GPT, tmp_path: Path) -> None:
    assert shipped.tokenizer is not None
    (tmp_path / "a.txt").write_text(TEXTS[0], "utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": TEXTS[1]}) + "\n", "utf-8")
    from_files = list(read_windows(tmp_path, shipped.tokenizer, 10, 30))
    assert from_files == list(read_windows(TEXTS[:2], shipped.tokenizer, 10, 30))
    assert sum(len(window.ids) for window in from_files) <= 30
    assert [window.start for window in from_files] == [0, 10, 20]
    with pytest.raises(UserError, match="does not exist"):
        list(read_windows(tmp_path / "none", shipped.tokenizer, 10, None))
    with pytest.raises(UserError, match="no text"):
        list(read_windows(["a"], shipped.tokenizer, 10, None))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "texts.txt", tmp_path / "atlas"
    data.write_text(" ".join(TEXTS), "utf-8")
    arguments = ["atlas", "tiny", "--data", str(data), "-o", str(out), "--length", "20", "--keep", "3"]
    assert main([*arguments, "--neuron", "1.5"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("neuron 1.5: active at")
    assert "2,560 neurons" in printed.err
    assert main(["atlas", "-o", str(out), "--head", "2.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["head"] == 1
    for wrong, message in (
        (["--neuron", "1"], "is not a place"),
        (["--neuron", "9.1"], "layer 9 is out of range"),
        ([], "nothing to do"),
        (["--data", str(tmp_path / "none")], "does not exist"),
    ):
        assert main(["atlas", "-o", str(out), *wrong]) != 0
        assert message in capsys.readouterr().err
