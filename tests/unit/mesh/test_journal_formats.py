"""Journals of earlier formats: recorded by releases of their time, replayed by today's roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.launch.recorded_run import recorded_cluster
from spotwise.core.messages.members import Pool
from spotwise.mesh.replay.journal_replay import _is_same, find_journals, replay
from spotwise.mesh.replay.recorded_requests import recorded_requests
from spotwise.mesh.service.journal_formats import FORMAT, FORMATS

DATA = Path(__file__).parent / "data"
# A simulated mesh of one prompt and two token workers (mlfq), nine choices of six requests, two of them cancelled. Schedulers'
# journals end before the first placement that today's rules decide otherwise (`core/scheduler/least_delay.py`).
WHOLE_MESH = DATA / "journals-1"
# The scheduler and a token worker of such a mesh: drained under load, and the other token worker killed.
DRAINED = DATA / "journals-1-drained"


@pytest.mark.parametrize("folder", [WHOLE_MESH, DRAINED], ids=lambda folder: folder.name)
def test_a_journal_of_format_1_replays(folder: Path) -> None:
    """Every command of every role is the recorded one."""
    done = [replay(journal) for journal in find_journals(folder)]
    assert [each.difference for each in done] == [None] * len(done)
    assert sum(each.commands for each in done) > 100


def test_a_run_of_format_1_is_read() -> None:
    """Requests and cluster, as `spotwise replay --requests` and `bench simulator` read them."""
    journals = find_journals(WHOLE_MESH)
    requests = recorded_requests(journals)
    assert len(requests) == 9
    assert all(0 < request.ttft_s < request.e2e_s for request in requests)
    assert recorded_cluster(journals).home_pools == (Pool.PROMPT, Pool.TOKEN, Pool.TOKEN)


def test_a_name_that_meant_two_things_is_converted_by_its_type() -> None:
    """`owed_tokens` was a request's bound in two messages, and what is left of outputs elsewhere; values stay."""
    names = FORMATS["spotwise-journal/1"]
    assert names is not None
    assert names.event("ReserveKv", {"owed_tokens": 7, "request_id": "a"}) == (
        "ReserveKv",
        {"max_new_tokens": 7, "choice_id": "a"},
    )
    assert names.event("Member", {"id": "request_id", "load": {"owed_tokens": 7}}) == (
        "Member",
        {"id": "request_id", "load": {"remaining_tokens": 7}},
    )
    assert names.command(["Send", "w", "ChangeHome", {"worker_id": "w"}]) == [
        "Send",
        "w",
        "ChangeHomePool",
        {"worker_id": "w"},
    ]
    assert names.command(["TokenBatch", {"deltas": [{"stream_id": 1}]}])[1] == {"deltas": [{"attempt_id": 1}]}
    assert FORMATS[FORMAT] is None


def test_a_reason_in_the_words_of_its_time_is_converted() -> None:
    """A recorded reason equals the one that today's role gives, wherever it is in a command."""
    names = FORMATS["spotwise-journal/1"]
    assert names is not None
    facts = [["reason", "token_worker token-0 ended without a word"]]
    assert names.command(["Record", "LedgerEntry", {"facts": facts}])[2] == {
        "facts": [["reason", "token_worker token-0 ended without notice"]]
    }


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ({"a": 1}, {"a": 1, "b": ""}, True),
        ({"a": [{"c": 2}]}, {"a": [{"c": 2, "later_token_ids": []}]}, True),
        ({"a": 1}, {"a": 1, "b": "x"}, False),
        ({"a": 1, "b": ""}, {"a": 1}, False),
        ([1, 2], [1], False),
        ([1, 2], [1, 2, None, None], True),
        ([1, 2], [1, 2, 0], False),
        ([1, 2], [1, 2, None, "x"], False),
        ([1, None], [1], False),
    ],
)
def test_a_field_that_came_later_must_be_empty(then: object, now: object, same: bool) -> None:
    """A command of then is that of now but for what did not exist."""
    assert _is_same(then, now) is same
