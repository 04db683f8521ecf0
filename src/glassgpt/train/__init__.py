"""text -> weights, and `glassgpt.train(...)`, which does it all.

Read in this order: data/ (prepare, shards, loader), settings, objective, loss, forward, step, optim, loop,
then checkpoint/, distributed/, report/ and trainer, which puts them together.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.train.run import Run


class _CallableModule(ModuleType):
    """`glassgpt.train` is this package and the function at the same time; torch is imported when it is
    called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        from glassgpt.train.trainer import train

        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
