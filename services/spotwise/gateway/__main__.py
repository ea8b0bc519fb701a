"""The gateway: the OpenAI API in front of the mesh."""

import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from spotwise.core.messages.members import MemberKind
from spotwise.core.requests.names import AdapterRef, model_aliases, require_aliases_of
from spotwise.engine.model.adapter_files import read_adapter
from spotwise.engine.model.errors import ModelError
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import OPEN_PATHS
from spotwise.gateway.access.known_keys import REPORT_S, KnownKeys
from spotwise.gateway.access.quotas import Quotas
from spotwise.gateway.generate.api_options import OPENAIS, ApiOptions, SamplingDefaults, published_defaults
from spotwise.gateway.generate.embedding_model import EmbeddingModel, read_embedding_model
from spotwise.gateway.generate.metrics import GatewayMetrics, StoreWatch
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.owned_requests import OwnedRequests, journaled_loop
from spotwise.gateway.resume.stored_responses import StoredResponses
from spotwise.gateway.routes.app import create_app
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.protocol import http_protocol
from spotwise.http.server import HttpServer
from spotwise.http.tls import CERTIFICATE_LOOK_S, ServerTls
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.addresses import is_loopback
from spotwise.mesh.process.garbage import collect_little_at_once, give_back_freed_memory, keep_little_freed_memory
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import run_service
from spotwise.text.chat_text import ChatText, ModelTextError

#: After so long a thread leaves the interpreter to the event loop, which asks for it with each event: Python's default of 5 ms,
#: for each of a few busy threads, would add up to tenths of a second in an iteration of the loop.
_SWITCH_S = 0.001


def _tls(certificate: Path, key: Path, client_ca: Path | None) -> ServerTls:
    try:
        return ServerTls(certificate, key, client_ca)
    except ValueError as error:
        raise MeshError(f"SPOTWISE_TLS_CERT, SPOTWISE_TLS_KEY or SPOTWISE_TLS_CLIENT_CA: {error}") from error


def _adapters(settings: GatewaySettings) -> tuple[AdapterRef, ...]:
    try:
        read = [read_adapter(name, folder) for name, folder in settings.adapter_folders]
    except ModelError as error:
        raise MeshError(f"SPOTWISE_ADAPTERS: {error}") from error
    return tuple(AdapterRef(files.name, files.digest) for files in read)


def _sampling_defaults(settings: GatewaySettings) -> SamplingDefaults:
    if settings.generation_config == "none":
        return OPENAIS
    try:
        return published_defaults(settings.model_dir)
    except ValueError as error:
        raise MeshError(f"SPOTWISE_GENERATION_CONFIG=model: {error}") from error


def _embeddings(settings: GatewaySettings) -> EmbeddingModel:
    try:
        return read_embedding_model(
            settings.model_dir, settings.embedding_pooling, is_matryoshka=settings.embedding_matryoshka
        )
    except ValueError as error:
        raise MeshError(f"The model's embeddings: {error}") from error


def _stored(settings: GatewaySettings, host: ServiceHost) -> StoredResponses | None:
    if not settings.responses_kept_s:
        return None
    return StoredResponses(host.store.responses, settings.responses_kept_s, settings.store_timeout_s)


