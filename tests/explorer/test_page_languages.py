"""The page in three languages: the reader's own, another without losing the state, and no English left."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.explorer.browser import Visit
from tests.explorer.conftest import TEXT
from tests.explorer.test_languages import MESSAGES

Begin = Callable[..., Visit]
VIEWS = ("block", "heads", "next", "why", "cache", "tally", "compare", "family")
# What the elements of the page say, without the model's text, formulas and code.
SAID = """(() => {
  const said = [];
  for (const element of document.querySelectorAll('body *')) {
    const foreign = 'code, pre, script, noscript, .chips, .said, #model, .math, [role=grid] .cell';
    if (element.closest(foreign)) continue;
    for (const name of ['title', 'aria-label', 'placeholder']) said.push(element.getAttribute(name));
    for (const node of element.childNodes) if (node instanceof Text) said.push(node.data);
  }
  return said.filter((words) => words && words.trim());
})()"""
SENTENCE = re.compile(r"(?:[A-Za-z]{2,} ){3}[A-Za-z]{2,}")  # four English words
QUOTED = re.compile(
    r"robot|I am a student|Illustrated GPT|MLP|GELU|LayerNorm|the First Law|glassgpt explore|such orders"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("locale", "code", "lang"), [("ko-KR", "ko", "ko"), ("zh-CN", "zh", "zh-Hans"), ("fr-FR", "en", "en")]
)
def test_the_browser_decides(visit: Begin, locale: str, code: str, lang: str) -> None:
    page = visit(locale=locale).open(TEXT, view="next")
    assert page.js("document.documentElement.lang") == lang
    assert page.js("document.querySelector('#language').value") == code
    assert page.texts("#tab-next") == [MESSAGES[code]["view.next"]]
    assert "lang=" not in page.js("location.hash")
    # The link overrules it.
    page = visit(locale=locale).open(TEXT, view="next", lang="zh")
    assert page.js("document.documentElement.lang") == "zh-Hans"


@pytest.mark.slow
def test_a_switch_keeps_the_state(visit: Begin) -> None:
    page = visit().open(TEXT, view="heads", token=6, layer=3, head=2, overlay='["1.1"]', theme="dark")
    before: dict[str, Any] = page.state()
    traced = page.js("store.trace.id")
    for code in ("ko", "zh", "en", "ko"):
        page.page.locator("#language").focus()
        page.page.locator("#language").select_option(code)
        page.until(f"document.querySelector('#tab-heads').textContent === {MESSAGES[code]['view.heads']!r}")
        page.painted()
        assert page.state() == before | {"lang": code}
        assert page.js("store.trace.id") == traced
        page.until(f"location.hash.includes('lang={code}')")
        assert page.js("document.activeElement.id") == "language"
        assert page.js("document.querySelectorAll('glass-tower, glass-strip, glass-welcome').length") == 3
        assert len(page.texts("#tabs button")) == 9
        assert "GPT-2" in page.texts("glass-welcome p")[0]
        assert page.js("document.querySelector('#examples').selectedIndex") == 1
    # A key does its work once, and the list of keys is in the language.
    page.page.locator("#sheet").focus()
    page.press("]")
    assert page.state()["head"] == 3
    page.press("?")
    listed = page.texts("#keys-list dd")
    assert MESSAGES["ko"]["keys.tokens"] in listed
    assert len(listed) == len(set(listed))
    page.press("Escape")


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ko", "zh"])
def test_no_english_is_left(visit: Begin, code: str) -> None:
    page = visit().open(TEXT, lang=code)
    left: set[str] = set()
    for view in VIEWS:
        page.js(f"store.set({{ view: '{view}' }})")
        page.ready()
        left |= {words for words in page.js(SAID) if SENTENCE.search(words) and not QUOTED.search(words)}
    for step in range(16):
        page.js(f"store.set({{ tour: {step} }})")
        page.until("document.querySelector('.tour-words').ariaBusy === 'false'")
        page.painted()
        words = page.texts("glass-tour")[0]
        assert re.search("[가-힣]" if code == "ko" else "[一-鿿]", words)
        left |= {line for line in words.splitlines() if SENTENCE.search(line) and not QUOTED.search(line)}
    assert left == set()


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ko", "zh"])
def test_errors_are_translated(visit: Begin, code: str) -> None:
    page = visit().open(TEXT, lang=code, view="next")
    said = page.js(
        "module.translated('ids: 99 is not a token id. Use 0 to 50,256.')", module="languages/server.js"
    )
    assert "50,256" in said
    assert said == MESSAGES[code]["error.id"].replace("{id}", "99").replace("{last}", "50,256")
    other = "layer: 9 is out of range. Use 0 to 7."
    assert page.js(f"module.translated('{other}')", module="languages/server.js") == other


@pytest.mark.slow
def test_numbers_follow_the_language(visit: Begin) -> None:
    for code, shape in (("en", "46.7 M parameters"), ("ko", "4,670만 개"), ("zh", "4,670 万个参数")):
        page = visit().open(TEXT, lang=code, view="tally")
        large = page.js("module.large(46_709_760, { digits: 1 })", module="languages/language.js")
        assert large in shape
        assert re.search(r"\d,\d{3}", page.texts("glass-tally h2")[0])
