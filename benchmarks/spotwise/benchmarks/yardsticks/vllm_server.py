"""vLLM's CPU build as a server, and the variant of its kernels."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import orjson

from spotwise.benchmarks.yardsticks.server_process import SERVED_MODEL, running_server
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.engine.model.loading import EngineConfig, resolve

#: vLLM's own remedy for long prompts between short steps: few prompt tokens in each.
TUNED_ARGUMENTS = ("--max-num-batched-tokens", "256")

#: The longest prompt and answer of any workload of `bench peer`, with a margin.
_VLLM_CONTEXT_TOKENS = 4096
#: No network access; the KV memory is enough for every workload.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}
#: Run by vLLM's Python, which loads the kernels that it takes for this processor; the last line is the answer.
_KERNELS = """
import json, sys, torch
from pathlib import Path
from vllm.platforms import current_platform
current_platform.import_kernels()
mapped = {Path(line.split()[-1]).name.partition(".")[0] for line in open("/proc/self/maps") if "/vllm/_C" in line}
try:
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    attention = _get_attn_isa(getattr(torch, sys.argv[1]), 128, int(sys.argv[2]))
except Exception:
    attention = "unknown"
print(json.dumps([" ".join(sorted(mapped)) or "unknown", attention, torch.backends.cpu.get_cpu_capability()]))
"""


def dtype_of_both(model_folder: Path) -> str:
    """Return the dtype in which a mesh serves a model here, and a yardstick beside it: bfloat16 where the processor multiplies
    it, else float32.
    """
    return str(resolve(EngineConfig(model_folder, device="cpu"))[1]).removeprefix("torch.")


def running_vllm(
    vllm: Path,
    model_folder: Path,
    arguments: Sequence[str],
    *,
    dtype: str,
    context_tokens: int = _VLLM_CONTEXT_TOKENS,
) -> AbstractContextManager[ServerEndpoint]:
    """Serve the model by vLLM, with additional arguments, for the block; raises `CommandError` where it does not come up."""

    def command(port: int) -> list[str]:
        return [
            *(str(vllm), "serve", str(model_folder), "--served-model-name", SERVED_MODEL),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--max-model-len", str(context_tokens)),
            *arguments,
        ]

    return running_server("vLLM", command, vllm_environment())


def vllm_environment() -> dict[str, str]:
    """Variables of vLLM's processes; the user's own take precedence."""
    # By default it leaves one core to its front end, which of two cores is half of the mesh's.
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return {**_VLLM_ENV, "VLLM_CPU_OMP_THREADS_BIND": cores, **os.environ}


def vllm_kernels(vllm: Path, model_folder: Path, dtype: str) -> str:
    """Name the kernels that vLLM loads on this processor: its library, the instructions of its attention, and torch's.

    "unknown" where its Python does not say.
    """
    config = orjson.loads((model_folder / "config.json").read_bytes())
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    command = [str(python_of(vllm)), "-c", _KERNELS, dtype, str(head_size)]
    done = subprocess.run(command, env=vllm_environment(), capture_output=True, text=True, check=False)
    try:
        library, attention, torch = orjson.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return "kernels unknown"
    return f"kernels {library}, attention {attention}, torch {torch}"


def python_of(vllm: Path) -> Path:
    """The Python of the environment in which this `vllm` is installed."""
    return vllm.with_name("python")
