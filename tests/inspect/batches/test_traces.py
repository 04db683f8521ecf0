"""`gpt.traces`: a row's numbers are those of its own trace, whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.backends.numpy import NumpyBackend
from glassgpt.config import Config
from glassgpt.errors import UserError
from glassgpt.gpt import GPT
from glassgpt.inspect.batches.decompose import LogitAttribution, component_names
from glassgpt.inspect.batches.named_array import NamedArray
from glassgpt.inspect.taps import list_steps
from glassgpt.model.numpy_gpt2 import NumpyGPT2
from tests.inspect.conftest import SMALL, random_model, some_ids, weights_of
from tests.inspect.plain import softmax

LONG = Config(vocab_size=101, n_positions=200, n_embd=16, n_layer=2, n_head=2)
VARIANTS = [
    {"attention": "relative"},
    {"attention": "memory", "memory_length": 8},
    {"attention": "bidirectional", "mask_token_id": 100},
    {"attention": "local", "local_block": 8},
    {"attention": "compressed", "local_block": 8},
]


def of_kind(settings: dict[str, object]) -> GPT:
    return random_model(Config(vocab_size=101, n_positions=48, n_embd=32, n_layer=2, n_head=4, **settings))


def in_numpy(gpt: GPT) -> GPT:
    return GPT(NumpyBackend(NumpyGPT2(gpt.config, weights_of(gpt))), name="random")


def ragged(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.linspace(1, longest, count).astype(int))
    return [some_ids(int(length), seed=i) for i, length in enumerate(lengths)]


class TestRows:
    def test_200_ragged_prompts_have_the_bits_of_their_own_traces(self) -> None:
        gpt = random_model(LONG)
        prompts = ragged(200, 200)
        assert sorted({len(ids) for ids in prompts}) == list(range(1, 201))
        traces = gpt.traces(prompts, memory=0.02)
        steps = list_steps(gpt.config)
        for i in np.random.default_rng(1).permutation(200):
            found, own = traces[int(i)].read(*steps), gpt.trace(prompts[i]).read(*steps)
            for step in steps:
                np.testing.assert_array_equal(found[step], own[step], err_msg=f"prompt {i}, {step}")

    def test_rows_stay_in_memory_within_the_bound(self) -> None:
        gpt = random_model(LONG)
        traces = gpt.traces([some_ids(100, seed=i) for i in range(20)], memory=0.002)
        most = 0
        for trace in traces:
            trace.read(*list_steps(gpt.config))
            most = max(most, trace.held_bytes)
            assert traces.held_bytes <= traces.memory_bytes + trace.held_bytes
        assert 20 * most > 3 * traces.memory_bytes
        assert traces[3].logits_at(-1).shape == (101,)

    def test_a_row_that_is_kept_is_not_computed_again(self) -> None:
        traces = random_model().traces(ragged(3, 9))
        assert traces[1] is traces[1]
        assert [trace.tokens for trace in traces[1:]] == traces.tokens[1:]

    def test_a_file_of_records(self, tmp_path, shipped) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text('{"text": "The old house", "answer": " stood"}\n{"text": "The sea"}\n')
        traces = shipped.traces(path)
        assert ["".join(texts) for texts in traces.texts] == ["The old house", "The sea"]
        plain = tmp_path / "prompts.txt"
        plain.write_text("The old house\n\nThe sea\n")
        assert shipped.traces(plain).tokens == traces.tokens


class TestMetrics:
    @pytest.fixture
    def rows(self) -> tuple[GPT, list[list[int]], list[np.ndarray]]:
        gpt = random_model()
        prompts = ragged(5, 20)
        return gpt, prompts, [gpt.trace(ids).logits.astype(np.float64) for ids in prompts]

    def test_logit_difference(self, rows) -> None:
        gpt, prompts, logits = rows
        found = gpt.traces(prompts).logit_diff([1, 2, 3, 4, 5], 9)
        expected = [own[-1, answer] - own[-1, 9] for own, answer in zip(logits, [1, 2, 3, 4, 5], strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    @pytest.mark.parametrize(("name", "function"), [("probability", np.exp), ("log_probability", np.copy)])
    def test_probabilities(self, rows, name, function) -> None:
        gpt, prompts, logits = rows
        expected = [np.log(softmax(own[-1]))[7] for own in logits]
        np.testing.assert_allclose(gpt.traces(prompts).measure(name, 7), function(expected), rtol=1e-6)

    def test_the_loss_of_a_continuation_is_that_of_the_longer_text(self, rows) -> None:
        gpt, prompts, _ = rows
        found = gpt.traces(prompts).measure("loss", continuation=[[4, 5, 6], [7], [8, 9], [1], [2]])
        first = gpt.trace([*prompts[0], 4, 5, 6]).token_loss.nats[-3:].mean()
        second = gpt.trace([*prompts[1], 7]).token_loss.nats[-1]
        np.testing.assert_allclose(found[:2], [first, second], rtol=1e-5)

    def test_a_function_of_logits_and_a_position(self, rows) -> None:
        gpt, prompts, logits = rows
        found = gpt.traces(prompts).measure(lambda x: x[:, 3] * 2, position=0)
        np.testing.assert_allclose(found, [2 * own[0, 3] for own in logits], rtol=1e-6)

    def test_a_position_by_the_text_of_a_token_and_by_a_function(self, shipped) -> None:
        traces = shipped.traces(["The old house stood", "An old man stood"])
        by_text = traces.measure("logit", " the", position=" old")
        np.testing.assert_array_equal(by_text, traces.measure("logit", " the", position=1))
        last = traces.measure("logit", " the", position=lambda texts: len(texts) - 2)
        np.testing.assert_array_equal(last, traces.measure("logit", " the", position=-2))


class TestSums:
    @pytest.mark.parametrize("numpy", [False, True])
    def test_the_decomposition_sums_to_the_stream_exactly(self, numpy) -> None:
        gpt = in_numpy(random_model()) if numpy else random_model()
        traces = gpt.traces(ragged(6, 30))
        found = traces.decompose()
        stream = np.stack([trace.residual[-1][-1] for trace in traces])
        np.testing.assert_array_equal(found.total.astype(np.float32), stream)
        rounding = np.abs(found.at(component="rounding").values)
        assert rounding.max() < 20 * np.finfo(np.float32).eps * np.abs(stream).max()

    def test_each_component_is_what_was_written(self) -> None:
        gpt = random_model()
        traces = gpt.traces(ragged(4, 12))
        found = traces.decompose(position=[0, -1, -1, 1])
        for number, position in enumerate([0, -1, -1, 1]):
            trace, w = traces[number], gpt.weights
            z, parts = trace.attn.z[1, 2, position].astype(np.float64), found.at(prompt=number)
            head = z @ w.W_O[1, 2].astype(np.float64)
            np.testing.assert_allclose(parts.at(component="head 1.2").values, head, rtol=1e-12)
            np.testing.assert_array_equal(parts.at(component="attn bias 2").values, w.b_O[2])
            np.testing.assert_array_equal(parts.at(component="mlp 0").values, trace.mlp.proj[0, position])
            np.testing.assert_array_equal(parts.at(component="wpe").values, trace["wpe"][position])

    @pytest.mark.parametrize("numpy", [False, True])
    def test_logit_attribution_is_that_of_each_prompt_and_sums_to_the_logit(self, numpy) -> None:
        gpt = in_numpy(random_model()) if numpy else random_model()
        prompts = ragged(5, 30)
        found = gpt.traces(prompts).attribute_logits([1, 2, 3, 4, 5], minus=9)
        np.testing.assert_allclose(found.total, found.logit, rtol=1e-12)
        np.testing.assert_allclose(found.logit, gpt.traces(prompts).logit_diff([1, 2, 3, 4, 5], 9), rtol=1e-5)
        for i, prompt in enumerate(prompts):
            own = gpt.attribute(prompt, (i + 1, 9), "direct_logit_attribution")
            np.testing.assert_allclose(found.heads[i], own.heads, atol=1e-5)
            np.testing.assert_allclose(found.mlps[i], own.mlps, atol=1e-5)
            np.testing.assert_allclose(found.at(component="ln_f bias")[i], own.ln_f_bias, rtol=1e-6)
        assert np.abs(found.at(component="rounding").values).max() < 1e-4

    @pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: settings["attention"])
    def test_every_attention(self, settings) -> None:
        gpt = of_kind(settings)
        traces = gpt.traces(ragged(3, 20))
        found = traces.attribute_logits(4)
        np.testing.assert_allclose(found.logit, traces.measure("logit", 4), rtol=1e-5)
        assert np.abs(found.at(component="rounding").values).max() < 1e-4
        stream = np.stack([trace.residual[-1][-1] for trace in traces])
        np.testing.assert_array_equal(traces.decompose().total.astype(np.float32), stream)


class TestNamedArray:
    @pytest.fixture
    def found(self) -> LogitAttribution:
        return random_model().traces(ragged(4, 10)).attribute_logits(3)

    def test_its_parts_by_index_and_by_label(self, found) -> None:
        names = [*component_names(SMALL), "ln_f bias", "rounding"]
        assert found.labels["component"] == tuple(names)
        part = found.at(prompt=-1, component="mlp 2")
        assert part.shape == ()
        assert part.values == found[3, names.index("mlp 2")]
        np.testing.assert_allclose(found.mean().values, found.values.mean(axis=0))

    def test_the_largest(self, found) -> None:
        (labels, value), *_ = found.top(1)
        column = np.abs(found.values.mean(axis=0)).argmax()
        assert labels == {"component": found.labels["component"][column]}
        np.testing.assert_allclose(value, found.values.mean(axis=0)[column])

    def test_as_a_data_frame(self, found) -> None:
        pytest.importorskip("pandas")
        frame = found.to_pandas()
        assert list(frame.columns) == ["prompt", "component", "logit"]
        assert len(frame) == found.values.size
        own = frame[(frame["prompt"] == "2") & (frame["component"] == "wpe")]["logit"].item()
        assert own == found.at(prompt=2, component="wpe").values

    def test_in_a_file(self, found, tmp_path) -> None:
        found.save(tmp_path / "a.safetensors")
        again = LogitAttribution.load(tmp_path / "a.safetensors")
        np.testing.assert_array_equal(again.values, found.values)
        np.testing.assert_array_equal(again.logit, found.logit)
        assert again.dims == found.dims
        assert again.labels == found.labels
        assert again.heads.shape == (4, 3, 4)
        (tmp_path / "a.safetensors").write_bytes(b"no")
        with pytest.raises(UserError):
            NamedArray.load(tmp_path / "a.safetensors")

    def test_it_draws_itself(self, found) -> None:
        picture = found.heads.to_svg()
        strongest, value = found.heads.top(1)[0]
        assert f"layer {strongest['layer']}, {strongest['head']}: {value:+.4f}" in picture
        large = NamedArray(np.ones((60, 60)), ("row", "column"), {"row": ("r",) * 60, "column": ("c",) * 60})
        assert "<image" in large.to_svg()


BAD = {
    "answer of two tokens": (
        lambda t: t.logit_diff([" a", " a", " Mary Ann"], " John"),
        "prompts[2]",
        "one token",
    ),
    "unequal lists": (lambda t: t.logit_diff([" a"], " b"), "1 entries", "prompts 3"),
    "an id outside": (lambda t: t.logit_diff(99_999, " a"), "prompts[0]", "99999"),
    "a position outside": (lambda t: t.decompose(position=[0, 5, 0]), "prompts[1]", "out of range"),
    "a token that is not there": (lambda t: t.decompose(position=" zebra"), "prompts[0]", "' zebra'"),
    "a token that is there twice": (lambda t: t.decompose(position=[0, 0, " the"]), "prompts[2]", "0, 2"),
    "a function's result": (lambda t: t.decompose(position=lambda texts: "no"), "prompts[0]", "'no'"),
    "an unknown metric": (lambda t: t.measure("accuracy"), "'accuracy'", "logit_diff"),
    "a metric without its answer": (lambda t: t.measure("logit_diff", " a"), "minus=", "' Mary'"),
    "a metric with too much": (lambda t: t.measure("logit", " a", minus=" b"), "minus=", "Leave it out"),
    "kl of one run": (lambda t: t.measure("kl"), "kl", "sweep"),
    "a metric's result": (lambda t: t.measure(lambda x: x), "shape", "one number for each row"),
    "no continuation": (lambda t: t.measure("loss", continuation=["a", "", "b"]), "prompts[1]", "empty"),
    "too large": (lambda t: t.decompose(memory=1e-6), "memory=", "fewer prompts"),
    "memory": (lambda t: t.decompose(memory=-1), "memory is -1", "GiB"),
    "an axis": (lambda t: t.logit_diff(" a", " b").at(layer=1), "'layer'", "prompt"),
    "a label": (lambda t: t.attribute_logits(" a").at(component="head 77"), "'head 77'", "wte"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, shipped) -> None:
    call, *words = BAD[case]
    traces = shipped.traces(["The old house", "The sea", " the man the"])
    with pytest.raises(UserError) as caught:
        call(traces)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], ["prompts is empty"]),
        (["a", ""], ["prompts[1]", "empty"]),
        (["a", None], ["prompts[1]", "not a prompt"]),
        ([[1, 2], [3, 500]], ["prompts[1]", "500"]),
        ([[1], [2] * 49], ["prompts[1]", "49", "48"]),
        (["a text"], ["prompts[0]", "tokenizer"]),
        (7, ["int", "not a prompt"]),
    ],
)
def test_bad_prompts_are_named(prompts, words, gpt, shipped) -> None:
    model = gpt if words[0] != "prompts[1]" or "empty" not in words else shipped
    with pytest.raises(UserError) as caught:
        model.traces(prompts)
    message = str(caught.value)
    assert "\n" not in message
    if prompts != ["a", None]:
        for word in words:
            assert word in message, message
