"""API keys in a file, for gateways whose operators have no access to the store: a JSON object a line, as `spotwise keys hash`
prints them; empty lines, and those that begin with #, are skipped. A secret is in it as its digest alone.
"""

from __future__ import annotations

from pathlib import Path

from spotwise.core.access.keys import MAX_KEYS, KeyRecord
from spotwise.mesh.redis.keys import record_from_json
from spotwise.mesh.security.secrets import require_private

#: A file of as many keys as there may be is smaller.
_MAX_BYTES = 16 << 20


def read_key_file(path: Path) -> tuple[KeyRecord, ...]:
    """Return the keys of a file, in its order.

    Raises:
        ValueError: the file cannot be read, is not private, or a line is no key; the message names the line, not its content.
    """
    require_private(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path} is longer than {_MAX_BYTES >> 20} MiB")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    keys: dict[str, KeyRecord] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            record = record_from_json(line)
        except ValueError:
            # The error's own text quotes the line.
            raise ValueError(f"{path}, line {number}: this is no key; `spotwise keys hash NAME` prints one") from None
        if record.name in keys:
            raise ValueError(f"{path}, line {number}: there is a key of that name above")
        keys[record.name] = record
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{path} has more than {MAX_KEYS} keys")
    return tuple(keys.values())
