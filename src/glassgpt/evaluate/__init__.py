"""model -> metrics with standard errors and the protocol behind each, and `glassgpt.evaluate(...)`, which
does it all.

Read in this order: scoring/ (windows of tokens and their log-likelihoods), metrics.py (values and standard
errors), suites/ (the tasks), evaluate.py, compare.py (two models), published.py (published results).
Separate: harness.py (the model class for lm-evaluation-harness) with harness_tasks.py, generated.py
(metrics of generated text) and speed.py (tokens per second).
"""

from glassgpt.callable_package import make_callable
from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.scoring.score_cache import ScoreCache
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.suites.eval_task import WindowBuilder

__all__ = ["MetricResult", "ScoreCache", "Scorer", "WindowBuilder"]

make_callable(__name__, "evaluate", "evaluate")
