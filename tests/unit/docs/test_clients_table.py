"""The table of clients in docs/api.md has every program of tests/clients, with its locked versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.clients.test_clients import NODE, PYTHON
from tests.unit.docs.docs_pages import API, quoted, section, table

CLIENTS = Path(__file__).parents[2] / "clients"
LOCKS = sorted((CLIENTS / "environments").glob("*.lock"))
NODE_LOCKS = [CLIENTS / name / "package-lock.json" for name in ("node", "agents")]


def locked(environment: str) -> dict[str, str]:
    """Versions by distribution or package."""
    if environment == "node":
        packages = json.loads(NODE_LOCKS[0].read_text())["packages"].items()
        return {path.removeprefix("node_modules/"): entry["version"] for path, entry in packages if path}
    return dict(
        re.findall(r"^([a-z0-9-]+)==([^ ]+)", (CLIENTS / "environments" / f"{environment}.lock").read_text(), re.M)
    )


def programs() -> dict[Path, list[str]]:
    """The environments of each program."""
    found: dict[Path, list[str]] = {}
    for environment, names in (*PYTHON.items(), ("node", NODE)):
        for name in names:
            path = CLIENTS / ("node" if environment == "node" else "programs")
            found.setdefault(path / f"{name}.{'mjs' if environment == 'node' else 'py'}", []).append(environment)
    return found


def versions(program: Path, environments: list[str]) -> set[str]:
    """A program's packages with their versions."""
    text = program.read_text()
    (packages,) = (re.findall(r'"([^"]+)"', line) for line in re.findall(r"^(?:    |await )run\((.*)\)", text, re.M))
    return {f"{package} {locked(environment)[package]}" for environment in environments for package in packages}


def test_every_program_has_its_row() -> None:
    rows = {}
    for client, tested in table(section(API.read_text(), "Clients")):
        (program,) = re.findall(r"\]\(\.\./([^)]+)\)", client)
        rows[CLIENTS.parents[1] / program] = set(quoted(tested))
    assert rows == {program: versions(program, environments) for program, environments in programs().items()}


def test_every_program_is_run() -> None:
    written = {*(CLIENTS / "programs").glob("[!_]*.py"), *(CLIENTS / "node").glob("*.mjs")}
    assert written - {CLIENTS / "node" / "checks.mjs"} == set(programs())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_distribution_is_known_by_its_hashes(lock: Path) -> None:
    """So that `pip install --require-hashes` takes it, from whichever index; no address is in the lock."""
    entries = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.M)[1:]
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^ ;]+ (; [^\n]* )?\\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry), entry[
            :80
        ]
    assert not re.search(r"://|^-|@", lock.read_text(), re.M)


@pytest.mark.parametrize("lock", NODE_LOCKS, ids=lambda lock: lock.parent.name)
def test_every_locked_package_of_node_is_known_by_its_hash(lock: Path) -> None:
    for path, entry in json.loads(lock.read_text())["packages"].items():
        assert not path or entry["integrity"].startswith("sha512-"), path
        assert "resolved" not in entry, path