async def _opened_access(settings: GatewaySettings, host: ServiceHost, metrics: GatewayMetrics) -> ApiAccess:
    """Read the keys, and keep them up to date as long as the host runs.

    Raises:
        MeshError: keys cannot be read, or clients of other machines would need none.
    """
    store = host.store.keys
    keys = KnownKeys(
        settings.bearer_keys,
        host.clock,
        store,
        settings.api_keys_file,
        is_loopback=is_loopback(settings.host),
        allow_anonymous=settings.allow_anonymous,
    )
    try:
        keys.read_file()
    except ValueError as error:
        raise MeshError(f"SPOTWISE_API_KEYS_FILE: {error}") from error
    await keys.look()
    if keys.requires_key is None:
        raise MeshError(
            f"the API would listen on {settings.host} and let in any client that reaches it, because there are no API keys; "
            "make one with `spotwise keys create NAME`, set SPOTWISE_API_KEYS or SPOTWISE_API_KEYS_FILE, or set "
            "SPOTWISE_ALLOW_ANONYMOUS=true where only trusted clients reach it"
        )
    quotas = Quotas(store, host.clock, f"{host.id}/{host.member.incarnation}", metrics.count_limited)
    host.every(1.0, keys.watch, "api_keys")
    host.every(REPORT_S, keys.report_use, "api_key_uses")
    host.spawn(quotas.run(), "quotas")
    open_paths = OPEN_PATHS - ({"/metrics"} if settings.metrics_need_key else set())
    return ApiAccess(keys, quotas, open_paths)


async def serve(settings: GatewaySettings) -> None:
    """Serve the API until a stop signal."""
    sys.setswitchinterval(_SWITCH_S)
    keep_little_freed_memory()
    try:
        text = ChatText.load(
            settings.model_dir,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
            control_tokens_in_text=settings.control_tokens_in_text,
        )
    except ModelTextError as error:
        raise MeshError(str(error)) from error
    give_back_freed_memory()  # a tokenizer's file takes more to read than to have
    metrics = GatewayMetrics(CollectorRegistry(), settings.served_name, text.context_length)
    options = ApiOptions(
        settings.served_name,
        max_body_bytes=settings.max_body_bytes,
        max_held_bytes=settings.max_held_body_bytes,
        cors_origins=settings.browser_origins,
        default_max_tokens=settings.default_max_tokens,
        sampling=_sampling_defaults(settings),
        embeddings=_embeddings(settings),
        least_priority=settings.least_priority,
        shares_prefixes=settings.prefix_sharing == "mesh",
        adapters=_adapters(settings),
        aliases=model_aliases(settings.model_aliases),
        max_answer_logprobs=settings.max_answer_logprobs,
        stream_keep_alive_s=settings.stream_keep_alive_s,
    )
    try:
        require_aliases_of(options.served, options.aliases)
    except ValueError as error:
        raise MeshError(f"SPOTWISE_MODEL_ALIASES: {error}") from error
    async with ServiceHost.open(settings, MemberKind.GATEWAY) as host:
        host.introduce(model=settings.served_name)
        access = await _opened_access(settings, host, metrics)
        generation = MeshGeneration(host, settings.submission, metrics)
        await generation.start()
        StoreWatch(host.store, metrics).begin(host.every)
        keeping = settings.keeping(host.member)
        running = OwnedRequests(generation, host.store, metrics, keeping, journaled_loop(host, keeping))
        kept = partial(KeptRequests, running, metrics)
        config = uvicorn.Config(
            create_app(generation, text, options, metrics, access, kept, host.clock.wall, _stored(settings, host)),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            http=http_protocol(settings.http_limits, metrics.count_error),
            ws="none",
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.answer_grace_s,
        )
        config.load()
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = _tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            config.ssl = tls.context
            host.every(CERTIFICATE_LOOK_S, tls.follow_files, "certificate")
        server = HttpServer(config, settings.header_timeout_s)
        collect_little_at_once()
        serving = asyncio.create_task(server.serve())
        await server.listening
        serving.add_done_callback(lambda _: host.stop())

        def end() -> None:
            generation.is_leaving = True
            server.should_exit = True

        def leave() -> None:
            generation.ends_soon = True
            asyncio.get_running_loop().call_later(settings.lame_duck_s, end)

        host.leave = leave  # the mesh goes on with what is answered still
        await host.run()
        end()
        server.hurry()
        await serving
        await access.quotas.report(renew=False)  # what ended with it
        with contextlib.suppress(MeshError):
            await generation.saver.save_all()  # of streams that go on at another gateway


if __name__ == "__main__":
    sys.exit(run_service(GatewaySettings, serve))
