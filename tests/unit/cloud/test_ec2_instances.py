"""Instances of EC2: orders, states and errors, on moto and on stubs for the rest of EC2."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from typing import Any, cast

import boto3
import pytest
from botocore import exceptions as boto

from spotwise.cli.fleet_orphans import end_orphans, find_orphans
from spotwise.cloud import ec2_instances
from spotwise.cloud.ec2_client import Ec2Client, Ec2Connection, Ec2Failure, Ec2Options, worst
from spotwise.cloud.ec2_instances import Ec2Instances
from spotwise.cloud.instances import (
    AcquireRequest,
    InstanceProvider,
    NoCapacity,
    ProviderRefused,
    ProviderUnavailable,
)
from spotwise.core.fleet.prices import SpotPrice
from spotwise.core.messages.fleet import InstanceState, Market
from tests.contracts.instances import InstanceProviderContract, Site, ids
from tests.contracts.waiting import until
from tests.fakes.http_servers import QuietHandler, answering
from tests.unit.cloud.ec2_stand_in import Ec2StandIn, error

TYPE, OTHER = "g4dn.12xlarge", "p3.8xlarge"
REGION = "eu-west-1"


#: moto's.
ACCOUNT = "123456789012"
#: Any image will do: moto loads none here, since that takes longer than all else.
IMAGE = "ami-03cf127a"


@pytest.fixture(scope="module")
def account() -> Iterator[None]:
    """Dummy credentials, and no settings of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        yield


@pytest.fixture(scope="module")
def moto_client(account: None) -> Iterator[Ec2Client]:
    """boto3's client of moto's EC2: opened once, which takes longest."""
    from moto import mock_aws  # takes a second, which no process should spend that only collects these tests

    with mock_aws():
        client = boto3.client("ec2")
        yield client
        client.close()


@pytest.fixture
def ec2(moto_client: Any) -> Ec2StandIn:
    """An empty account with a launch template `worker`, capacity for four instances of two types."""
    from moto.ec2.models import ec2_backends

    ec2_backends[ACCOUNT][REGION].reset()
    moto_client.create_launch_template(LaunchTemplateName="worker", LaunchTemplateData={"ImageId": IMAGE})
    return Ec2StandIn(moto_client, 4, (TYPE, OTHER))


class Nothing:
    def describe_instances(self, **_: Any) -> dict[str, Any]:
        return {"Reservations": []}


@pytest.fixture
def empty() -> Ec2StandIn:
    """A stand-in for EC2 without instances, which spares the time of moto."""
    return Ec2StandIn(cast(Ec2Client, Nothing()), 4, (TYPE, OTHER))


class Ec2Site:
    instance_type = TYPE
    room = 4

    def __init__(self, ec2: Ec2StandIn, options: Ec2Options) -> None:
        self._ec2 = ec2
        self._options = options

    async def open(self, mesh: str) -> InstanceProvider:
        return Ec2Instances(mesh, self._options, Ec2Connection(self._ec2))


class TestFleets(InstanceProviderContract):
    @pytest.fixture
    def site(self, ec2: Ec2StandIn) -> Site:
        return Ec2Site(ec2, Ec2Options("worker"))


class TestRunInstances(InstanceProviderContract):
    @pytest.fixture
    def site(self, ec2: Ec2StandIn) -> Site:
        return Ec2Site(ec2, Ec2Options("worker", use_fleet=False))


def order(
    count: int = 2, token: str = "one", market: Market = Market.SPOT, types: tuple[str, ...] = (TYPE,)
) -> AcquireRequest:
    return AcquireRequest(token, types, market, count)


def provider(ec2: Ec2StandIn, **options: Any) -> Ec2Instances:
    return Ec2Instances("mesh-a", Ec2Options("worker", **options), Ec2Connection(ec2))


