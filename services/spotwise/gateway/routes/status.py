"""Status endpoints of the server: its models, whether it can serve, its version, its metrics."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotwise.gateway.generate.api_options import ApiOptions, require_model
from spotwise.gateway.generate.generation import Generation


def model_routes(options: ApiOptions, context_length: int) -> list[Route]:
    """Return `/v1/models`: the model, its adapters and its aliases."""
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "spotwise",
            "root": options.resolved(name),
            "parent": options.model_name if options.adapter(name) else None,
            "max_model_len": context_length,
        }

    async def list_models(request: Request) -> Response:
        return _json({"object": "list", "data": [card(name) for name in options.names]})

    async def get_model(request: Request) -> Response:
        model_id = request.path_params["model_id"]
        require_model(model_id, options)
        return _json(card(model_id))

    return [Route("/v1/models", list_models), Route("/v1/models/{model_id:path}", get_model)]


def status_routes(generation: Generation, registry: CollectorRegistry) -> list[Route]:
    """Return three answers about this server, and what vLLM has beside the third: `/ping`, which SageMaker asks for, `/version`
    and `/metrics`.

    `/livez`: the process answers; what does not is to be replaced. `/readyz`: it takes requests, though they may wait; else a
    load balancer sends them elsewhere. `/health`: the mesh has workers for them now.
    """
    reported = {"version": version("spotwise")}

    async def get_liveness(request: Request) -> Response:
        return _json({"status": "ok"})

    async def get_readiness(request: Request) -> Response:
        if (problem := generation.why_not_ready()) is not None:
            return _json({"status": "unavailable", "detail": problem}, 503)
        return _json({"status": "ok", "detail": "takes requests"})

    async def get_health(request: Request) -> Response:
        health = await generation.health()
        status = "ok" if health.ready else "unavailable"
        body = {"status": status, "detail": health.detail, "workers": dict(health.workers)}
        return _json(body, 200 if health.ready else 503)

    async def get_version(request: Request) -> Response:
        return _json(reported)

    async def get_metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [
        Route("/livez", get_liveness),
        Route("/readyz", get_readiness),
        Route("/health", get_health),
        Route("/ping", get_health, methods=["GET", "POST"]),
        Route("/version", get_version),
        Route("/metrics", get_metrics),
    ]


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
