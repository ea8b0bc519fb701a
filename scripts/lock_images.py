"""Write the parts of requirements.lock that images install: what spotwise needs, without and with its extra `engine`.

Run by `make lock` with the Python of the environment that it resolved: python scripts/lock_images.py LOCK FOLDER
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: By name of the file in the folder: the extras that its image needs.
IMAGES = {"control.lock": "", "worker.lock": "engine"}
#: redis needs it below Python 3.11.3, such as Debian bookworm's.
OLDER_PYTHON = {"async-timeout"}
#: Installed on its own, before: see the Makefile.
APART = {"torch"}


def closure(name: str, extra: str) -> set[str]:
    """Names of all that a distribution with an extra needs in this environment, itself left out."""
    found: set[str] = set()
    waiting = [(name, extra)]
    seen = set(waiting)
    while waiting:
        package, wanted = waiting.pop()
        for line in requires(package) or ():
            need = Requirement(line)
            if need.marker is not None and not any(need.marker.evaluate({"extra": each}) for each in {wanted, ""}):
                continue
            key = canonicalize_name(need.name)
            if key in APART:
                continue
            found.add(key)
            for one in need.extras or {""}:
                if (key, one) not in seen:
                    seen.add((key, one))
                    waiting.append((key, one))
    return found


def entries(lock: str) -> dict[str, str]:
    """The entries of a lock with hashes, by canonical name."""
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return {canonicalize_name(part.partition("==")[0]): part for part in parts if "==" in part}


def main() -> None:
    """Write the files."""
    lock, folder = Path(sys.argv[1]), Path(sys.argv[2])
    locked = entries(lock.read_text())
    for file_name, extra in IMAGES.items():
        names = closure("spotwise", extra) | OLDER_PYTHON
        head = "# A part of requirements.lock: what an image installs. Made by `make lock`; do not edit.\n"
        (folder / file_name).write_text(head + "".join(locked[name] for name in sorted(names)))


if __name__ == "__main__":
    main()