async def test_boto3_itself_is_called(moto_client: Any, ec2: Ec2StandIn) -> None:
    """boto3 is called with only moto behind it, from opening the client to terminating."""
    template = moto_client.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    subnet = moto_client.describe_subnets()["Subnets"][0]
    mine = await Ec2Instances.connect("mesh-a", Ec2Options(template, subnets=(subnet["SubnetId"],), region=REGION))
    acquired = await mine.acquire(order(3))
    assert [each.state for each in acquired] == [InstanceState.STARTING] * 3
    shown = await mine.instances()
    assert ids(shown) == ids(acquired)
    assert {(each.market, each.zone) for each in shown} == {(Market.SPOT, subnet["AvailabilityZone"])}
    assert all(each.address for each in shown)
    await mine.release(ids(acquired))
    assert {each.state for each in await mine.instances()} == {InstanceState.GONE}
    await mine.close()


async def test_all_types_and_subnets_are_one_fleet(empty: Ec2StandIn) -> None:
    """EC2 chooses among them; for on-demand the first type is preferred."""
    mine = provider(empty, subnets=("subnet-1", "subnet-2"), launch_template_version="7")
    for market in Market:
        empty.failing.append(("create_fleet", error("RequestLimitExceeded")))  # moto has no such subnets
        with pytest.raises(ProviderUnavailable):
            await mine.acquire(order(3, market.value, market, (TYPE, OTHER)))
    spot, on_demand = empty.called("create_fleet")
    places = [(TYPE, "subnet-1"), (TYPE, "subnet-2"), (OTHER, "subnet-1"), (OTHER, "subnet-2")]
    for call in (spot, on_demand):
        [config] = call["LaunchTemplateConfigs"]
        assert config["LaunchTemplateSpecification"] == {"LaunchTemplateName": "worker", "Version": "7"}
        assert [(each["InstanceType"], each["SubnetId"]) for each in config["Overrides"]] == places
        assert call["Type"] == "instant"
    assert spot["TargetCapacitySpecification"] == {"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "spot"}
    assert spot["SpotOptions"] == {"AllocationStrategy": "price-capacity-optimized"}
    assert on_demand["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "on-demand"
    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "prioritized"}
    priorities = [each["Priority"] for each in on_demand["LaunchTemplateConfigs"][0]["Overrides"]]
    assert priorities == [0.0, 0.0, 1.0, 1.0]
    assert all("Priority" not in each for each in spot["LaunchTemplateConfigs"][0]["Overrides"])


async def test_without_leave_for_fleets_instances_are_run_one_pool_after_the_other(ec2: Ec2StandIn) -> None:
    """Until there are enough; a pool without capacity is passed over."""
    ec2.failing += [
        ("create_fleet", error("UnauthorizedOperation")),
        ("run_instances", error("InsufficientInstanceCapacity")),
    ]
    mine = provider(ec2)
    acquired = await mine.acquire(order(2, types=(TYPE, OTHER)))
    assert [each.instance_type for each in acquired] == [OTHER] * 2
    calls = ec2.called("run_instances")
    assert [(call["InstanceType"], call["MinCount"], call["MaxCount"]) for call in calls] == [
        (TYPE, 1, 2),
        (OTHER, 1, 2),
    ]
    assert len({call["ClientToken"] for call in calls}) == 2
    assert calls[0]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert {each.market for each in await mine.instances()} == {Market.SPOT}


async def test_what_the_first_pool_lacks_comes_from_the_next(ec2: Ec2StandIn) -> None:
    """RunInstances fills what it can in one pool, and requests the rest from the next."""
    ec2.room = 1
    ec2.then["run_instances"] = lambda _: setattr(ec2, "room", 4)
    acquired = await provider(ec2, use_fleet=False).acquire(order(3, types=(TYPE, OTHER)))
    assert sorted(each.instance_type for each in acquired) == [TYPE, OTHER, OTHER]
    assert [call["MaxCount"] for call in ec2.called("run_instances")] == [3, 2]


async def test_a_pool_that_may_have_been_bought_from_ends_the_order(ec2: Ec2StandIn) -> None:
    """The pool's answer was lost, so instances from the next pool might be too many; a retry with the token is one order."""
    lost = boto.ReadTimeoutError(endpoint_url="https://ec2")
    ec2.failing += [("run_instances", error("InsufficientInstanceCapacity")), ("run_instances", lost)]
    mine = provider(ec2, use_fleet=False)
    with pytest.raises(ProviderUnavailable):
        await mine.acquire(order(1, types=(OTHER, TYPE, "r.third")))
    assert [call["InstanceType"] for call in ec2.called("run_instances")] == [OTHER, TYPE]
    assert len(await mine.acquire(order(1, types=(OTHER, TYPE, "r.third")))) == 1


async def test_an_answer_that_was_lost_is_had_by_ordering_again(ec2: Ec2StandIn) -> None:
    """The fleet was made, the answer did not come, tags do not show yet: the client token brings the same fleet."""
    mine = provider(ec2)

    def lose(_: object) -> None:
        raise boto.ConnectionClosedError(endpoint_url="https://ec2")

    ec2.hidden = True
    ec2.then["create_fleet"] = lose
    with pytest.raises(ProviderUnavailable, match="ConnectionClosedError"):
        await mine.acquire(order())
    ec2.then.clear()
    acquired = await provider(ec2).acquire(order())
    assert len(acquired) == 2
    ec2.hidden = False
    assert ids(await mine.instances()) == ids(acquired)


async def test_a_fleet_without_errors_is_no_lack_of_capacity(empty: Ec2StandIn) -> None:
    """The fleet was filled before and its instances do not show yet, so the order can be retried."""
    empty.create_fleet = lambda **_: {"FleetId": "fleet-1"}  # type: ignore[method-assign]
    with pytest.raises(ProviderUnavailable, match="same token"):
        await provider(empty).acquire(order())


async def test_what_was_bought_counts_before_ec2_shows_it(ec2: Ec2StandIn) -> None:
    """A bought instance is listed as starting with its order, and can be released."""
    ec2.hidden = True
    mine = provider(ec2)
    acquired = await mine.acquire(order())
    assert await mine.instances() == acquired
    assert await mine.acquire(order()) == acquired
    assert len(ec2.called("create_fleet")) == 1
    await mine.release(ids(acquired)[:1])
    assert ids(await mine.instances()) == ids(acquired)[1:]
    ec2.hidden = False
    assert {each.id: each.state for each in await mine.instances()} == {
        ids(acquired)[0]: InstanceState.GONE,
        ids(acquired)[1]: InstanceState.RUNNING,
    }


async def test_what_ec2_never_shows_is_forgotten(ec2: Ec2StandIn) -> None:
    """After ten minutes it does not count any more."""
    now_unix_s = [1000.0]
    mine = Ec2Instances("mesh-a", Ec2Options("worker"), Ec2Connection(ec2), lambda: now_unix_s[0])
    ec2.hidden = True
    await mine.acquire(order())
    now_unix_s[0] += 600.0
    assert len(await mine.instances()) == 2
    now_unix_s[0] += 1.0
    assert await mine.instances() == []


async def test_an_instance_too_new_to_be_ended_is_reported(ec2: Ec2StandIn) -> None:
    """EC2 does not know it yet: it stays listed, and the release is to be repeated."""
    ec2.hidden = True
    mine = provider(ec2)
    [acquired] = await mine.acquire(order(1))
    ec2.failing.append(("terminate_instances", error("InvalidInstanceID.NotFound")))
    with pytest.raises(ProviderUnavailable, match="a moment ago"):
        await mine.release([acquired.id])
    assert ids(await mine.instances()) == [acquired.id]
    await mine.release([acquired.id])
    assert await mine.instances() == []


async def test_one_that_vanished_does_not_keep_the_others(ec2: Ec2StandIn) -> None:
    """EC2 ends none of a list with an unknown id: then one is ended after the other."""
    mine = provider(ec2)
    acquired = ids(await mine.acquire(order(3)))
    await mine.instances()
    ec2.failing += [("terminate_instances", error("InvalidInstanceID.NotFound"))] * 2
    await mine.release(acquired)
    states = [each.state for each in await mine.instances()]
    assert sorted(states) == [InstanceState.GONE, InstanceState.GONE, InstanceState.RUNNING]
    assert [len(call["InstanceIds"]) for call in ec2.called("terminate_instances")] == [3, 1, 1, 1]


async def test_many_instances_come_page_by_page(ec2: Ec2StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_instances, "_PAGE", 5)
    ec2.room = 7
    mine = provider(ec2)
    acquired = ids(await mine.acquire(order(7)))
    assert ids(await mine.instances()) == acquired
    assert any("NextToken" in call for call in ec2.called("describe_instances"))
    await mine.release(acquired)
    assert [len(call["InstanceIds"]) for call in ec2.called("terminate_instances")] == [5, 2]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("pending", InstanceState.STARTING),
        ("running", InstanceState.RUNNING),
        ("shutting-down", InstanceState.LEAVING),
        ("stopping", InstanceState.LEAVING),
        ("stopped", InstanceState.LEAVING),
        ("terminated", InstanceState.GONE),
    ],
)
async def test_each_state_of_ec2_means_one_of_ours(ec2: Ec2StandIn, name: str, state: InstanceState) -> None:
    """Each EC2 state maps to one of ours, those that moto skips included."""
    mine = provider(ec2)
    await mine.acquire(order(1))
    ec2.then["describe_instances"] = lambda answer: answer["Reservations"][0]["Instances"][0]["State"].update(Name=name)
    assert [each.state for each in await mine.instances()] == [state]


