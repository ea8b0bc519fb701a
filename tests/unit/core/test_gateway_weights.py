"""A request resumes only with the weights that computed its first tokens."""

from __future__ import annotations

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from tests.unit.core.builders import only, worker_member
from tests.unit.core.gateway_bench import GatewayBench


def bench_with_workers() -> GatewayBench:
    """One open request, and two workers with different weights."""
    bench = GatewayBench()
    bench.feed(worker_member("p", m.Pool.PROMPT, model_digest="A"))
    bench.feed(worker_member("t", model_digest="A"))
    bench.open()
    return bench


def digests(commands: list[g.GatewayCommand]) -> list[str | None]:
    """Return the model digests of the submitted attempts."""
    return [order.model_digest for order in only(commands, g.SubmitAttempt)]


def test_the_first_attempt_requires_no_weights() -> None:
    """Whatever the mesh serves is right; nor does a second one where no token came."""
    bench = GatewayBench()
    assert digests(bench.feed(g.RequestReceived("r", prompt_tokens=30, max_new_tokens=10))) == [None]
    bench = bench_with_workers()
    assert digests(bench.error()) == [None]


def test_later_attempts_require_those_of_the_first_token() -> None:
    """The weights of the first token are required although its worker is gone or has others."""
    bench = bench_with_workers()
    bench.tokens((0, 50), worker="p")
    bench.tokens((1, 51))
    bench.feed(worker_member("p", m.Pool.PROMPT, incarnation=2, model_digest="B"))
    commands = bench.error(index=2)
    assert digests(commands) == ["A"]
    assert [order.output_token_ids for order in only(commands, g.SubmitAttempt)] == [(50, 51)]


def test_a_worker_without_weights_leaves_none_to_require() -> None:
    bench = GatewayBench()
    bench.feed(worker_member("t"))
    bench.open()
    bench.tokens((0, 50), worker="t")
    assert digests(bench.error(index=1)) == [None]
