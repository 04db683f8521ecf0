"""The page as a person uses it: by mouse, by keys alone, on a phone, from a link, from a file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from glassgpt.gpt import GPT
from tests.explorer.browser import ROOT, Visit
from tests.explorer.conftest import API, TEXT, Client

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]
VIEWS = ["block", "heads", "next", "why", "cache", "tally", "compare", "family"]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

# Each would do something if any part of the page took it for more than text.
XSS = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg/onload=window.hacked=1>",
    "\"><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "</textarea><script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script><!--",
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}${window.hacked=1}",
    "<a href='javascript:window.hacked=1' autofocus onfocus=window.hacked=1>x</a>",
    "<style>*{display:none}</style><base href='http://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "__proto__ constructor hasOwnProperty \\u003cscript\\u003e &lt;b&gt; &amp; %3Cscript%3E",
    "\u202eright to left\u202c \u0000 \ufeff \u2028 \u2029",
]


def test_the_cursor_moves_by_keys(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT)
    last = len(gpt.encode(TEXT)) - 1
    assert page.js("store.cursor") == {"token": last, "layer": 0, "head": 0}
    page.press("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp", "]", "]", "]", "[")
    assert page.js("store.cursor") == {"token": last - 2, "layer": 2, "head": 2}
    page.press("Home", *["ArrowDown"] * 9)
    assert page.js("store.cursor") == {"token": 0, "layer": -1, "head": 2}
    page.press("End", *["ArrowUp"] * 9)
    assert page.js("store.cursor") == {"token": last, "layer": gpt.config.n_layer - 1, "head": 2}
    selected = page.page.locator("glass-tower [aria-selected=true]")
    assert selected.get_attribute("id") == f"cell-lens-{gpt.config.n_layer - 1}-{last}"


def test_a_move_of_the_cursor_draws_each_canvas_once(visit: Begin) -> None:
    page = visit(viewport={"width": 1280, "height": 800}).open(TEXT, view="block", layer=1)
    cells = "[...document.querySelectorAll('glass-scores .score')]"
    page.js(
        f"(() => {{ globalThis.made = 0; globalThis.cells = {cells}; const Plain = OffscreenCanvas;"
        "globalThis.OffscreenCanvas = class extends Plain {"
        "constructor(...size) { super(...size); made++; } }; })()"
    )
    page.press("ArrowLeft")
    page.ready()
    canvases, made = page.js("[document.querySelectorAll('glass-block canvas').length, made]")
    assert 0 < made <= canvases
    assert page.js(f"{cells}.length === cells.length && {cells}.every((cell, i) => cell === cells[i])")


def test_views_open_by_their_keys_and_digits_append(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT)
    for key, view in zip(
        "hnyctmfb", ["heads", "next", "why", "cache", "tally", "compare", "family", "block"], strict=True
    ):
        page.press(key)
        assert page.page.locator("#sheet > *").evaluate("(view) => view.localName") == f"glass-{view}"
        assert page.page.locator(f"#tab-{view}").get_attribute("aria-selected") == "true"
    page.press("n")
    page.page.wait_for_selector(".candidate .share:not(:empty)")
    page.press("2")
    ids = [*gpt.encode(TEXT), gpt.next_ids(TEXT)[1][0]]
    page.until("store.trace.tokens.length === given", len(ids))
    assert page.ids() == ids
    page.ready().press("u")
    page.until("store.trace.tokens.length === given", len(ids) - 1)
    page.press("?")
    assert page.page.locator("#keys").is_visible()
    page.press("Escape")
    assert not page.page.locator("#keys").is_visible()


def test_typing_a_text_traces_it(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT)
    page.press("e")
    page.page.keyboard.press("ControlOrMeta+a")
    page.page.keyboard.type("The sea was")
    ids = gpt.encode("The sea was")
    page.until(
        "JSON.stringify(store.trace.tokens.map((t) => t.id)) === given",
        json.dumps(ids, separators=(",", ":")),
    )


def test_the_whole_tour_by_keyboard(visit: Begin) -> None:
    page = visit().open(TEXT)
    page.press("x")
    titles: list[str] = []
    while True:
        heading = page.page.locator("#tour-title")
        page.until("document.activeElement === document.getElementById('tour-title')")
        titles.append(heading.inner_text())
        words = page.page.locator(".tour-words").inner_text()
        assert len(words.split()) > 25, titles[-1]  # a step can be read alone
        page.ready()
        assert page.state()["tour"] == len(titles) - 1
        if page.texts(".tour-foot .primary") == ["Done"]:
            break
        page.press("ArrowRight")
        page.until("document.getElementById('tour-title').innerText !== given", titles[-1])
    assert 10 <= len(titles) <= 16
    assert len(set(titles)) == len(titles)
    for _ in range(3):  # and back with the buttons, reached by Tab
        page.press("Shift+Tab")
    page.press("Escape")
    page.until("store.get().tour === null")
    assert not page.page.locator("glass-tour").is_visible()
    page.press("x")
    page.until("document.activeElement === document.getElementById('tour-title')")
    for _ in range(12):
        page.press("Tab")
        if page.js("document.activeElement.textContent") == "Next":
            break
    page.press("Enter")
    page.until("store.get().tour === 1")


# What Tab must come to in each view: ids, or classes where there are many.
REACHED = {
    "next": {"skip", "text", "tab-next", "param-temperature", "seed", "examples", "candidate"},
    "block": {"mask", "pin", "primary", "image", "stages", "edit"},
    "heads": {"filter", "skip-first", "second", "thumb", "edit", "window"},
    "why": {"towards", "away", "strength", "part"},
    "cache": {"cache-step", "cache-prompt", "primary"},
    "compare": {"compare-a", "compare-b", "scroll"},
}


@pytest.mark.parametrize("view", REACHED)
def test_every_control_can_be_reached_and_seen_by_tab(visit: Begin, view: str) -> None:
    page = visit().open(TEXT, view=view)
    seen: list[str] = []
    for _ in range(120):
        page.page.keyboard.press("Tab")
        found = page.js(
            "(() => { const at = document.activeElement; if (at === document.body) return null;"
            "const ring = [at, ...at.children].map((el) => getComputedStyle(el))"
            ".some(({ outlineStyle, boxShadow }) => outlineStyle !== 'none' || boxShadow !== 'none');"
            "return [at.id || at.getAttribute('class') || at.localName, ring]; })()"
        )
        if found is None:
            break
        seen.append(found[0])
        assert found[1], f"the focus on {found[0]} cannot be seen"
    assert found is None, "Tab never leaves the page"
    assert REACHED[view] <= {word for name in seen for word in name.split()}
    assert view != "next" or seen.count("candidate") == 10


def test_the_new_views_by_keys_alone(visit: Begin, gpt: GPT) -> None:
    page = visit(reduced_motion="reduce").open(TEXT, layer=1)

    def focus(selector: str) -> None:
        page.page.locator(selector).first.focus()

    # The player: its slider, its speed, its steps.
    focus("glass-block .player input[type=range]")
    page.press("Home")
    assert page.state()["play"] == 0
    page.press("ArrowRight", "ArrowRight")
    assert page.state()["play"] == 2
    focus("glass-block .player select")
    page.press("End")
    assert page.state()["speed"] == 4
    # All pairs: the cell moves with the arrows, and is told.
    page.js("store.set({ play: null })")
    focus("glass-stages .stages")
    before = page.ready().texts("glass-stages p")[0]
    page.press("ArrowUp")
    assert page.texts("glass-stages p")[0] != before
    # A word of the lens is pinned, a neuron ablated and restored.
    page.until("document.querySelectorAll('.lens-card .pin').length === 10")
    focus(".lens-card .pin")
    page.press("Enter")
    assert page.state()["pin"] is not None
    page.until("document.querySelectorAll('.neurons li').length === 8")
    focus(".neurons .edit")
    page.press("Enter")
    assert [edit["kind"] for edit in page.state()["edits"]] == ["ablate_neuron"]
    focus("glass-edits button")
    page.press("Enter")
    assert page.state()["edits"] == []
    # Heads: arrows move over the grid, + draws together, o ablates.
    page.press("h").ready()
    focus("glass-heads .thumb[aria-current]")
    page.press("ArrowRight", "ArrowUp")
    assert (page.state()["layer"], page.state()["head"]) == (2, 1)
    page.press("+", "o")
    assert page.state()["overlay"] == ["2.1"]
    assert page.state()["edits"][0]["kind"] == "ablate_head"
    # Why: a bar opens what it stands for.
    page.js("store.set({ edits: [], overlay: [] })")
    page.press("y").ready()
    page.until("document.querySelector('glass-why .part')")
    focus("glass-why .part")
    name = page.js("document.querySelector('glass-why .part text').textContent")
    page.press("Enter")
    state = page.ready().state()
    opened = {"MLP": f"MLP {state['layer']}", "head": f"head {state['layer']}.{state['head']}"}
    assert (state["view"], opened.get(name.split()[0], "embedding")) == ("block", name)
    # The family, the examples and the models.
    page.press("f")
    assert page.state()["view"] == "family"
    focus("#examples")
    for start in (
        "A robot must obey the orders given it by people",
        "Mary told",
    ):  # each stroke goes on from the example that is open
        page.press("ArrowDown")
        page.until("store.trace.text.startsWith(given)", start)
    assert page.ready().state()["view"] == "family"


@pytest.mark.parametrize(
    ("theme", "options"), [("light", {}), ("dark", {}), ("dark", PHONE)], ids=["light", "dark", "phone"]
)
def test_axe_finds_nothing(visit: Begin, theme: str, options: dict[str, Any]) -> None:
    axe = ROOT / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("no axe-core here: npm install (the page's accessibility is checked with it)")
    page = visit(**options).open(TEXT, theme=theme)
    source = axe.read_text("utf-8")
    # The second text brings a second grid, an edit the ribbon, the tour its card.
    states: list[dict[str, Any]] = [{"view": view} for view in (*VIEWS, *(["tower"] if options else []))]
    states += [
        {
            "view": "heads",
            "second": "The dog ran to the",
            "edits": [{"kind": "ablate_head", "layer": 1, "head": 2}],
        }
    ]
    states += [{"view": "block", "play": 9, "pin": 260}, {"view": "heads", "overlay": ["0.1", "1.2"]}]
    states += [{"view": "block", "layer": -1}, {"view": "next", "game": True}, {"tour": 0, "view": "block"}]
    page.page.evaluate(source)
    for state in states:
        page.js(f"store.set({{ {PLAIN}, ...given }})", state)
        page.ready()
        found = page.page.evaluate(
            "() => axe.run({ resultTypes: ['violations'], rules: { 'target-size': { enabled: true } } })"
        )
        assert violations(found) == [], state
    page.js("store.set({ tour: null })")
    page.page.get_by_role("button", name="Export").click()
    page.page.locator("dialog.export").wait_for()
    assert violations(page.page.evaluate("() => axe.run({ resultTypes: ['violations'] })")) == []


# What every state of the test above begins with.
PLAIN = "second: '', edits: [], game: false, tour: null, layer: 0, play: null, pin: null, overlay: []"


def violations(found: Any) -> list[str]:
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


MOVING = "document.getAnimations().filter((a) => a.effect.getTiming().duration > 1).length"


def test_those_who_want_no_motion_get_none(visit: Begin) -> None:
    page = visit(reduced_motion="reduce").open(TEXT)
    for view in VIEWS:
        page.js("store.set({ view: given })", view)
        page.ready()
        moving = page.js(
            "[...document.querySelectorAll('*')].filter((el) => { const s = getComputedStyle(el);"
            "const lasts = `${s.transitionDuration}, ${s.animationDuration}`.split(', ').map(parseFloat);"
            "return Math.max(...lasts) > 0.001 || s.scrollBehavior === 'smooth'; })"
            ".map((el) => el.outerHTML.slice(0, 80))"
        )
        assert moving == []
        page.press("ArrowLeft", "ArrowUp")
        assert page.js(MOVING) == 0
    page.js("store.set({ view: 'block', play: 0, speed: 4 })")  # nor does the player
    page.ready().press("p")
    page.until("store.get().play >= 3")
    assert page.js(MOVING) == 0
    page.press("p")


def test_nothing_is_wider_than_the_screen(visit: Begin) -> None:
    """Smaller screens: test_page_layout.py."""
    page = visit().open(TEXT)
    for view in VIEWS:
        page.js("store.set({ view: given })", view)
        page.ready()
        assert page.js("document.documentElement.scrollWidth <= innerWidth"), view


def test_a_link_restores_everything(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="next")
    page.press("1").ready()
    page.until(f"store.trace.tokens.length === {len(gpt.encode(TEXT)) + 1}")
    page.js(
        "store.set({ token: 3, layer: 2, head: 1, view: 'heads', temperature: 0.7, topK: 12, topP: 0.9,"
        "minP: 0.02, theme: 'dark', pattern: 'lines', second: 'The dog ran to the',"
        "edits: [{ kind: 'ablate_head', layer: 1, head: 2, how: 'zero' }] })"
    )
    page.ready()
    page.js("store.flush()")
    state, address = page.state(), page.page.url
    assert "#" in address
    other = visit().goto(address)
    other.until("store.intervention")
    assert other.state() == state
    assert other.ids() == page.ids()
    assert other.js("store.intervention.kl") == page.until("store.intervention?.kl")
    assert other.page.locator("#tab-heads").get_attribute("aria-selected") == "true"
    assert other.js("document.documentElement.dataset.theme") == "dark"
    assert other.page.locator("glass-tower [aria-selected=true]").get_attribute("id") == "cell-lens-2-3"


def test_a_broken_link_is_no_broken_page(visit: Begin) -> None:
    page = visit()
    for address in (
        "token=99&layer=99&head=99",
        "token=-7&layer=x&view=nothing&edits=5&ids=%5B1&temperature=NaN&topK=-3",
        "tour=99&theme=pink",
        "model=7",
        "text=",
        "%%%",
        "ids=[]&compare=[]",
        "__proto__=1&constructor=2",
    ):
        page.page.goto("about:blank")
        page.page.goto(page.url + "#" + address)
        page.page.wait_for_selector("#status[data-is=ready], #status[data-is=error]", state="attached")
        assert page.painted().page.locator("h1").is_visible()
    page.wrong = [each for each in page.wrong if "status of 4" not in each]  # a refusal is told in the page


def test_texts_stay_text(visit: Begin) -> None:
    """As the text, as the second text, and cut into tokens, in every view that shows them."""
    page = visit().open(TEXT)
    for start in range(0, len(XSS), 5):
        text = "\n".join(XSS[start : start + 5])
        page.js("store.set({ text: given, ids: null, second: given, token: -1 })", text)
        for view in VIEWS:
            page.js("store.set({ view: given })", view)
            page.ready()
        # In the player, pinned in the lens, as words of the tour, and as directions to steer by.
        page.js("store.set({ view: 'block', play: 9, pin: store.trace.tokens[0].id, layer: 1 })")
        page.ready().js("store.set({ tour: 4, play: null })")
        page.until("document.querySelector('.tour-words svg')")
        page.ready().js("store.set({ tour: null, view: 'why', pin: null })")
        page.ready().page.locator("#towards").fill(text.split()[0])
        page.page.locator("#towards").blur()
        page.painted()
        strange = page.js(
            "[...document.querySelectorAll('script, iframe, img, object, embed, base, a[href^=java]')]"
            ".filter((el) => !el.src?.endsWith('/main.js')).map((el) => el.outerHTML)"
        )
        assert strange == []
        assert page.js("document.querySelector('textarea').value") == text
        assert page.js("window.hacked") is None


def test_a_text_in_the_link_stays_text(visit: Begin) -> None:
    page = visit()
    for text in XSS[:3]:
        page.open(text)
        assert page.js("window.hacked") is None
        assert page.js("store.trace.text") == text


def test_every_view_can_be_taken_along(visit: Begin) -> None:
    page = visit().open(TEXT)
    for view in ("strip", "tower", *VIEWS):
        if view in VIEWS:
            page.js("store.set({ view: given })", view)
            page.ready()
        drawn = page.until("document.querySelector(`glass-${given}`)?.toSVG?.()", view)
        root = ET.fromstring(drawn)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.attrib["width"]) > 100, view
        assert len(list(root.iter())) > 5
    png = page.js(
        "module.toPNG(document.querySelector('glass-tower').toSVG()).then((blob) => blob.arrayBuffer())"
        ".then((bytes) => [...new Uint8Array(bytes)].slice(0, 24))",
        module="export.js",
    )
    assert bytes(png[:8]) == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(bytes(png[16:20])) > 200  # its width


@pytest.mark.parametrize("carried", ["#text={}&layer=2&head=1", "text={}&layer=2&head=1"])
def test_an_exported_page_takes_a_state_from_its_address(
    visit: Begin, client: Client, tmp_path: Path, carried: str
) -> None:
    """What the address does not say is as it was when the page was exported."""
    body = {"text": TEXT, "hash": carried.format(TEXT.replace(" ", "+"))}
    file = tmp_path / "a page, 100 %.html"
    file.write_text(client.http.post(f"{API}/export", json=body).text, "utf-8")
    for address, layer in (("", 2), ("#layer=1", 1), ("#nonsense", 2), (f"#text={quote(TEXT)}&layer=3", 3)):
        page = visit().goto(file.as_uri() + address)
        state = page.state()
        assert (state["text"], state["layer"], state["head"]) == (TEXT, layer, 1)
    page = visit()
    page.page.goto(file.as_uri() + "#text=another")
    page.until("store.status === 'error' && store.error.includes('one text only')")


def test_a_browser_that_refuses_to_change_the_address_is_no_error(visit: Begin) -> None:
    """Safari throws at the hundredth change in half a minute."""
    page = visit().open(TEXT)
    page.page.evaluate(
        "() => { history.pushState = history.replaceState = () => { throw new DOMException('no'); }; }"
    )
    page.js("store.set({ layer: 1 }, { push: true })")
    page.js("store.flush()")
    assert page.ready().state()["layer"] == 1


def test_the_exported_page_works_from_the_disk(visit: Begin, gpt: GPT, tmp_path: Path) -> None:
    text = "A <b>robot</b> must </script><script>window.hacked=1</script>"
    page = visit().open(text, view="next", layer=2, head=1)
    for view in ("heads", "compare"):
        page.js("store.set({ view: given })", view)
        page.ready()
    page.js("store.set({ view: 'block', token: 4 })")
    page.ready()
    page.page.get_by_role("button", name="Export").click()
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="The whole page as HTML").click()
    file = tmp_path / "page.html"
    download.value.save_as(file)
    source = file.read_text("utf-8")
    assert "http://127.0.0.1" not in source

    here = visit().goto(file.as_uri())
    assert here.js("api.offline") is True
    assert here.js("window.hacked") is None
    assert here.ids() == gpt.encode(text)
    state = here.state()
    assert (state["view"], state["token"], state["layer"], state["head"]) == ("block", 4, 2, 1)
    trace = gpt.trace(text)
    values = here.js(
        "[...document.querySelectorAll('glass-block section glass-vector')].map((v) => [...v.values])"
    )
    assert np.array_equal(np.float32(values[0]), trace.residual[2][4])
    assert np.array_equal(np.float32(values[2]), trace.attn.q[2, 1][4])
    # What the file does not carry is computed from what it does, in JavaScript's float64.
    for layer, head, token in ((0, 0, 0), (3, 3, 2), (1, 2, len(trace) - 1)):
        asked = [layer, head, token]
        found = here.js(
            "api.get(`/trace/${store.trace.id}/head?layer=${given[0]}&head=${given[1]}&position=${given[2]}`)",
            asked,
        )
        assert np.abs(np.float32(found["attn.weights"]) - trace.attention[layer, head][token]).max() < 1e-6
        assert np.abs(np.float32(found["attn.z"]) - trace.attn.z[layer, head][token]).max() < 1e-6
        assert [score is None for score in found["attn.masked"]] == [key > token for key in range(len(trace))]
        mlp = here.js("api.get(`/trace/${store.trace.id}/mlp?layer=${given[0]}&position=${given[2]}`)", asked)
        assert np.array_equal(np.float32(mlp["mlp.gelu"]), trace.mlp.gelu[layer, token])
        assert np.array_equal(np.float32(mlp["resid_post"]), trace.residual[layer + 1][token])
        pattern = here.js(
            "api.get(`/trace/${store.trace.id}/patterns?layer=${given[0]}`)"
            ".then((a) => [...a['attn.weights'].data])",
            asked,
        )
        exact = np.rint(255 * trace[f"h.{layer}.attn.weights"]).ravel()
        assert np.abs(np.array(pattern) - exact).max() <= 1
    for view in VIEWS:
        here.js("store.set({ view: given })", view)
        here.ready()
    here.js("store.set({ text: 'another text' })")
    here.until("store.status === 'error' && store.error.includes('one text only')")
