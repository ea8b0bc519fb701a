"""The mesh's secret is read from a file that only its owner can read, and shows in no text."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.security.secrets import MeshSecret, is_proof, proof, read_mesh_secret, write_mesh_secret
from spotwise.mesh.service.settings import ServiceSettings


def _file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_written_secret_is_read_again_and_new_each_time(tmp_path: Path) -> None:
    """Only its owner can read it; writing replaces it."""
    path = tmp_path / "mesh.secret"
    keys = set()
    for _ in range(2):
        write_mesh_secret(path)
        assert path.stat().st_mode & 0o777 == 0o600
        keys.add(read_mesh_secret(path).key("a"))
    assert len(keys) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["mesh.secret"]


def test_each_purpose_has_a_key_of_its_own(tmp_path: Path) -> None:
    """The same in every process: a line end at the file's end does not count."""
    one = read_mesh_secret(_file(tmp_path, b"x" * 32))
    two = read_mesh_secret(_file(tmp_path, b"x" * 32 + b"\r\n"))
    assert one.key("links") == two.key("links") != one.key("groups")
    assert len(one.key("links")) == 32


def test_a_proof_is_of_its_key_and_fields() -> None:
    """Fields that are cut elsewhere are others."""
    given = proof(b"k" * 32, b"ab", b"c")
    assert is_proof(given, b"k" * 32, b"ab", b"c")
    for key, fields in ((b"K" * 32, (b"ab", b"c")), (b"k" * 32, (b"a", b"bc")), (b"k" * 32, (b"abc",))):
        assert not is_proof(given, key, *fields)
    assert not is_proof(given[:-1], b"k" * 32, b"ab", b"c")


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"x" * 31, 0o600, "32 bytes"),
        (b"x" * 31 + b"\n" * 9, 0o600, "32 bytes"),
        (b"x" * 5000, 0o600, "more than 4096 bytes"),
        (b"x" * 32, 0o644, "chmod 600"),
        (b"x" * 32, 0o620, "chmod 600"),
    ],
)
def test_a_weak_or_open_file_is_refused(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        read_mesh_secret(_file(tmp_path, content, mode))


def test_a_missing_file_is_refused_when_a_service_reads_its_settings(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be read: No such file"):
        ServiceSettings(mesh_secret_file=tmp_path / "none")
    assert ServiceSettings().mesh_secret() is None


def test_a_secret_shows_in_no_text() -> None:
    secret = MeshSecret(b"do not show this to anybody at all")
    assert "show" not in f"{secret!r} {secret}"
    with pytest.raises(ValueError, match="this one has 5") as raised:
        MeshSecret(b"short")
    assert "short" not in str(raised.value).replace("shorter", "")
