"""Figures that parse, are self-contained, and keep every text a text."""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassgpt
from glassgpt.errors import UserError
from glassgpt.figures.figure import Figure, encode_png, to_rgba
from glassgpt.figures.svg import truncate, visible
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateBlock, AblateHead, Patch, Steer

PATIENCE = 300  # seconds, for what takes a few
TEXT = 'The old house <script>alert("x")</script> & $a$ é\u202e漢\x01'

THINGS: dict[str, Callable[[GPT], Any]] = {
    "trace": lambda gpt: gpt.trace(TEXT),
    "trace of one token": lambda gpt: gpt.trace("The"),
    "a long trace": lambda gpt: gpt.trace([5] * 130),
    "attention": lambda gpt: gpt.trace(TEXT).attention,
    "attention of a long trace": lambda gpt: gpt.trace([5] * 130).attention,
    "masked": lambda gpt: gpt.trace(TEXT).attn.masked,
    "q": lambda gpt: gpt.trace(TEXT).attn.q,
    "intervention": lambda gpt: gpt.intervene(TEXT, [AblateHead(1, 2), AblateBlock(0, "mean")]),
    "steering": lambda gpt: gpt.intervene(
        TEXT, [Steer("ln_f", np.ones(gpt.config.n_embd)), Patch("h.0.attn.z", TEXT)]
    ),
    "nothing": lambda gpt: gpt.intervene("The"),
    "gradient": lambda gpt: gpt.attribute(TEXT, 5, "input_x_gradient"),
    "integrated": lambda gpt: gpt.attribute("The old house", 5),
    "rollout": lambda gpt: gpt.attribute(TEXT, 5, "attention_rollout", position=2),
    "direct": lambda gpt: gpt.attribute(TEXT, 5, "direct_logit_attribution"),
    "tally": lambda gpt: glassgpt.tally(gpt.config),
    "tally of the published": lambda gpt: glassgpt.tally("gpt2"),
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", THINGS)
def test_it_parses_and_needs_nothing_else(shipped: GPT, name: str, tmp_path: Path) -> None:
    thing = THINGS[name](shipped)
    svg = thing.to_svg(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == svg
    root = ElementTree.fromstring(svg)
    assert root.tag == SVG + "svg"
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for part in root.iter(SVG + "rect"):
        if part.get("class") == "background":
            continue
        x, y, w, h = (float(part.get(key, "0")) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.1
        assert 0 <= y <= y + h <= height + 0.1
        assert 0 <= float(part.get("fill-opacity", "1")) <= 1
    page = thing.to_html(tmp_path / "a.html")
    assert thing._repr_html_() in page
    assert "<script" not in page.lower()
    outside = re.findall(r"https?://[^\"' ]+|url\(|@import|<link|<iframe|\bon\w+=", page)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}
    assert all(part.get("href", "").startswith("data:image/png;base64,") for part in root.iter(SVG + "image"))
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("name", ["trace of one token", "masked", "steering", "rollout", "direct", "tally"])
def test_as_png(shipped: GPT, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    thing = THINGS[name](shipped)
    data = thing.to_png(tmp_path / "a.png", dpi=96)
    assert (tmp_path / "a.png").read_bytes() == data
    figure = thing.figure()
    width, height = struct.unpack(">II", data[16:24])
    assert abs(width - figure.width) <= 1
    assert abs(height - figure.height) <= 1


def test_png_without_matplotlib(shipped: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "meta_path", [NoMatplotlib(), *sys.meta_path])
    with pytest.raises(UserError, match=r"pip install 'glassgpt\[plot\]'"):
        glassgpt.tally("gpt2").to_png()


class NoMatplotlib:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_the_numbers_are_in_the_figure(shipped: GPT) -> None:
    best = shipped.next("The old house stood at the", 1)[0][0]
    found = shipped.attribute("The old house stood at the", best, "direct_logit_attribution")
    texts = [part.text for part in ElementTree.fromstring(found.to_svg()).iter(SVG + "text")]
    assert [f"{value:+.2f}" for value in found.heads[3]] == texts[texts.index("block 3") + 1 :][
        : shipped.config.n_head
    ]
    done = shipped.intervene("The old house stood at the", AblateHead(2, 1))
    texts = [part.text for part in ElementTree.fromstring(done.to_svg()).iter(SVG + "text")]
    assert visible(done.top_changes(1)[0].text) in texts
    trace = shipped.trace("The old house stood at the")
    texts = [part.text for part in ElementTree.fromstring(trace.to_svg()).iter(SVG + "text")]
    assert visible(best) in texts
    tally = ElementTree.fromstring(glassgpt.tally("gpt2").to_svg())
    assert "124,439,808 parameters" in [part.text for part in tally.iter(SVG + "text")]


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    figure = Figure(100, 100, text)
    figure.text(0, 20, text, tip=text)
    figure.text(0, 40, visible(text), room=50)
    root = ElementTree.fromstring(figure.to_svg().encode())
    displayed = next(root.iter(SVG + "text"))
    assert "\n" not in (displayed.text or "")
    assert len(list(root)) == 5  # style, title, paper and the two labels: no text became a part


@settings(deadline=None)
@given(st.text(max_size=12), st.integers(1, 8))
def test_cutting(text: str, room: int) -> None:
    found = truncate(text, room)
    assert found == text or (found.endswith("…") and text.startswith(found[:-1]))
    assert len(found) <= room


@pytest.mark.parametrize(
    ("text", "room", "displayed"),
    [
        ("house", 5, "house"),
        ("houses", 5, "hous…"),
        ("漢字漢", 5, "漢字…"),
        ("漢字", 4, "漢字"),
        ("漢字", 3, "漢…"),
    ],
)
def test_as_much_as_fits_is_kept(text: str, room: int, displayed: str) -> None:
    assert truncate(text, room) == displayed


def test_a_short_text_has_its_explanation(shipped: GPT) -> None:
    for text in ("The", "The old house stood at the"):
        assert "top next token (logit lens), cool if likely<" in shipped.trace(text).to_svg()


def test_pixels() -> None:
    pixels = to_rgba(np.array([[1.0, -0.5, 0.0], [-np.inf, np.nan, 2.0]]))
    assert pixels[..., 3].tolist() == [[255, 128, 0], [0, 0, 255]]
    image = pytest.importorskip("matplotlib.image")
    read = image.imread(io.BytesIO(encode_png(pixels)), format="png")
    np.testing.assert_array_equal(np.round(255 * read).astype(np.uint8), pixels)


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "look_inside.ipynb"


def test_the_heads_that_the_notebook_names_look_where_it_says() -> None:
    words = EXAMPLE.read_text("utf-8")
    trace = glassgpt.load("default", device="cpu").trace("The old house stood at the")
    back = re.search(r"Block (\d+), head (\d+) looks one token back", words)
    at = re.search(r"block (\d+), head (\d+), the last .{0,2}the.{0,2} looks at .{0,2}at", words)
    assert back is not None
    assert at is not None
    view = trace.attention[int(back[1]), int(back[2])]
    assert np.diagonal(view, -1).min() > 0.9
    assert trace.attention[int(at[1]), int(at[2])][-1, -2] > 0.9


@pytest.mark.slow
def test_in_a_notebook_and_a_browser(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    nbconvert, playwright = pytest.importorskip("nbconvert"), pytest.importorskip("playwright.sync_api")
    pytest.importorskip("ipykernel")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    notebook = nbformat.read(EXAMPLE, as_version=4)
    hostile = nbformat.v4.new_code_cell('gpt.trace("<b>bold</b><script>document.title = 1</script>")')
    notebook.cells.append(hostile)
    # Output that comes later than the last of these after a cell has ended is dropped; the default is 4 s.
    patient = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), PATIENCE)
    nbclient.NotebookClient(notebook, kernel_name="python3", **patient).execute()
    results = [cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code"]
    drawn = sum("<svg" in result.get("text/html", "") for result in results)
    assert drawn == len(results) - 1 == 8, "all but the numbers of one head"
    page = tmp_path / "notebook.html"
    page.write_text(nbconvert.HTMLExporter().from_notebook_node(notebook)[0])
    if browser is None:
        pytest.skip("no Chromium on this machine: the notebook ran, but was not looked at")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=browser, args=["--no-sandbox"], timeout=PATIENCE * 1000)
        for scheme, paper, ink in (
            ("light", "rgb(255, 255, 255)", "rgb(27, 31, 39)"),
            ("dark", "rgb(20, 23, 28)", "rgb(236, 239, 244)"),
        ):
            tab = chromium.new_page(color_scheme=scheme)
            tab.set_default_timeout(PATIENCE * 1000)
            tab.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
            tab.goto(page.as_uri(), wait_until="domcontentloaded")
            figures = tab.locator("svg.glassgpt")
            assert figures.count() == drawn
            for i in range(drawn):
                box = figures.nth(i).bounding_box()
                assert box is not None
                assert box["width"] > 400
                assert box["height"] > 80
            fill = "element => getComputedStyle(element).fill"
            assert figures.first.locator("rect.background").evaluate(fill) == paper
            assert figures.first.locator("text.text").first.evaluate(fill) == ink
            assert tab.locator("svg.glassgpt text", has_text="␣door").count() > 0
            assert tab.locator("svg.glassgpt b, svg.glassgpt script").count() == 0  # a text stays a text
            assert tab.title() != "1"
            tab.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
            tab.close()
        chromium.close()


def test_counting_needs_no_torch() -> None:
    code = "import sys, glassgpt; glassgpt.tally('gpt2').to_svg(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_colors_are_those_of_the_explorer(shipped: GPT) -> None:
    """Orange raises a logit and blue lowers it, in the page as in the notebook."""
    found = shipped.attribute("The old house stood at the", None, "direct_logit_attribution")
    rects = re.findall(r'<rect class="(\w+)"[^>]*><title>[^<]*: ([+-])', found.to_svg())
    assert set(rects) == {("warm", "+"), ("cool", "-")}
