"""Sweeps and path patching against one intervention at a time, on every attention, in numpy and in torch."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead, Head, KLDivergence, LogitDifference, Patch, SweepResult
from glassgpt.inspect.experiments.sites import KINDS
from tests.inspect.batches.test_traces import VARIANTS, in_numpy, of_kind
from tests.inspect.conftest import random_model, some_ids
from tests.inspect.plain import softmax

CLEAN = [some_ids(7, 1), some_ids(5, 2), some_ids(7, 3)]
CORRUPTED = [some_ids(7, 4), some_ids(5, 5), some_ids(7, 6)]
TEXTS = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": [3, 4, 5], "minus": 9}
# Rounding: metrics are some units large, fused attention and batches sum in another order.
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def logit_diff(gpt: GPT, ids: list[int], edits: list, pair: int) -> float:
    logits = gpt.intervene(ids, edits).logits
    return float(logits[TEXTS["answer"][pair]] - logits[9])


def one_by_one(gpt: GPT, patch: str, layer: int, pair: int, part: int | None, position: int | None) -> float:
    """The same patch as an edit."""
    step, axis = KINDS[patch]
    name = f"h.{layer}.{step}"
    source = gpt.trace(CLEAN[pair])
    positions = None if position is None else (position,)
    if axis == "neuron":
        value = source[name][:, part] - gpt.trace(CORRUPTED[pair])[name][:, part]
        kept = np.zeros((len(source), gpt.config.d_mlp), np.float32)
        kept[:, part] = value
        where = range(len(source)) if position is None else [position]
        from glassgpt.inspect import Steer

        return logit_diff(gpt, CORRUPTED[pair], [Steer(name, kept[t], positions=(t,)) for t in where], pair)
    return logit_diff(gpt, CORRUPTED[pair], [Patch(name, source, part, positions)], pair)


class TestEveryKind:
    @pytest.mark.parametrize("patch", ["resid_pre", "resid_mid", "resid_post", "attn", "mlp"])
    def test_by_layer_and_position(self, patch) -> None:
        gpt = random_model()
        found = gpt.sweep(**TEXTS, patch=patch)
        assert found.dims == ("prompt", "layer", "position")
        assert found.shape == (3, 3, 7)
        assert np.isnan(found[1, :, 5:]).all()
        for pair, layer, position in ((0, 0, 2), (0, 2, 6), (1, 1, 4), (2, 2, 0), (2, 1, 6)):
            expected = one_by_one(gpt, patch, layer, pair, None, position)
            np.testing.assert_allclose(found[pair, layer, position], expected, **NEAR)

    @pytest.mark.parametrize("patch", ["head", "q", "k", "v", "pattern", "neuron"])
    def test_by_layer_and_part(self, patch) -> None:
        gpt = random_model()
        found = gpt.sweep(**TEXTS, patch=patch)
        assert found.shape == (3, 3, 128 if patch == "neuron" else 4)
        each = gpt.sweep(**TEXTS, patch=patch, positions=[-1, 2], layers=[1])
        assert each.shape == (*found.shape[:1], 1, *found.shape[2:], 2)
        for pair, layer, part in ((0, 0, 1), (1, 2, 3), (2, 1, 0)):
            expected = one_by_one(gpt, patch, layer, pair, part, None)
            np.testing.assert_allclose(found[pair, layer, part], expected, **NEAR)
            there = one_by_one(gpt, patch, 1, pair, part, len(CLEAN[pair]) - 1)
            np.testing.assert_allclose(each[pair, 0, part, 0], there, **NEAR)

    @pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: settings["attention"])
    @pytest.mark.parametrize("patch", ["resid_pre", "mlp", "head", "pattern"])
    def test_every_attention(self, patch, settings) -> None:
        gpt = of_kind(settings)
        found = gpt.sweep(**TEXTS, patch=patch)
        part = None if KINDS[patch].axis is None else 2
        position = 3 if part is None else None
        expected = one_by_one(gpt, patch, 1, 2, part, position)
        np.testing.assert_allclose(found[2, 1, 3 if part is None else part], expected, **NEAR)

    def test_numpy_gives_what_torch_gives(self) -> None:
        gpt = random_model()
        for patch in KINDS:
            theirs = in_numpy(gpt).sweep(**TEXTS, patch=patch)
            np.testing.assert_allclose(theirs.values, gpt.sweep(**TEXTS, patch=patch).values, **NEAR)


class TestResults:
    def test_a_whole_stream_brings_all_of_the_other_run(self) -> None:
        gpt = random_model()
        last = gpt.sweep(**TEXTS, patch="resid_post", layers=[-1], positions=[-1])
        np.testing.assert_allclose(last[:, 0, 0], last.clean, rtol=1e-5)
        np.testing.assert_allclose(last.normalized().values, 1, rtol=1e-5)
        back = gpt.sweep(**TEXTS, patch="resid_post", layers=[-1], positions=[-1], into="clean")
        np.testing.assert_allclose(back[:, 0, 0], back.corrupted, rtol=1e-5)
        np.testing.assert_array_equal(back.base, back.clean)

    def test_a_batch_bound_by_memory_gives_the_same(self) -> None:
        gpt = random_model()
        whole, small = (gpt.sweep(**TEXTS, patch="head", memory=memory) for memory in (1, 1e-6))
        np.testing.assert_allclose(small.values, whole.values, **NEAR)

    def test_metrics(self) -> None:
        gpt = random_model()
        texts = {"clean": CLEAN, "corrupted": CORRUPTED}
        edited = [
            gpt.intervene(CORRUPTED[i], Patch("h.1.mlp.proj", CLEAN[i], positions=(-1,))).p for i in range(3)
        ]
        plain = [softmax(gpt.trace(ids).logits_at(-1).astype(np.float64)) for ids in CLEAN]
        where = {"patch": "mlp", "layers": 1, "positions": -1}
        kl = [(p * np.log(p / q)).sum() for p, q in zip(plain, edited, strict=True)]
        for metric in ("kl", KLDivergence()):
            found = gpt.sweep(**texts, **where, metric=metric)
            np.testing.assert_allclose(found[:, 0, 0], kl, rtol=1e-3)
            np.testing.assert_allclose(found.clean, 0, atol=1e-6)
        probability = gpt.sweep(**texts, **where, metric="probability", answer=7)
        np.testing.assert_allclose(probability[:, 0, 0], [p[7] for p in edited], rtol=1e-3)
        own = gpt.sweep(**texts, **where, metric=lambda logits: logits[:, 3] - logits[:, 9])
        named = gpt.sweep(**texts, **where, metric=LogitDifference(3, 9))
        np.testing.assert_allclose(own.values, named.values, rtol=1e-6)

    def test_the_loss_of_a_continuation(self) -> None:
        gpt = random_model()
        found = gpt.sweep(
            CLEAN, CORRUPTED, "mlp", "loss", continuation=[[1, 2], [3, 4, 5], [6]], positions=[0]
        )
        assert found.shape == (3, 3, 1)
        text, source = [*CORRUPTED[1], 3, 4, 5], [*CLEAN[1], 3, 4, 5]
        done = gpt.intervene(text, Patch("h.2.mlp.proj", source, positions=(0,)))
        np.testing.assert_allclose(found[1, 2, 0], done.after.token_loss.nats[-3:].mean(), rtol=1e-4)

    def test_positions_by_the_text_of_a_token(self, shipped) -> None:
        clean, corrupted = "The old house stood at the", "The old horse stood at the"
        settings = {"patch": "resid_pre", "answer": " end", "minus": " sea"}
        found = shipped.sweep(clean, corrupted, **settings, positions=[" horse", lambda texts: 3])
        by_index = shipped.sweep(clean, corrupted, **settings)
        np.testing.assert_allclose(found.values, by_index.values[:, :, [2, 3]], **NEAR)
        assert by_index.labels["position"][2] == "2 horse"
        assert found.labels["position"][0] == " horse"
        assert "2 horse" in by_index.to_svg()

    def test_half_precision_is_computed_in_float32(self) -> None:
        gpt = random_model()
        values = gpt.sweep(**TEXTS, patch="head").values
        gpt.backend.model.bfloat16()
        rounded = gpt.sweep(**TEXTS, patch="head").values
        assert 0 < np.nanmax(np.abs(rounded - values)) < 0.2


@contextmanager
def stop_after(count: int, unit: list[int]):
    def advance(n: int) -> None:
        unit.append(n)
        if len(unit) == count:
            raise KeyboardInterrupt

    yield advance


class TestFiles:
    def test_an_interrupted_sweep_goes_on_where_it_stopped(self, tmp_path) -> None:
        gpt, path = random_model(), tmp_path / "sweep.safetensors"
        settings = {**TEXTS, "patch": "head", "save": path, "memory": 1e-6}
        done: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            gpt.sweep(**settings, progress=lambda *_, **more: stop_after(9, done))
        half = SweepResult.load(path)
        assert 0 < np.isfinite(half.values).sum() == sum(done) < half.values.size
        again: list[int] = []
        found = gpt.sweep(**settings, progress=lambda *_, **more: stop_after(10**6, again))
        assert sum(done) + sum(again) == found.values.size
        np.testing.assert_array_equal(
            found.values[np.isfinite(half.values)], half.values[np.isfinite(half.values)]
        )
        saved = SweepResult.load(path)
        np.testing.assert_array_equal(saved.values, found.values)
        np.testing.assert_array_equal(saved.normalized().values, found.normalized().values)
        nothing: list[int] = []
        gpt.sweep(**settings, progress=lambda *_, **more: stop_after(10**6, nothing))
        assert nothing == []

    def test_a_file_of_another_sweep_is_refused(self, tmp_path) -> None:
        gpt, path = random_model(), tmp_path / "sweep.safetensors"
        gpt.sweep(**TEXTS, patch="head", save=path, layers=[0])
        before = path.read_bytes()
        for change in ({"layers": [1]}, {"patch": "q", "layers": [0]}, {"minus": 8, "layers": [0]}):
            with pytest.raises(UserError, match="holds another sweep"):
                gpt.sweep(**{**TEXTS, "patch": "head", "save": path, **change})
        with pytest.raises(UserError, match="holds another sweep"):
            random_model(seed=2).sweep(**TEXTS, patch="head", save=path, layers=[0])
        assert path.read_bytes() == before
        with pytest.raises(UserError, match="safetensors"):
            gpt.sweep(**TEXTS, save=tmp_path / "sweep.txt")


def frozen_edits(gpt: GPT, clean, sender: Head, freeze_mlps: bool) -> list[Patch]:
    """docs/inspect.md's way: every other head is patched with its own output."""
    heads = [(i, h) for i in range(gpt.config.n_layer) for h in range(gpt.config.n_head)]
    edits = [Patch(f"h.{i}.attn.z", clean, h) for i, h in heads if (i, h) != (sender.layer, sender.head)]
    mlps = range(gpt.config.n_layer) if freeze_mlps else ()
    return [*edits, *(Patch(f"h.{i}.mlp.proj", clean) for i in mlps)]


