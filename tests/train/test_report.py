"""`report.html`: what a run's folder says of it, on one page that needs nothing else."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glassgpt.config import Config
from glassgpt.errors import FileFormatError
from glassgpt.figures.axes import format_number, linear_ticks, log_ticks
from glassgpt.train.report.chart import Chart, Curve, downsample, smooth
from glassgpt.train.report.html import collapse_blank_lines, format_count, format_duration, write_report
from glassgpt.train.settings import TrainSettings

NASTY = "<script>alert(1)</script> & <img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    out = tmp_path / "a <b>run"
    out.mkdir()
    records = []
    for step in range(1, 1001):
        record = {
            "step": step, "loss": 2 + 6 * math.exp(-step / 100), "lr": 1e-3, "grad_norm": 0.5,
            "tokens_per_s": 1000,
        }  # fmt: skip
        if step % 100 == 0:
            record["val_loss"] = record["loss"] + 0.1
        records.append(record)
    records[300].update(loss=None, grad_norm=None, skipped=True)  # a step that was not finite
    (out / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + '{"step": 1001, "lo')
    samples = [{"step": step, "text": f"{NASTY} {step}"} for step in range(100, 1001, 50)]
    (out / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    start = {
        "step": 0, "time": "2026-01-02T03:04:05+00:00", "device": "an abacus", "processes": 1,
        "versions": {"torch": "9.9"}, "peak_flops": 1e9, "flops_per_token": 5e5, "commit": "abcdef",
    }  # fmt: skip
    sessions = [start, {**start, "step": 400, "time": "2026-01-03T00:00:00+00:00"}]
    (out / "environment.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sessions))
    settings = TrainSettings(steps=2000, batch_size=4, context=32)
    (out / "settings.json").write_text(json.dumps(settings.to_dict()))
    config = Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    (out / "config.json").write_text(json.dumps(config.to_dict()))
    return out


def test_a_report_shows_the_run(run: Path) -> None:
    text = write_report(run).read_text("utf-8")
    page = Page(text)
    said = " ".join(page.text.split())
    for expected in (
        "a <b>run", "Loss", "Learning rate", "Gradient norm", "Tokens per second", "MFU", "linear", "log",
        "validation loss 2.100", "best, at step 1,000", "1,000of 2,000", "128 per step", "resumed",
        "an abacus", "torch 9.9", "commit abcdef", "from step 400 2026-01-03 00:00 UTC", "11 more",
    ):  # fmt: skip
        assert expected.replace(" ", "") in said.replace(" ", ""), expected
    curves = [attributes["d"] for tag, attributes in page.tags if attributes.get("class") == "smooth"]
    assert len(curves) >= 6
    assert all(re.fullmatch(r"M[-\d. L]+", curve) for curve in curves)  # numbers, no nan
    assert len(text) < 400_000


def test_what_the_model_wrote_is_text_and_nothing_is_fetched(run: Path) -> None:
    page = Page(write_report(run).read_text("utf-8"))
    assert f"{NASTY} 1000" in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not {"img", "link", "iframe", "b", "a"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "onerror"} & attributes.keys()
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_run_with_little_to_tell_has_a_report_too(run: Path) -> None:
    (run / "samples.jsonl").unlink()
    (run / "environment.jsonl").unlink()
    first = (run / "log.jsonl").read_text().splitlines()[0]
    (run / "log.jsonl").write_text(first + "\n")
    assert "Loss" in write_report(run).read_text("utf-8")
    (run / "log.jsonl").write_text("")
    with pytest.raises(FileFormatError, match="no record of a step"):
        write_report(run)


def test_a_long_curve_keeps_its_peaks() -> None:
    points = [(step, 1.0) for step in range(10_000)]
    points[4321] = (4321, 99.0)
    points[777] = (777, math.nan)
    few = downsample(points)
    assert len(few) <= 400
    assert (4321, 99.0) in few
    assert few == sorted(few)


def test_the_running_mean_has_no_lag() -> None:
    """On a straight line the mean around a point is the point."""
    line = [(step, 3.0 - 0.01 * step) for step in range(200)]
    for (_, ours), (_, expected) in zip(smooth(line), line, strict=True):
        assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (2.1, 2.9, [2.2, 2.4, 2.6, 2.8]),
        (0, 1e-3, [0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high) == pytest.approx(ticks)


def test_logarithmic_ticks() -> None:
    assert log_ticks(0.9, 12) == pytest.approx([1, 2, 5, 10])
    assert log_ticks(2.9, 3.6) == linear_ticks(2.9, 3.6)
    assert log_ticks(1e-4, 1e4) == pytest.approx([10.0**e for e in range(-4, 5)])


def test_a_flat_curve_is_drawn() -> None:
    html = Chart("Flat", [Curve("x", [(1, 0.0), (2, 0.0)], "smooth")], 2, scales=("linear", "log")).to_html(0)
    assert "nan" not in html


def test_empty_lines_do_not_fill_the_page() -> None:
    assert collapse_blank_lines("\n\na\n \n\n\n b\nc\n") == "a\n\n b\nc"


def test_numbers_for_people() -> None:
    assert [format_number(x) for x in (0, 2.5e-4, 0.001, 1500, 2e6)] == ["0", "2.5e-4", "0.001", "1.5k", "2M"]
    assert [format_count(x) for x in (999, 9999, 12_345, 1_234_567)] == ["999", "9,999", "12.3k", "1.23M"]
    assert [format_duration(x) for x in (5, 65, 3700)] == [
        ("5", "seconds"),
        ("1:05", "minutes"),
        ("1:01", "hours"),
    ]
