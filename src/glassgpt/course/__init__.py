"""The course: exercises that check themselves, drawings, and the lessons' notebooks (`glassgpt course`).

Read exercise.py (what an exercise is), exercises/, compare.py and check.py (what is wrong with a function),
my_file.py (the reader's my_gpt2.py), drawings.py, lessons.py. Nothing here needs torch.
"""

from glassgpt.course import drawings as draw
from glassgpt.course.check import Verdict, check, hint, solution, use
from glassgpt.course.models import SENTENCE, model, shape, trace, weights
from glassgpt.course.multiplications import multiplications
from glassgpt.course.my_file import keep, my_gpt2

__all__ = [
    "SENTENCE",
    "Verdict",
    "check",
    "draw",
    "hint",
    "keep",
    "model",
    "multiplications",
    "my_gpt2",
    "shape",
    "solution",
    "trace",
    "use",
    "weights",
]
