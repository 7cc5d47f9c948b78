"""What a service contributes to `multiclouddb certify`: its harness, prices, permissions and leftovers."""

from __future__ import annotations

import getpass
import hashlib
import re
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from enum import Enum
from typing import ClassVar, Final
from urllib.parse import urlsplit

import attrs

from multiclouddb_api import (
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbClient,
    MulticloudDbError,
    ResourceAddress,
    connect,
    invalid_request,
)
from multiclouddb_api.entry_points import entry_points
from multiclouddb_api.registry import sole_offer
from multiclouddb_certify.wire import Call, Price, WireObserver, WireResponse
from multiclouddb_conformance.harness import Harness
from multiclouddb_spi import open_provider

__all__ = [
    "GROUP",
    "LOCAL",
    "PREFIX",
    "Certification",
    "DrillHarness",
    "Granted",
    "Permission",
    "Run",
    "RunPlace",
    "load_certification",
]

GROUP: Final = "multiclouddb.harnesses"
"""The group of entry points that name a `Certification` for each provider id."""
PREFIX: Final = "mcdb-certify-"
"""Every name that a run creates begins with this text; no other name is touched."""
LOCAL: Final = "local"
"""The account of a server on this machine."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME: Final = re.compile(
    rf"{PREFIX}(?P<name>(?P<expires>[0-9a-z]{{5}})(?P<owner>[0-9a-z]{{4}})[0-9a-z]{{2}})(?:-.*)?"
)
_HOURS: Final = 6


@attrs.frozen
class Run:
    """One run. Its name says who owns it and when it expires, so that names tell what may be removed."""

    name: str
    """Eleven letters and digits: the time of expiry, the owner, and a random part."""
    owner: str
    """Four letters and digits that stand for a user of a machine."""
    expires: datetime
    """When the resources of the run may be removed by everybody."""

    @classmethod
    def new(cls, hours: float = _HOURS) -> Run:
        """Return a run of this user.

        Args:
            hours: The number of hours until the run expires.
        """
        minutes = int(time.time() // 60 + hours * 60)
        name = _base36(minutes) + owner() + "".join(secrets.choice(_DIGITS) for _ in range(2))
        found = cls.of(PREFIX + name)
        assert found is not None
        return found

    @classmethod
    def of(cls, name: str) -> Run | None:
        """Return the run that created a resource with this name, or None if no run did.

        Args:
            name: The name of a resource.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        expires = datetime.fromtimestamp(int(found["expires"], 36) * 60, UTC)
        return cls(found["name"], found["owner"], expires)

    @property
    def prefix(self) -> str:
        """The beginning of every name that this run creates."""
        return PREFIX + self.name

    @property
    def tags(self) -> dict[str, str]:
        """The tags of every resource, for services that have tags."""
        return {"mcdb-certify-owner": self.owner, "mcdb-certify-expires": f"{self.expires:%Y-%m-%dT%H:%MZ}"}


def owner() -> str:
    """Return four letters and digits for this user of this machine."""
    text = f"{getpass.getuser()}@{socket.gethostname()}"
    return _base36(int(hashlib.sha256(text.encode()).hexdigest(), 16))[-4:]


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


@attrs.frozen
class RunPlace:
    """Where a run creates its resources."""

    account: str
    """The id of the account or project; `local` for a server on this machine."""
    region: str | None
    """The region; None if the service has none."""
    service: str
    """The name and version of the service, for the report."""
    clock: datetime | None = None
    """The service's clock; None if it does not tell."""
    problem: str | None = None
    """Why the suite cannot run here, with the way out; None if it can."""


class Granted(Enum):
    """The result of a dry run of one permission."""

    YES = "granted"
    NO = "denied"
    UNKNOWN = "not checked"


@attrs.frozen
class Permission:
    """A permission that a run needs, and the result of its dry run."""

    name: str
    """The service's name of it."""
    granted: Granted
    """The result of its dry run."""
    reason: str = ""
    """Why it was not checked, or what the service said."""


class DrillHarness(Harness):
    """A harness whose collections may stay when it is closed, because a drill is picked up again."""

    @abstractmethod
    def keep(self) -> None:
        """Let `close` leave everything that was created; the run removes it by its name."""

    def closed_shards(self, address: ResourceAddress) -> Sequence[str]:
        """Return the partitions that take no more changes.

        Args:
            address: The collection.
        """
        del address
        self._lacks("closed_shards")

    def grow(self, address: ResourceAddress) -> None:
        """Provision more throughput than one partition has.

        Args:
            address: The collection.
        """
        del address
        self._lacks("grow")

    def writer(self) -> str:
        """Return the region or the server that takes the writes now."""
        self._lacks("writer")

    def step_down(self) -> None:
        """Ask the server that takes the writes to leave that to another, if the user may ask."""
        self._lacks("step_down")

    def hourly_units(self, address: ResourceAddress) -> Mapping[str, float]:
        """Return the units that a collection uses in each clock hour, also while nothing is done with it.

        Args:
            address: The collection.
        """
        del address
        return {}

    def alter(self, address: ResourceAddress, *, column: bool) -> None:
        """Add a column to the table, or drop it; nothing happens if that is done already.

        Args:
            address: The table.
            column: True to add it.
        """
        del address, column
        self._lacks("alter")


