"""EC2 as the tests need it: moto's, and what moto leaves out.

moto 5 keeps instances, tags, states and markets. It has no end of capacity, takes any name for an instance type, forgets
client tokens, starts the least count that RunInstances may start, and tries the first of a fleet's types and subnets only.
`Ec2StandIn` adds these as EC2's documentation has them: too little capacity is a fleet's error beside the instances that
there were, and an exception of RunInstances.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from spotwise.cloud.ec2_client import Ec2Client

NO_ROOM = "InsufficientInstanceCapacity"


def error(code: str, action: str = "RunInstances", message: str = "as EC2 says it", status: int = 400) -> ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, action)


class Ec2StandIn:
    """moto's client with limits.

    Attributes:
        room: instances that run at once at most.
        types: that there are.
        calls: actions called, with their parameters.
        failing: what an action raises instead, once for each.
        then: what happens before an action is answered; it may change the answer, raise or wait.
        hidden: whether instances do not show yet in descriptions.
        prices: the market's: Unix time and dollars an hour of each type and zone. moto's are those of one day.
    """

    def __init__(self, moto: Ec2Client, room: int, types: tuple[str, ...]) -> None:
        self.room = room
        self.types = types
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failing: list[tuple[str, Exception]] = []
        self.then: dict[str, Callable[[dict[str, Any]], object]] = {}
        self.hidden = False
        self.prices: dict[tuple[str, str], tuple[float, float]] = {}
        self._moto = moto
        self._answers: dict[str, dict[str, Any]] = {}
        self._turn = threading.Lock()

    def create_fleet(self, **parameters: Any) -> dict[str, Any]:
        """Start as many as the capacity allows, and report an error for the rest."""
        with self._turn:
            self._note("create_fleet", parameters)
            if (known := self._answers.get(parameters["ClientToken"])) is not None:
                return known
            [config] = parameters["LaunchTemplateConfigs"]
            overrides = [each for each in config["Overrides"] if each["InstanceType"] in self.types]
            target = parameters["TargetCapacitySpecification"]
            wanted = target["TotalTargetCapacity"]
            errors, instances = [], []
            if not overrides:
                wrong = config["Overrides"][0]["InstanceType"]
                errors.append({"ErrorCode": "InvalidFleetConfiguration", "ErrorMessage": f"no instance type {wrong}"})
            elif count := min(wanted, self._free()):
                specification = {**target, "TotalTargetCapacity": count}
                configs = [{**config, "Overrides": overrides}]
                answer = self._moto.create_fleet(
                    **{**parameters, "TargetCapacitySpecification": specification, "LaunchTemplateConfigs": configs}
                )
                instances = answer["Instances"]
            if overrides and len(instances) < wanted:
                errors.append({"ErrorCode": NO_ROOM, "ErrorMessage": "not enough of it in this zone"})
            fleet = {"FleetId": "fleet-1", "Instances": instances, "Errors": errors}
            return self._told("create_fleet", self._answers.setdefault(parameters["ClientToken"], fleet))

    def run_instances(self, **parameters: Any) -> dict[str, Any]:
        """Start as many as the capacity allows, up to `MaxCount`."""
        with self._turn:
            self._note("run_instances", parameters)
            if (known := self._answers.get(parameters["ClientToken"])) is not None:
                return known
            if parameters["InstanceType"] not in self.types:
                raise error("InvalidParameterValue", message=f"no instance type {parameters['InstanceType']}")
            count = min(parameters["MaxCount"], self._free())
            if count < parameters["MinCount"]:
                raise error(NO_ROOM, status=500)
            answer = self._moto.run_instances(**{**parameters, "MinCount": count, "MaxCount": count})
            return self._told("run_instances", self._answers.setdefault(parameters["ClientToken"], answer))

    def describe_instances(self, **parameters: Any) -> dict[str, Any]:
        """Describe instances by moto."""
        if self.hidden:
            with self._turn:
                self._note("describe_instances", parameters)
                return {"Reservations": []}
        return self._by_moto("describe_instances", parameters)

    def terminate_instances(self, **parameters: Any) -> dict[str, Any]:
        return self._by_moto("terminate_instances", parameters)

    def create_tags(self, **parameters: Any) -> dict[str, Any]:
        return self._by_moto("create_tags", parameters)

    def describe_launch_template_versions(self, **parameters: Any) -> dict[str, Any]:
        return self._by_moto("describe_launch_template_versions", parameters)

    def describe_spot_price_history(self, **parameters: Any) -> dict[str, Any]:
        """List `prices` in pages of one."""
        with self._turn:
            self._note("describe_spot_price_history", parameters)
            rows = [
                {
                    "InstanceType": kind,
                    "AvailabilityZone": zone,
                    "Timestamp": datetime.fromtimestamp(since_s, UTC),
                    "SpotPrice": f"{price:.6f}",
                }
                for (kind, zone), (since_s, price) in self.prices.items()
                if kind in parameters["InstanceTypes"]
            ]
            at = int(parameters.get("NextToken") or 0)
            more = str(at + 1) if at + 1 < len(rows) else ""
            return {"SpotPriceHistory": rows[at : at + 1], "NextToken": more}

    def close(self) -> None:
        """Do nothing: the test that opened moto's client closes it."""

    def called(self, action: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.calls if name == action]

    def _by_moto(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        with self._turn:
            self._note(action, parameters)
            return self._told(action, getattr(self._moto, action)(**parameters))

    def _told(self, action: str, answer: dict[str, Any]) -> dict[str, Any]:
        if (then := self.then.get(action)) is not None:
            then(answer)
        return answer

    def _note(self, action: str, parameters: dict[str, Any]) -> None:
        self.calls.append((action, parameters))
        for index, (name, failure) in enumerate(self.failing):
            if name == action:
                del self.failing[index]
                raise failure

    def _free(self) -> int:
        groups = self._moto.describe_instances()["Reservations"]
        ended = ("terminated", "shutting-down")
        return self.room - sum(each["State"]["Name"] not in ended for group in groups for each in group["Instances"])
