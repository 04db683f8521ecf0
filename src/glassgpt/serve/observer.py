"""What metrics, the log and the Explorer's list of recent requests learn about a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from glassgpt.generate.service.service import Job
from glassgpt.serve.metrics import Metrics
from glassgpt.serve.models import LoadedModel
from glassgpt.serve.recent import RecentRequests

TITLE_TOKENS = 20  # of a prompt, in the list of requests


class RequestObserver:
    """Observes one request: its jobs are queued (`begin`), a text gets a token (`token`), it ends (`end`)."""

    def __init__(
        self,
        metrics: Metrics,
        recent: RecentRequests,
        model: LoadedModel,
        log_line: dict[str, Any],
        log_prompts: bool,
    ) -> None:
        self.metrics, self.recent, self.model = metrics, recent, model
        self.log_line, self.log_prompts = log_line, log_prompts
        self.id = ""
        self.jobs: Sequence[Job] = ()
        self.generated = 0
        self._last_token: dict[tuple[int, int], float] = {}  # when each text got its last

    def begin(self, id: str, jobs: Sequence[Job]) -> None:
        self.id, self.jobs = id, jobs
        name, prompts = self.model.name, [job.prompt for job in jobs]
        self.metrics.prompt_tokens.labels(name).inc(sum(map(len, prompts)))
        if self.recent.enabled and not self.model.adapter:  # the Explorer would show the base's steps
            title = self.model.texts.decode(prompts[0][:TITLE_TOKENS])
            self.recent.begin(id, name, prompts, title + "…" * (len(prompts[0]) > TITLE_TOKENS))

    def token(self, prompt: int, sample: int, token: int) -> None:
        now, name, key = time.monotonic(), self.model.name, (prompt, sample)
        self.generated += 1
        self.metrics.generated_tokens.labels(name).inc()
        if key not in self._last_token:
            self.metrics.first_token.labels(name).observe(now - self.jobs[prompt].submitted)
        else:
            self.metrics.inter_token.labels(name).observe(now - self._last_token[key])
        self._last_token[key] = now
        self.recent.append(self.id, prompt, sample, token)

    def end(self, outcome: str) -> None:
        name, first = self.model.name, self.jobs[0]
        self.metrics.requests.labels(name, outcome).inc()
        self.metrics.request_time.labels(name).observe(time.monotonic() - first.submitted)
        if first.started is not None:
            self.metrics.queue_time.labels(name).observe(first.started - first.submitted)
        self.recent.end(self.id, outcome)
        self.log_line |= {
            "completion_id": self.id,
            "model": name,
            "outcome": outcome,
            "prompt_tokens": sum(len(job.prompt) for job in self.jobs),
            "completion_tokens": self.generated,
        }
        if self.log_prompts:
            self.log_line["prompts"] = [self.model.texts.decode(job.prompt) for job in self.jobs]
