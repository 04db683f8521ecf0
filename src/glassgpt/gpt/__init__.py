"""The Python API of a loaded model: `glassgpt.load("default").generate("Once upon a time")`.

gpt.py has the class, task_methods.py its methods for tasks, loading.py opens a model. Texts are generated in
`glassgpt.generate`: batch.py, stream.py and engine/pool.py.
"""

from glassgpt.generate.prompt import Prompt
from glassgpt.generate.stream import TextStream
from glassgpt.gpt.gpt import GPT
from glassgpt.gpt.loading import load

__all__ = ["GPT", "Prompt", "TextStream", "load"]
