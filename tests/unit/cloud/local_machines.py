"""Folders of local instances, which end with their test, and a clock for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotwise.cloud.instances import InstanceProvider
from spotwise.cloud.local_instances import LocalOptions
from spotwise.cloud.local_processes import MachineProcess
from spotwise.cloud.local_state import LocalFolder

#: Ignores SIGTERM, and so does its child.
STUBBORN = ("sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600")


class Hours:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.unix_s = 1_000_000.0

    def __call__(self) -> float:
        return self.unix_s


class LocalSite:
    """A folder of this computer as a site of the contract: `opened` opens the provider of a mesh."""

    room = 4

    def __init__(self, instance_type: str, opened: Callable[[str], InstanceProvider]) -> None:
        self.instance_type = instance_type
        self.providers: list[InstanceProvider] = []
        self._opened = opened

    async def open(self, mesh: str) -> InstanceProvider:
        self.providers.append(self._opened(mesh))
        return self.providers[-1]


@contextmanager
def local_machines(
    folder: Path, commands: dict[str, tuple[str, ...]], limit: int, **more: Any
) -> Iterator[LocalOptions]:
    """Instances of an empty folder; whatever was started there is ended, however the test went."""
    yield LocalOptions(folder, commands, limit, **more)
    for path in folder.glob("*.process"):
        if (process := MachineProcess.read(path, str(LocalFolder(folder).path / path.stem))) is not None:
            process.kill()
