"""`glassgpt doctor`: what is installed, which engine computes, why not a faster one, and what to type."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json as jsonlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import glassgpt
from glassgpt.cli import terminal
from glassgpt.cli.parser.options import Flag
from glassgpt.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

# What each extra is for, in the order of the table. `all` and those of developers are left out.
EXTRAS = {
    "torch": "train, tune, GPUs, gradients",
    "serve": "explore, serve",
    "data": "prepare: .zst and .parquet",
    "constrain": "generate --json-schema, --regex, --grammar, --choice",
    "eval": "eval: data from the hub, BLEU, ROUGE",
    "plot": "figures as PNG",
    "tensorboard": "train --tensorboard",
    "mcp": "a model as tools for assistants",
    "ray": "the server on many machines",
}


@dataclass(frozen=True)
class Problem:
    """What is missing or slower than it could be here, and what to do about it."""

    what: str
    advice: str


@dataclass
class Engine:
    """What computes on the CPU."""

    available: bool
    kernels: str | None = None  # the instruction set in use
    supported: list[str] = field(default_factory=list)  # by this CPU and this build, the best last
    threads: int | None = None
    cpus: int | None = None  # hardware threads of the machine


@dataclass
class Report:
    version: str
    python: str
    system: str
    package: str
    models: list[str]
    models_folder: str
    backend: str  # that runs the default model
    device: str
    engine: Engine
    torch: str | None
    tokenizer: str
    extras: dict[str, list[str]]  # what each of them lacks here
    hub_cache: str
    problems: list[Problem]


def command(*, json: Annotated[bool, Flag("print a JSON object")] = False) -> int:
    """Show what is installed: the models, the engine and its instruction set, PyTorch and the extras. For all
    that is missing or slow it says what to type; exit code 1 if there is such a thing."""
    report = examine()
    if json:
        print(jsonlib.dumps(dataclasses.asdict(report)))
    else:
        terminal.show(make_table(report))
        for problem in report.problems:
            print(f"\n{problem.what}.\n  {problem.advice}")
        if not report.problems:
            print("\nNothing is missing: the shipped models run as fast as this machine can run them.")
    return 1 if report.problems else 0


def examine() -> Report:
    from glassgpt.weights.registry import DATA, MODELS, shipped_names

    problems: list[Problem] = []
    models = shipped_names()
    if missing := [name for name in MODELS if name not in models]:
        what = f"The shipped models {', '.join(missing)} are not installed"
        problems.append(Problem(what, "pip install glassgpt-models"))
    engine = examine_engine(problems)
    torch, device = examine_torch(problems)
    tokenizer = examine_tokenizer(problems)
    if device == "cpu":
        backend = "native" if engine.available else "torch" if torch is not None else "numpy"
    else:
        backend = "torch"
    return Report(
        version=glassgpt.__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.machine()}",
        package=str(Path(glassgpt.__file__).parent),
        models=models,
        models_folder=str(DATA),
        backend=backend,
        device=device,
        engine=engine,
        torch=torch,
        tokenizer=tokenizer,
        extras=missing_of_extras(),
        hub_cache=str(hub_cache()),
        problems=problems,
    )


def examine_engine(problems: list[Problem]) -> Engine:
    """The native engine, as a run would find it: the environment's settings included."""
    import warnings

    from glassgpt.backends.native import why_unavailable
    from glassgpt.backends.native.library import kernels
    from glassgpt.backends.native.threads import VARIABLE, thread_count
    from glassgpt.backends.native.weights import choose_kernels

    why = why_unavailable()
    if why is not None:
        reason, _, advice = why.partition(". ")
        advice = advice or "With a C++ compiler: python -m glassgpt.backends.native.build"
        problems.append(Problem(f"Without the native engine a CPU is slower: {reason}", advice))
        return Engine(False)
    engine = Engine(True, supported=kernels(), cpus=os.cpu_count())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about portable kernels, reported below
            engine.kernels = choose_kernels()
        engine.threads = thread_count()
    except UserError as error:
        what, _, advice = str(error).partition(". ")
        problems.append(Problem(what, advice or f"Unset {VARIABLE} and GLASSGPT_KERNELS."))
        return engine
    best = engine.supported[-1]
    if engine.kernels != best:
        what = f"GLASSGPT_KERNELS chooses {engine.kernels}, and this CPU runs {best}"
        problems.append(Problem(what, "unset GLASSGPT_KERNELS"))
    elif best == "portable":
        what = "The native engine has no vector instructions for this CPU, or its compiler did not know them"
        problems.append(Problem(what, "With a newer compiler: python -m glassgpt.backends.native.build"))
    return engine


def examine_torch(problems: list[Problem]) -> tuple[str | None, str]:
    """PyTorch's version, and the device that it would use. It is imported, which takes a second, only where
    there may be a GPU."""
    from glassgpt.backends.choose import may_have_gpu

    version = installed_version("torch")
    if not may_have_gpu():
        return version, "cpu"
    if version is None:
        problems.append(Problem("There is a GPU, which needs PyTorch", "pip install 'glassgpt[torch]'"))
        return None, "cpu"
    from glassgpt.backends.torch.backend import choose_device

    device = str(choose_device(None))
    if device == "cpu":
        what = f"There is a driver for a GPU, but PyTorch {version} finds no GPU"
        problems.append(Problem(what, "Choose your build of PyTorch on pytorch.org/get-started"))
    return version, device


def examine_tokenizer(problems: list[Problem]) -> str:
    version = installed_version("fastokens")
    if version is not None:
        return f"fast (fastokens {version})"
    what = "The readable tokenizer is used, which is slower for long texts"
    problems.append(Problem(what, "pip install fastokens, where it has a wheel for your system"))
    return "readable"


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_of_extras() -> dict[str, list[str]]:
    """What each extra lacks: the packages that it names directly, and that are for every system."""
    missing: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for name, extra in requirements_of_extras():
        if extra in missing and installed_version(name) is None:
            missing[extra].append(name)
    return missing


def requirements_of_extras() -> Iterator[tuple[str, str]]:
    try:
        lines = importlib.metadata.requires("glassgpt") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was never installed
        return
    for line in lines:
        if match := re.fullmatch(r"""([\w.-]+)[^;]*; extra == ['"](\w+)['"]""", line):
            yield match[1], match[2]


def hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def make_table(report: Report) -> Table:
    table = terminal.table("what", "here")
    for name, here in rows(report):
        table.add_row(name, here)
    return table


def rows(report: Report) -> Iterator[tuple[str, Any]]:
    yield "GlassGPT", f"{report.version} in {report.package}"
    yield "Python", report.python
    yield "system", report.system
    yield "shipped models", ", ".join(report.models) if report.models else "none"
    engine = report.engine
    if engine.kernels is not None:
        yield "native engine", f"{engine.kernels} (this CPU runs {', '.join(engine.supported)})"
        yield "threads", f"{engine.threads} of {engine.cpus}"
    else:
        yield "native engine", "cannot run" if engine.available else "none"
    yield "default model", f"computed by {report.backend} on {report.device}"
    yield "PyTorch", report.torch or "not installed"
    yield "tokenizer", report.tokenizer
    for extra, missing in report.extras.items():
        advice = f"pip install 'glassgpt[{extra}]'   # {EXTRAS[extra]}"
        yield f"extra {extra}", advice if missing else "installed"
    yield "downloads", report.hub_cache
