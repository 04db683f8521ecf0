"""GPT-2 made of glass: run it, see inside it, train and tune one, serve it, check it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassgpt.gpt import GPT, load
    from glassgpt.inspect.tally import tally

__version__ = "0.1.0"
__all__ = ["GPT", "__version__", "load", "tally"]


def __getattr__(name: str) -> Any:
    # Late, so that `import glassgpt` and `glassgpt --help` cost nothing.
    if name in ("GPT", "load"):
        from glassgpt import gpt

        return getattr(gpt, name)
    if name == "tally":
        from glassgpt.inspect.tally import tally

        return tally
    raise AttributeError(f"module 'glassgpt' has no attribute {name!r}")
