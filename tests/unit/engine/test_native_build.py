"""Compiling the kernels: for which processor, with what, where to, and what happens where that is not possible."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from structlog.testing import capture_logs

from spotwise.engine.native import build, processor
from spotwise.engine.native.library import load_kernels
from tests.unit.engine.tiny_models import Driver, load_engine, record

ROOT = Path(__file__).parents[3]
AVX2 = {"avx2", "fma", "bmi2", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
GENERIC = build.VARIANTS[-1]
# Writes what it was called with beside itself, and something as its output; slow, so that two calls would meet.
COMPILER = """#!/bin/sh
echo "$@" >> "$0.calls"
sleep 0.3
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


class Compiler:
    """A program in the place of a compiler."""

    def __init__(self, path: Path, script: str = COMPILER) -> None:
        self.path = path
        path.write_text(script)
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        log = self.path.with_name(f"{self.path.name}.calls")
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources of its own, and a cache folder that is empty."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "kernels.cpp").write_text("int main() {}")
    (folder / "simd.h").write_text("// lanes")
    monkeypatch.setattr(build, "_SOURCES", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(tmp_path / "compiler")
    monkeypatch.setenv("CXX", str(compiler.path))
    return compiler


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (AVX512 | {"avx512_bf16"}, "avx512_bf16"),
        (AVX512, "avx512"),
        (AVX512 - {"avx512dq"} | {"avx512_bf16"}, "avx2"),
        (AVX2, "avx2"),
        (AVX2 - {"fma"}, "generic"),
        (set(), "generic"),
    ],
)
def test_a_processor_gets_the_best_variant_whose_flags_it_has(
    flags: set[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flag that is missing rules a variant out: its instructions would end the process."""
    monkeypatch.setattr(processor, "flags", lambda: frozenset(flags))
    assert build.variant_for_this_processor().name == name


def test_another_architecture_gets_what_needs_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other compilers accept none of x86's options, so `--all` builds the generic variant only."""
    assert len(build.variants_for_this_architecture()) == (len(build.VARIANTS) if processor.is_x86() else 1)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert build.variant_for_this_processor() is GENERIC
    assert build.variants_for_this_architecture() == (GENERIC,)


def test_a_library_is_compiled_once_and_anew_when_sources_change(sources: Path, compiler: Compiler) -> None:
    """The older one goes; those of other variants stay."""
    first = build.ensure_library(GENERIC)
    assert first == build.ensure_library(GENERIC)
    assert first.parent == sources / "_build" and first.read_text() == "library\n"
    other = build.ensure_library(build.VARIANTS[1])
    assert [call.count("-mavx512bf16") for call in compiler.calls] == [0, 1]
    (sources / "simd.h").write_text("// more lanes")
    second = build.ensure_library(GENERIC)
    assert len(compiler.calls) == 3
    assert set((sources / "_build").glob("*.so")) == {second, other}


def test_a_compiler_may_have_arguments(sources: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env LANG=C {compiler.path}")
    build.ensure_library(GENERIC)
    assert len(compiler.calls) == 1 and "-O3" in compiler.calls[0]


def test_a_library_is_named_alike_in_every_folder(sources: Path, compiler: Compiler, tmp_path: Path) -> None:
    """An image's build stage compiles for the worker's: same sources, same name."""
    first = build.ensure_library(GENERIC)
    build._SOURCES = Path(shutil.copytree(sources, tmp_path / "elsewhere", ignore=lambda *_: ["_build"]))
    assert build.ensure_library(GENERIC).name == first.name


def test_the_users_cache_takes_over_where_sources_cannot_be_written(
    sources: Path, compiler: Compiler, tmp_path: Path
) -> None:
    """Another user's installation is built in the user's cache; if that is read-only, too, the message names both."""
    (sources / "_build").write_text("in the way")
    library = build.ensure_library(GENERIC)
    assert library.parent == tmp_path / "cache" / "spotwise" / "native"
    assert build.ensure_library(GENERIC) == library and len(compiler.calls) == 1
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(build.NoKernelsError, match=r"none of these can be written: .*sources.*cache"):
        build.ensure_library(GENERIC)


def test_concurrent_processes_compile_once(sources: Path, compiler: Compiler) -> None:
    program = (
        "import sys; from pathlib import Path; from spotwise.engine.native import build;"
        "build._SOURCES = Path(sys.argv[1]); print(build.ensure_library(build.VARIANTS[-1]))"
    )
    command = [sys.executable, "-c", program, str(sources)]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=100)[0] for process in asking}
    assert [process.returncode for process in asking] == [0, 0, 0]
    assert len(answers) == 1 and len(compiler.calls) == 1


def test_a_missing_compiler_is_named_with_its_remedy(
    sources: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(build.NoKernelsError, match=r"no C\+\+ compiler; on Debian and Ubuntu: apt-get install g\+\+"):
        build.ensure_library()
    monkeypatch.setattr(sys, "argv", ["build"])
    assert build.main() == 1
    assert "without native kernels, which is slower: there is no C++ compiler" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "reason"),
    [("#!/bin/sh\necho 'simd.h:1: error: no such lanes' >&2\nexit 1\n", "no such lanes"), (None, "No such file")],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    script: str | None, reason: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "compiler"
    if script is not None:
        Compiler(path, script)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(build.NoKernelsError, match=f"compiler failed: .*{reason}"):
        build.ensure_library(GENERIC)
    assert list((sources / "_build").glob("*.so")) == []


def test_an_engine_without_a_compiler_computes_with_torch(
    sources: Path, no_compiler: None, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Driver(load_engine(llama_folder))
    load_kernels.cache_clear()
    try:
        with capture_logs() as logs:
            engine = load_engine(llama_folder)
        assert [(log["event"], "apt-get install g++" in log["reason"]) for log in logs] == [("no_native_kernels", True)]
        assert not engine.is_native and engine.fused_layers == 0
        plain = Driver(engine)
        for driver in (native, plain):
            driver.add(record("a", [5, 6, 7], max_new_tokens=12))
        assert plain.finish() == native.finish()
    finally:
        load_kernels.cache_clear()


def test_a_library_that_cannot_be_loaded_is_done_without(sources: Path, compiler: Compiler) -> None:
    with capture_logs() as logs:
        assert load_kernels.__wrapped__() is None
    assert [log["event"] for log in logs] == ["no_native_kernels"]


def test_distributions_carry_the_sources_and_no_libraries() -> None:
    """An installation compiles for its own processor; a library of this machine may not run there."""
    needed = {f"libs/spotwise/engine/native/{path.name}" for path in build._SOURCES.glob("*.[ch]*")}
    assert "libs/spotwise/engine/native/kernels.cpp" in needed and len(needed) >= 5
    for builder in (WheelBuilder(str(ROOT)), SdistBuilder(str(ROOT))):
        carried = {file.relative_path for file in builder.recurse_included_files()}
        assert needed <= carried
        assert not [path for path in carried if "/_build/" in path]


@pytest.mark.parametrize("variable", ["SPOTWISE_KERNEL_ORDER", "SPOTWISE_KERNELS"])
def test_kernels_that_do_not_exist_are_a_wrong_use_of_the_command(
    variable: str,
    sources: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is compiled, and the message names the setting."""
    monkeypatch.setenv(variable, "fast")
    monkeypatch.setattr(sys, "argv", ["build"])
    with pytest.raises(SystemExit) as ended:
        build.main()
    assert ended.value.code == 2 and compiler.calls == []
    assert f"error: {variable} is 'fast'" in capsys.readouterr().err