@pytest.mark.parametrize(
    ("failure", "expected", "says"),
    [
        (error("UnauthorizedOperation"), ProviderRefused, "IAM"),
        (error("AuthFailure"), ProviderRefused, "credentials"),
        (error("RequestExpired"), ProviderRefused, "clock"),
        (error("MaxSpotInstanceCountExceeded"), ProviderRefused, "Service Quotas"),
        (error("VcpuLimitExceeded"), ProviderRefused, "Service Quotas"),
        (error("InvalidLaunchTemplateName.NotFoundException"), ProviderRefused, "launch template"),
        (error("IdempotentParameterMismatch"), ProviderRefused, "new one"),
        (error("InsufficientInstanceCapacity", status=500), NoCapacity, TYPE),
        (error("SpotMaxPriceTooLow"), NoCapacity, TYPE),
        (error("RequestLimitExceeded", status=503), ProviderUnavailable, "try again"),
        (error("Unavailable", status=503), ProviderUnavailable, "try again"),
        (error("SomethingNew", status=502), ProviderUnavailable, "try again"),
        (boto.NoCredentialsError(), ProviderRefused, "credentials"),
        (boto.EndpointConnectionError(endpoint_url="https://ec2"), ProviderUnavailable, "https://ec2"),
        (boto.ConnectTimeoutError(endpoint_url="https://ec2"), ProviderUnavailable, "https://ec2"),
        (boto.ParamValidationError(report="too long"), ProviderRefused, "too long"),
    ],
)
@pytest.mark.parametrize("action", ["create_fleet", "run_instances"])
async def test_each_error_is_raised_with_its_cause(
    empty: Ec2StandIn, action: str, failure: Exception, expected: type[Exception], says: str
) -> None:
    if action == "run_instances":
        empty.failing.append(("run_instances", failure))
    # Without permission for fleets RunInstances is called, and without permission for that either, an error is raised.
    empty.failing.append(
        (action, failure) if action == "create_fleet" else ("create_fleet", error("UnsupportedOperation"))
    )
    if getattr(failure, "response", {}).get("Error", {}).get("Code") == "UnauthorizedOperation":
        empty.failing.append(("run_instances", failure))
    with pytest.raises(expected, match=says):
        await provider(empty, use_fleet=action == "create_fleet").acquire(order())


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded"], NoCapacity),
        (["MaxSpotInstanceCountExceeded", "InternalError"], ProviderUnavailable),
        (["MaxSpotInstanceCountExceeded", "InvalidSubnetID.NotFound"], ProviderRefused),
    ],
)
async def test_of_many_pools_errors_the_retryable_one_is_raised(
    empty: Ec2StandIn, codes: list[str], expected: type[Exception]
) -> None:
    """Of many pools' errors the retryable one is raised: one pool without capacity may have some later."""
    for each in (codes, codes[::-1]):
        failures = [{"ErrorCode": code, "ErrorMessage": "m"} for code in each]
        empty.create_fleet = lambda failures=failures, **_: {"Errors": failures}  # type: ignore[method-assign]
        with pytest.raises(expected):
            await provider(empty).acquire(order())
    assert worst([Ec2Failure("A", "first"), Ec2Failure("B", "second")]).code == "A"


