"""Names the processor of a comparison, and the variant that each side used on it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from spotwise.benchmarks.sides import Program
from spotwise.benchmarks.yardsticks.llama_server import system_info
from spotwise.benchmarks.yardsticks.vllm_client import vllm_version
from spotwise.benchmarks.yardsticks.vllm_server import vllm_kernels
from spotwise.engine.native.build import variant_for_this_processor

#: Processor flags that kernels are chosen by, as in /proc/cpuinfo.
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name this machine's processor by its name, family and model, and by those of its instructions that kernels differ in.

    A virtual machine's processor often has no more of a name than its maker's.
    """
    fields = dict(reversed([line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line]))
    said = {name.strip(): value.strip() for name, value in fields.items()}
    name = said.get("model name", platform.processor() or platform.machine())
    flags = " ".join(flag for flag in _FLAGS if flag in said.get("flags", "").split())
    return f"{name}, family {said.get('cpu family', '?')}, model {said.get('model', '?')}: {flags or 'no AVX2'}"


def variants(
    dtype: str, vllm_dtypes: Sequence[str], vllm: Path, llama: Path | None, model_folder: Path
) -> dict[str, str]:
    """Each side's dtype and instructions, by its program's name.

    Args:
        vllm_dtypes: those in which vLLM is measured; none where it is not.
        llama: the folder of llama.cpp's programs; None where it is not measured.
    """
    found = {Program.SPOTWISE.value: f"{dtype}, kernels {variant_for_this_processor().name}"}
    for measured in vllm_dtypes:
        name = f"{Program.VLLM} {vllm_version(vllm)} {measured}"
        found[name] = vllm_kernels(vllm, model_folder, measured)
    if llama is not None:
        found[Program.LLAMA.value] = f"{dtype}, {system_info(llama)}"
    return found
