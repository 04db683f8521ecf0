"""The numbers that the page shows are those of the Python trace, and of a model that others traced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from tests.explorer.browser import Visit, served
from tests.explorer.conftest import TEXT

Begin = Callable[..., Visit]

# In the order in which an opened block shows them.
VECTORS = [
    "resid_pre", "ln_1", "attn.q", "attn.k", "attn.v", "attn.z", "attn.merged", "attn.proj", "resid_mid",
    "ln_2", "mlp.gelu", "mlp.proj", "resid_post",
]  # fmt: skip


def brief(p: float) -> str:
    """A probability as a cell of the tower writes it."""
    value = 100 * p
    if value >= 99.5:
        return "100%" if value == 100 else ">99%"
    if value < 0.1:
        return "0%" if value == 0 else "<.1%"
    return f"{value:.1f}%" if value < 9.95 else f"{round(value)}%"


def percent(p: float) -> str:
    value = 100 * p
    if value in (0, 100):
        return f"{value:.0f}%"
    if value < 0.01:
        return "<0.01%"
    if value > 99.99:
        return ">99.99%"
    return f"{value:.{2 if value < 1 or value > 99 else 1 if value < 10 else 0}f}%"


def displayed(text: str) -> str:
    return text.replace(" ", "␣").replace("\n", "↵")


def close(found: str, exact: float, write: Callable[[float], str]) -> bool:
    """The same text, or that of a number a rounding away: JavaScript and Python break ties differently."""
    return found in {write(exact), write(exact * (1 + 1e-6)), write(exact * (1 - 1e-6))}


def vectors(page: Visit) -> dict[str, np.ndarray]:
    values = page.js(
        "[...document.querySelectorAll('glass-block [data-stages] glass-vector')].map((v) => [...v.values])"
    )
    return dict(zip(VECTORS, [np.float32(each) for each in values[:13]], strict=True))


def score_line(page: Visit, line: int) -> list[str]:
    """A line of the table of scores: 2 the scores, 3 scaled, 4 masked, 5 the weights."""
    cells = page.page.locator("glass-scores [role=row]").nth(line).locator("[role=cell]")
    return cells.all_inner_texts()  # type: ignore[no-any-return]


def test_the_tower_shows_the_lens(visit: Begin, gpt: GPT) -> None:
    page, trace = visit().open(TEXT), gpt.trace(TEXT)
    lens = trace.lens()
    for layer in range(-1, gpt.config.n_layer):
        for token in range(len(trace)):
            cell = page.page.locator(f"#cell-lens-{layer}-{token}")
            assert close(cell.locator(".how").inner_text(), float(lens.p[layer + 1, token]), brief)
            said = cell.get_attribute("aria-description") or ""
            assert displayed(lens.texts[layer + 1, token]) in said
            p = float(lens.p[layer + 1, token])
            assert any(percent(each) in said for each in (p, p * (1 + 1e-6), p * (1 - 1e-6)))
    for token in range(len(trace) - 1):
        cell = page.page.locator(f"#cell-next-{gpt.config.n_layer}-{token}")
        assert close(cell.locator(".how").inner_text(), float(trace.token_loss.p[token + 1]), brief)
    page.press("Home", "ArrowRight", "ArrowUp", "ArrowUp")
    assert f"{trace.norms[3, 1]:.2f}" in page.page.locator("glass-tower").inner_text()


def test_the_strip_shows_tokens_ids_and_merges(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT)
    ids = gpt.encode(TEXT)
    chips = page.page.locator("glass-strip .chips button")
    assert chips.all_text_contents() == [f"{displayed(gpt.decode([i]))}{i}" for i in ids]
    chips.nth(2).hover()
    card = page.page.locator("#token-card")
    card.wait_for(state="visible")
    word = gpt.tokenizer.explain(TEXT)[1]
    written = "".join(card.inner_text().split())
    for piece in word.merges[-1].pieces:
        assert displayed(piece.decode()) in written


@pytest.mark.parametrize(("layer", "head", "token"), [(0, 0, 0), (2, 1, 3), (3, 3, 6)])
def test_an_opened_block_holds_the_traces_vectors(
    visit: Begin, gpt: GPT, layer: int, head: int, token: int
) -> None:
    page, trace = visit().open(TEXT, view="block", layer=layer, head=head, token=token), gpt.trace(TEXT)
    for step, values in vectors(page).items():
        expected = trace.residual[layer] if step == "resid_pre" else trace[f"h.{layer}.{step}"]
        expected = expected[head] if expected.ndim == 3 else expected
        assert np.array_equal(values, expected[token]), step
    weights = score_line(page, 5)
    row = trace.attention[layer, head][token]
    assert len(weights) == len(trace)
    assert all(close(text, float(p), percent) for text, p in zip(weights, row, strict=True))
    masked = score_line(page, 4)
    assert [text == "−∞" for text in masked] == [key > token for key in range(len(trace))]
    neuron = int(np.argmax(np.abs(trace.mlp.gelu[layer, token])))
    assert f"neuron {neuron}" in page.texts("glass-block .neurons li")[0]


def test_without_the_mask_a_token_sees_what_follows(visit: Begin, gpt: GPT) -> None:
    page, trace = visit().open(TEXT, view="block", layer=1, head=1, token=2), gpt.trace(TEXT)
    page.page.locator("#mask").uncheck()
    page.painted()
    scaled = trace.attn.scaled[1, 1][2].astype(np.float64)
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    assert all(close(text, float(each), percent) for text, each in zip(score_line(page, 5), p, strict=True))


def test_candidates_are_the_most_likely_tokens_and_sum_to_one(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="next")
    best = gpt.next(TEXT)
    assert page.texts(".candidate .word") == [displayed(text) for text, _ in best]
    assert all(
        close(text, p, percent) for text, (_, p) in zip(page.texts(".candidate .share"), best, strict=True)
    )
    for params in (
        {},
        {"temperature": 0.7},
        {"topK": 40},
        {"topP": 0.9},
        {"minP": 0.05},
        {"temperature": 1.7, "topK": 9},
    ):
        page.js("store.set(given)", {"temperature": 1, "topK": 0, "topP": 1, "minP": 0} | params)
        page.painted()
        total = page.js(
            "(() => { const { sampler } = document.querySelector('glass-next'); let sum = 0;"
            "for (let i = 0; i < sampler.size; i++) sum += sampler.probability(i); return sum; })()"
        )
        assert total == pytest.approx(1, abs=1e-9), params


def test_the_third_candidate_is_appended_through_the_cache(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="next")
    third = gpt.next_ids(TEXT)[2][0]
    sent: list[str] = []
    page.page.on("request", lambda request: sent.append(request.post_data or ""))
    page.page.locator(".candidate").nth(2).click()
    ids = [*gpt.encode(TEXT), third]
    page.until("store.trace.tokens.length === given", len(ids))
    assert page.ids() == ids
    fresh = gpt.trace(ids)
    here = page.js("({ norms: store.trace.norms, lens: store.trace.lens })")
    assert here["lens"]["ids"] == fresh.lens().ids.tolist()
    # The appended column is computed in products of other shapes: a few roundings (see test_endpoints).
    assert np.abs(np.float32(here["norms"]) - fresh.norms).max() <= 2e-5 * fresh.norms.max()
    page.ready()
    assert page.texts(".candidate .word") == [displayed(text) for text, _ in gpt.next(ids)]
    # The text and all that is shown of it came with one request.
    asked = [body for body in sent if body]
    assert len(asked) == 1
    assert "/append " in json.loads(asked[0])["requests"][0]
    page.page.go_back()  # Back takes the token away again
    page.until("store.trace.tokens.length === given", len(ids) - 1)


def test_one_movement_is_one_request(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="block", layer=1)
    sent: list[str] = []
    page.page.on("request", lambda request: sent.append(request.url.rsplit("/", 1)[1]))
    page.press("ArrowLeft")
    assert [url for url in sent if "." not in url] == ["batch"]  # not the icon, which comes with the address
    sent.clear()
    page.press("ArrowUp")
    assert [url for url in sent if "." not in url] == ["batch"]


def test_an_ablation_is_one_request(visit: Begin) -> None:
    page = visit().open(TEXT, view="next", layer=1)
    sent: list[str] = []
    page.page.on("request", lambda request: sent.append(request.url.rsplit("/", 1)[1]))
    page.js("store.set({ edits: [{ kind: 'ablate_head', layer: 1, head: 2, how: 'zero' }] })")
    page.until("store.intervention?.lens")
    page.until("document.querySelector('glass-edits').textContent.includes('nats')")
    assert [url for url in sent if "." not in url] == ["batch"]


def test_an_edited_tower_has_the_columns_in_sight(visit: Begin, gpt: GPT) -> None:
    edit = {"kind": "ablate_head", "layer": 1, "head": 2, "how": "zero"}
    text = (
        TEXT + ", the old man said, and went back into the house by the sea where no one had come for years"
    )
    page = visit().open(text, view="next", token=0)
    page.js("store.set({ edits: [given] })", edit)
    page.until("store.intervention?.lens")
    page.painted()
    lens = gpt.intervene(text, [edit]).lens()
    known = page.js("store.intervention.lens.ids[0].filter((id) => id !== undefined).length")
    assert 0 < known < lens.ids.shape[1]  # what cannot be seen is not computed
    page.press("End")  # the cursor goes to the last token, and the tower with it
    last = lens.ids.shape[1] - 1
    page.until("store.intervention?.lens?.ids[0][given] !== undefined", last)
    page.painted()
    for token in (last, last - 5):
        here = page.js("['ids', 'p'].map((n) => store.intervention.lens[n].map((row) => row[given]))", token)
        assert here[0] == lens.ids[:, token].tolist()
        np.testing.assert_allclose(np.float32(here[1]), lens.p[:, token], rtol=1e-5)
        for layer in range(gpt.config.n_layer):
            said = page.page.locator(f"#cell-lens-{layer}-{token}").get_attribute("aria-description")
            assert displayed(gpt.decode([here[0][layer + 1]])) in said


def test_taking_a_head_out_and_back_again(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="heads", layer=1, head=2)
    before = page.js(
        "api.post('/intervene', { id: store.trace.id, edits: [] }).then((a) => [[...a.logits.data], a.kl])"
    )
    assert before[1] == 0
    assert np.array_equal(np.float32(before[0]), gpt.trace(TEXT).logits[-1])
    page.page.locator('glass-heads .thumb[data-layer="1"][data-head="2"]').first.click(modifiers=["Shift"])
    found = page.until("store.intervention && [store.intervention.kl, [...store.intervention.logits.data]]")
    expected = gpt.intervene(TEXT, [{"kind": "ablate_head", "layer": 1, "head": 2}])
    assert found[0] == pytest.approx(expected.kl)
    assert np.array_equal(np.float32(found[1]), expected.logits)
    assert f"{expected.kl:.4f} nats" in page.painted().page.locator("glass-edits").inner_text()
    page.page.locator("glass-edits button").first.click()
    page.until("store.intervention === null")
    page.painted()
    lens = gpt.trace(TEXT).lens()
    for token in range(len(gpt.encode(TEXT))):
        cell = page.page.locator(f"#cell-lens-{gpt.config.n_layer - 1}-{token} .how")
        assert close(cell.inner_text(), float(lens.p[-1, token]), brief)


def test_a_model_that_others_traced(visit: Begin, browser: Any, shared: Path) -> None:
    """llm-viz's tiny model: what the page shows is what they computed (float32, so to a few roundings)."""
    from glassgpt.backends.torch.backend import TorchBackend
    from tests.model.test_golden import nano, tensors

    folder = shared / "golden" / "llm_viz_gpt_nano"
    if not folder.is_dir():
        pytest.skip("no ../shared/golden/llm_viz_gpt_nano (extra real-data test)")
    expected = tensors(folder / "gpt-nano-sort-t0-partials.json")
    model = nano(tensors(folder / "gpt-nano-sort-model.json"), "gelu_new").requires_grad_(False)
    ids = expected["idx"][0].long().tolist()
    with served(make_app(GPT(TorchBackend(model), None, name="gpt-nano-sort"))) as address:
        page = visit(address).open(" ".join(map(str, ids)), view="block", layer=0, head=1, token=5)
        assert page.ids() == ids
        found = vectors(page)
        for name, theirs in {
            "resid_pre": "x", "ln_1": "ln1", "attn.merged": "y", "attn.proj": "yProj",
            "resid_mid": "attnResid",
            "ln_2": "ln2", "mlp.gelu": "gelu", "mlp.proj": "mlp", "resid_post": "block0",
        }.items():  # fmt: skip
            values = expected[theirs][0, 5].numpy()
            assert np.abs(found[name] - values).max() <= 2e-5 * np.abs(values).max(), name
        for name in ("q", "k", "v"):
            values = expected[name][0, 1, 5].numpy()
            assert np.abs(found[f"attn.{name}"] - values).max() <= 2e-5 * np.abs(values).max(), name
        logits = page.js(
            "api.get(`/trace/${store.trace.id}/next?position=10`).then((answer) => [...answer.logits.data])"
        )
        assert np.allclose(logits, expected["lm_head"][0, 10].numpy(), atol=1e-5)
        page.page.goto("about:blank")