@pytest.mark.parametrize("action", ["describe_instances", "terminate_instances"])
async def test_listing_and_releasing_raise_errors_too(ec2: Ec2StandIn, action: str) -> None:
    mine = provider(ec2)
    acquired = ids(await mine.acquire(order()))
    for failure, expected in (
        (error("UnauthorizedOperation"), ProviderRefused),
        (error("InternalError", status=500), ProviderUnavailable),
    ):
        ec2.failing.append((action, failure))
        with pytest.raises(expected):
            await mine.release(acquired)
    await mine.release(acquired)
    assert {each.state for each in await mine.instances()} == {InstanceState.GONE}


async def test_calls_do_not_hold_up_the_event_loop(empty: Ec2StandIn) -> None:
    began, answer = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        began.set()
        assert answer.wait(20)

    empty.then["describe_instances"] = wait
    looking = asyncio.create_task(provider(empty).instances())
    await until(began.is_set)
    answer.set()
    assert await looking == []


class _Throttles(QuietHandler):
    """Is throttled once, then shows an account without instances."""

    calls = 0
    protocol_version = "HTTP/1.1"

    def post(self) -> None:
        self.body()
        type(self).calls += 1
        if self.calls == 1:
            error = b"<Error><Code>RequestLimitExceeded</Code><Message>m</Message></Error>"
            self.answer(503, b"<Response><Errors>" + error + b"</Errors></Response>")
        else:
            self.answer(200, b"<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>")


