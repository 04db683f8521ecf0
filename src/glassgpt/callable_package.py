"""Packages that can be called: `glassgpt.train(...)` and `glassgpt.evaluate(...)` have the names of their
rooms."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Calling the package calls a function of one of its modules, which is imported only then."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(f"{package}.{module}"), function)(*args, **kwargs)

    sys.modules[package].__class__ = CallablePackage
