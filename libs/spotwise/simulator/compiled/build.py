"""Compiles the simulator; `spotwise simulate compile` does.

mypyc translates the sources to C, and a compiler makes a library of it on all processors: a minute and a half on two. It needs
mypy, which brings mypyc, and a C compiler. Without them the simulator runs interpreted, with equal results.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from spotwise.files.user_folders import first_writable
from spotwise.simulator.compiled.explicit_classes import explicit
from spotwise.simulator.compiled.modules import (
    LIBRARY,
    SOURCES,
    compiled_folder,
    compiled_modules,
    extension_of,
    fingerprint,
    folders,
    source_of,
)

# Contracted multiplications and additions would round differently from the interpreter's, on processors that have them.
_FLAGS = ("-O2", "-g0", "-fwrapv", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-DNDEBUG", "-w")
_TRANSLATE = """
import json, sys
from mypyc.build import mypycify
made = mypycify(sys.argv[2:], multi_file=True, group_name=sys.argv[1])
with open("extensions.json", "w") as file:
    json.dump([(each.name, each.sources, each.include_dirs) for each in made], file)
"""
_MYPY_OPTIONS = (
    "--config-file=",
    "--explicit-package-bases",
    "--namespace-packages",
    "--follow-imports=silent",
    "--ignore-missing-imports",
)
_TIMEOUT_S = 900

#: Is told how many files are compiled, and of how many.
Progress = Callable[[int, int], None]


class CannotCompileError(RuntimeError):
    """The simulator cannot be compiled; the message names the cause and a remedy."""


def ensure_compiled(progress: Progress = lambda done, total: None) -> Path:
    """Return the folder of what is compiled from today's sources, compiling them if it is missing.

    Raises:
        CannotCompileError: mypy or a compiler is missing, or failed.
    """
    folder = compiled_folder()
    if folder is not None:
        return folder
    if find_spec("mypyc") is None:
        raise CannotCompileError("there is no mypyc; install it with: pip install 'spotwise[compiled]'")
    compiler = _compiler()
    target = _writable_folder() / fingerprint()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as making:
        work, made = Path(making) / "work", Path(making) / "made"
        _write_sources(work)
        _compile(compiler, work, _translate(work), made, progress)
        try:
            made.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    for older in target.parent.iterdir():
        if older != target and not older.name.startswith("making-"):
            shutil.rmtree(older, ignore_errors=True)
    return target


def _compiler() -> list[str]:
    # CC may include arguments, as in make: "ccache gcc"
    compiler = shlex.split(os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "")
    if not compiler:
        raise CannotCompileError("there is no C compiler; on Debian and Ubuntu: apt-get install gcc")
    if not (_headers() / "Python.h").exists():
        raise CannotCompileError(
            f"there is no Python.h in {_headers()}; on Debian and Ubuntu: apt-get install python3-dev"
        )
    return compiler


def _headers() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _writable_folder() -> Path:
    if (folder := first_writable(folders())) is None:
        raise CannotCompileError(f"none of these can be written: {', '.join(map(str, folders()))}")
    return folder


def _write_sources(work: Path) -> None:
    """Copy the packages that have compiled modules, these with their methods written out."""
    for package in ("core", "simulator"):
        others = shutil.ignore_patterns("_build", "__pycache__")
        shutil.copytree(SOURCES / "spotwise" / package, work / "spotwise" / package, ignore=others)
    sources = {module: source_of(module).read_text() for module in compiled_modules()}
    for module, source in explicit(sources).items():
        (work / source_of(module).relative_to(SOURCES)).write_text(source)


def _translate(work: Path) -> list[tuple[str, list[str], list[str]]]:
    """Translate the sources to C; return name, sources and folders of headers of each library, all relative to `work`."""
    paths = [str(source_of(module).relative_to(SOURCES)) for module in compiled_modules()]
    command = [sys.executable, "-c", _TRANSLATE, LIBRARY, *_MYPY_OPTIONS, *paths]
    _run(command, work, {"MYPYPATH": f"{work}{os.pathsep}{SOURCES}", "PYTHONPATH": ""})
    extensions: list[tuple[str, list[str], list[str]]] = json.loads((work / "extensions.json").read_text())
    return extensions


def _compile(
    compiler: list[str],
    work: Path,
    extensions: Sequence[tuple[str, list[str], list[str]]],
    made: Path,
    progress: Progress,
) -> None:
    total = sum(len(sources) for _, sources, _ in extensions)
    done = 0

    def compile_file(source: str, headers: list[str]) -> str:
        target = f"{source.removesuffix('.c')}.o"
        folders_of_headers = [f"-I{each}" for each in (_headers(), *headers)]
        _run([*compiler, *_FLAGS, *folders_of_headers, "-c", source, "-o", target], work)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = {
            name: [threads.submit(compile_file, source, headers) for source in sources]
            for name, sources, headers in extensions
        }
        try:
            for name, compiled in objects.items():
                parts = []
                for each in compiled:
                    parts.append(each.result())
                    done += 1
                    progress(done, total)
                library = extension_of(made, name)
                library.parent.mkdir(parents=True, exist_ok=True)
                threads.submit(_run, [*compiler, "-shared", *parts, "-o", str(library)], work).result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _run(command: list[str], work: Path, more: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=os.environ | (more or {}),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompileError(f"{command[0]} failed: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise CannotCompileError(f"{command[0]} failed: {said}")
