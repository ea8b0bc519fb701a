"""The exchange through TCP, member by member in one process: gathers of any size, and who broke it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from spotwise.engine.native.exchange import GroupBrokenError, SocketExchange
from spotwise.engine.native.library import StageFields, load_kernels
from spotwise.engine.native.shard import Shard

KERNELS = load_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no C++ compiler")
SIZE = 3
ANSWER_S = 20.0


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


@pytest.fixture
def exchanges() -> Iterator[list[SocketExchange]]:
    assert KERNELS is not None
    members = [SocketExchange(KERNELS, member, SIZE) for member in range(SIZE)]
    yield members
    for member in members:
        member.close()


def connect(members: list[SocketExchange]) -> None:
    for ours in range(SIZE):
        for theirs in range(ours):
            data, pulse = connected_pair(), connected_pair()
            members[ours].connect(theirs, data[0], pulse[0])
            members[theirs].connect(ours, data[1], pulse[1])


def shards(members: list[SocketExchange]) -> list[Shard]:
    joined = [Shard(index, SIZE) for index in range(SIZE)]
    for shard, exchange in zip(joined, members, strict=True):
        shard.join(exchange)
    return joined


def side_by_side(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(ANSWER_S) for future in [pool.submit(call) for call in calls]]


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except GroupBrokenError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("root", [None, 0, 2])
@pytest.mark.parametrize("rows", [1, 5, 7_000], ids=["one row", "some rows", "far more than connections hold"])
def test_a_gather_completes_every_matrix(rows: int, root: int | None, exchanges: list[SocketExchange]) -> None:
    """Members that all send more than a connection holds do not wait for each other."""
    connect(exchanges)
    whole = torch.arange(rows * 1000, dtype=torch.float32).reshape(rows, 1000)
    bounds = (0, 300, 310, 1000)
    parts = []
    for index in range(SIZE):
        part = torch.full_like(whole, -1.0)
        part[:, bounds[index] : bounds[index + 1]] = whole[:, bounds[index] : bounds[index + 1]]
        parts.append(part)
    joined = shards(exchanges)
    side_by_side(*(lambda i=i: joined[i].gather(parts[i], bounds, root) for i in range(SIZE)))
    for index, part in enumerate(parts):
        assert torch.equal(part, whole) == (root is None or root == index)


def test_what_is_sent_before_the_other_has_joined_waits_for_it(exchanges: list[SocketExchange]) -> None:
    data, into = torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64)

    def late() -> None:
        time.sleep(0.2)
        connect(exchanges)

    side_by_side(lambda: exchanges[0].send(2, data), lambda: exchanges[2].receive(0, into), late)
    assert torch.equal(into, data)
    assert exchanges[2].times().receive_s > 0.1


def test_whoever_fails_ends_the_waits_of_all(exchanges: list[SocketExchange]) -> None:
    connect(exchanges)

    def fail() -> None:
        time.sleep(0.2)
        exchanges[1].fail()

    waits = [lambda i=i: outcome(lambda: exchanges[i].receive(1, torch.zeros(1))) for i in (0, 2)]
    assert side_by_side(*waits, fail)[:2] == ["the group was dissolved"] * 2
    assert not any(exchange.is_whole for exchange in exchanges)


def test_a_member_that_closes_without_a_word_is_named_by_all(exchanges: list[SocketExchange]) -> None:
    """Those without a connection to it that ends learn it from the others."""
    connect(exchanges)
    while not all(exchange.is_complete for exchange in exchanges):
        time.sleep(0.01)

    def close() -> None:
        exchanges[1].close()

    waits = [lambda i=i: outcome(lambda: exchanges[i].receive(1, torch.zeros(1))) for i in (0, 2)]
    assert side_by_side(*waits, close)[:2] == ["member 1 of the group is gone"] * 2


def test_a_silent_member_is_gone_after_the_patience(exchanges: list[SocketExchange]) -> None:
    """Its connections stay open, as those of a machine that lost its network."""
    pairs = [connected_pair() for _ in range(2)]
    exchanges[0].connect(1, pairs[0][0], pairs[1][0])
    pairs[1][1].sendall(b"\0")
    assert outcome(lambda: exchanges[0].receive(1, torch.zeros(1))) == "member 1 of the group is gone"
    for _, theirs in pairs:
        theirs.close()


def test_nobody_is_judged_before_its_first_sign_of_life(exchanges: list[SocketExchange]) -> None:
    """It may be loading still."""
    pairs = [connected_pair() for _ in range(2)]
    exchanges[0].connect(1, pairs[0][0], pairs[1][0])
    time.sleep(1.5)
    assert exchanges[0].is_whole
    exchanges[0].lost(1)
    assert exchanges[0].broken_by == 1
    for _, theirs in pairs:
        theirs.close()


def test_connections_that_come_too_late_are_closed(exchanges: list[SocketExchange]) -> None:
    for end in (SocketExchange.fail, SocketExchange.close):
        end(exchanges[0])
        pairs = [connected_pair() for _ in range(2)]
        exchanges[0].connect(1, pairs[0][0], pairs[1][0])
        for _, theirs in pairs:
            theirs.settimeout(5.0)
            with contextlib.closing(theirs):
                while theirs.recv(1):
                    pass


def test_a_stage_of_which_nobody_is_left_gathers_nothing(exchanges: list[SocketExchange]) -> None:
    assert KERNELS is not None
    connect(exchanges)
    exchanges[2].fail()
    stage = StageFields(exchanges[2].handle, 0, SIZE)
    with pytest.raises(GroupBrokenError, match="dissolved"):
        exchanges[2].gather(stage, torch.zeros(1, 3), (0, 1, 2, 3), None)


def test_who_waits_for_another_member_is_known(exchanges: list[SocketExchange]) -> None:
    """A watchdog takes the member that does not come for stuck, and not those that wait for it."""
    connect(exchanges)
    assert [each.is_waiting for each in exchanges] == [False] * SIZE
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(exchanges[0].receive, 1, torch.zeros(4))
        deadline_s = time.monotonic() + ANSWER_S
        while not exchanges[0].is_waiting and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert [each.is_waiting for each in exchanges] == [True, False, False]
        exchanges[1].send(0, torch.ones(4))
        received.result(ANSWER_S)
    assert [each.is_waiting for each in exchanges] == [False] * SIZE
