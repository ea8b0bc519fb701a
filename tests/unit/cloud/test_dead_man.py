"""The dead-man's switch: its script, really run with a stand-in for the metadata service and for `shutdown`."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwise.cloud.ec2_client import Ec2Options
from spotwise.cloud.ec2_dead_man import MARK_TAG, renewal_s, template_faults, user_data
from spotwise.files.fleet_file import AwsFleet
from tests.fakes.http_servers import QuietHandler, answering

MINUTES = 5
#: A minute of the script.
MINUTE_S = 0.05


class Metadata:
    """A metadata service of version 2, whose tags a test sets; `answer` counts the questions for tags."""

    def __init__(self) -> None:
        self.tags: dict[str, Callable[[int], str]] = {}
        self.is_readable = True
        self.asked = 0
        service = self

        class Handler(QuietHandler):
            def put(self) -> None:
                self.answer(200, b"token")

            def get(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != "token" or not service.is_readable:
                    self.answer(404)
                    service.asked += 1
                elif self.path.endswith("/tags/instance/"):
                    service.asked += 1
                    self.answer(200, "\n".join(["Name", *service.tags]).encode())
                else:
                    self.answer(200, service.tags[self.path.rsplit("/", 1)[1]](service.asked).encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    with answering(service.server):
        yield service


@pytest.fixture
def run(tmp_path: Path, metadata: Metadata) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Install the script in a folder, with a `shutdown` that writes a file; return what runs it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("shutdown", f'echo "$@" >{tmp_path}/shutdown'), ("systemd-run", 'echo "$@" >&2; exit 1')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    script = (
        user_data(MINUTES * 60).replace("/usr/local/sbin", str(tmp_path / "sbin")).replace("/dev/console", "/dev/null")
    )
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SPOTWISE_METADATA": f"http://127.0.0.1:{metadata.server.server_port}",
        "SPOTWISE_MINUTE_S": str(MINUTE_S),
        "no_proxy": "127.0.0.1",
    }
    # As at a boot it installs itself; the test runs what it installed.
    subprocess.run(["sh", "-c", script.rsplit("systemd-run", 1)[0]], env=env, check=True)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", str(tmp_path / "sbin" / "spotwise-dead-man")], env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for_questions(metadata: Metadata, more: int) -> None:
    """Wait until the script has looked so many times more."""
    end = metadata.asked + more
    waited = threading.Event()
    for _ in range(6000):
        if metadata.asked >= end:
            return
        waited.wait(0.01)
    raise AssertionError("the script does not look any more")


@pytest.mark.parametrize("mark", [None, "1700000000"], ids=["never marked", "not renewed"])
def test_without_a_renewal_the_instance_shuts_down(
    metadata: Metadata, run: Callable[[], subprocess.Popen[bytes]], tmp_path: Path, mark: str | None
) -> None:
    if mark is not None:
        metadata.tags[MARK_TAG] = lambda _: mark
    assert run().wait(60) == 0
    assert (tmp_path / "shutdown").read_text() == "-h now\n"
    assert metadata.asked >= MINUTES


def test_with_renewals_it_goes_on_and_one_that_comes_late_counts(
    metadata: Metadata, run: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Every fourth minute is enough for a bound of five; the mark may even go back, as a clock that is set does."""
    metadata.tags[MARK_TAG] = lambda asked: str(1_700_000_000 - asked // 4)
    process = run()
    wait_for_questions(metadata, 6 * MINUTES)
    assert process.poll() is None
    assert not (tmp_path / "shutdown").exists()
    metadata.tags[MARK_TAG] = lambda _: "1"
    assert process.wait(60) == 0
    assert (tmp_path / "shutdown").exists()


def test_metadata_that_cannot_be_read_end_nothing(
    metadata: Metadata, run: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A template without tags in its metadata must not end healthy instances."""
    metadata.is_readable = False
    process = run()
    wait_for_questions(metadata, 4 * MINUTES)
    assert process.poll() is None
    assert not (tmp_path / "shutdown").exists()


def test_a_template_is_checked_for_all_that_the_switch_needs() -> None:
    whole = {
        "UserData": base64.b64encode(user_data(3600.0).encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"InstanceMetadataTags": "enabled"},
    }
    assert template_faults(whole) == []
    assert len(template_faults({})) == 3
    for name in whole:
        assert len(template_faults({key: value for key, value in whole.items() if key != name})) == 1


def test_a_mark_is_renewed_often_enough_for_any_bound() -> None:
    """Several times in the time after which an instance ends itself; file and provider have the same default."""
    assert AwsFleet(launch_template="t").alone_s == Ec2Options("t").alone_s
    for alone_s in (600.0, 3600.0, 86_400.0):
        assert renewal_s(alone_s) <= alone_s / 10
