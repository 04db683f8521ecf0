"""A loaded model, and what one does with it: `glassgpt.load("default").generate("Once upon a time")`.

gpt.py has the class, loading.py opens a model, task_methods.py are its methods for tasks. How texts are
generated is in `glassgpt.generate`: batch.py, stream.py and engine/pool.py.
"""

from glassgpt.generate.prompt import Prompt
from glassgpt.generate.stream import TextStream
from glassgpt.gpt.gpt import GPT
from glassgpt.gpt.loading import load

__all__ = ["GPT", "Prompt", "TextStream", "load"]
