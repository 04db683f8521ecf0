"""While the server computes, no number stands un-grayed under a heading that it does not belong to.

The answers are held back until the test lets them go, so that a slow machine and a quick one see the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glassgpt.gpt import GPT
from tests.explorer.browser import Visit
from tests.explorer.conftest import TEXT

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]

# Every visible text with a digit, and whether it is grayed: by its own opacity or that of what it stands in.
NUMBERS = """(() => {
  const found = { clear: [], gray: [] };
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const box = node.parentElement;
    if (!/\\d/.test(node.data) || box.closest("option, textarea, .unseen")) continue;
    if (!box.checkVisibility()) continue;
    let opacity = 1;
    for (let one = box; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity);
    found[opacity > 0.5 ? "clear" : "gray"].push(node.data);
  }
  return found;
})()"""
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"


class Gate:
    """The answers of the API, held back while it is shut."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.held, self.shut = visit, [], False
        self.passing = 0  # so many go through although it is shut
        visit.page.route("**/api/**", self._pass)

    def _pass(self, route: Any) -> None:
        if self.shut and self.passing == 0:
            self.held.append(route)
        else:
            self.passing -= self.shut
            route.continue_()

    def open(self) -> None:
        self.shut = False
        while self.held:
            self.held.pop().continue_()


def press(*keys: str) -> Callable[[Visit], None]:
    return lambda visit: [visit.page.keyboard.press(key) for key in keys] and None


def run(expression: str) -> Callable[[Visit], None]:
    return lambda visit: visit.js(expression)


def choose_model(visit: Visit) -> None:
    visit.page.locator("#model").select_option("1")


def type_text(visit: Visit) -> None:
    visit.page.locator("#text").fill("One and two and three")


