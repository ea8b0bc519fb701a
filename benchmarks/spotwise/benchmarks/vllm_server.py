"""The peer, vLLM, as a server for the length of a `with` block."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from spotwise.cli.bench.servers import GRACE_S, POLL_S, ServerEndpoint, own_run_folder, wait_until
from spotwise.engine.model.loading import EngineConfig, resolve
from spotwise.mesh.embedded.child_process import ChildProcess, identify, is_alive, send_signal, start_child
from spotwise.mesh.embedded.servers import free_port

#: vLLM's own remedy for long prompts between short steps: few prompt tokens in each.
TUNED_ARGUMENTS = ("--max-num-batched-tokens", "256")

_VLLM_MODEL = "peer"
#: The longest prompt and answer of any workload of `bench peer`, with a margin.
_VLLM_CONTEXT_TOKENS = 4096
#: No network access; the KV memory is enough for every workload.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}


def dtype_of_both(model_folder: Path) -> str:
    """Return the dtype in which a mesh serves a model here, and the peer beside it: bfloat16 where the processor multiplies it,
    else float32: the peer's emulated bfloat16 is five times slower.
    """
    return str(resolve(EngineConfig(model_folder, device="cpu"))[1]).removeprefix("torch.")


@contextmanager
def running_vllm(
    vllm: Path,
    model_folder: Path,
    arguments: Sequence[str],
    *,
    dtype: str,
    context_tokens: int = _VLLM_CONTEXT_TOKENS,
) -> Iterator[ServerEndpoint]:
    """Serve the model by vLLM, with additional arguments; raises `CommandError` where it does not come up."""
    with own_run_folder("vllm") as folder:
        port = free_port()
        log_path = folder.log_path("vllm")
        argv = [
            *(str(vllm), "serve", str(model_folder), "--served-model-name", _VLLM_MODEL),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--max-model-len", str(context_tokens)),
            *arguments,
        ]
        child = start_child(argv, log_path=log_path, env=vllm_environment())
        try:
            endpoint = ServerEndpoint(f"http://127.0.0.1:{port}", _VLLM_MODEL)
            wait_until(lambda: _is_healthy(endpoint.url), child, "vLLM", log_path)
            yield endpoint
        finally:
            _end_with_descendants(child)


def vllm_environment() -> dict[str, str]:
    """Variables of vLLM's processes; the user's own take precedence."""
    # By default it leaves one core to its front end, which of two cores is half of the mesh's.
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return {**_VLLM_ENV, "VLLM_CPU_OMP_THREADS_BIND": cores, **os.environ}


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _end_with_descendants(child: ChildProcess) -> None:
    # The engine is a process of its own; an orphan would take the next side's cores.
    try:
        found = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        found = []
    descendants = [identity for process in found if (identity := identify(process.pid)) is not None]
    child.stop(GRACE_S)
    deadline_s = time.monotonic() + GRACE_S
    while any(map(is_alive, descendants)):
        if time.monotonic() > deadline_s:
            for descendant in descendants:
                send_signal(descendant, signal.SIGKILL)
        time.sleep(POLL_S)
