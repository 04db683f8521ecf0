"""The documentation builds without a warning, as `make docs` builds it, and its pages hold together."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(
            name, reason="the documentation's tools are not installed: make test installs them"
        )
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(out / "cache")]
    done = subprocess.run([*command, str(ROOT / "docs"), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def text_of(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text("utf-8"))).split())


@pytest.mark.slow
def test_every_page_is_built(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert {page.stem for page in site.glob("*.html")} >= pages


@pytest.mark.slow
def test_the_start_page_has_installation_and_tour(site: Path) -> None:
    text = text_of(site / "start.html")
    for words in ("make run", "source .venv/bin/activate", "glassgpt next", "Windows", "macOS", "Docker"):
        assert words in text, words
    assert 'href="docs/' not in (site / "start.html").read_text("utf-8")


@pytest.mark.slow
def test_the_api_page_has_every_room(site: Path) -> None:
    page = (site / "api.html").read_text("utf-8")
    for name in (
        "glassgpt.load", "glassgpt.GPT", "glassgpt.train.trainer.train", "glassgpt.tune",
        "glassgpt.evaluate.evaluate.evaluate", "glassgpt.music.PerformanceTokenizer",
        "glassgpt.music.generate.sample",
    ):  # fmt: skip
        assert f'id="{name}"' in page, name


@pytest.mark.slow
def test_the_site_needs_no_other_server(site: Path) -> None:
    """No script, style or font is fetched from elsewhere."""
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"((?:https?:)?//[^\"]+)")
    assert {page.name: loaded.findall(page.read_text("utf-8")) for page in site.glob("*.html")} == {
        page.name: [] for page in site.glob("*.html")
    }


@pytest.mark.slow
def test_every_page_has_a_card_of_its_own(site: Path) -> None:
    """Title and description, for those who share a link."""
    pages = [site / f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")]
    found = {}
    for page in pages:
        text = page.read_text("utf-8")
        card = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)">', text))
        assert card["site_name"] == "GlassGPT"
        assert 20 <= len(unescape(card["description"])) <= 204, page.name
        found[page.name] = unescape(re.sub(r"<[^>]+>", "", card["title"]))
    assert len(set(found.values())) == len(found)


@pytest.mark.slow
def test_search_finds_every_page_and_every_page_is_reached(site: Path) -> None:
    assert (site / "search.html").is_file()
    index = (site / "searchindex.js").read_text("utf-8")
    reached, waiting = set(), ["index.html"]
    while waiting:
        name = waiting.pop()
        if name in reached or not (site / name).is_file():
            continue
        reached.add(name)
        links = re.findall(r'href="([^"#:]+\.html)', (site / name).read_text("utf-8"))
        waiting += [link.removeprefix("./") for link in links]
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"{page.stem}"' in index, page.name
        assert f"{page.stem}.html" in reached, page.name


@pytest.mark.slow
def test_no_link_inside_of_the_site_is_broken(site: Path) -> None:
    """Every page and every anchor that a page links to is there."""
    pages = {page.name: page.read_text("utf-8") for page in site.glob("*.html")}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^":]*)"', text):
            target, _, anchor = unescape(link).partition("#")
            file = target if target else name
            if file.endswith(".html") and "/" not in file.removeprefix("./"):
                file = file.removeprefix("./")
                if file not in pages or (anchor and anchor not in anchors[file]):
                    broken.append((name, link))
    assert broken == []
