"""A checkpoint that is not whole is refused by `up`: exit status, one line that names what is wrong, nothing cached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from tests.live.mesh import ONE_MIXED, LiveMesh
from tests.live.tiny_checkpoint import UP_PROJECTION, WEIGHTS, change_tensors, write_tiny_model

pytestmark = pytest.mark.parallel


def lacks_a_tensor(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(UP_PROJECTION))


def is_cut_short(folder: Path) -> None:
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1000])


def has_half_a_config(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text()[:60])


#: One of each kind of check; all of them are unit tests of the engine (`test_checkpoint.py`).
DAMAGE: dict[Callable[[Path], None], tuple[str, ...]] = {
    is_cut_short: (WEIGHTS, "truncated"),
    has_half_a_config: ("config.json",),
}


@pytest.fixture
def refusing(tmp_path: Path) -> LiveMesh:
    """A mesh that will not come up, with a cache of its own."""
    return LiveMesh(tmp_path / "home", env={"SPOTWISE_CACHE": str(tmp_path / "cache")})


def refusal(mesh: LiveMesh, model: Path, *options: str) -> str:
    """Start a mesh of the model, which must fail; return the one line of error."""
    done = mesh.command("up", "--port", "0", "--dtype", "float32", "--model", str(model), *ONE_MIXED, *options)
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1, lines
    assert not any("Traceback" in line for line in lines), lines
    [line] = [line for line in lines if line.startswith("error: ")]
    assert all(
        other.endswith((" s)", "stopping ...")) or other.startswith("model: ") for other in lines if other != line
    )
    return line


def cached(mesh: LiveMesh) -> list[str]:
    """Files of its cache, but locks."""
    cache = Path(mesh.env["SPOTWISE_CACHE"])
    return sorted(str(path) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_folder_that_is_not_whole_is_refused_by_name(
    damage: Callable[[Path], None], refusing: LiveMesh, tmp_path: Path
) -> None:
    """The line names the file, or the tensor; no packed weights are left for the next start."""
    folder = write_tiny_model(tmp_path / "tiny")
    damage(folder)
    line = refusal(refusing, folder)
    for part in DAMAGE[damage]:
        assert part in line
    assert cached(refusing) == []


def test_a_detached_start_says_it_in_one_line_too(refusing: LiveMesh, tmp_path: Path) -> None:
    """The worker's error reaches the terminal through the supervisor's log."""
    folder = write_tiny_model(tmp_path / "tiny")
    lacks_a_tensor(folder)
    assert UP_PROJECTION in refusal(refusing, folder, "--detach")
    assert cached(refusing) == []


def test_a_gguf_without_tensors_is_refused_and_not_converted(refusing: LiveMesh, tmp_path: Path) -> None:
    """A header alone would become a model of random numbers."""
    path = tmp_path / "hollow.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<e>"])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    line = refusal(refusing, path)
    assert "hollow.gguf" in line
    assert "model.embed_tokens.weight" in line
    assert cached(refusing) == []
