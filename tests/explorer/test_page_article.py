"""The article's part 3 in a real browser: other models, special tokens, music; arcs; lessons."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.music.midi import to_midi
from tests.explorer.browser import Visit, served
from tests.explorer.conftest import TEXT
from tests.explorer.test_page_pending import Gate
from tests.explorer.test_prompt import NOTES

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]
OTHERS = ["en-fr", "music"]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def address(gpt: GPT) -> Iterator[str]:
    with served(make_app(gpt, others=OTHERS)) as found:
        yield found


def pick(page: Visit, name: str) -> Visit:
    page.page.select_option("#model", label=name)
    page.until(f"store.info.models[store.trace.model].name === '{name}' && store.status === 'ready'")
    return page.ready()


def field(page: Visit) -> str:
    return page.js("document.querySelector('#text').value")  # type: ignore[no-any-return]


def test_en_fr_opens_with_a_translation_and_writes_it(visit: Begin, address: str) -> None:
    page = pick(visit(address).open(TEXT), "en-fr")
    assert field(page) == "I am a student.<to-fr>"
    assert page.state()["view"] == "next"
    page.page.get_by_role("button", name="Write it out").click()
    page.until("document.querySelector('#text').value.endsWith('<to-fr>Je suis étudiant.')")
    # Special tokens stay what they are when the text around them is edited, and typed ones are text.
    page.ready().page.locator("#text").fill("I am a teacher.<to-fr>Je suis étudiant.")
    page.until("store.trace.words[3].text === ' teacher' && store.status === 'ready'")
    assert page.ids().count(7999) == 1
    page.page.locator("#text").fill("I am a teacher.<to-fr>Je suis étudiant.<to-fr>")
    page.until("store.trace.tokens.length > 12 && store.status === 'ready'")
    assert page.ids().count(7999) == 1
    # A chip goes to the end, or where the caret is.
    page.page.locator("#text").fill("Hello")
    page.until("store.get().text === 'Hello' && store.trace.text === 'Hello'")
    typed = page.ids()
    page.ready().page.locator(".inserts button", has_text="<to-fr>").click()
    page.until("store.trace.text === 'Hello<to-fr>'")
    assert page.ids() == [*typed, 7999]
    # Back to a model of text: its own example.
    assert field(pick(page, page.js("store.info.models[0].name"))) == TEXT


def test_a_text_of_ones_own_stays_with_a_model_of_text(visit: Begin, gpt: GPT, other: GPT, url: str) -> None:
    page = pick(visit(url).open("Something of my own"), other.name)
    assert field(page) == "Something of my own"


def test_music_opens_with_a_phrase_and_readable_events(visit: Begin, address: str) -> None:
    page = pick(visit(address).open(TEXT), "music")
    assert "error" not in page.page.locator("#status").get_attribute("data-is")
    page.press("n")
    page.ready()
    words = page.texts(".candidate .word")
    assert len(set(words)) == 10
    assert all(re.match(r"vel|\d+m?s|[A-G]♯?\d\s(on|off)|·", word) for word in words), words
    cut = (
        "[...document.querySelectorAll('.candidate .word')]"
        ".filter((word) => word.scrollWidth > word.clientWidth).map((word) => word.textContent)"
    )
    assert page.js(cut) == []
    cells = page.texts("glass-tower .cell.is-token")
    assert all(re.match(r"vel|♪|×|\d+m?s|[A-G]♯?\d", cell) for cell in cells), cells
    page.press("x")
    page.until("document.activeElement?.id === 'tour-title'")
    page.press("ArrowRight")
    page.until("document.querySelector('.tour-words')?.textContent.includes('key')")
    assert "frequent words" not in page.texts(".tour-words")[0]


DROP = (
    "(() => { const files = new DataTransfer();"
    " files.items.add(new File([Uint8Array.from(atob(given), (c) => c.charCodeAt(0))], 'a.mid'));"
    " const how = {dataTransfer: files, bubbles: true, cancelable: true};"
    " document.body.dispatchEvent(new DragEvent('drop', how)); })()"
)


def test_a_model_that_is_picked_wins_over_a_file_that_is_still_read(visit: Begin, address: str) -> None:
    page = visit(address).open(TEXT)
    held: list[Any] = []
    page.page.route("**/api/v1/midi*", lambda route: held.append(route))
    page.js(DROP, base64.b64encode(to_midi(NOTES)).decode())
    page.until("document.querySelector('.insert-row').textContent.includes('Reading a.mid')")
    page.page.select_option("#model", label="en-fr")
    page.until("store.info.models[store.trace.model].name === 'en-fr' && store.status === 'ready'")
    held.pop().continue_()
    page.until("!document.querySelector('.insert-row').textContent.includes('Reading a.mid')")
    page.ready()
    assert field(page) == "I am a student.<to-fr>"
    assert page.js("document.querySelector('#model').selectedOptions[0].textContent") == "en-fr"
    # Dropped after the pick, the file wins.
    page.page.unroute("**/api/v1/midi*")
    page.js(DROP, base64.b64encode(to_midi(NOTES)).decode())
    page.until("document.querySelector('piano-roll .note') !== null && store.status === 'ready'")
    page.ready()
    assert page.js("store.info.models[store.trace.model].name") == "music"


def test_attention_is_drawn_on_the_roll_of_a_dropped_file(visit: Begin, address: str) -> None:
    page = visit(address).open(TEXT)
    page.js(DROP, base64.b64encode(b"no music").decode())
    assert "a.mid is not a MIDI file" in page.until(
        "document.querySelector('.insert-row .problem')?.textContent"
    )
    assert "400" in page.wrong.pop()
    page.js(DROP, base64.b64encode(to_midi(NOTES)).decode())
    page.until("store.trace.tokens.length > 8 && store.status === 'ready'")
    page.ready()
    assert page.js("document.querySelectorAll('piano-roll .note').length") == 3
    assert page.until("document.querySelectorAll('piano-roll .arcs path').length") > 0
    assert page.js("document.querySelectorAll('glass-strip svg.arcs path').length") == 0


@pytest.mark.parametrize("options", [{}, PHONE], ids=["laptop", "phone"])
def test_arcs_lead_from_the_cursor_to_what_it_attends_to(
    visit: Begin, gpt: GPT, address: str, options: dict[str, Any]
) -> None:
    page, trace = visit(address, **options).open(TEXT, layer=2, head=1), gpt.trace(TEXT)
    path = "glass-strip svg.arcs path"
    weights = trace.attention[2, 1][-1]
    page.until(f"document.querySelectorAll('{path}').length")
    drawn = page.js(
        f"[...document.querySelectorAll('{path}')]"
        ".map((p) => [Number(p.dataset.token), Number(p.getAttribute('stroke-opacity'))])"
    )
    assert {token for token, _ in drawn} == set(np.flatnonzero(weights >= 0.015).tolist())
    assert max(drawn, key=lambda each: each[1])[0] == int(weights.argmax())
    # A large weight is written down at the token where its arc ends.
    shares = page.js(
        "[...document.querySelectorAll('glass-strip svg.arcs text')].map((share) => {"
        "const box = share.getBoundingClientRect();"
        "const chip = document.querySelector(`.chip[data-token='${share.dataset.token}']`);"
        "const { left, right } = chip.getBoundingClientRect();"
        "const middle = (box.left + box.right) / 2;"
        "return [Number(share.dataset.token), share.textContent, left < middle && middle < right]; })"
    )
    assert shares
    assert all(share == f"{100 * weights[token]:.0f}%" for token, share, _ in shares)
    assert all(inside for *_, inside in shares)

    def most(row: Any) -> str:
        """The word that is looked at most."""
        shares = {w["text"]: row[w["first"] : w["last"] + 1].sum() for w in page.js("store.trace.words")}
        return max(shares, key=lambda word: float(shares[word])).strip()

    def label() -> str:
        return page.painted().page.locator("glass-strip svg.arcs").get_attribute("aria-label")  # type: ignore[no-any-return]

    assert f"Arcs from “it” to what it attends to: “{most(weights)}”" in label()
    # The mean of the block, another token, and none.
    page.page.get_by_role("button", name="mean of block 2").click()
    assert f"attends to: “{most(trace.attention[2][:, -1].mean(axis=0))}”" in label()
    page.press("Home")
    page.until(f"document.querySelectorAll('{path}').length === 1")
    page.page.locator(".looks button", has_text="off").click()
    page.until(f"document.querySelectorAll('{path}').length === 0")


def test_steering_takes_a_word_of_several_tokens(visit: Begin, gpt: GPT, address: str) -> None:
    page = visit(address).open(TEXT, view="why", layer=3)
    page.until("document.querySelectorAll('.targets button').length")
    page.page.locator("#towards").fill("robot")
    page.page.locator("#strength").fill("1")
    edits = page.until("store.get().edits.length === 2 && store.get().edits")
    assert [(edit["token"], edit["strength"]) for edit in edits] == [(i, 0.5) for i in gpt.encode(" robot")]
    assert "2 tokens" in page.until(
        "[...document.querySelectorAll('glass-why [role=status]')].map((p) => p.textContent).join('')"
    )
    # Without the edits the slider is back at 0; the word stays.
    page.page.get_by_role("button", name="remove all").click()
    page.until("document.querySelector('#strength').value === '0'")
    assert float(page.texts("output[for=strength]")[0]) == 0
    assert page.page.locator("#towards").input_value() == "robot"


def test_a_link_with_steering_shows_it_in_the_fields(visit: Begin, gpt: GPT, address: str) -> None:
    edits = [{"kind": "steer_token", "layer": 3, "token": gpt.encode(" the")[0], "strength": 1.5}]
    page = visit(address).open(TEXT, view="why", layer=3, edits=json.dumps(edits))
    page.until("document.querySelector('#towards').value === 'the'")
    assert page.js("document.querySelector('#strength').value") == "1.5"
    assert page.texts("output[for=strength]") == ["1.5"]


def test_a_link_to_music_speaks_of_events(visit: Begin, address: str) -> None:
    page = visit(address)
    page.goto(page.url + "#model=music&text=VELOCITY_20+NOTE_ON_60+TIME_SHIFT_50+NOTE_ON_64")
    page.until("/ event, “NOTE_ON/.test(document.querySelector('.opened').textContent)")
    # An event was not made of bytes.
    page.page.locator(".chip").nth(1).hover()
    assert "NOTE_ON" in page.texts("#token-card")[0]
    assert "byte\n" not in page.texts("#token-card")[0] + "\n"


def test_the_shape_is_that_of_the_model_in_the_picker(visit: Begin, address: str) -> None:
    page = visit(address).open(TEXT)
    gate = Gate(page)
    gate.shut = True
    page.page.select_option("#model", label="music")
    assert page.texts("#shape")[0].startswith("8 blocks × 5 heads, width 320")
    gate.open()
    page.until("store.info.models[store.trace.model].name === 'music' && store.status === 'ready'")
    assert page.ready().texts("#shape")[0].startswith("8 blocks × 5 heads, width 320")


def test_the_sizes_of_the_family_are_named_side_by_side_on_a_phone(visit: Begin, address: str) -> None:
    page = visit(address, **PHONE).open(TEXT, view="family")
    page.page.wait_for_selector("glass-family figure svg text")
    overlap = page.js(
        "(() => { const texts = [...document.querySelectorAll('glass-family figure > svg text')];"
        "const own = (text) => text.closest('figure').parentElement.localName === 'glass-family';"
        "const boxes = texts.filter(own)"
        ".map((text) => [text.textContent, text.getBoundingClientRect()]);"
        "const cross = (a, b) => a.left < b.right && b.left < a.right"
        " && a.top + 2 < b.bottom && b.top + 2 < a.bottom;"
        "return boxes.flatMap(([name, a], i) => boxes.slice(i + 1)"
        ".filter(([, b]) => cross(a, b)).map(([other]) => [name, other])); })()"
    )
    assert overlap == []


def test_the_lessons_of_the_family(visit: Begin, gpt: GPT, address: str) -> None:
    page = visit(address).open(TEXT, view="family", layer=1, head=2)
    page.page.wait_for_selector(".lessons summary")
    page.js("document.querySelectorAll('.lessons details').forEach((one) => (one.open = true))")
    text = page.until(
        "(document.querySelector('.batch tr') && document.querySelector('glass-family').textContent)"
    )
    for word in (
        "WebText",
        "40 GB",
        "Transformer-Decoder",
        "XLNet",
        "cross-attention",
        "c_attn",
        "117M",
        "transfer",
    ):
        assert word in text
    loss = gpt.trace(TEXT).token_loss.p[1:5]
    shown = page.texts(".batch tbody tr:not(.sum) td:last-child")
    assert [float(each) for each in shown] == pytest.approx(list(-np.log2(loss)), abs=0.0051)
    page.page.get_by_role("button", name="Translate “I am a student.”").click()
    page.until("store.info.models[store.trace.model].name === 'en-fr'")
    assert field(page.ready()) == "I am a student.<to-fr>"


def test_the_edits_of_a_text_with_special_tokens(visit: Begin, address: str) -> None:
    page = visit(address).open(TEXT)

    def after(before: str, spans: list[list[int]], typed: str) -> Any:
        given = {
            "before": before,
            "spans": [{"start": a, "end": b, "ids": [7]} for a, b in spans],
            "typed": typed,
        }
        found = page.js("module.edited(given.before, given.spans, given.typed)", given, "text/prompt.js")
        return found["text"], [[span["start"], span["end"]] for span in found["spans"]]

    assert after("ab<x>cd", [[2, 5]], "aab<x>cd") == ("aab<x>cd", [[3, 6]])
    assert after("ab<x>cd", [[2, 5]], "ab<x>cd<x>") == ("ab<x>cd<x>", [[2, 5]])
    assert after("ab<x>cd", [[2, 5]], "ab<xcd") == ("abcd", [])  # a token goes as a whole
    assert after("ab<x><x>", [[2, 5], [5, 8]], "ab<x><x") == ("ab<x>", [[2, 5]])
    assert after("<x>", [[0, 3]], "") == ("", [])
