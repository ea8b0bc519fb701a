"""Calls EC2 through boto3 in a thread, and classifies its errors.

boto3 is imported when a client is opened, and retries throttled calls itself. Error codes: EC2's documentation, "Error codes
for the Amazon EC2 API".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from spotwise.cloud.ec2_dead_man import MARK_TAG, USUAL_ALONE_S
from spotwise.cloud.instances import (
    OWN_TAGS,
    TOKEN_TAG,
    AcquiredInstance,
    AcquireRequest,
    NoCapacity,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from spotwise.core.messages.fleet import InstanceState, Market

SpotStrategy = Literal[
    "price-capacity-optimized", "capacity-optimized", "capacity-optimized-prioritized", "lowest-price"
]

_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 60.0
#: EC2's guide, "Access instance metadata".
_METADATA_HOSTS = ("169.254.169.254", "[fd00:ec2::254]")


@dataclass(frozen=True, slots=True)
class Ec2Options:
    """Launch configuration of instances. boto3 finds the credentials: environment, profile or instance role.

    Attributes:
        launch_template: its id (`lt-...`) or its name. It defines the image, key, security groups, instance profile, and the
            user data that makes a machine join the mesh.
        launch_template_version: a number, `$Latest` or `$Default`.
        subnets: alternatives; empty: the template's.
        region: AWS region; by default boto3's.
        endpoint_url: another address of the API, for instance a VPC endpoint's; by default the region's.
        profile: profile of the credentials file; by default boto3's.
        spot_strategy: how EC2 chooses among types and subnets for spot instances.
        use_fleet: order by CreateFleet; otherwise, or if it is not allowed, by RunInstances for each type and subnet.
        attempts: tries of a call before it fails.
        alone_s: an instance whose mark no keeper has renewed for so long ends itself (`ec2_dead_man.py`).
    """

    launch_template: str
    launch_template_version: str = "$Default"
    subnets: tuple[str, ...] = ()
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    spot_strategy: SpotStrategy = "price-capacity-optimized"
    use_fleet: bool = True
    attempts: int = 5
    alone_s: float = USUAL_ALONE_S

    def __post_init__(self) -> None:
        if not self.launch_template:
            raise ValueError("launch_template: name the template that instances are made from")
        if self.attempts < 1:
            raise ValueError(f"attempts {self.attempts}: 1 at least")
        if self.alone_s <= 0:
            raise ValueError(f"alone_s {self.alone_s}: above 0")

    def template(self) -> dict[str, str]:
        """Return the launch template as a parameter of EC2's calls."""
        key = "LaunchTemplateId" if self.launch_template.startswith("lt-") else "LaunchTemplateName"
        return {key: self.launch_template, "Version": self.launch_template_version}


class Ec2Client(Protocol):
    """The part of boto3's EC2 client in use; parameters and answers follow EC2's API reference."""

    def create_fleet(self, **parameters: Any) -> dict[str, Any]:
        """CreateFleet."""

    def run_instances(self, **parameters: Any) -> dict[str, Any]:
        """RunInstances."""

    def describe_instances(self, **parameters: Any) -> dict[str, Any]:
        """DescribeInstances."""

    def terminate_instances(self, **parameters: Any) -> dict[str, Any]:
        """TerminateInstances."""

    def describe_spot_price_history(self, **parameters: Any) -> dict[str, Any]:
        """DescribeSpotPriceHistory."""

    def create_tags(self, **parameters: Any) -> dict[str, Any]:
        """CreateTags."""

    def describe_launch_template_versions(self, **parameters: Any) -> dict[str, Any]:
        """DescribeLaunchTemplateVersions."""

    def close(self) -> None:
        """Close its connections."""


class Cause(Enum):
    """Class of a failure: no capacity, a temporary fault, or a refusal."""

    CAPACITY = auto()
    PATIENCE = auto()
    REFUSAL = auto()


_CAPACITY = {
    "InsufficientCapacity",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
}
_PATIENCE = {
    "EC2ThrottledException",
    "InternalError",
    "InternalFailure",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "Unavailable",
}
_QUOTA = "release instances, or request a higher limit in Service Quotas"
_WHO = "check the credentials that boto3 finds (environment, profile, instance role) and this computer's clock"
_ACCOUNT = "the account's owner must finish its registration"
_TOKEN = "an order with this token was given before; give a new one"
_ADVICE = {
    "AuthFailure": _WHO,
    "ExpiredToken": _WHO,
    "ExpiredTokenException": _WHO,
    "IdempotentInstanceTerminated": _TOKEN,
    "IdempotentParameterMismatch": _TOKEN,
    "InstanceLimitExceeded": _QUOTA,
    "InvalidClientTokenId": _WHO,
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "OptInRequired": _ACCOUNT,
    "PendingVerification": _ACCOUNT,
    "RequestExpired": _WHO,
    "SignatureDoesNotMatch": _WHO,
    "UnauthorizedOperation": "allow these credentials the action (IAM); docs/providers.md lists what is needed",
    "UnrecognizedClientException": _WHO,
    "VcpuLimitExceeded": _QUOTA,
}
_CHECK = "check the launch template, the subnets and the instance types"

_STATES = {
    "pending": InstanceState.STARTING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.LEAVING,
    # A stopped instance does no work, but its volumes are billed until it is released.
    "stopping": InstanceState.LEAVING,
    "stopped": InstanceState.LEAVING,
    "terminated": InstanceState.GONE,
}