class TestPathPatching:
    @pytest.mark.parametrize("freeze_mlps", [False, True])
    @pytest.mark.parametrize("numpy", [False, True])
    def test_as_edits(self, numpy, freeze_mlps) -> None:
        gpt = in_numpy(random_model()) if numpy else random_model()
        sender, receivers = Head(0, 1), [Head(1, 2, "q"), Head(2, 3, "v"), Head(2, 0)]
        found = gpt.path_patch(**TEXTS, sender=sender, receivers=receivers, freeze_mlps=freeze_mlps)
        assert found.dims == ("prompt", "sender")
        for pair in range(3):
            clean, other = gpt.trace(CLEAN[pair]), gpt.trace(CORRUPTED[pair])
            edits = frozen_edits(gpt, clean, sender, freeze_mlps)
            sent = gpt.intervene(clean, [*edits, Patch("h.0.attn.z", other, 1)]).after
            received = [Patch("h.1.attn.q", sent, 2), Patch("h.2.attn.v", sent, 3)]
            received += [Patch(f"h.2.attn.{part}", sent, 0) for part in "qkv"]
            np.testing.assert_allclose(found[pair, 0], logit_diff(gpt, clean, received, pair), **NEAR)
            np.testing.assert_allclose(found.clean[pair], logit_diff(gpt, clean, [], pair), **NEAR)

    def test_to_the_logits_and_from_every_head(self) -> None:
        gpt = random_model()
        found = gpt.path_patch(**TEXTS)
        assert found.shape == (3, 3, 4)
        for pair, layer, head in ((0, 0, 1), (1, 1, 3), (2, 2, 0)):
            clean = gpt.trace(CLEAN[pair])
            edits = frozen_edits(gpt, clean, Head(layer, head), False)
            edits.append(Patch(f"h.{layer}.attn.z", CORRUPTED[pair], head))
            np.testing.assert_allclose(found[pair, layer, head], logit_diff(gpt, clean, edits, pair), **NEAR)

    def test_each_receiver_by_itself(self) -> None:
        gpt = random_model()
        receivers = [Head(1, 2, "q"), Head(2, 3, "v"), Head(2, 0)]
        found = gpt.path_patch(**TEXTS, receivers=receivers, separately=True)
        assert found.dims == ("prompt", "layer", "head", "receiver")
        assert found.labels["receiver"] == ("head 1.2 q", "head 2.3 v", "head 2.0")
        for i, receiver in enumerate(receivers):
            alone = gpt.path_patch(**TEXTS, receivers=receiver)
            np.testing.assert_allclose(found[:, : alone.shape[1], :, i], alone.values, **NEAR)
        np.testing.assert_array_equal(found[:, 1, :, 0], np.repeat(found.base[:, None], 4, axis=1))

    def test_from_one_position(self) -> None:
        gpt = random_model()
        found = gpt.path_patch(**TEXTS, sender=[Head(1, 1), Head(2, 2)], position=-1)
        clean = gpt.trace(CLEAN[0])
        edits = frozen_edits(gpt, clean, Head(1, 1), False)
        edits += [Patch("h.1.attn.z", clean, 1), Patch("h.1.attn.z", CORRUPTED[0], 1, positions=(6,))]
        np.testing.assert_allclose(found[0, 0], logit_diff(gpt, clean, edits, 0), **NEAR)
        assert found.labels["sender"] == ("head 1.1", "head 2.2")

    @pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: settings["attention"])
    def test_every_attention(self, settings) -> None:
        gpt = of_kind(settings)
        found = gpt.path_patch(**TEXTS, receivers=[Head(1, 2, "q")])
        clean, other = gpt.trace(CLEAN[0]), gpt.trace(CORRUPTED[0])
        edits = [*frozen_edits(gpt, clean, Head(0, 3), False), Patch("h.0.attn.z", other, 3)]
        sent = gpt.intervene(clean, edits).after
        expected = logit_diff(gpt, clean, [Patch("h.1.attn.q", sent, 2)], 0)
        np.testing.assert_allclose(found[0, 0, 3], expected, **NEAR)


