"""lm-evaluation-harness as a client: what its `local-completions` gets equals scoring in this process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'glassgpt[eval]'")
pytest.importorskip("tenacity", reason="lm_eval's API models are not installed: pip install 'lm_eval[api]'")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from glassgpt.evaluate.harness import GlassGPTLM
from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.serve.conftest import ServerProcess

pytestmark = pytest.mark.slow

STORY = "The miller's cat went to the market, and the old mill stood by the river. " * 12
PAIRS = [
    ("The cook put salt in the", " soup"),
    ("The cook put salt in the ", "soup"),  # a blank at the end of the context
    ("", "The stone bridge never fell."),  # nothing before it
    ("Question: Which is hot?\nAnswer:", " ice"),
    ("Question: Which is hot?\nAnswer:", " a cold stone"),
    ("Question: Which is hot?\nAnswer:", " fire"),
    ("Der Bär aß Käse für 5 €,", " 熊は寝た 🐻‍❄️, naïve"),
    (STORY, " The cat slept."),
]
TEXTS = ["a", "The stone bridge.\n\nIt never fell.", "熊は寝た 🐻‍❄️ ", STORY]


def asked(kind: str, *requests: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, arguments, i) for i, arguments in enumerate(requests)]


@pytest.fixture(scope="module")
def remote(server: ServerProcess) -> Any:
    return get_model("local-completions")(
        model=SHIPPED, base_url=f"{server.url}/completions", num_concurrent=4, batch_size=2, max_length=1024
    )


@pytest.fixture(scope="module")
def local(gpt: GPT) -> GlassGPTLM:
    return GlassGPTLM(gpt)


def test_it_finds_the_server_s_tokenizer(remote: Any, gpt: GPT) -> None:
    assert remote.tokenizer_backend == "remote"
    assert remote.tok_encode("The stone bridge") == gpt.encode("The stone bridge")
    assert remote.eot_token_id == gpt.tokenizer.eot_id


def test_loglikelihood(remote: Any, local: GlassGPTLM) -> None:
    options = {"until": [], "max_gen_toks": 3}
    contexts = [context for context, _ in PAIRS[:6] if context]
    # Continuations that are the most likely ones, for flags that are not all false.
    likely = local.generate_until(
        asked("generate_until", *((c, options) for c in contexts)), disable_tqdm=True
    )
    pairs = [*PAIRS, *zip(contexts, likely, strict=True)]
    ours = remote.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    expected = local.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    # float32, in chunks or whole: sums over a thousand tokens differ by a few 1e-4 at most.
    assert [total for total, _ in ours] == pytest.approx([total for total, _ in expected], rel=0, abs=1e-3)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in expected]
    assert {greedy for _, greedy in ours} == {True, False}


def test_loglikelihood_rolling(remote: Any, local: GlassGPTLM) -> None:
    requests = asked("loglikelihood_rolling", *((text,) for text in TEXTS))
    ours = remote.loglikelihood_rolling(requests, disable_tqdm=True)
    expected = local.loglikelihood_rolling(requests, disable_tqdm=True)
    assert ours == pytest.approx(expected, rel=0, abs=1e-3)


def test_generate_until(remote: Any, local: GlassGPTLM) -> None:
    requests = asked(
        "generate_until",
        *((context, {"until": [",", "\n\n"], "max_gen_toks": 24}) for context, _ in PAIRS if context),
        ("The king", {"until": ["."], "max_gen_toks": 40, "temperature": 0, "do_sample": False}),
    )
    assert remote.generate_until(requests, disable_tqdm=True) == local.generate_until(
        requests, disable_tqdm=True
    )