@pytest.fixture
def throttling(account: None) -> Iterator[str]:
    _Throttles.calls = 0
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), _Throttles)) as url:
        yield url


async def connected(url: str, **options: Any) -> Ec2Instances:
    return await Ec2Instances.connect("mesh-a", Ec2Options("worker", endpoint_url=url, region=REGION, **options))


async def test_a_throttled_call_is_repeated_after_a_pause(throttling: str) -> None:
    mine = await connected(throttling)
    assert await mine.instances() == []
    assert _Throttles.calls == 2
    await mine.close()


async def test_a_throttled_call_is_given_up_after_its_attempts(throttling: str) -> None:
    mine = await connected(throttling, attempts=1)
    with pytest.raises(ProviderUnavailable, match="RequestLimitExceeded"):
        await mine.instances()
    assert _Throttles.calls == 1
    await mine.close()


async def test_no_server_at_the_address_is_an_error(account: None) -> None:
    mine = await connected("http://127.0.0.1:1", attempts=1)
    with pytest.raises(ProviderUnavailable, match=r"127\.0\.0\.1:1"):
        await mine.instances()
    await mine.close()


async def test_without_boto3_the_error_has_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ProviderRefused, match=r"spotwise\[aws\]"):
        await Ec2Instances.connect("mesh-a", Ec2Options("worker"))