class TestAttributionPatching:
    def test_it_is_the_derivative_of_the_sweep(self) -> None:
        """Of two texts that differ by little, the estimate is the sweep, to the second order."""
        gpt = random_model()
        clean = [list(range(7)), list(range(7, 12)), list(range(12, 19))]
        corrupted = [[i + 50 for i in ids] for ids in clean]
        with torch.no_grad():
            table = gpt.backend.model.wte.weight
            table[50:69] = table[:19] + 1e-3 * torch.randn(19, 32, generator=torch.Generator().manual_seed(0))
        texts = {"clean": clean, "corrupted": corrupted, "answer": 90, "minus": 91}
        gpt.backend.model.double()
        for patch in KINDS:
            swept = gpt.sweep(**texts, patch=patch)
            estimated = gpt.attribution_patch(**texts, patch=patch)
            assert estimated.dims == swept.dims
            change, guess = swept.effect().values, estimated.effect().values
            np.testing.assert_array_equal(np.isnan(change), np.isnan(guess))
            assert np.nanmax(np.abs(guess - change)) < 0.02 * np.nanmax(np.abs(change)), patch

    def test_with_positions_and_other_metrics(self) -> None:
        gpt = random_model()
        for patch in ("head", "mlp", "neuron", "pattern"):
            each = gpt.attribution_patch(**TEXTS, patch=patch, positions="each").effect().values
            whole = gpt.attribution_patch(**TEXTS, patch=patch).effect().values
            if patch != "mlp":
                np.testing.assert_allclose(np.nansum(each, axis=-1), whole, **NEAR)
        texts = {"clean": CLEAN, "corrupted": CORRUPTED}
        for metric in (
            {"metric": "kl"},
            {"metric": "loss", "continuation": [4, 5]},
            {"metric": lambda x: x[:, 2]},
        ):
            found = gpt.attribution_patch(**texts, **metric)
            swept = gpt.sweep(**texts, **metric)
            np.testing.assert_allclose(found.base, swept.base, **NEAR)
            assert (
                np.corrcoef(
                    found.effect().values[np.isfinite(swept.values)],
                    swept.effect().values[np.isfinite(swept.values)],
                )[0, 1]
                > 0.3
            )

    def test_without_torch_it_says_so(self, monkeypatch) -> None:
        gpt = in_numpy(random_model())
        with pytest.raises(UserError, match="torch"):
            gpt.attribution_patch(**TEXTS)
        monkeypatch.setattr(
            "glassgpt.inspect.experiments.attribution_patch.is_torch_installed", lambda: False
        )
        with pytest.raises(UserError, match="needs PyTorch"):
            gpt.attribution_patch(**TEXTS)

    def test_a_metric_without_a_gradient_is_named(self) -> None:
        with pytest.raises(UserError, match="differentiated"):
            random_model().attribution_patch(CLEAN, CORRUPTED, metric=lambda x: torch.tensor(x.numpy()[:, 0]))


