"""Files of packed weights: which one is the right one, what is in it, and what happens where there can be none."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from structlog.testing import capture_logs

from spotwise.engine.native import weight_memory
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.weight_memory import WeightMemory, open_memory
from tests.unit.engine.sharing import events, left_in, load, plain_model, tokens_of, weights_files
from tests.unit.engine.tiny_models import llama_config, load_engine, save_model

# --- The right file


def test_weights_that_changed_are_packed_anew(folder: Path, cache: Path, best_kernels: Kernels) -> None:
    """Although size and time are as before, after a copy that keeps times; other formats' and models' files stay."""
    load(folder, cache)
    load(folder, cache, "bfloat16")
    load(save_model(llama_config(), folder.parent / "other" / "llama"), cache)
    before = set(weights_files(cache))
    assert len(before) == 3
    weights = folder / "model.safetensors"
    times = weights.stat()
    save_model(llama_config(), folder, seed=1)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights.stat().st_size == times.st_size
    engine, logs = load(folder, cache)
    assert events(logs) == ["weights_written"]
    after = set(weights_files(cache))
    assert (len(after), len(after & before)) == (3, 2)
    assert tokens_of(engine) == tokens_of(load_engine(folder))


@pytest.mark.parametrize("cause", ["kernels", "transformers", "config", "format"])
def test_whatever_the_bytes_depend_on_is_in_the_name(
    cause: str, folder: Path, cache: Path, best_kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(folder, cache)
    before = weights_files(cache)
    if cause == "kernels":
        monkeypatch.setattr(weight_memory, "sources_fingerprint", lambda: "other")
    elif cause == "transformers":
        monkeypatch.setattr(weight_memory, "transformers", SimpleNamespace(__version__="0"))
    elif cause == "format":
        monkeypatch.setattr(weight_memory, "_FORMAT_VERSION", 0)
    else:
        config = folder / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "use_cache": False}))
    _, logs = load(folder, cache)
    assert events(logs) == ["weights_written"]
    assert len(weights_files(cache)) == 1
    assert weights_files(cache) != before


def test_what_a_file_does_not_hold_is_packed(folder: Path, cache: Path) -> None:
    model = plain_model(weight=(64, 64))
    with open_memory(cache, folder, model) as memory:
        memory.place("weight", 4096, torch.float32, lambda to: to.fill_(1))
    with capture_logs() as logs, open_memory(cache, folder, model) as memory:
        for name, elements, dtype in (
            ("other", 4096, torch.float32),
            ("weight", 4000, torch.float32),
            ("weight", 4096, torch.bfloat16),
        ):
            own = memory.place(name, elements, dtype, lambda to: to.fill_(2))
            assert own.tolist() == [2.0] * elements
        assert memory.place("weight", 4096, torch.float32, lambda to: to.fill_(2)).tolist() == [1.0] * 4096
    assert logs[-1]["own_bytes"] == 4 * 4096 + 4 * 4000 + 2 * 4096


# --- Without a file


def full_disk(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)


def no_folder(cache: Path, _: pytest.MonkeyPatch) -> None:
    """Make the cache folder impossible to create, also for root, by a file in its place."""
    cache.parent.write_text("")


def locks_refused(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("this file system has no locks")

    monkeypatch.setattr(FileLock, "acquire", refuse)


def rename_refused(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(Path, "replace", refuse)


@pytest.mark.parametrize("trouble", [full_disk, no_folder, locks_refused, rename_refused], ids=lambda f: f.__name__)
def test_where_there_can_be_no_file_a_worker_has_its_own_copy(
    trouble: Callable[[Path, pytest.MonkeyPatch], None],
    folder: Path,
    cache: Path,
    best_kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble(cache, monkeypatch)
    engine, logs = load(folder, cache)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("weights_not_shared", "warning")]
    assert logs[0]["reason"]
    monkeypatch.undo()
    assert tokens_of(engine) == tokens_of(load_engine(folder))
    assert not cache.exists() or (weights_files(cache), left_in(cache)) == ([], [])


def test_a_disk_that_fills_up_while_weights_are_written(folder: Path, cache: Path) -> None:
    """Written weights stay valid, the rest is in this process's memory, and the file is removed."""
    model = plain_model(first=(64, 64), second=(64, 64), third=(64, 64))
    with capture_logs() as logs, open_memory(cache, folder, model) as memory:
        placed = [memory.place("first", 4096, torch.float32, lambda to: to.fill_(1))]
        assert isinstance(memory, weight_memory._WrittenMemory)
        memory._file = FullDisk(memory._file)
        placed.append(memory.place("second", 4096, torch.float32, lambda to: to.fill_(2)))
        placed.append(memory.place("third", 4096, torch.float32, lambda to: to.fill_(3)))
    assert [part.tolist() for part in placed] == [[value] * 4096 for value in (1.0, 2.0, 3.0)]
    assert events([dict(entry) for entry in logs]) == ["weights_not_shared"]
    assert (weights_files(cache), left_in(cache)) == ([], [])
    with open_memory(cache, folder, model) as memory:  # the lock is free
        memory.place("first", 4096, torch.float32, lambda to: to.fill_(1))
    assert len(weights_files(cache)) == 1