@pytest.mark.parametrize(
    "wrong",
    [{"endpoint_url": "no address"}, {"profile": "unknown"}, {"region": None}],
    ids=["endpoint", "profile", "region"],
)
async def test_wrong_settings_are_refused_at_once(
    account: None, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    options = replace(Ec2Options("worker", region=REGION), **wrong)
    with pytest.raises(ProviderRefused, match="check region, profile and endpoint_url"):
        await Ec2Instances.connect("mesh-a", options)


@pytest.mark.parametrize("wrong", [{"launch_template": ""}, {"attempts": 0}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(Ec2Options("worker"), **wrong)


async def test_the_newest_price_of_each_type_and_zone_is_read(empty: Ec2StandIn) -> None:
    """Over all pages, and only of the types that are named; a failure is the provider's."""
    empty.prices = {(TYPE, "b"): (20.0, 0.5), (TYPE, "a"): (10.0, 0.25), (OTHER, "a"): (30.0, 9.0)}
    provider = Ec2Instances("mesh-a", Ec2Options("worker"), Ec2Connection(empty), lambda: 1000.0)
    assert await provider.spot_prices([TYPE]) == [SpotPrice(TYPE, "a", 10.0, 0.25), SpotPrice(TYPE, "b", 20.0, 0.5)]
    first, second = empty.called("describe_spot_price_history")
    assert first["StartTime"].timestamp() == 1000.0 and second["NextToken"] == "1"
    assert await provider.spot_prices([]) == []
    empty.failing.append(("describe_spot_price_history", error("RequestLimitExceeded", "DescribeSpotPriceHistory")))
    with pytest.raises(ProviderUnavailable):
        await provider.spot_prices([TYPE])


async def test_motos_prices_are_read(ec2: Ec2StandIn, moto_client: Any) -> None:
    """boto3's own answer has the shape that the stand-in gives."""
    provider = Ec2Instances("mesh-a", Ec2Options("worker"), Ec2Connection(moto_client))
    prices = await provider.spot_prices([TYPE])
    assert all(isinstance(each, SpotPrice) and each.type_name == TYPE and each.per_h > 0 for each in prices)


async def test_marks_are_renewed_and_only_what_no_keeper_marks_is_an_orphan(ec2: Ec2StandIn) -> None:
    """Of this mesh alone; what a mesh knows, what is marked and what was just bought is none."""
    now = time.time() + 10_000.0
    mine = Ec2Instances("mesh-a", Ec2Options("worker"), Ec2Connection(ec2), lambda: now)
    other = Ec2Instances("mesh-b", Ec2Options("worker"), Ec2Connection(ec2), lambda: now)
    first, second = await mine.acquire(order(2))
    await other.acquire(order(1, "two"))
    listed = await mine.instances()
    assert [each.seen_unix_s for each in listed] == [None, None]
    assert find_orphans(listed, (), 900.0, time.time()) == []  # just bought
    assert ids(find_orphans(listed, (), 900.0, now)) == ids([first, second])
    assert ids(find_orphans(listed, {first.id}, 900.0, now)) == [second.id]
    await mine.renew()
    marked = await mine.instances()
    assert [each.seen_unix_s for each in marked] == [int(now)] * 2
    assert [each.seen_unix_s for each in await other.instances()] == [None]
    assert find_orphans(marked, (), 900.0, now + 60.0) == []
    assert ids(find_orphans(marked, (), 900.0, now + 1000.0)) == ids([first, second])


async def test_ended_are_orphans_that_still_are_and_never_another_meshs(ec2: Ec2StandIn) -> None:
    """A mesh may have come back while the operator was asked."""
    now = time.time() + 10_000.0
    mine, other = (Ec2Instances(name, Ec2Options("worker"), Ec2Connection(ec2)) for name in ("mesh-a", "mesh-b"))
    first, second = await mine.acquire(order(2))
    [foreign] = await other.acquire(order(1, "two"))
    chosen = {first.id, second.id, foreign.id}
    assert await end_orphans(mine, chosen, {first.id}, 900.0, now) == [second.id]
    assert [each.state for each in await other.instances()] == [InstanceState.RUNNING]
    staying = [each.id for each in await mine.instances() if each.state is InstanceState.RUNNING]
    assert staying == [first.id]
    await mine.renew()
    assert await end_orphans(mine, chosen, (), 900.0, time.time()) == []


async def test_a_launch_template_without_the_switch_is_named(ec2: Ec2StandIn) -> None:
    faults = await provider(ec2).switch_faults()
    assert [each.split()[0] for each in faults] == [
        "its",
        "InstanceInitiatedShutdownBehavior",
        "MetadataOptions.InstanceMetadataTags",
    ]
