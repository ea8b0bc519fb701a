"""The load balancer that is shipped, deploy/haproxy.cfg, before the gateways of a mesh on this machine."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.compose.project import ROOT

_SHIPPED = ROOT / "deploy" / "haproxy.cfg"


def why_impossible() -> str | None:
    """Return why there is none here; `None` where there is."""
    return None if shutil.which("haproxy") else "needs haproxy; on Debian and Ubuntu: apt-get install haproxy"


@contextlib.contextmanager
def load_balancer(folder: Path, urls: Sequence[str]) -> Iterator[str]:
    """Balance over these gateways; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = folder / "haproxy.cfg"
    path.write_text(_here(_SHIPPED.read_text(), port, urls))
    process = subprocess.Popen(["haproxy", "-W", "-db", "-f", str(path)])
    try:
        _wait_until_it_listens(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10.0)


def _here(shipped: str, port: int, urls: Sequence[str]) -> str:
    """The configuration with addresses of this machine, in the place of names that Docker would resolve."""
    servers = "\n".join(f"    server gateway{number} {urlsplit(url).netloc}" for number, url in enumerate(urls))
    text = re.sub(r"^resolvers docker\n(?:    .*\n)+", "", shipped, flags=re.MULTILINE)
    text = text.replace("bind :8000", f"bind 127.0.0.1:{port}").replace(" resolvers docker init-addr none", "")
    text, replaced = re.subn(r"^    server-template .*$", servers, text, flags=re.MULTILINE)
    assert replaced == 1
    assert "docker" not in text.lower().replace("docker's dns", "")
    return text


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + 20.0
    while time.monotonic() < end_s:
        assert process.poll() is None, "haproxy ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise AssertionError("haproxy does not listen")
