"""Model to numbers: every figure with the rule by which it was counted.

Read in this order: rows.py (what the model reads and what counts), scorer.py and store.py (log-probabilities,
quickly and once), measure.py (figures and their errors), task.py, then the protocols: lambada.py, choice.py,
cbt.py, perplexity.py with detokenise.py; datasets.py (the files), suites.py (what goes together), run.py,
compare.py (two models), published.py (what others measured). Beside them: harness.py (lm-evaluation-harness
itself) and generated.py (texts that a model wrote).
"""

from glassgpt.evaluate.metrics import Measure
from glassgpt.evaluate.score_cache import Scores, Store
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.task import Reader

__all__ = ["Measure", "Reader", "Scorer", "Scores", "Store"]