ABLATE = "store.set({ edits: [{ kind: 'ablate_head', layer: 0, head: 1, how: 'zero' }] })"
ACTIONS: dict[str, tuple[dict[str, Any], Callable[[Visit], None]]] = {
    "the cursor moves": ({"layer": 2}, press("ArrowLeft", "ArrowLeft", "ArrowUp")),
    "another head": ({"layer": 2}, press("]")),
    "the embedding": ({"layer": 0}, press("ArrowDown")),
    "another model": ({"layer": 2}, choose_model),
    "another model in Next token": ({"view": "next"}, choose_model),
    "another model in the tally": ({"view": "tally"}, choose_model),
    "another text": ({"layer": 2}, type_text),
    "other tokens": ({"layer": 2}, run("store.set({ ids: [300, 400, 500], text: '' })")),
    "another text in Heads": ({"view": "heads"}, type_text),
    "a cursor move in Next token": ({"view": "next"}, press("ArrowLeft")),
    "an edit in Next token": ({"view": "next"}, run(ABLATE)),
    "an edit in Heads": ({"view": "heads", "layer": 1}, run(ABLATE)),
    "a move with an edit": (
        {"view": "next", "edits": '[{"kind":"ablate_mlp","layer":1,"how":"zero"}]'},
        press("ArrowLeft"),
    ),
    "a cursor move in Why": ({"view": "why"}, press("ArrowLeft")),
    "another word in Why": ({"view": "why"}, run("store.set({ target: 11 })")),
    "another method in Why": ({"view": "why"}, run("store.set({ method: 'attention_rollout' })")),
    "the other way round in Compare": (
        {"view": "compare"},
        lambda visit: visit.page.get_by_role("button", name="Swap").click(),
    ),
    "a cursor move in Compare": ({"view": "compare"}, press("ArrowLeft")),
    "another pinned word": ({"layer": 1, "pin": 11}, lambda visit: visit.page.locator(".pin").nth(2).click()),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_no_number_is_left_under_another_heading(visit: Begin, gpt: GPT, action: str) -> None:
    state, act = ACTIONS[action]
    page = visit().open(TEXT, **state)
    before = page.js(NUMBERS)
    assert len(before["clear"]) > 20
    assert before["gray"] == []
    gate = Gate(page)
    gate.shut = True
    act(page)
    page.js(FRAME)
    meanwhile = page.js(NUMBERS)
    late = page.until(
        "!given || document.querySelector('#status').textContent === 'computing…'", bool(gate.held)
    )
    assert late
    later = page.js(NUMBERS)
    gate.open()
    page.ready()
    page.until("document.querySelector('.stale, .old, .computing, .was') === null")
    after = page.painted().js(NUMBERS)
    assert after["gray"] == []
    for seen in (meanwhile, later):
        assert set(seen["clear"]) - set(after["clear"]) == set(), action
    if gate.held or "Compare" not in action:
        assert set(before["clear"]) != set(after["clear"])


def test_the_vector_before_an_edit_is_not_left_under_the_edited_table(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="next")
    vectors = (
        "[...document.querySelectorAll('.from-vector glass-vector')].filter((one) => one.checkVisibility())"
    )
    assert page.js(f"{vectors}.length") == 3
    page.js(ABLATE)
    page.until("store.intervention !== null")
    page.painted()
    assert page.js(f"{vectors}.length") == 0


def test_the_words_of_the_strip_are_those_of_the_head_itself(visit: Begin, gpt: GPT) -> None:
    """The pattern of a block is in steps of 1/255, and may be there before the head's own weights."""
    page = visit().open(TEXT, view="cache", layer=2)
    page.until("document.querySelector('svg.arcs path') !== null")
    page.js("store.set({ view: 'block' })")
    page.ready()
    head = "/trace/${store.trace.id}/head?layer=2&head=0&position=${store.cursor.token}"
    own = page.until(f"api.peek(`{head}`)?.['attn.weights']")
    drawn = "[one.dataset.token, one.getAttribute('stroke-opacity')]"
    arcs = f"[...document.querySelectorAll('svg.arcs path')].map((one) => {drawn})"
    for token, opacity in page.js(arcs):
        assert (float(opacity) - 0.22) / 0.78 == pytest.approx(own[int(token)], abs=1e-5)


def test_what_waits_is_busy_for_screen_readers(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, layer=2)
    gate = Gate(page)
    gate.shut = True
    page.page.keyboard.press("ArrowUp")
    page.until("document.querySelector('glass-block').ariaBusy === 'true'")
    gate.open()
    page.until("document.querySelector('glass-block').ariaBusy === 'false'")
    page.until("document.querySelector('#status').textContent === ''")


def test_while_another_text_loads_nothing_is_asked_about_the_old_one(visit: Begin) -> None:
    """The cursor of the new text is none of the old one's: such requests were wasted, and drawn."""
    page = visit().open(TEXT, layer=2, token=3)
    gate = Gate(page)
    gate.shut = True
    page.page.locator("#text").fill("Two words")
    page.until("store.status === 'loading'")
    page.js(FRAME)
    assert [route.request.url.rpartition("/")[2] for route in gate.held] == ["trace"]
    gate.open()
    page.ready()


def test_the_page_goes_on_when_the_server_is_back(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, layer=1)
    page.page.route("**/api/**", lambda route: route.abort())
    page.page.keyboard.press("ArrowUp")
    page.until("document.querySelector('glass-block').dataset.shows === 'stale'")
    assert "does not respond" in page.texts("glass-block .problem")[0]
    page.page.unroute("**/api/**")
    page.until("document.querySelector('glass-block').dataset.shows === 'ready'")  # nobody pressed a key
    assert page.texts("glass-block .problem") == [""]
    assert page.texts("glass-block h2")[0].startswith("Block 2")
    page.until("document.querySelector('.stale') === null")
    page.wrong = [each for each in page.wrong if "ERR_FAILED" not in each]


def test_the_tour_waits_for_the_numbers_of_its_text(visit: Begin) -> None:
    page = visit().open(TEXT, tour=0)
    words = "document.querySelector('.tour-words')"
    page.until(f"{words}?.textContent.includes('most likely')")
    before = page.painted().texts(".tour-words p")[1]
    gate = Gate(page)
    gate.shut, gate.passing = True, 1  # the first request appends the token
    page.page.locator("#sheet").focus()
    page.page.keyboard.press("2")
    page.until(f"{words}.ariaBusy === 'true' && store.status === 'ready'")
    assert page.js(f"getComputedStyle({words}).opacity") == "0.35"
    gate.open()
    page.until(f"{words}.ariaBusy === 'false'")
    assert page.texts(".tour-words p")[1] != before


PATCH = '[{"kind":"patch","step":"h.0.attn.z","source":"second","head":1}]'


def test_the_effect_of_a_patch_is_gray_while_another_second_text_loads(visit: Begin) -> None:
    page = visit().open(TEXT, view="heads", second="The dog ran to the", edits=PATCH)
    page.until("document.querySelector('glass-edits li') !== null")
    page.painted()
    before = page.js(NUMBERS)
    gate = Gate(page)
    gate.shut = True
    page.page.locator("#second").fill("Six cats slept")
    page.js(FRAME)
    typed = page.js(NUMBERS)
    assert page.until("document.querySelector('#status').textContent === 'computing…'")
    page.until("store.get().second === 'Six cats slept'")
    later = page.js(NUMBERS)
    gate.open()
    page.until("document.querySelector('.stale, .old, .computing, .was') === null")
    after = page.painted().js(NUMBERS)
    assert (before["gray"], after["gray"]) == ([], [])
    assert set(before["clear"]) != set(after["clear"])
    for seen in (typed, later):
        assert set(seen["clear"]) - set(after["clear"]) == set()
    # Typed back before the answer came, it is the same effect again.
    page.page.locator("#second").fill("Six cats slep")
    page.page.locator("#second").fill("Six cats slept")
    page.until("document.querySelector('.stale, .computing, .was') === null")
    page.until("document.querySelector('glass-edits li') !== null")
    assert set(page.painted().js(NUMBERS)["clear"]) == set(after["clear"])
    # Of no second text there is nothing to patch from.
    page.page.locator("#second").fill("")
    page.until("store.get().edits.length === 0 && document.querySelector('#status').textContent === ''")
    assert page.painted().js(NUMBERS)["gray"] == []


def test_an_answer_about_the_word_before_does_not_steer(visit: Begin) -> None:
    page = visit().open(TEXT, view="why", layer=1)
    page.until("document.querySelector('.owed button') !== null")
    gate = Gate(page)
    page.js("(document.querySelector('#strength').value = '1.5')")
    gate.shut = True
    page.page.locator("#towards").fill("antidisestablishmentarianism")  # several tokens: the server is asked
    page.page.locator("#towards").press("Tab")
    page.until("document.querySelector('glass-why [role=status]').textContent === 'computing…'")
    page.page.locator("#towards").fill("human")
    page.page.locator("#towards").press("Tab")
    page.until("store.get().edits.length === 1")
    steered = page.state()["edits"]
    gate.open()
    page.painted()
    assert page.state()["edits"] == steered
    assert page.texts("glass-why [role=status]") == [""]


def test_what_was_generated_is_not_appended_to_another_text(visit: Begin) -> None:
    page = visit().open(TEXT, view="next")
    gate = Gate(page)
    gate.shut = True
    page.page.get_by_role("button", name="Generate", exact=True).click()
    page.page.locator("#text").fill("One and two")
    page.until("store.get().text === 'One and two'")
    page.until("[...document.querySelectorAll('button')].some((one) => one.textContent === 'Generate')")
    gate.open()
    page.ready()
    state = page.state()
    assert (state["text"], state["ids"]) == ("One and two", None)
    assert page.texts("glass-next .said") + page.texts(".written") == ["", ""]
    # What is said about a sampled token goes with its text.
    page.page.get_by_role("button", name="Sample a token").click()
    page.until("document.querySelector('glass-next .said').textContent.startsWith('Seed')")
    page.page.locator("#text").fill("Three")
    page.until("document.querySelector('glass-next .said').textContent === ''")
    page.ready()


def test_a_token_is_not_inserted_into_another_text(visit: Begin) -> None:
    page = visit().open(TEXT)
    gate = Gate(page)
    gate.shut = True
    page.page.locator(".insert.special").first.click()
    page.js(FRAME)
    page.js("store.set({ text: 'One and two', ids: null })")
    gate.open()
    page.ready()
    page.painted()
    assert (page.state()["text"], page.state()["ids"]) == ("One and two", None)


def test_a_pair_that_was_chosen_goes_with_its_model(visit: Begin, url: str, gpt: GPT, other: GPT) -> None:
    """Compare kept the pair when another model was picked, and what was wrong with it."""
    page = visit().open(TEXT, view="compare", compare='{"a":{"model":0},"b":{"model":0}}')
    assert page.state()["compare"] is not None
    choose_model(page)
    page.ready()
    page.until("store.trace.model === 1")
    assert page.state()["compare"] is None
    assert page.js("document.querySelector('#compare-a').value") == "1"
    assert page.js("document.querySelector('#compare-b').value") == "0"


def test_a_notice_about_the_text_before_goes_while_another_model_loads(visit: Begin) -> None:
    page = visit().open(TEXT)
    page.page.locator("#text").fill("word " * 1500)  # too long
    page.until("store.status === 'error'")
    assert page.js("document.querySelector('#notice').checkVisibility()")
    gate = Gate(page)
    gate.shut = True
    choose_model(page)
    page.js(FRAME)
    assert not page.js("document.querySelector('#notice').checkVisibility()")
    gate.open()
    page.page.locator("#text").fill("Two words")
    page.ready()
    page.wrong = [each for each in page.wrong if "422" not in each]


def test_without_the_server_the_tower_is_not_called_former(visit: Begin) -> None:
    """Only its card is: the cells belong to the text above."""
    page = visit().open(TEXT, layer=1)
    page.page.route("**/api/**", lambda route: route.abort())
    page.page.keyboard.press("ArrowLeft")
    page.until("document.querySelector('glass-block .problem').textContent.includes('previous request')")
    page.until("document.querySelector('glass-tower .problem').textContent.includes('does not respond')")
    assert "previous request" not in page.texts("glass-tower > .problem")[0]
    page.page.unroute("**/api/**")
    page.until("document.querySelector('glass-block').dataset.shows === 'ready'")
    page.wrong = [each for each in page.wrong if "ERR_FAILED" not in each]
