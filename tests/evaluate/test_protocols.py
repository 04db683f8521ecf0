"""Every protocol against a plain, slow loop with `transformers` on the exported weights."""

from __future__ import annotations

import math
import re

import pytest

from glassgpt.evaluate.scoring.windows import rolling_windows, strided_windows
from glassgpt.evaluate.suites import datasets, detokenize
from glassgpt.evaluate.suites.perplexity import BitsPerByte, TokenPerplexity, WholeText
from glassgpt.evaluate.suites.run import prepare_tasks, run_tasks
from glassgpt.evaluate.suites.suites import HARNESS, PAPER
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
    suite = prepare_tasks(tasks, model.builder(**settings), folder, check=False)
    return {
        m.metric: m for outcome in run_tasks(suite, model.scorer(), lambda n: None) for m in outcome.metrics
    }


@pytest.mark.slow
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
    tasks = [
        TokenPerplexity("t", dataset),
        BitsPerByte("t", dataset),
        WholeText("w", dataset, detokenize.wikitext),
    ]
    found = figures(random_words, tasks, folder, stride=stride)
    strided, rolling = plain.strided(text, stride), plain.rolling(text, stride)
    assert found["t.token_perplexity"].value == pytest.approx(math.exp(-sum(strided) / len(strided)), rel=REL)
    size = len(text.encode())
    assert found["t.bits_per_byte"].value == pytest.approx(-sum(rolling) / size / math.log(2), rel=REL)
    rolling = plain.rolling(detokenize.wikitext(text), stride)
    words = len(text.split()) + text.count("\n")
    assert found["w.perplexity"].value == pytest.approx(math.exp(-sum(rolling) / words), rel=REL)


@pytest.mark.parametrize("name", ["random_words", "random_bytes"])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_of_the_first_windows_only_what_they_read_is_counted(
    request, tmp_path, name: str, limit: int
) -> None:
    """Long words first, short ones after them: a share of the tokens is another share of the bytes."""
    model = request.getfixturevalue(name)
    plain = Plain(model.folder, model.gpt.tokenizer)
    text = " It does n't matter : 1 @,@ 204 readers ' Bärenkälteüberfälle are well @-@ known . \n" * 9
    text += " a b c d e f g . \n" * 60
    (tmp_path / "t.txt").write_text(text, "utf-8")
    dataset = datasets.Dataset("t", ("t.txt",), None)
    tasks = [BitsPerByte("t", dataset), WholeText("w", dataset, detokenize.wikitext)]
    found = figures(model, tasks, tmp_path, limit=limit)
    n = limit * plain.L
    nats = -sum(plain.rolling(text, plain.L)[:n])
    size = len(model.gpt.tokenizer.decode_bytes(model.gpt.tokenizer.encode(text)[:n]))
    assert found["t.bits_per_byte"].n == size
    assert found["t.bits_per_byte"].value == pytest.approx(nats / size / math.log(2), rel=REL)

    # Words: the shortest beginning of the original, in whole words, that gives what was read.
    undone = detokenize.wikitext(text)
    nats = -sum(plain.rolling(undone, plain.L)[:n])
    read = model.gpt.tokenizer.decode_bytes(model.gpt.tokenizer.encode(undone)[:n]).decode("utf-8", "ignore")
    letters = len(re.sub(r"[\s@]", "", read))  # neither marks nor blanks
    ends = (end for end in range(len(text)) if text[end : end + 1].isspace() != text[end - 1 : end].isspace())
    end = next(end for end in ends if len(re.sub(r"[\s@]", "", text[:end])) >= letters)
    words = len(text[:end].split()) + read.count("\n")
    assert found["w.perplexity"].n == words
    assert found["w.perplexity"].value == pytest.approx(math.exp(nats / words), rel=REL)


def test_the_windows_apart_are_full_the_last_one_too() -> None:
    """It reads again what the one before it scored, as lm-evaluation-harness has it (docs/evaluation.md)."""
    rows = list(rolling_windows(range(1, 26), n_positions=10, stride=10, prefix=0))
    assert [(row.ids.tolist(), row.first) for row in rows] == [
        (list(range(11)), 1),
        (list(range(10, 21)), 1),
        (list(range(15, 26)), 6),
    ]


def test_the_last_strided_window_ends_with_the_text_and_is_shorter() -> None:
    """The rule of the `transformers` documentation: windows begin at multiples of the stride."""
    rows = list(strided_windows(range(25), n_positions=10, stride=10))
    assert [(row.ids.tolist(), row.first) for row in rows] == [
        (list(range(10)), 1),
        (list(range(10, 20)), 1),
        (list(range(20, 25)), 1),
    ]
    rows = list(strided_windows(range(25), n_positions=10, stride=6))
    assert [(row.ids[0], row.ids[-1] + 1, row.first) for row in rows] == [
        (0, 10, 1),
        (6, 16, 4),
        (12, 22, 4),
        (18, 25, 4),
    ]


@pytest.mark.slow
def test_real_documents(shipped, shared) -> None:
    """The first documents of the published files, from their packed files and with their hashes checked."""
    tasks = [task for task in [*PAPER, *HARNESS] if task.name in ("lambada", "piqa", "arc_easy")]
    suite = prepare_tasks(tasks, shipped.builder(limit=4), shared / "data" / "eval")
    assert not suite.failed
    found = {m.metric: m.value for o in run_tasks(suite, shipped.scorer(), lambda n: None) for m in o.metrics}
    plain = Plain(shipped.folder, shipped.gpt.tokenizer)
    first = {}
    for task in tasks:
        text, altered = datasets.load(task.dataset, shared / "data" / "eval")
        assert not altered
        first[task.dataset.files[0]] = "".join(text.splitlines(keepends=True)[:4])
    wanted = expected(plain, {**texts.FILES, **first})
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], rel=REL), name
