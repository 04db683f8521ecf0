"""What a decoder-only model does besides continuing text: translate, summarize, classify.

Read in this order: definition.py (what a task is), encode.py (a record to token ids), vocabulary.py (added
tokens), generate.py (running a task), then translate.py, extract.py, summarize.py and classify.py.
records.py reads files and reports what is wrong with them. `train/finetune/task.py` trains models
for tasks.
"""

from glassgpt.tasks.classify import Label, classify
from glassgpt.tasks.definition import Task, definition_names, load_task, parse_task
from glassgpt.tasks.encode import Encoder, Example
from glassgpt.tasks.extract import Extract, Quote
from glassgpt.tasks.generate import Output, run_task
from glassgpt.tasks.summarize import summarize
from glassgpt.tasks.translate import Translation, translate
from glassgpt.tasks.vocabulary import add_tokens, grow_vocabulary

__all__ = [
    "Encoder",
    "Example",
    "Extract",
    "Label",
    "Output",
    "Quote",
    "Task",
    "Translation",
    "add_tokens",
    "classify",
    "definition_names",
    "grow_vocabulary",
    "load_task",
    "parse_task",
    "run_task",
    "summarize",
    "translate",
]