class FullDisk:
    """A file whose writes fail, and whose `close` fails, as that of a buffered file does."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def seek(self, place: int) -> int:
        return int(self._file.seek(place))

    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_more_weights_than_the_model_has_are_not_written(folder: Path, cache: Path) -> None:
    with capture_logs() as logs, open_memory(cache, folder, plain_model(weight=(8, 8))) as memory:
        assert memory.place("huge", 10_000, torch.float32, lambda to: to.fill_(1)).tolist() == [1.0] * 10_000
    assert events([dict(entry) for entry in logs]) == ["weights_not_shared"]


# --- Places


placed_weights = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "b.x", "c"]),
        st.integers(1, 300),
        st.sampled_from([torch.float32, torch.bfloat16]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("places")
    (folder / "config.json").write_text("{}")
    yield folder


@settings(max_examples=60)
@given(weights=placed_weights)
def test_every_weight_has_its_place(weights: list[tuple[str, int, torch.dtype, bool]], places: Path) -> None:
    """Whatever sizes and types follow one another, and whatever is taken back: bits are kept, and begin at a cache line."""
    cache = places / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    model = plain_model(weight=(100, 100))
    wanted: dict[str, torch.Tensor] = {}
    with open_memory(cache, places, model) as memory:
        for index, (label, elements, dtype, dropped) in enumerate(weights):
            name = f"{label}.{index}"
            values = torch.randn(elements).to(dtype)
            placed = memory.place(name, elements, dtype, lambda to, values=values: to.copy_(values))  # type: ignore[misc]
            assert torch.equal(placed, values)
            assert placed.data_ptr() % 64 == 0
            if dropped:
                memory.drop(name)
            else:
                wanted[name] = values
    with open_memory(cache, places, model) as memory:
        assert type(memory).__name__ == "_MappedMemory"
        for name, values in wanted.items():
            mapped = memory.place(name, len(values), values.dtype, fail)
            assert torch.equal(mapped, values)
            assert mapped.data_ptr() % 64 == 0
    (file,) = weights_files(cache)
    assert set(load_file(file)) == set(wanted)


def fail(_: torch.Tensor) -> None:
    pytest.fail("it is in the file")


def test_a_layer_that_is_not_fused_leaves_nothing_in_the_file(
    folder: Path, cache: Path, best_kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts packed for the trial are removed, and the layer's linear parts are stored one by one."""
    monkeypatch.setattr("spotwise.engine.forward.rewriting._TOLERANCE", {torch.float32: -1.0})
    engine, _ = load(folder, cache)
    assert engine.fused_layers == 0
    (file,) = weights_files(cache)
    names = set(load_file(file))
    assert len(names) == 3 * 7 + 2
    assert not [name for name in names if name.endswith((".qkv", ".output", ".gate_up", ".down"))]
    again, logs = load(folder, cache)
    assert events(logs)[-1] == "weights_mapped"
    assert tokens_of(again) == tokens_of(engine)


def test_small_parameters_stay_where_they_are() -> None:
    """Norms are not worth a place; without a folder nothing has one."""
    assert WeightMemory().share("norm", norm := torch.ones(8)) is norm
