"""The same server on a Ray cluster: replicas of the app, with autoscaling on the length of their queues.

    serve run glassgpt.serve.ray:app                                    # the shipped model, one replica
    serve run glassgpt.serve.ray:app model=gpt2 replicas=4 gpus=1
    serve run glassgpt.serve.ray:app model=gpt2 min_replicas=1 max_replicas=16 cpus=2

(`serve` is Ray's command.) Ray takes requests on its machines, chooses replicas by the length of their
queues, passes streams through, replaces a replica that dies and drains one that is removed. Each replica is a
whole server with its own engine and bounded queue. GLASSGPT_API_KEY guards them, in the environment
of `serve run` or of the machines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from fastapi import FastAPI
from ray import serve

from glassgpt.errors import SettingError
from glassgpt.ranges import check_whole

API_KEY = "GLASSGPT_API_KEY"


@dataclass(frozen=True)
class RayOptions:
    """What may follow `serve run glassgpt.serve.ray:app`, as name=value."""

    model: str = "default"  # or several, separated by commas
    replicas: int = 1
    min_replicas: int = 0  # with max_replicas: autoscaling between the two
    max_replicas: int = 0
    cpus: float = 1.0  # per replica
    gpus: float = 0.0
    max_batch_size: int = 16
    max_queue: int = 64
    drain_timeout: float = 30.0

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> RayOptions:
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        unknown = sorted(set(arguments) - set(kinds))
        if unknown:
            raise SettingError(f"there is no option {unknown[0]!r}. There are: {', '.join(kinds)}.")
        try:
            options = cls(**{name: kinds[name](value) for name, value in arguments.items()})
        except ValueError as error:
            raise SettingError(f"an option is not a number: {error}.") from None
        check_whole("replicas", options.replicas, 1, 100_000)
        check_whole("max_replicas", options.max_replicas, 0, 100_000)
        check_whole("min_replicas", options.min_replicas, 0, 100_000)
        if options.min_replicas > options.max_replicas:
            raise SettingError(
                f"min_replicas {options.min_replicas} is above max_replicas {options.max_replicas}. "
                "Give both."
            )
        return options


def app(arguments: dict[str, Any]) -> serve.Application:
    """The application that `serve run` deploys."""
    options = RayOptions.of(arguments)
    # The key of the machine that deploys: a replica's process has its own machine's environment.
    api_key = os.environ.get(API_KEY)
    replica = serve.ingress(lambda: build_replica(options, api_key))(Replica)
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": options.min_replicas,
                "max_replicas": options.max_replicas,
                # A replica computes a batch together: it is busy when its rows are taken.
                "target_ongoing_requests": options.max_batch_size,
            }
        }
    deployment = serve.deployment(
        replica,
        name="glassgpt",
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        # More than fit: the server's own queue is fair, and says 429 when it is full.
        max_ongoing_requests=2 * (options.max_batch_size + options.max_queue),
        graceful_shutdown_timeout_s=options.drain_timeout,
        health_check_period_s=2,
        **scaling,
    )
    return deployment.bind()


class Replica:
    """One server of the deployment; its routes are those of `serve/app.py`."""


def build_replica(options: RayOptions, api_key: str | None = None) -> FastAPI:
    """The app of one replica, made on the machine where it runs. It starts with its models loaded."""
    from glassgpt.serve.app import make_app
    from glassgpt.serve.models import ModelPool, find_models
    from glassgpt.serve.settings import ServerSettings

    settings = ServerSettings(
        host="0.0.0.0",  # requests come from Ray's proxies, under any name
        api_key=os.environ.get(API_KEY) if api_key is None else api_key,
        max_batch_size=options.max_batch_size,
        max_queue=options.max_queue,
    )
    specs = find_models(options.model.split(","))
    pool = ModelPool(specs, max_batch_size=options.max_batch_size, queue=settings.queue)
    return make_app(pool, settings, wait_for_models=True)
