"""The provider `aws`: virtual machines of Amazon EC2.

An order is one CreateFleet of type `instant` or, where not allowed, RunInstances by type and subnet. Its token is both a tag
and EC2's client token, since tags may show late: a retry never buys twice. Only instances with the mesh tag are terminated.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

import structlog

from spotwise.cloud.ec2_client import Cause, Ec2Connection, Ec2Failure, Ec2Options, instance_of, worst
from spotwise.cloud.ec2_dead_man import MARK_TAG, renewal_s, template_faults
from spotwise.cloud.instances import (
    MESH_TAG,
    TOKEN_TAG,
    AcquiredInstance,
    AcquireRequest,
    ProviderUnavailable,
    in_order,
    require_mesh_name,
)
from spotwise.core.fleet.prices import SpotPrice
from spotwise.core.messages.fleet import InstanceState, Market

_log = structlog.get_logger()

_PAGE = 200
_PRODUCT = "Linux/UNIX"
#: EC2 lists an instance some seconds after it was bought; one not listed after this time never appears.
_UNSEEN_S = 600.0
#: Errors of CreateFleet after which RunInstances may still work.
_NO_FLEETS = {"UnauthorizedOperation", "UnsupportedOperation", "InvalidAction", "NotImplemented"}
_NOT_FOUND = "InvalidInstanceID.NotFound"


@dataclass(frozen=True, slots=True)
class _Bought:
    """Result of an order: instances, and the failures that prevented more."""

    instances: list[AcquiredInstance]
    failures: list[Ec2Failure]


class Ec2Instances:
    """An `InstanceProvider` over EC2.

    Args:
        mesh: name of the mesh that owns the instances.
        options: launch configuration.
        connection: to EC2; `connect` opens one.
        now: seconds since the epoch.
    """

    def __init__(
        self, mesh: str, options: Ec2Options, connection: Ec2Connection, now: Callable[[], float] = time.time
    ) -> None:
        self._mesh = require_mesh_name(mesh)
        self._options = options
        self._connection = connection
        self._now = now
        # Bought by this provider, and not yet listed by EC2.
        self._unseen: dict[str, AcquiredInstance] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def connect(cls, mesh: str, options: Ec2Options) -> Ec2Instances:
        """Open boto3's client; no call is made yet.

        Raises:
            ProviderRefused: boto3 is missing, or does not know the profile or the region.
        """
        return cls(mesh, options, await Ec2Connection.open(options))

    async def acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        """Buy instances in any of the requested types and configured subnets that have capacity.

        Raises:
            NoCapacity, ProviderRefused, ProviderUnavailable: as in `InstanceProvider`.
        """
        turn = self._turns.get(request.token)
        if turn is None:
            turn = self._turns[request.token] = asyncio.Lock()
        async with turn:
            if ordered := [each for each in await self.instances() if each.token == request.token]:
                return ordered
            try:
                bought = await self._buy(request)
            except Ec2Failure as failure:
                raise failure.as_provider_error(request) from failure
            if not bought.instances:
                if not bought.failures:
                    raise ProviderUnavailable(
                        f"EC2 filled order {request.token!r} before and does not show its instances yet; "
                        "order again with the same token"
                    )
                raise worst(bought.failures).as_provider_error(request)
            self._unseen.update({instance.id: instance for instance in bought.instances})
            if len(bought.instances) < request.count:
                why = sorted({str(failure) for failure in bought.failures})
                _log.warning(
                    "fewer_instances", got=len(bought.instances), wanted=request.count, market=request.market, why=why
                )
            return in_order(bought.instances)

    async def release(self, instance_ids: Sequence[str]) -> None:
        """Terminate instances; EC2 takes about a minute to complete it.

        Raises:
            ProviderRefused, ProviderUnavailable: as in `InstanceProvider`.
        """
        if not instance_ids:
            return
        wanted = frozenset(instance_ids)
        own = [each.id for each in await self.instances() if each.id in wanted and each.state is not InstanceState.GONE]
        try:
            for first in range(0, len(own), _PAGE):
                await self._terminate(own[first : first + _PAGE])
        except Ec2Failure as failure:
            raise failure.as_provider_error() from failure

    async def instances(self) -> list[AcquiredInstance]:
        """Return this mesh's instances, including bought ones that EC2 does not list yet.

        Raises:
            ProviderRefused, ProviderUnavailable: as in `InstanceProvider`.
        """
        shown: list[AcquiredInstance] = []
        parameters: dict[str, Any] = {
            "Filters": [{"Name": f"tag:{MESH_TAG}", "Values": [self._mesh]}],
            "MaxResults": _PAGE,
        }
        try:
            while True:
                page = await self._connection.call("describe_instances", **parameters)
                shown += [instance_of(each) for group in page["Reservations"] for each in group["Instances"]]
                if not page.get("NextToken"):
                    break
                parameters["NextToken"] = page["NextToken"]
        except Ec2Failure as failure:
            raise failure.as_provider_error() from failure
        for instance in shown:
            self._unseen.pop(instance.id, None)
        oldest_unix_s = self._now() - _UNSEEN_S
        self._unseen = {key: each for key, each in self._unseen.items() if each.launched_unix_s >= oldest_unix_s}
        return in_order([*shown, *self._unseen.values()])

    async def spot_prices(self, instance_types: Sequence[str]) -> list[SpotPrice]:
        """Return the newest spot price of each type and zone of the region, in order of type and zone.

        Raises:
            ProviderRefused, ProviderUnavailable: as in `PricedProvider`.
        """
        newest: dict[tuple[str, str], SpotPrice] = {}
        parameters: dict[str, Any] = {
            "InstanceTypes": list(instance_types),
            "ProductDescriptions": [_PRODUCT],
            "StartTime": datetime.fromtimestamp(self._now(), UTC),  # EC2 answers with the prices in effect then
        }
        try:
            while instance_types:
                page = await self._connection.call("describe_spot_price_history", **parameters)
                for each in page["SpotPriceHistory"]:
                    price = SpotPrice(
                        each["InstanceType"],
                        each["AvailabilityZone"],
                        each["Timestamp"].timestamp(),
                        float(each["SpotPrice"]),
                    )
                    key = (price.type_name, price.zone)
                    if key not in newest or newest[key].since_s < price.since_s:
                        newest[key] = price
                if not page.get("NextToken"):
                    break
                parameters["NextToken"] = page["NextToken"]
        except Ec2Failure as failure:
            raise failure.as_provider_error() from failure
        return [newest[key] for key in sorted(newest)]

    @property
    def renewal_s(self) -> float:
        """Seconds between two renewals of the instances' mark."""
        return renewal_s(self._options.alone_s)

    async def renew(self) -> None:
        """Renew the mark of this mesh's instances, without which they end themselves.

        Raises:
            ProviderRefused, ProviderUnavailable: as in `MarkedProvider`.
        """
        own = [each.id for each in await self.instances() if each.state is not InstanceState.GONE]
        mark = [{"Key": MARK_TAG, "Value": str(int(self._now()))}]
        failures = []
        for first in range(0, len(own), _PAGE):
            try:
                await self._connection.call("create_tags", Resources=own[first : first + _PAGE], Tags=mark)
            except Ec2Failure as failure:
                failures.append(failure)
        if failures:
            raise worst(failures).as_provider_error()

    async def switch_faults(self) -> Sequence[str]:
        """Return what the launch template lacks for instances to end themselves; empty: nothing.

        Raises:
            ProviderRefused, ProviderUnavailable: as in `MarkedProvider`.
        """
        named = self._options.template()
        version = named.pop("Version")
        try:
            answer = await self._connection.call("describe_launch_template_versions", Versions=[version], **named)
        except Ec2Failure as failure:
            raise failure.as_provider_error() from failure
        return template_faults(answer["LaunchTemplateVersions"][0]["LaunchTemplateData"])

    async def close(self) -> None:
        """Close boto3's connections; idempotent."""
        await self._connection.close()

    # --- buying -------------------------------------------------------------------------------------------------------

    async def _buy(self, request: AcquireRequest) -> _Bought:
        if not self._options.use_fleet:
            return await self._run_instances(request)
        try:
            return await self._create_fleet(request)
        except Ec2Failure as failure:
            if failure.code not in _NO_FLEETS:
                raise
            _log.warning("fleet_refused", why=str(failure))
            bought = await self._run_instances(request)
            # If neither call is allowed, both failures are reported.
            return bought if bought.instances else _Bought([], [failure, *bought.failures])

    async def _create_fleet(self, request: AcquireRequest) -> _Bought:
        strategy = self._options.spot_strategy
        prioritized = request.market is Market.ON_DEMAND or strategy == "capacity-optimized-prioritized"
        overrides = [
            {
                "InstanceType": instance_type,
                **({"SubnetId": subnet} if subnet else {}),
                **({"Priority": float(place)} if prioritized else {}),
            }
            for place, instance_type in enumerate(request.instance_types)
            for subnet in self._options.subnets or (None,)
        ]
        spot = request.market is Market.SPOT
        answer = await self._connection.call(
            "create_fleet",
            Type="instant",
            ClientToken=self._client_token(request, "fleet"),
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": self._options.template(), "Overrides": overrides}],
            TargetCapacitySpecification={
                "TotalTargetCapacity": request.count,
                "DefaultTargetCapacityType": "spot" if spot else "on-demand",
            },
            TagSpecifications=self._tags(request),
            **({"SpotOptions": {"AllocationStrategy": strategy}} if spot else _ON_DEMAND_IN_ORDER),
        )
        instances = [
            self._fresh(request, instance_id, group["InstanceType"])
            for group in answer.get("Instances", ())
            for instance_id in group["InstanceIds"]
        ]
        failures = [Ec2Failure(each["ErrorCode"], each.get("ErrorMessage", "")) for each in answer.get("Errors", ())]
        return _Bought(instances, failures)

    async def _run_instances(self, request: AcquireRequest) -> _Bought:
        instances: list[AcquiredInstance] = []
        failures: list[Ec2Failure] = []
        for instance_type in request.instance_types:
            for subnet in self._options.subnets or (None,):
                missing = request.count - len(instances)
                if not missing:
                    break
                try:
                    answer = await self._connection.call(
                        "run_instances",
                        ClientToken=self._client_token(request, f"{instance_type}/{subnet}"),
                        LaunchTemplate=self._options.template(),
                        InstanceInitiatedShutdownBehavior="terminate",
                        InstanceType=instance_type,
                        MinCount=1,
                        MaxCount=missing,
                        TagSpecifications=self._tags(request),
                        **({"SubnetId": subnet} if subnet else {}),
                        **(_ONE_TIME_SPOT if request.market is Market.SPOT else {}),
                    )
                except Ec2Failure as failure:
                    # The result is unknown: trying another pool now could buy too many.
                    if failure.cause is Cause.PATIENCE and not instances:
                        raise
                    failures.append(failure)
                    if failure.cause is Cause.PATIENCE:
                        return _Bought(instances, failures)
                else:
                    instances += [
                        self._fresh(request, each["InstanceId"], instance_type) for each in answer["Instances"]
                    ]
        return _Bought(instances, failures)

    def _client_token(self, request: AcquireRequest, step: str) -> str:
        """Return EC2's client token for a step of the order: equal in a retry, different for each mesh."""
        return hashlib.sha256(f"{self._mesh}/{request.token}/{step}".encode()).hexdigest()

    def _tags(self, request: AcquireRequest) -> list[dict[str, Any]]:
        tags = {**request.tags, MESH_TAG: self._mesh, TOKEN_TAG: request.token}
        return [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]

    def _fresh(self, request: AcquireRequest, instance_id: str, instance_type: str) -> AcquiredInstance:
        return AcquiredInstance(
            id=instance_id,
            instance_type=instance_type,
            market=request.market,
            state=InstanceState.STARTING,
            launched_unix_s=self._now(),
            token=request.token,
            tags=dict(request.tags),
        )

    async def _terminate(self, instance_ids: Sequence[str]) -> None:
        try:
            await self._connection.call("terminate_instances", InstanceIds=list(instance_ids))
        except Ec2Failure as failure:
            if failure.code != _NOT_FOUND:
                raise
            if len(instance_ids) > 1:  # for one unknown id EC2 terminates none of them
                for instance_id in instance_ids:
                    await self._terminate([instance_id])
            elif instance_ids[0] in self._unseen:
                raise Ec2Failure(failure.code, f"{failure}; it was bought a moment ago", Cause.PATIENCE) from failure
        for instance_id in instance_ids:
            self._unseen.pop(instance_id, None)


_ONE_TIME_SPOT = {
    "InstanceMarketOptions": {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
}
_ON_DEMAND_IN_ORDER = {"OnDemandOptions": {"AllocationStrategy": "prioritized"}}
