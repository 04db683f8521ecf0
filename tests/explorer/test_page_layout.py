"""The page at every size and in every dress: 1,024 px, phones, the dark, paper; and what its pictures say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

import glassgpt
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import SIZES, Config
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.inspect.parameters.tally import tally
from glassgpt.model import GPT2
from glassgpt.music import PerformanceTokenizer
from glassgpt.tokenizer import EventTokenizer
from tests.conftest import SHIPPED
from tests.explorer.browser import Visit, served
from tests.explorer.conftest import API, TEXT, Client
from tests.explorer.test_page_panels import run_with_checkpoints

pytestmark = pytest.mark.slow

Begin = Callable[..., Visit]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SMALL_LAPTOP = {"viewport": {"width": 1024, "height": 768}}
VIEWS = ["block", "heads", "next", "why", "cache", "tally", "compare", "family"]

# What every state begins with, and every view with what can be opened in it.
PLAIN = {"layer": 1, "play": None, "part": "", "overlay": [], "edits": [], "tour": None, "pin": None}
STATES: list[dict[str, Any]] = [
    *({"view": view} for view in VIEWS),
    {"view": "block", "play": 9, "pin": 260},
    {"view": "block", "part": "pairs"},
    {"view": "block", "part": "mlp"},
    {"view": "block", "layer": -1},
    {"view": "heads", "overlay": ["0.1", "1.2"]},
    {"view": "next", "edits": [{"kind": "ablate_head", "layer": 1, "head": 2, "how": "zero"}]},
    {"tour": 4},
]


def show(page: Visit, **state: Any) -> Visit:
    page.js("store.set(given)", PLAIN | state)
    return page.ready()


def box(page: Visit, selector: str) -> Any:
    return page.js(
        "(() => { const { left, right, top, bottom, width, height } = document.querySelector(given)"
        ".getBoundingClientRect(); return { left, right, top, bottom, width, height }; })()",
        selector,
    )


# Controls that begin or end outside the window, unless they are in something that scrolls.
CUT_OFF = (
    "[...document.querySelectorAll('button, select, input, textarea, [role=tab]')].filter((control) => {"
    "const { left, right, width } = control.getBoundingClientRect();"
    "if (width === 0 || (left >= -1 && right <= innerWidth + 1)) return false;"
    "for (let at = control.parentElement; at; at = at.parentElement)"
    " if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return false;"
    "return true; }).map((control) => control.outerHTML.slice(0, 90))"
)


@pytest.mark.parametrize(
    "options",
    [{"viewport": {"width": 320, "height": 640}}, PHONE, SMALL_LAPTOP],
    ids=["320", "phone", "1024"],
)
def test_every_view_fits(visit: Begin, options: dict[str, Any]) -> None:
    page = visit(**options).open(TEXT)
    for state in STATES:
        show(page, **state)
        assert page.js("document.documentElement.scrollWidth <= innerWidth"), state
        assert page.js(CUT_OFF) == [], state


def test_a_small_laptop_shows_the_whole_tower(visit: Begin) -> None:
    """1,024 by 768 pixels and twelve blocks: no column and no row is hidden, and the end is in sight."""
    gpt = glassgpt.load("default", device="cpu", dtype="float32", backend="torch")
    with served(make_app(gpt)) as url:
        page = visit(url, **SMALL_LAPTOP).open(TEXT, welcome="false")
        page.until("document.querySelectorAll('.lens-card .pin').length === 10")
        hidden = page.js(
            "(() => { const grid = document.querySelector('glass-tower [role=grid]');"
            "return [grid.scrollLeft, grid.scrollWidth - grid.clientWidth,"
            " grid.scrollHeight - grid.clientHeight]; })()"
        )
        assert hidden == [0, 0, 0]
        label, first = box(page, "[role=rowheader]"), box(page, "#cell-token--2-0")
        assert label["right"] <= first["left"]
        card = box(page, ".lens-card .cell-top:nth-child(2)")  # the final prediction
        assert card["width"] > 60
        assert card["bottom"] <= 768
        words = page.js(
            "[...document.querySelectorAll('.lens-card .word')]"
            ".map((word) => word.scrollWidth <= word.clientWidth + 1)"
        )
        assert all(words[:3])
        show(page, view="heads")
        grid, large = box(page, "glass-heads .all"), box(page, "glass-heads .large")
        assert grid["right"] <= large["left"]
        page.painted().close()


def test_a_phone_shows_tabs_above_the_tower(visit: Begin) -> None:
    page = visit(**PHONE).open(TEXT, view="tower", token=0)
    tabs, tower = box(page, "[role=tablist]"), box(page, "glass-tower")
    assert tabs["bottom"] <= tower["top"] + 1
    for name in ("compare", "family"):
        tab = box(page, f"#tab-{name}")
        assert tab["left"] >= 0
        assert tab["right"] <= 390
    row, grid = box(page, "#cell-token--2-0"), box(page, "glass-tower [role=grid]")
    assert row["bottom"] <= grid["bottom"] + 1  # the lowest row is whole
    assert row["height"] > 15
    # A link to a part of a block leads to its title, below the tabs that stay.
    for part, selector in (("pairs", ".all-pairs h3"), ("mlp", "[data-stages^=ln2] h3")):
        show(page, view="block", part=part)
        page.until(
            "(() => { const top = document.querySelector(given).getBoundingClientRect().top;"
            " const bar = document.querySelector('[role=tablist]').getBoundingClientRect().bottom;"
            " return top >= bar && top < bar + 60; })()",
            selector,
        )


def contrast(a: np.ndarray, b: np.ndarray) -> Any:
    """The contrast ratio of WCAG between colors, (..., 3) of 0 to 255."""

    def luminance(rgb: np.ndarray) -> Any:
        part = rgb / 255
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    first, second = luminance(a), luminance(b)
    return (np.maximum(first, second) + 0.05) / (np.minimum(first, second) + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_weighted_values_can_be_seen(visit: Begin, gpt: GPT, theme: str) -> None:
    """The strips a_j v_j: whoever has a share of the attention stands out, in the dark as in the light."""
    page, trace = visit().open(TEXT, theme=theme, layer=2, head=1), gpt.trace(TEXT)
    pixels, wide, high, pane = page.js(
        "(() => { const canvas = document.querySelectorAll('glass-scores .strips canvas')[1];"
        "const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        "const pane = getComputedStyle(document.documentElement).getPropertyValue('--pane').trim();"
        "return [[...data], canvas.width, canvas.height, pane]; })()"
    )
    image = np.array(pixels, float).reshape(high, wide, 4)[..., :3]
    ground = np.array([int(pane[i : i + 2], 16) for i in (1, 3, 5)], float)
    weights = trace.attention[2, 1][-1]
    pitch = 54
    for key, weight in enumerate(weights):
        strip = image[2:-2, key * pitch + 2 : key * pitch + pitch - 6]
        seen = np.quantile(contrast(strip, ground), 0.98)
        assert seen >= (1.35 if weight >= 0.05 else 1.05), (key, weight, seen)
        frame = contrast(image[0, key * pitch + 8], ground)  # and each has a frame
        assert frame >= 1.3, (key, frame)


def test_on_paper_there_are_no_buttons_and_nothing_is_cut_off(visit: Begin) -> None:
    page = visit(**SMALL_LAPTOP).open(TEXT)
    for state in STATES[:-1]:
        show(page, **state)
        page.page.emulate_media(media="print")
        for gone in (".tools", "[role=tablist]", "glass-welcome", ".edit"):
            assert not page.page.locator(gone).first.is_visible()
        clipped = page.js(
            "['.sheet', '.tower [role=grid]'].filter((s) => { const at = document.querySelector(s);"
            "return at.scrollHeight > at.clientHeight + 1 || getComputedStyle(at).overflowY !== 'visible'; })"
        )
        assert clipped == [], state
        page.page.emulate_media(media="screen")
    assert page.page.pdf()[:4] == b"%PDF"


def test_paper_is_light(visit: Begin) -> None:
    page = visit(color_scheme="dark").open(TEXT, view="heads")
    cell = "document.querySelector('.cell.is-lens').style.background"
    colors = [page.js(cell)]
    assert page.js("document.documentElement.dataset.theme") == "dark"
    page.page.emulate_media(media="print", color_scheme="dark")
    page.until("document.documentElement.dataset.theme === 'light'")
    page.until(f"{cell} !== given", colors[0])  # what is drawn has the colors of paper, too
    page.page.emulate_media(media="screen", color_scheme="dark")
    page.until("document.documentElement.dataset.theme === 'dark'")
    page.until(f"{cell} === given", colors[0])
    for event, theme in (("beforeprint", "light"), ("afterprint", "dark")):
        page.js("dispatchEvent(new Event(given))", event)
        assert page.js("document.documentElement.dataset.theme") == theme


def test_layers_stand_in_one_line_on_a_phone(visit: Begin, gpt: GPT) -> None:
    with served(make_app(gpt, gpt)) as url:
        page = visit(url, **PHONE).open(TEXT, view="compare")
        page.until("document.querySelectorAll('.lens-table tbody th').length > 0")
        lines = page.js(
            "[...document.querySelectorAll('.lens-table tbody th')].map((th) => {"
            "const range = document.createRange(); range.selectNodeContents(th);"
            "return range.getClientRects().length; })"
        )
        assert lines == [1] * (gpt.config.n_layer + 1)
        assert page.js("document.documentElement.scrollWidth <= innerWidth")


def test_the_family_stands_to_scale(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="family")
    names = page.texts(".branch h3")
    assert names == ["encoder–decoder", "decoder only", "encoder only", "with memory"]
    assert page.texts(".branch.here h3") == ["decoder only"]
    drawn = page.js(
        "[...document.querySelectorAll('.branch svg')].map((s) =>"
        " [...s.querySelectorAll('text')].map((t) => t.textContent).join(', '))"
    )
    assert drawn == [
        "encoder, sees all, decoder, sees the past",
        "decoder, sees the past",
        "encoder, sees all",
        "decoder, sees the past, memory",
    ]
    config = gpt.config
    said = page.texts("glass-family .says")[1]
    assert f"This model has {config.n_layer} blocks, {config.n_embd} wide: {config.n_parameters:,}" in said
    xl = SIZES["gpt2-xl"].n_parameters
    assert f"XL has {round(xl / config.n_parameters)} times as many" in said
    # The sizes: a line for each block, as wide as its stream.
    bars = page.js(
        "[...document.querySelectorAll('glass-family figure rect')].map((r) =>"
        " [Number(r.getAttribute('x')), Number(r.getAttribute('width'))])"
    )
    columns: dict[float, list[float]] = {}
    for x, width in bars:
        columns.setdefault(x, []).append(width)
    shapes = [config, *(SIZES[name] for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))]
    assert [len(column) for column in columns.values()] == [shape.n_layer for shape in shapes]
    scale = next(iter(columns.values()))[0] / config.n_embd
    assert [column[0] for column in columns.values()] == pytest.approx(
        [scale * shape.n_embd for shape in shapes]
    )
    words = page.js("[...document.querySelectorAll('glass-family figure text')].map((t) => t.textContent)")
    for shape in shapes:
        assert f"{shape.n_layer} × {shape.n_embd}" in words
    assert f"{xl / 1e9:.2f} B" in words


def test_the_tally_says_where_parameters_are(visit: Begin, gpt: GPT) -> None:
    page = visit().open(TEXT, view="tally")
    page.until("document.querySelector('.tally-table tr')")
    lines, total = tally(gpt.config).lines, tally(gpt.config).total
    words = page.js("[...document.querySelectorAll('glass-tally svg text')].map((t) => t.textContent)")
    for start, name in (
        ("wte", "token table: wte"),
        (".attn.", "attention: c_attn, c_proj"),
        (".mlp.", "MLP: c_fc, c_proj"),
    ):
        share = sum(line.count for line in lines if start in line.name) / total
        said = next(word for word in words if word.startswith(name))
        assert float(said.split(": ")[2].split("%")[0]) == pytest.approx(100 * share, abs=0.51)
    assert "block 0: c_attn" in words or "block 0" in words
    rows = dict(row.split("\t", 1) for row in page.texts(".tally-table tr.sum"))
    block = sum(line.count for line in tally(gpt.config).block())
    assert rows["one block"].split()[-1] == f"{block:,}"
    assert rows[f"all {gpt.config.n_layer} blocks"].split()[-1] == f"{gpt.config.n_layer * block:,}"
    assert rows["total"].split()[-1] == f"{total:,}"


def test_tokens_are_counted_from_0_everywhere(visit: Begin) -> None:
    page = visit().open(TEXT, view="block", token=5, layer=1)
    assert "at token 5" in page.texts("glass-block h2")[0]
    assert page.page.locator(".chip").nth(5).get_attribute("aria-current") == "true" or page.js(
        "store.cursor.token === 5"
    )
    show(page, view="cache", prompt=3, step=3)  # the prompt's step, then tokens 3, 4, 5
    assert "token 5 is computed; 5 are cached" in page.texts(".cache-said")[0]
    bold = page.js(
        "[...document.querySelectorAll('glass-cache text[font-weight=\"700\"]')].map((t) => t.textContent)"
    )
    assert {word.rstrip("…") for word in bold} <= {
        page.js("store.trace.tokens[5].text").replace(" ", "␣")[: len(word.rstrip("…"))] for word in bold
    }
    assert page.texts("glass-cache .color-keys span") == [
        "computed in this step",
        "kept in the cache",
        "not there yet",
    ]


def test_colors_have_a_key(visit: Begin) -> None:
    page = visit().open(TEXT)
    keys = {
        "glass-strip": "low loss",
        "glass-tower": "0%",
        "glass-block": "below 0",
        "glass-stages": "below 0",
        "glass-heads": "weight 0%",
        "glass-why": "lowers the logit",
    }
    for name, word in keys.items():
        view = name.removeprefix("glass-")
        show(page, view=view if view in VIEWS else "block")
        key = page.page.locator(f"{name} .shades", has_text=word).first
        key.scroll_into_view_if_needed()
        assert key.is_visible(), name
        drawn = key.locator(".ramp").evaluate("(ramp) => getComputedStyle(ramp).backgroundImage")
        assert drawn.startswith("linear-gradient"), name


def test_the_picker_keeps_device_and_dtype(visit: Begin, gpt: GPT) -> None:
    """What was typed at the start holds for the models that the page opens later."""

    def in_bfloat16(name: str) -> GPT:
        return glassgpt.load(name, device="cpu", dtype="bfloat16", backend="torch")

    with served(make_app(gpt, others=[SHIPPED], load=in_bfloat16)) as url:
        page = visit(url).open(TEXT, view="next")
        page.page.locator("#model").select_option("1")
        page.until("store.trace.model === 1")
        page.ready()
        logits = page.js(
            "api.get(`/trace/${store.trace.id}/next?position=${store.trace.tokens.length - 1}`)"
            ".then((answer) => [...answer.logits.data])"
        )
        rounded = in_bfloat16(SHIPPED).trace(TEXT).logits[-1]
        assert np.array_equal(np.float32(logits), rounded[: len(logits)])
        assert np.abs(rounded - gpt.trace(TEXT).logits[-1]).max() > 1e-3
        page.painted().close()


def test_runs_are_in_the_picker(visit: Begin, gpt: GPT, tmp_path: Path) -> None:
    from glassgpt.explorer.models import find_models

    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    run_with_checkpoints(run, gpt, [])
    found = find_models([gpt.name], tmp_path / "runs")
    assert found[-1] == str(run)
    assert gpt.name not in found
    with served(make_app(gpt, others=[str(run)])) as url:
        page = visit(url).open(TEXT)
        page.page.locator("#model").select_option("1")
        page.until("store.trace.model === 1")
        assert page.ready().js("store.trace.norms") == page.js(
            "api.post('/trace', { text: store.trace.text }).then((trace) => trace.norms)"
        )
        assert f"the model {run.name}" in page.texts("glass-welcome p")[0]
        page.painted().close()


def test_what_can_be_sent_to_a_friend_is_the_file(visit: Begin) -> None:
    page = visit().open(TEXT)
    page.page.get_by_role("button", name="Export").click()
    page.page.locator("dialog.export").wait_for()
    said = page.texts("dialog.export")[0]
    assert "send to a friend" in said
    assert "works on this machine only" in said
    page.press("Escape")


@pytest.fixture(scope="module")
def music() -> tuple[GPT, str]:
    """A model of music that knows nothing, and a few notes for it."""
    torch.manual_seed(0)
    tokenizer = EventTokenizer(melody=True)
    config = Config(n_layer=2, n_embd=32, n_head=2, vocab_size=tokenizer.vocab_size, n_positions=64)
    names = (
        "VELOCITY_20 NOTE_ON_60 NOTE_ON_64 TIME_SHIFT_50 NOTE_OFF_60 VELOCITY_31 NOTE_ON_67 TIME_SHIFT_100"
    )
    return GPT(TorchBackend(GPT2(config).requires_grad_(False)), tokenizer, "random music"), names


def test_an_exported_piece_of_music_is_heard_and_seen(
    visit: Begin, music: tuple[GPT, str], tmp_path: Path
) -> None:
    gpt, text = music
    file = tmp_path / "music.html"
    body = {"text": text, "hash": f"#text={quote(text)}"}
    file.write_text(Client(make_app(gpt)).http.post(f"{API}/export", json=body).text, "utf-8")
    page = visit().goto(file.as_uri())
    ids = gpt.encode(text)
    assert page.ids() == ids
    played = PerformanceTokenizer().decode([i for i in ids if i < 388])
    notes = page.js("[...document.querySelectorAll('piano-roll .note title')].map((t) => t.textContent)")
    expected = [
        f"{ {60: 'C4', 64: 'E4', 67: 'G4'}[int(pitch)] }, {start:.2f} to {end:.2f} s"
        for start, end, pitch in zip(played.start, played.end, played.pitch, strict=True)
    ]
    assert sorted(notes) == sorted(expected)
    play = page.page.locator("piano-roll .play")
    play.click()
    page.until("document.querySelector('piano-roll .play').textContent.includes('Stop')")
    play.click()
    page.until("document.querySelector('piano-roll .play').textContent.includes('Play')")
    page.page.locator("piano-roll .note").nth(1).click(force=True)
    assert page.painted().js("store.cursor.token") == 2
    for state in (*({"view": view} for view in VIEWS), {"view": "block", "play": 4}):
        show(page, **state)
    assert page.wrong == []


@pytest.mark.parametrize("width", [1280, 1440])
def test_no_tab_is_cut_off_and_nothing_overlaps_beside_a_wide_panel(visit: Begin, width: int) -> None:
    page = visit(viewport={"width": width, "height": 900}).open(TEXT, layer=1)
    tabs = "document.querySelector('#tabs')"
    assert page.js(f"{tabs}.scrollWidth <= {tabs}.clientWidth")
    page.js("store.set({ wide: true, pin: 260 })")
    page.painted()
    # The five candidates, the final prediction and the pinned word's way up: none covers another.
    boxes = page.js(
        "[...document.querySelectorAll('.lens-card > *')].map((part) => {"
        " const all = [part, ...part.querySelectorAll('.share')].map((one) => one.getBoundingClientRect());"
        " return [Math.min(...all.map((b) => b.left)), Math.max(...all.map((b) => b.right)), all[0].top,"
        " all[0].bottom]; })"
    )
    assert len(boxes) == 3
    for i, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            beside = right <= other[0] + 1 or other[1] <= left + 1
            below = bottom <= other[2] + 1 or other[3] <= top + 1
            assert beside or below, boxes


def test_at_200_percent_the_tours_card_leaves_most_of_the_page(visit: Begin) -> None:
    page = visit(viewport={"width": 640, "height": 400}).open(TEXT, tour=4)
    page.until("document.querySelector('glass-tour .try') !== null")
    assert page.painted().js("document.querySelector('glass-tour').offsetHeight / innerHeight") < 0.4


def test_the_game_is_not_given_away(visit: Begin) -> None:
    """The tower's last column, its readout and its card know the answer."""
    page = visit().open(TEXT, view="next", layer=1)
    last = "[...document.querySelectorAll('glass-tower .is-lens')].filter((c) => c.dataset.token === given)"
    n = str(len(page.ids()) - 1)
    assert "?" not in page.js(f"{last}.map((c) => c.textContent)", n)
    page.press("g")
    assert set(page.js(f"{last}.map((c) => c.textContent)", n)) == {"?"}
    assert not page.page.locator(".lens-card").is_visible()
    assert "hidden" in page.texts(".readout")[0]
    page.press("g")
    assert "?" not in page.js(f"{last}.map((c) => c.textContent)", n)
