"""Every protocol against a plain, slow loop with `transformers` on the exported weights."""

from __future__ import annotations

import math

import pytest

from glassgpt.evaluate import datasets
from glassgpt.evaluate.perplexity import BitsPerByte, TokenPerplexity, WholeText, n_bytes
from glassgpt.evaluate.run import prepare, run
from glassgpt.evaluate.suites import HARNESS, PAPER
from tests.evaluate import texts
from tests.evaluate.plain import Plain, expected

# Both sides sum the same float32 numbers in another order: on these models they differ by up to 3e-7.
REL = 1e-5


MODELS = ["random_bytes", "random_words", pytest.param("shipped", marks=pytest.mark.slow)]


@pytest.fixture(scope="session", params=MODELS)
def both(request: pytest.FixtureRequest):
    model = request.getfixturevalue(request.param)
    return model, Plain(model.folder, model.gpt.tokenizer)


def figures(model, tasks, folder, **settings) -> dict:
    plan = prepare(tasks, model.reader(**settings), folder, check=False)
    return {m.metric: m for outcome in run(plan, model.scorer(), lambda n: None) for m in outcome.measures}


def test_every_figure_of_both_suites(both, folder) -> None:
    model, plain = both
    found = figures(model, [*PAPER, *HARNESS], folder)
    wanted = expected(plain, texts.FILES)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].value == pytest.approx(value, rel=REL), name
        assert found[name].protocol.endswith("altered data") == (name.split(".")[0] not in UNCHECKED), name


UNCHECKED = ("cbt-cn", "cbt-ne", "1bw")  # nobody published a hash of these


@pytest.mark.parametrize("stride", [13, 50, 77])
def test_strides(random_words, folder, stride: int) -> None:
    plain = Plain(random_words.folder, random_words.gpt.tokenizer)
    text = texts.FILES["wikitext-2-raw.test"]
    dataset = datasets.Dataset("t", ("wikitext-2-raw.test",), None)
    tasks = [TokenPerplexity("t", dataset), BitsPerByte("t", dataset), WholeText("w", dataset, str, n_bytes)]
    found = figures(random_words, tasks, folder, stride=stride)
    strided, rolling = plain.strided(text, stride), plain.rolling(text, stride)
    assert found["t.token_perplexity"].value == pytest.approx(math.exp(-sum(strided) / len(strided)), rel=REL)
    size = len(text.encode())
    assert found["t.bits_per_byte"].value == pytest.approx(-sum(rolling) / size / math.log(2), rel=REL)
    assert found["w.perplexity"].value == pytest.approx(math.exp(-sum(rolling) / size), rel=REL)


@pytest.mark.slow
def test_real_documents(shipped, shared) -> None:
    """The first documents of the published files, from their packed files and with their hashes checked."""
    tasks = [task for task in [*PAPER, *HARNESS] if task.name in ("lambada", "piqa", "arc_easy")]
    plan = prepare(tasks, shipped.reader(limit=4), shared / "data" / "eval")
    assert not plan.failed
    found = {m.metric: m.value for o in run(plan, shipped.scorer(), lambda n: None) for m in o.measures}
    plain = Plain(shipped.folder, shipped.gpt.tokenizer)
    first = {}
    for task in tasks:
        text, altered = datasets.load(task.dataset, shared / "data" / "eval")
        assert not altered
        first[task.dataset.files[0]] = "".join(text.splitlines(keepends=True)[:4])
    wanted = expected(plain, {**texts.FILES, **first})
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], rel=REL), name
