"""`glassgpt doctor`: what it finds, and what it says to type."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import glassgpt as package
from glassgpt.backends.native import is_available
from glassgpt.backends.native.library import NotBuilt
from glassgpt.cli.commands import doctor
from glassgpt.weights.registry import MODELS
from tests.cli.conftest import Result

ROOT = Path(__file__).resolve().parents[2]
native = pytest.mark.skipif(not is_available(), reason="the native engine was not built")


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.backends.choose.may_have_gpu", lambda: False)
    for name in ("GLASSGPT_KERNELS", "GLASSGPT_THREADS", "GLASSGPT_NATIVE"):
        monkeypatch.delenv(name, raising=False)


@native
def test_a_complete_installation_has_no_problem(glassgpt: Callable[..., Result], on_a_cpu: None) -> None:
    answer = glassgpt("doctor")
    assert (answer.code, answer.err) == (0, "")
    assert f"{package.__version__} in " in answer.out
    assert "computed by native on cpu" in answer.out
    assert answer.out.endswith(
        "Nothing is missing: the shipped models run as fast as this machine can run them.\n"
    )
    report = json.loads(glassgpt("doctor", "--json").out)
    assert report["models"] == sorted(MODELS)
    assert report["engine"]["kernels"] == report["engine"]["supported"][-1]
    assert report["engine"]["threads"] >= 1
    assert report["problems"] == []


def test_the_default_model_runs_on_the_backend_it_names(
    glassgpt: Callable[..., Result], on_a_cpu: None
) -> None:
    report = json.loads(glassgpt("doctor", "--json").out)
    backend = package.load("default").backend
    assert report["backend"] == type(backend).__name__.removesuffix("Backend").lower()


@native
def test_slower_kernels_that_someone_chose(
    glassgpt: Callable[..., Result], on_a_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSGPT_KERNELS", "portable")
    answer = glassgpt("doctor")
    assert answer.code == 1
    assert "GLASSGPT_KERNELS chooses portable, and this CPU runs " in answer.out
    assert answer.out.endswith("\n  unset GLASSGPT_KERNELS\n")
    monkeypatch.setenv("GLASSGPT_KERNELS", "sse9")
    answer = glassgpt("doctor")
    assert answer.code == 1
    assert "no kernels 'sse9'" in answer.out
    assert "cannot run" in answer.out


def test_without_the_engine_models_and_tokenizer(
    glassgpt: Callable[..., Result], on_a_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_built() -> None:
        raise NotBuilt(
            "the native engine was not built when this package was installed. With a compiler: do it"
        )

    installed = doctor.installed_version
    monkeypatch.setattr("glassgpt.backends.native.backend.load_library", not_built)
    monkeypatch.setattr("glassgpt.weights.registry.DATA", ROOT / "tests")
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: None if name == "fastokens" else installed(name)
    )
    report = json.loads(glassgpt("doctor", "--json").out)
    assert [problem["advice"] for problem in report["problems"]] == [
        "pip install glassgpt-models",
        "With a compiler: do it",
        "pip install fastokens, where it has a wheel for your system",
    ]
    assert report["backend"] == ("numpy" if report["torch"] is None else "torch")
    assert report["engine"]["available"] is False


def test_a_gpu_without_pytorch_and_pytorch_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.backends.choose.may_have_gpu", lambda: True)
    problems: list[doctor.Problem] = []
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    assert doctor.examine_torch(problems) == (None, "cpu")
    assert problems.pop().advice == "pip install 'glassgpt[torch]'"
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(doctor, "installed_version", lambda name: "9.9")
    assert doctor.examine_torch(problems) == ("9.9", "cpu")
    assert "PyTorch 9.9 finds no GPU" in problems.pop().what


def test_every_extra_of_users_is_listed_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"all", "dev", "docs"}
    found = {(name, extra) for name, extra in doctor.requirements_of_extras() if extra in doctor.EXTRAS}
    assert {("fastapi", "serve"), ("torch", "torch"), ("zstandard", "data")} <= found
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "fastapi" else "1")
    assert {name: lacks for name, lacks in doctor.missing_of_extras().items() if lacks} == {
        "serve": ["fastapi"]
    }