class Ec2Failure(Exception):  # noqa: N818 - it is no error yet: what it means to a caller depends on the call
    """A failed call of EC2.

    Attributes:
        code: EC2's error code, or the name of boto3's exception.
        cause: class of the failure.
    """

    def __init__(self, code: str, message: str, cause: Cause | None = None, advice: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.cause = cause or _cause_of(code)
        self._advice = advice or _ADVICE.get(code, _CHECK)

    def as_provider_error(self, request: AcquireRequest | None = None) -> ProviderError:
        """Return the matching provider error."""
        if self.cause is Cause.CAPACITY and request is not None:
            return NoCapacity(request.instance_types, request.market, str(self))
        if self.cause is Cause.REFUSAL:
            return ProviderRefused(f"EC2 refused: {self}; {self._advice}")
        return ProviderUnavailable(f"EC2 failed: {self}; try again later")


def worst(failures: Sequence[Ec2Failure]) -> Ec2Failure:
    """Return the failure that best explains an order without instances.

    A pool without capacity may have some later, so it precedes temporary faults, and these precede refusals.
    """
    return min(failures, key=lambda failure: list(Cause).index(failure.cause))


def instance_of(described: Mapping[str, Any]) -> AcquiredInstance:
    """Convert an instance from EC2's description."""
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
    return AcquiredInstance(
        id=described["InstanceId"],
        instance_type=described["InstanceType"],
        market=Market.SPOT if described.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        state=_STATES[described["State"]["Name"]],
        launched_unix_s=described["LaunchTime"].timestamp(),
        token=tags.get(TOKEN_TAG, ""),
        tags={key: value for key, value in tags.items() if not key.startswith((OWN_TAGS, "aws:"))},
        address=described.get("PrivateIpAddress"),
        zone=described.get("Placement", {}).get("AvailabilityZone"),
        seen_unix_s=_time_of(tags.get(MARK_TAG)),
    )


def _time_of(mark: str | None) -> float | None:
    return float(mark) if mark is not None and mark.isdecimal() else None


class Ec2Connection:
    """Calls a blocking EC2 client from an event loop.

    Args:
        client: boto3's, or a fake.
    """

    def __init__(self, client: Ec2Client) -> None:
        self._client = client

    @classmethod
    async def open(cls, options: Ec2Options) -> Ec2Connection:
        """Open boto3's client; no call is made yet.

        Raises:
            ProviderRefused: boto3 is missing, or does not know the profile or the region.
        """
        return cls(await asyncio.to_thread(_open, options))

    async def call(
        self,
        action: Literal[
            "create_fleet",
            "run_instances",
            "describe_instances",
            "terminate_instances",
            "describe_spot_price_history",
            "create_tags",
            "describe_launch_template_versions",
        ],
        **parameters: Any,
    ) -> dict[str, Any]:
        """Call an action in a thread and return its answer.

        Raises:
            Ec2Failure: the call failed, or its result is unknown.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        method = getattr(self._client, action)
        try:
            answer: dict[str, Any] = await asyncio.to_thread(method, **parameters)
        except ClientError as error:
            raise _client_failure(error.response) from error
        except BotoCoreError as error:
            raise _local_failure(error) from error
        return answer

    async def close(self) -> None:
        """Close the client's connections; idempotent."""
        await asyncio.to_thread(self._client.close)


@contextmanager
def _metadata_is_reached_directly() -> Iterator[None]:
    """Except this machine's metadata from the proxies that the environment names, while a client is made.

    EC2 itself may be behind a proxy only; but a proxy would ask for its own role. boto3 has no option for it and reads
    the environment once. Afterwards the environment is as before: other clients do not read boto3's way to write an
    IPv6 address.
    """
    before = {name: os.environ.get(name) for name in ("no_proxy", "NO_PROXY")}
    known = before["no_proxy"] or before["NO_PROXY"] or ""
    endpoint = urlsplit(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""))
    hosts = filter(None, [*known.split(","), *_METADATA_HOSTS, endpoint.hostname])
    try:
        if known.strip() != "*":
            os.environ.update(dict.fromkeys(before, ",".join(dict.fromkeys(hosts))))
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _open(options: Ec2Options) -> Ec2Client:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ProviderRefused("EC2 needs boto3: pip install 'spotwise[aws]'") from error
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": options.attempts},
    )
    try:
        with _metadata_is_reached_directly():
            session = boto3.Session(profile_name=options.profile, region_name=options.region)
            client: Ec2Client = session.client("ec2", endpoint_url=options.endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is no URL
        raise ProviderRefused(f"EC2: {error}; check region, profile and endpoint_url") from error
    return client


def _cause_of(code: str) -> Cause:
    if code in _CAPACITY:
        return Cause.CAPACITY
    return Cause.PATIENCE if code in _PATIENCE else Cause.REFUSAL


def _client_failure(response: dict[str, Any]) -> Ec2Failure:
    error = response.get("Error", {})
    code, message = str(error.get("Code", "Unknown")), str(error.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # A server error may pass even if its code is unknown.
    troubled = status >= 500 and _cause_of(code) is Cause.REFUSAL
    return Ec2Failure(code, message, Cause.PATIENCE if troubled else None)


def _local_failure(error: Exception) -> Ec2Failure:
    """Convert an error of boto3 itself: it could not send a request, or received no answer."""
    from botocore import exceptions as boto

    name = type(error).__name__
    credentials = (
        boto.NoCredentialsError,
        boto.PartialCredentialsError,
        boto.CredentialRetrievalError,
        boto.TokenRetrievalError,
        boto.UnauthorizedSSOTokenError,
    )
    if isinstance(error, credentials):
        return Ec2Failure(name, str(error), Cause.REFUSAL, _WHO)
    if isinstance(error, boto.ConnectionError | boto.HTTPClientError):
        return Ec2Failure(name, str(error), Cause.PATIENCE)
    return Ec2Failure(name, str(error), Cause.REFUSAL)
