"""`gpt.explore` in a notebook: the frame, its server, and who may show it. In JupyterLab: tests/doors."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import glassgpt
from glassgpt.errors import SettingError, UserError
from glassgpt.explorer import notebook
from glassgpt.gpt import GPT
from glassgpt.progress import notebook_progress
from tests.conftest import SHIPPED


@pytest.fixture(scope="module")
def gpt() -> Iterator[GPT]:
    yield glassgpt.load(SHIPPED)
    notebook.close_servers()


def get(url: str, **headers: str) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)


def test_a_frame_with_the_text(gpt: GPT) -> None:
    frame = gpt.explore('A "quoted" <text> & more', height=500)
    html = frame._repr_html_()
    assert 'height="500"' in html
    assert "#text=A%20%22quoted%22%20%3Ctext%3E%20%26%20more" in html
    assert gpt.explore("Another").port == frame.port  # one server for a model
    with get(frame.url.partition("#")[0]) as answer:
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*" in policy
    assert "script-src 'self'" in policy
    assert "'none'" not in policy.partition("frame-ancestors")[2]
    with pytest.raises(SettingError, match="height is 3"):
        gpt.explore("x", height=3)


def test_the_same_guards_stand_before_it(gpt: GPT) -> None:
    root = gpt.explore().url
    for path, headers, status in (
        ("", {"Host": "evil.example"}, 421),
        ("api/v1/models", {"Origin": "https://evil.example"}, 403),
        ("api/v1/models", {"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(root + path, **headers)
        assert refused.value.code == status


def test_through_the_notebooks_own_port(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = gpt.explore("A")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    assert frame.source == frame.url  # without jupyter-server-proxy
    monkeypatch.setattr(notebook, "find_spec", lambda name: object())
    assert frame.source == f"/user/me/proxy/{frame.port}/#text=A"


def test_in_colab(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    colab = ModuleType("google.colab")
    colab.output = SimpleNamespace(  # type: ignore[attr-defined]
        serve_kernel_port_as_iframe=lambda port, path, height: calls.append((port, path, height))
    )
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    frame = gpt.explore("A")
    frame._ipython_display_()
    assert calls == [(frame.port, "/#text=A", 760)]


def test_a_widget_shows_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    made = []

    class Widget(SimpleNamespace):
        closed = False

        def close(self) -> None:
            self.closed = True

    def bar(**fields: Any) -> Widget:
        made.append(Widget(**fields))
        return made[-1]

    widgets = ModuleType("ipywidgets")
    widgets.IntProgress, widgets.Label = bar, lambda text: Widget(value=text)  # type: ignore[attr-defined]
    widgets.HBox = lambda children: Widget(children=children)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    monkeypatch.setattr("IPython.display.display", shown.append)
    with notebook_progress("reading", 1000, unit="bytes") as advance:
        for _ in range(1000):
            advance(1)
        assert made[0].value == 1000
        assert shown[0].children[1].value == "reading: 100%"
        assert not shown[0].closed
    assert shown[0].closed
    with notebook_progress("counting") as advance:
        advance(5)
        assert shown[1].children[1].value == "counting: 5"
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(UserError, match="pip install ipywidgets"), notebook_progress("x"):
        pass
