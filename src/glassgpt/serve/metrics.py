"""The metrics at /metrics, for Prometheus. Names and labels follow vLLM's, with our prefix."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from glassgpt.serve.models import ModelPool

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    def __init__(self, pool: ModelPool) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp per metric is noise
        self.registry = CollectorRegistry()

        def histogram(name: str, help: str) -> Histogram:
            return Histogram(f"glassgpt_{name}", help, ["model"], registry=self.registry, buckets=SECONDS)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"glassgpt_{name}", help, ["model", *labels], registry=self.registry)

        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self.generated_tokens = counter("generated_tokens", "Tokens generated")
        self.requests = counter("requests", "Requests by how they ended", "outcome")
        self.responses = Counter(
            "glassgpt_http_responses",
            "Responses by path and status",
            ["path", "status"],
            registry=self.registry,
        )
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token")
        self.inter_token = histogram("inter_token_latency_seconds", "Between two tokens of a text")
        self.queue_time = histogram("queue_time_seconds", "From arrival to the first free row")
        self.request_time = histogram("request_seconds", "From arrival to the last token")
        self.registry.register(PoolCollector(pool))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class PoolCollector(Collector):
    """The services' own numbers, read when they are scraped."""

    def __init__(self, pool: ModelPool) -> None:
        self.pool = pool

    def collect(self) -> Iterator[Metric]:
        models = list(self.pool.loaded.values())
        gauges: list[tuple[str, str, list[float]]] = [
            ("requests_running", "Sequences being decoded", [m.service.running for m in models]),
            ("requests_waiting", "Prompts that wait for a row", [m.service.waiting for m in models]),
            ("tokens_waiting", "Tokens in the queue", [m.service.waiting_tokens for m in models]),
            (
                "cache_usage_ratio",
                "Rows of the KV cache in use",
                [m.service.running / m.service.rows for m in models],
            ),
            ("model_memory_bytes", "Weights and KV cache", [m.memory for m in models]),
        ]
        for name, help, values in gauges:
            family = GaugeMetricFamily(f"glassgpt_{name}", help, labels=["model"])
            for model, value in zip(models, values, strict=True):
                family.add_metric([model.name], value)
            yield family
        counters: list[tuple[str, str, list[float]]] = [
            ("engine_steps", "Steps of the engine", [m.service.steps for m in models]),
            (
                "prefix_cache_queries",
                "Tokens of prompts that were looked up in the prefix cache",
                [m.service.engine.stats.prompt_tokens for m in models],
            ),
            (
                "prefix_cache_hits",
                "Tokens of prompts that were found there",
                [m.service.engine.stats.cached_tokens for m in models],
            ),
        ]
        for name, help, values in counters:
            total = CounterMetricFamily(f"glassgpt_{name}", help, labels=["model"])
            for model, value in zip(models, values, strict=True):
                total.add_metric([model.name], value)
            yield total
