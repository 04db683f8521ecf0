"""Next token, the cache player, the tally and compare, in a real browser: their numbers are Python's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.generate.sampling.params import SamplingParams
from glassgpt.gpt import GPT
from glassgpt.inspect.parameters.tally import ILLUSTRATED_TOTAL, tally
from tests.explorer.browser import Visit, served
from tests.explorer.conftest import TEXT
from tests.generate import naive

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]


def grown(page: Visit, length: int) -> Visit:
    """The text has this many tokens, and what may follow them is on the screen."""
    page.until("store.trace.tokens.length === given && document.querySelector('glass-next').fresh", length)
    return page.painted()


def press(page: Visit, name: str) -> None:
    page.page.get_by_role("button", name=name, exact=True).click()


def test_text_grows_by_digits_and_is_taken_back(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next", temperature=0.7)
    ids = gpt.encode(TEXT)
    n = len(ids)
    grown(page, n).press("3")
    second = gpt.next_ids([*ids, gpt.next_ids(ids, 3)[2][0]], 2)[1][0]
    grown(page, n + 1).press("2")
    assert grown(page, n + 2).ids() == [*ids, gpt.next_ids(ids, 3)[2][0], second]
    page.page.go_back()
    grown(page, n + 1)
    page.page.locator("#param-temperature").fill("0.5")
    press(page, "Undo")
    assert grown(page, n).ids() == ids
    assert page.state()["temperature"] == 0.5  # undoing the text leaves the sampling parameters alone
    page.press("u")  # what was not appended here can be taken back, too
    assert grown(page, n - 1).ids() == ids[:-1]


def test_a_pick_in_the_middle_goes_on_from_there(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next", token=3)
    ids = gpt.encode(TEXT)
    grown(page, len(ids))
    came = gpt.decode([ids[4]]).replace(" ", "␣")
    rank = [i for i, _ in gpt.next_ids(ids[:4], gpt.config.vocab_size)].index(ids[4])
    assert f"came {came} : rank {rank + 1:,}" in page.texts("glass-next h2")[0].replace("  ", " ").replace(
        f"{came}:", f"{came} :"
    )
    page.press("1")
    assert grown(page, 5).ids() == [*ids[:4], gpt.next_ids(ids[:4], 1)[0][0]]


def test_sampling_parameters_cut_as_the_python_sampler_does(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next")
    grown(page, len(gpt.encode(TEXT)))
    page.page.locator("#param-temperature").focus()
    page.press(*["ArrowLeft"] * 4)
    page.page.locator("#param-minP").focus()
    page.press(*["ArrowRight"] * 3)
    page.page.locator("#param-topK").fill("80")
    page.page.locator("#param-topP").fill("0.9")
    page.painted()
    found = page.js(
        """(() => {
          const s = document.querySelector("glass-next").sampler;
          return { kept: s.kept, ids: [...s.order.slice(0, s.kept)], logits: [...s.values],
            order: [...s.order],
            p: Array.from({ length: s.kept }, (_, i) => s.probability(i)), mass: s.cuts.map(c => c.mass) };
        })()"""
    )
    state = page.state()
    assert (state["temperature"], state["topP"], state["minP"]) == pytest.approx((0.8, 0.9, 0.03))
    logits = np.empty(len(found["order"]))
    logits[found["order"]] = found["logits"]
    settings = SamplingParams(
        temperature=state["temperature"], top_k=state["topK"], top_p=state["topP"], min_p=state["minP"]
    )
    expected, _ = naive.distribution(logits.tolist(), settings)
    assert 1 < state["topK"] < gpt.config.vocab_size
    assert found["ids"] == [i for i, _ in expected]
    assert found["p"] == pytest.approx([p for _, p in expected], rel=1e-9)
    assert sum(found["p"]) == pytest.approx(1)
    assert found["mass"] == sorted(found["mass"], reverse=True)
    assert page.texts("#left-minP")[0].startswith(f"{found['kept']} left, ")


def test_a_seed_draws_the_words_of_the_command_line(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next", seed=11, temperature=0.9, topK=50)
    ids = gpt.encode(TEXT)
    for n in range(3):
        grown(page, len(ids) + n)
        press(page, "Sample a token")
    expected = gpt.generate(TEXT, seed=11, temperature=0.9, top_k=50, max_new_tokens=3, ignore_eot=True)
    assert grown(page, len(ids) + 3).ids()[len(ids) :] == list(expected.tokens)
    assert "Seed 11, step 3: " in page.texts(".said")[0]


def test_writing_on_streams_what_generate_writes(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next", seed=3, temperature=0.8, topK=40)
    ids = gpt.encode(TEXT)
    grown(page, len(ids))
    page.page.locator("#write-count").fill("6")
    press(page, "Generate")
    expected = gpt.generate(TEXT, seed=3, temperature=0.8, top_k=40, max_new_tokens=6)
    assert grown(page, len(ids) + 6).ids()[len(ids) :] == list(expected.tokens)
    press(page, "Undo")  # one step takes all of it back
    grown(page, len(ids))


def test_the_game_is_played_to_its_end(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="next")
    length = len(gpt.encode(TEXT))
    grown(page, length).press("g")
    assert not page.page.locator(".candidates").is_visible()  # they would tell
    for n in range(10):
        grown(page, length + n)
        assert f"Round {n + 1} of 10" in page.texts(".game")[0]
        offered = page.js(
            "[...document.querySelectorAll('.suggestions .word')].map(word => word.textContent)"
        )
        best = gpt.next(page.ids(), 1)[0][0].replace(" ", "␣").replace("\n", "↵")
        page.press(str(1 + offered.index(best)))
    grown(page, length + 10)
    assert "1,000 of 1,000 points" in page.texts(".game")[0]
    press(page, "End the game")
    assert page.painted().page.locator(".candidates").is_visible()


def test_the_cache_player_counts_real_bytes(visit: Begin, gpt: GPT) -> None:
    page = visit(reduced_motion="reduce").open(view="cache", prompt=4)
    n = len(gpt.encode(TEXT))
    per_token = tally(gpt.config).cache_per_token()
    assert page.texts(".cache-said") == [
        f"Step {n - 3} of {n - 3}: token {n - 1} is computed; {n - 1} are cached."
    ]
    rows = page.texts("glass-cache tbody tr")
    assert f"{per_token:,} B per token" in rows[4]
    assert f"{per_token * n / 1000:.1f} kB" in rows[4]
    assert f"{per_token * (n - 1) / 1000:.1f} kB" in rows[2]  # spared by this step
    assert f"{per_token * sum(range(4, n)) / 1000:.1f} kB" in rows[3]  # and by all of them
    page.press(",")
    assert page.texts(".cache-said")[0].startswith(f"Step {n - 4} of {n - 3}")
    drawn = "[...document.querySelectorAll('glass-cache svg')].map(s => s.querySelectorAll(given).length)"
    blocks = gpt.config.n_layer
    assert page.js(drawn, "rect.lit") == [2 * blocks, 2 * blocks * (n - 1)]  # one column, and all
    assert page.js(drawn, "rect.kept") == [2 * blocks * (n - 2), 0]
    page.press(".", "p")  # from the end it begins anew
    page.until("store.get().step > 0 && store.get().step < given", n - 4)
    assert page.painted().js("document.getAnimations().length") == 0
    page.press("p")
    assert page.page.get_by_role("button", name="Play").is_visible()


def test_multiplications_are_those_of_the_shape(visit: Begin, gpt: GPT) -> None:
    page = visit().open(view="cache")
    found = page.js(
        "[0, 4].map((from) => module.multiplications(store.config, from, 5))", module="views/cost.js"
    )
    c = gpt.config
    matrices = sum(line.count for line in tally(c).block() if len(line.shape) == 2)

    def by_hand(columns: range) -> int:
        attention = sum(c.n_head * 2 * c.d_head * (i + 1) for i in columns)
        return c.n_layer * (len(columns) * matrices + attention) + c.n_embd * c.vocab_size

    assert found == [by_hand(range(5)), by_hand(range(4, 5))]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_tally_is_drawn_to_scale(visit: Begin, gpt: GPT, width: int) -> None:
    page = visit(viewport={"width": width, "height": 844}).open(view="tally")
    areas: dict[str, float] = {}
    for name, area in page.js(
        "[...document.querySelectorAll('glass-tally rect[data-name]')]"
        ".map(r => [r.dataset.name, r.getAttribute('width') * r.getAttribute('height')])"
    ):
        areas[name] = areas.get(name, 0.0) + area
    matrices = {line.name: line.count for line in tally(gpt.config).lines if len(line.shape) == 2}
    scale = areas["wte.weight"] / matrices["wte.weight"]
    assert areas == pytest.approx({name: scale * n for name, n in matrices.items()}, rel=1e-3)
    assert page.texts("glass-tally h2")[0].startswith(f"{gpt.config.n_parameters:,}")
    last = page.texts("glass-tally table")[1].splitlines()[-1].split("\t")
    assert last[1:] == [f"{tally('gpt2').total:,}", f"{ILLUSTRATED_TOTAL:,}", "29,184"]


def test_compare_shows_pythons_kl(visit: Begin, gpt: GPT, other: GPT) -> None:
    page = visit().open(view="compare", token=5)
    page.until("document.querySelector('glass-compare svg')")
    a, b = gpt.trace(TEXT), other.trace(TEXT)
    p, q = (log_softmax(np.float64(trace.logits[5])) for trace in (a, b))
    said = page.texts("glass-compare .said")[0]
    assert f"KL {float((np.exp(p) * (p - q)).sum()):.3f} nats" in said
    assert f"in A (rank {int(a.token_loss.rank[5])})" in said
    assert f"in B (rank {int(b.token_loss.rank[5])})" in said
    top = page.js(
        "[...document.querySelectorAll('glass-compare tbody tr:first-child code')].map(c => c.textContent)"
    )
    assert top == [str(trace.lens().texts[-1][5]).replace(" ", "␣") for trace in (a, b)]
    press(page, "Swap")
    page.until("document.querySelector('#compare-a').value === '1'")
    assert page.state()["compare"] == {"a": {"model": 1}, "b": {}}


def test_a_training_run_is_a_slider(visit: Begin, gpt: GPT, tmp_path: Path) -> None:
    with served(make_app(run_with_checkpoints(tmp_path / "run", gpt, [10, 20, 30]))) as url:
        page = visit(url).open(view="compare")
        page.until("document.querySelector('glass-compare svg')")
        assert page.page.locator("#compare-a option:checked").inner_text() == "step 10"
        page.page.locator("#compare-checkpoint").focus()
        page.press("ArrowRight", "ArrowRight")
        assert page.state()["compare"] == {"a": {"checkpoint": 30}, "b": {}}
        page.until("document.querySelector('#compare-checkpoint + output').textContent === 'step 30'")
        page.until("document.querySelector('glass-compare .said').textContent.includes('KL 0.000')")
        page.painted().close()  # before the server: what the page still asked for would fail


def run_with_checkpoints(run: Path, gpt: GPT, steps: list[int]) -> GPT:
    """A run whose last checkpoint is the model itself, and whose earlier ones are disturbed."""
    import torch
    from safetensors.torch import save_file

    from glassgpt.files import file_crc32
    from glassgpt.train.checkpoint.run_folder import checkpoint_path
    from glassgpt.weights.run_checkpoint import STATE

    weights = gpt.backend.model.state_dict()  # type: ignore[attr-defined]
    for step in steps:
        folder = checkpoint_path(run, step)
        folder.mkdir(parents=True)
        amount = 0.0 if step == steps[-1] else 0.02
        state = {f"model.{name}": x + amount * torch.randn_like(x) for name, x in weights.items()}
        metadata = {"step": str(step), "scaler": "{}", "config": json.dumps(gpt.config.to_dict())}
        save_file(state, folder / STATE, metadata)
        done = {"bytes": (folder / STATE).stat().st_size, "crc32": file_crc32(folder / STATE)}
        (folder / "DONE").write_text(json.dumps(done))
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    (run / "config.json").write_text(json.dumps(gpt.config.to_dict()))
    gpt.tokenizer.save(run)  # type: ignore[union-attr]
    return glassgpt.load(run, device="cpu", dtype="float32")


def log_softmax(x: np.ndarray) -> Any:
    return x - np.logaddexp.reduce(x)