class TestVectors:
    def test_embeddings(self) -> None:
        for gpt in (random_model(), in_numpy(random_model()), of_kind(VARIANTS[4])):
            texts = [some_ids(5, 1), some_ids(9, 2)]
            streams = [gpt.trace(ids).resid_post[-1] for ids in texts]
            np.testing.assert_allclose(gpt.embed(texts), [x.mean(axis=0) for x in streams], **NEAR)
            np.testing.assert_allclose(gpt.embed(texts, pool="last"), [x[-1] for x in streams], **NEAR)
            early = [gpt.trace(ids).resid_post[0, 0] for ids in texts]
            np.testing.assert_allclose(gpt.embed(texts, layer=0, pool="first"), early, **NEAR)

    def test_a_contrast_is_the_difference_of_means_and_steers(self, tmp_path) -> None:
        gpt = random_model()
        positive, negative = [some_ids(5, 1), some_ids(6, 2)], [some_ids(4, 3)]
        vector = gpt.contrast(positive, negative, layer=1)
        expected = gpt.embed(positive, 1, "last").mean(axis=0) - gpt.embed(negative, 1, "last")[0]
        np.testing.assert_allclose(np.asarray(vector), expected, **NEAR)
        done = gpt.intervene(some_ids(4), vector.edit(2.0, positions=(3,)))
        added = done.after.resid_post[1] - done.before.resid_post[1]
        np.testing.assert_allclose(added[3], 2 * vector.vector, **NEAR)
        np.testing.assert_array_equal(added[:3], 0)
        vector.save(tmp_path / "v.safetensors")
        again = type(vector).load(tmp_path / "v.safetensors")
        np.testing.assert_array_equal(again.vector, vector.vector)
        assert again.step == "h.1.resid_post"


