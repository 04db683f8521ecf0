"""Evaluation: metrics with their standard errors and the protocol behind each.

Read in this order: windows.py (the tokens of a request and which are scored), scorer.py, batching.py and
score_cache.py (log-likelihoods, fast and only once), metrics.py (values and standard errors), task.py, then
the tasks: lambada.py, choice.py, cbt.py, perplexity.py with detokenise.py; datasets.py (files), suites.py,
run.py, compare.py (two models), published.py (published results). Separate: harness.py (the model class for
lm-evaluation-harness), generated.py (metrics of generated text) and speed.py (tokens per second).
"""

from glassgpt.evaluate.metrics import MetricResult
from glassgpt.evaluate.score_cache import ScoreCache, Scores
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.task import WindowBuilder

__all__ = ["MetricResult", "ScoreCache", "Scorer", "Scores", "WindowBuilder"]
