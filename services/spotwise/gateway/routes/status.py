"""Status endpoints of the server: its models, whether it can serve, its version, its metrics."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from spotwise.gateway.access.auth import READING
from spotwise.gateway.generate.api_options import ApiOptions, require_model
from spotwise.gateway.generate.generation import Generation


def add_model_routes(app: FastAPI, options: ApiOptions, context_length: int) -> None:
    """Add `/v1/models`: the model, its adapters and its aliases."""
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

    @app.api_route("/v1/models", methods=[*READING])
    async def list_models() -> Response:
        return _json({"object": "list", "data": [card(name) for name in options.names]})

    @app.api_route("/v1/models/{model_id:path}", methods=[*READING])
    async def get_model(model_id: str) -> Response:
        require_model(model_id, options)
        return _json(card(model_id))


def add_status_routes(app: FastAPI, generation: Generation, registry: CollectorRegistry) -> None:
    """Add three answers about this server, and what vLLM has beside the third: `/ping`, which SageMaker asks for, `/version`
    and `/metrics`.

    `/livez`: the process answers; what does not is to be replaced. `/readyz`: it takes requests, though they may wait; else a
    load balancer sends them elsewhere. `/health`: the mesh has workers for them now.
    """
    reported = {"version": version("spotwise")}

    @app.api_route("/livez", methods=[*READING])
    async def get_liveness() -> Response:
        return _json({"status": "ok"})

    @app.api_route("/readyz", methods=[*READING])
    async def get_readiness() -> Response:
        if (problem := generation.why_not_ready()) is not None:
            return _json({"status": "unavailable", "detail": problem}, 503)
        return _json({"status": "ok", "detail": "takes requests"})

    @app.api_route("/health", methods=[*READING])
    @app.api_route("/ping", methods=[*READING, "POST"])
    async def get_health() -> Response:
        health = await generation.health()
        status = "ok" if health.ready else "unavailable"
        body = {"status": status, "detail": health.detail, "workers": dict(health.workers)}
        return _json(body, 200 if health.ready else 503)

    @app.api_route("/version", methods=[*READING])
    async def get_version() -> Response:
        return _json(reported)

    @app.api_route("/metrics", methods=[*READING])
    async def get_metrics() -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