PAIR = {"clean": "The old house stood", "corrupted": "The old horse stood", "answer": " at", "minus": " by"}
BAD = {
    "lists of two lengths": ({"clean": ["a", "b"]}, "clean has 2 prompts and corrupted 1"),
    "texts of two lengths": ({"corrupted": "The old stood"}, "corrupted[0] 3", "tokens"),
    "an empty prompt": ({"corrupted": [""]}, "corrupted[0]", "empty"),
    "answers of two tokens": ({"answer": " Mary Ann"}, "clean[0]", "2 tokens"),
    "a layer that is not there": ({"layers": [0, 9]}, "layer 9", "0 to 4"),
    "no layers": ({"layers": []}, "layers is empty"),
    "a patch that is not there": ({"patch": "residual"}, "'residual'", "resid_pre"),
    "a position outside": ({"positions": [2, 7]}, "corrupted[0]", "position 7"),
    "a token that is not there": ({"positions": " house"}, "corrupted[0]", "' house'"),
    "no positions": ({"positions": []}, "positions is empty"),
    "into": ({"into": "both"}, "'both'", "corrupted"),
    "memory": ({"memory": 0}, "memory is 0"),
    "a metric": ({"metric": "accuracy"}, "'accuracy'", "kl"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("method", ["sweep", "attribution_patch"])
def test_bad_input_is_one_line(method, case, shipped) -> None:
    change, *words = BAD[case]
    with pytest.raises(UserError) as caught:
        getattr(shipped, method)(**{**PAIR, **change})
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sender": Head(9, 0)}, "layer of sender[0] 9"),
        ({"sender": Head(0, 9)}, "head of sender[0] 9"),
        ({"sender": Head(3, 0), "receivers": Head(2, 1, "q")}, "not before any receiver"),
        ({"sender": Head(0, 0, "q")}, "names an input"),
        ({"receivers": [Head(2, 1, "z")]}, "'q', 'k' or 'v'"),
        ({"receivers": Head(0, 1)}, "later layer"),
        ({"sender": [AblateHead(0, 1)]}, "Head(5, 1)"),
        ({"sender": []}, "sender is empty"),
        ({"position": 9}, "clean[0]"),
    ],
)
def test_bad_paths_are_one_line(change, word, shipped) -> None:
    with pytest.raises(UserError) as caught:
        shipped.path_patch(**PAIR, **change)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda gpt: gpt.embed(["a"], pool="sum"), "'sum'"),
        (lambda gpt: gpt.embed(["a", ""]), "texts[1]"),
        (lambda gpt: gpt.embed(["a"], layer=5), "layer 5"),
        (lambda gpt: gpt.contrast(["a"], [], layer=1), "negative is empty"),
        (lambda gpt: gpt.contrast(["a"], ["a"], layer=1), "differ"),
    ],
)
def test_bad_texts_are_one_line(call, word, shipped) -> None:
    with pytest.raises(UserError) as caught:
        call(shipped)
    assert word in str(caught.value)


def test_a_continuation_needs_a_model_that_reads_from_left_to_right() -> None:
    gpt = of_kind({"attention": "bidirectional", "mask_token_id": 100})
    with pytest.raises(UserError, match="both sides"):
        gpt.sweep(CLEAN, CORRUPTED, metric="loss", continuation=[1, 2])