class Certification(ABC):
    """What `multiclouddb certify` has to know of a service. Several threads never call it at once.

    Every error of the vendor's SDK may be raised as it is; the command classifies it with the provider.

    Attributes:
        provider_id: The id of the provider, which is the scheme of its URLs.
        suite: The name of the module that holds the tests.
        prices: The units that a run uses, with their prices. The unit `request` counts every request; it
            needs no price.
        collection_seconds: How long the service takes to create and to delete one collection.
    """

    provider_id: ClassVar[str]
    suite: ClassVar[str] = "multiclouddb_certify.suites.plain"
    prices: ClassVar[Sequence[Price]] = ()
    collection_seconds: ClassVar[float] = 0.0

    def config(self, url: str) -> ClientConfig:
        """Return the configuration of a client.

        Args:
            url: Where the suite runs.
        """
        return ClientConfig(self.provider_id, {"url": url})

    @abstractmethod
    def place(self, url: str) -> RunPlace:
        """Look where the URL leads; nothing is created.

        Args:
            url: Where the suite runs.
        """

    @abstractmethod
    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return a line for each kind of resource that the run will create.

        Args:
            url: Where the suite runs.
            run: The run.
        """

    @abstractmethod
    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Check each permission that the run needs with a dry run, where the service has one.

        Args:
            url: Where the suite runs.
            run: The run.
        """

    @abstractmethod
    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness; each name that it creates begins with `run.prefix`.

        Args:
            url: Where the suite runs.
            run: The run.
        """

    def drill(self, url: str, run: Run) -> type[DrillHarness]:
        """Return the harness of a drill.

        Args:
            url: Where the drill runs.
            run: The run.
        """
        found = self.harness(url, run)
        if not issubclass(found, DrillHarness):
            raise MulticloudDbError(
                f"certify: the harness of {self.provider_id} is no DrillHarness; run the suite instead",
                ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, self.provider_id),
            )
        return found

    def drill_problem(self, url: str, name: str) -> str | None:
        """Return why a drill cannot run there, with the way out; None if it can. Nothing is created.

        Args:
            url: Where the drill would run.
            name: The name of the drill.
        """
        del url, name
        return None

    def wire(self, observer: WireObserver) -> AbstractContextManager[object]:
        """Show the observer each request and each answer of this process, also after a fork.

        Args:
            observer: The observer.
        """
        del observer
        return nullcontext()

    def units_of(self, call: Call, answer: WireResponse) -> Mapping[str, float]:
        """Return the service's units that a request used.

        Args:
            call: The request.
            answer: The answer.
        """
        del call, answer
        return {}

    def fixed_units(self, seconds: float) -> Mapping[str, float]:
        """Return the units that a run of this duration uses whatever it does.

        Args:
            seconds: The duration.
        """
        del seconds
        return {}

    @abstractmethod
    def found(self, url: str) -> Iterable[str]:
        """Return the names of all resources that begin with `PREFIX` and carry the tags of a run.

        Args:
            url: Where the suite runs.
        """

    @abstractmethod
    def remove(self, url: str, name: str) -> None:
        """Remove a resource that `found` returned; it is no error if it no longer exists.

        Args:
            url: Where the suite runs.
            name: The name of the resource.
        """

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the vendor's packages, for the report."""
        return {}

    def error(self, url: str, error: Exception) -> MulticloudDbError:
        """Return the error that a person reads.

        Args:
            url: Where the suite runs.
            error: An error of the vendor's SDK, or one of the library.
        """
        if isinstance(error, MulticloudDbError):
            return error
        provider = open_provider(self.config(url))
        try:
            fault = provider.classify(error)
        finally:
            provider.close()
        return MulticloudDbError(f"certify: {fault.message}", ErrorDetail(fault.category, self.provider_id))

    def client(self, url: str) -> MulticloudDbClient:
        """Return a client of the library.

        Args:
            url: Where the suite runs.
        """
        return connect(self.config(url))


def load_certification(url: str) -> Certification:
    """Return the certification of the URL's provider.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if no installed distribution has a harness for it.
    """
    scheme = urlsplit(url).scheme
    provider_id = {"mongodb": "mongo", "mongodb+srv": "mongo"}.get(scheme, scheme)
    point = sole_offer(provider_id, GROUP, "harness")
    if point is None:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise invalid_request(
            "URL",
            f"begins with {scheme!r}, and nothing is installed that certifies it",
            f"write it as connect(url) takes it, such as dynamo://REGION; installed are: {known}",
        )
    try:
        found = point.load()
    except ImportError as error:
        raise MulticloudDbError(
            f'certify: cannot import {error.name}; run: pip install "multiclouddb[certify,{provider_id}]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST),
        ) from error
    assert isinstance(found, Certification)
    return found
