"""The harness for Cosmos DB, and what a run on it costs, needs and leaves."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosResourceExistsError, CosmosResourceNotFoundError

from multiclouddb_api import Capability, ClientConfig, MulticloudDbKey, ProviderOptions, ResourceAddress
from multiclouddb_certify.certification import (
    LOCAL,
    PREFIX,
    Certification,
    DrillHarness,
    Granted,
    Permission,
    Run,
    RunPlace,
)
from multiclouddb_certify.wire import Call, Price, WireObserver, WireResponse, http_wire
from multiclouddb_conformance.harness import CollectionKind, Harness, Spelled, Write
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.config import KEY_VARIABLE, CosmosConfig
from multiclouddb_cosmos.options import CAPABILITIES
from multiclouddb_cosmos.provider import PLUGIN
from multiclouddb_spi.connection import is_loopback

__all__ = [
    "CERTIFICATION",
    "CosmosCertification",
    "CosmosHarness",
    "EmulatorHarness",
    "close_client",
    "native",
    "native_account",
]

_COUNTER: Final = itertools.count()
_UNITS: Final = 400
_MOST_UNITS: Final = 10_000
_HOUR: Final = "100 RU/s for an hour"


def native(key: Any) -> str:
    """Return an id that the service accepts: none ends with a space."""
    return f"{key}." if str(key).endswith(" ") else str(key)


def _config(url: str) -> CosmosConfig:
    return CosmosConfig.from_client(ClientConfig("cosmos", {"url": url}))


def _endpoint(url: str) -> str:
    return _config(url).endpoint


def close_client(client: CosmosClient) -> None:
    """Close the client after its first request for the account has ended."""
    # Another thread makes this request. If the client were closed before, a socket would stay open.
    for thread in threading.enumerate():
        if thread.name == "cosmos-endpoint-refresh":
            with suppress(RuntimeError):  # it is just being started
                thread.join(5)
    client.close()


@contextmanager
def native_account(url: str) -> Iterator[CosmosClient]:
    """Provide azure-cosmos' client for a URL."""
    config = _config(url)
    key = config.find_credential()
    client = CosmosClient(config.endpoint, key, enable_endpoint_discovery=not config.is_local)
    try:
        yield client
    finally:
        close_client(client)


class CosmosHarness(DrillHarness):
    """A harness that writes with azure-cosmos, in one database whose containers share its throughput."""

    capabilities = CAPABILITIES
    plugin = PLUGIN
    partitions = 1
    can_merge = False  # the service refuses merges in combination with this feed
    can_idle_moves = False  # LSNs count the changes of one partition only
    can_keys_only = False
    can_interleaved = False  # each row contains the order_key of the item's last change
    can_notices = False
    can_late_children = can_audit = False  # the service names all ranges at once
    # They need much throughput, hours, or a server that can be told to.
    can_several = can_split = can_trim = can_poison = can_expire = False
    precision_seconds = 1
    rounding = timedelta(seconds=1)
    expiry_updates = 1
    key_types = frozenset({"text"})
    # Numbers are doubles, and there are no types beyond those of JSON.
    value_types = frozenset(
        {
            "null", "true", "false", "zero", "integer", "float", "whole float", "empty text", "text",
            "long text", "list", "map", "dollar name",
        }
    )  # fmt: skip
    url: ClassVar[str]
    prefix: ClassVar[str] = PREFIX
    throughput: ClassVar[int | None] = None

    def open(self) -> None:
        """Make the client, and the database of the run if it does not exist yet."""
        self._account = native_account(self.url)
        self.client = client = self._account.__enter__()
        key = _config(self.url).find_credential()
        if isinstance(key, str):
            self.secrets = (str(key),)
        self.database_id = self.prefix
        try:
            self.database = client.create_database_if_not_exists(self.database_id, offer_throughput=_UNITS)
        except CosmosResourceExistsError:  # created between the client's look and its request
            self.database = client.get_database_client(self.database_id)
        self.containers: list[str] = []

    def close(self) -> None:
        """Delete the containers; the database ends with the run."""
        for name in self.containers:
            with _absent():
                self.database.delete_container(name)
        self._account.__exit__(None, None, None)

    def keep(self) -> None:
        """Leave the containers when the harness is closed."""
        self.containers.clear()

    def grow(self, address: ResourceAddress) -> None:
        """Provision more throughput than one partition has."""
        self.database.get_container_client(str(address.collection)).replace_throughput(_MOST_UNITS + 1000)

    def writer(self) -> str:
        """Return the region that takes the writes."""
        return _regions(self.client)[0]

    def hourly_units(self, address: ResourceAddress) -> Mapping[str, float]:
        """Return the throughput of the database and of the container."""
        container = self.database.get_container_client(str(address.collection))
        return {_HOUR: sum(_throughput(each) for each in (self.database, container)) / 100}

    def config(self) -> ClientConfig:
        """Return the configuration of the URL."""
        return ClientConfig("cosmos", {"url": self.url})

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a container with a unique name."""
        del kind, partitions
        return self.make_container(f"{name}-{next(_COUNTER)}")

    def spelled(self, name: str) -> Spelled:
        """Create a container whose partition keys are numbers."""
        address = self.make_container(f"{name}-{next(_COUNTER)}", "/number")
        container = self.database.get_container_client(str(address.collection))

        def write(value: Any, n: int | None) -> None:
            if n is None:
                container.delete_item("same", value)
            else:
                container.upsert_item({"id": "same", "number": value, "n": n})

        def key(value: Any) -> MulticloudDbKey:
            return MulticloudDbKey({"number": value, "id": "same"}, 1)

        # 0 and -0.0 are missing: the library cannot keep them apart, as the how-to of Cosmos DB says.
        return Spelled(address, [1, 1.0, 2**53, 2**53 + 1, 1e300, "1", True], key, write)

    def make_container(self, name: str, path: str = "/id") -> ResourceAddress:
        """Create a container that shares the throughput of the database."""
        own: dict[str, Any] = {} if self.throughput is None else {"offer_throughput": self.throughput}
        try:
            self.database.create_container(name, PartitionKey(path), default_ttl=-1, **own)
        except CosmosResourceExistsError:
            # A killed process, or a first try, has asked for it; the name of a run is given only once.
            if Run.of(self.database_id) is None:
                raise
        self.containers.append(name)
        return ResourceAddress(self.database_id, name)

    def key(self, value: Any) -> MulticloudDbKey:
        """Return the key, which is the id."""
        return MulticloudDbKey({"id": native(value)})

    def document(self, key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item, which contains its id."""
        return {"id": native(key), **fields}

    def missing(self) -> ResourceAddress:
        """Return the address of a container that does not exist."""
        return ResourceAddress(self.database_id, "missing")

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write one by one: a batch needs one partition key, and here each key is its own."""
        container = self.database.get_container_client(str(address.collection))
        for write in writes:
            key = native(write.key)
            if write.document is None:
                with _absent():
                    container.delete_item(key, key)
            else:
                container.upsert_item({**write.document, "id": key})

    def recreate(self, address: ResourceAddress) -> None:
        """Delete and create the container."""
        with _absent():
            self.database.delete_container(str(address.collection))
        self.make_container(str(address.collection))

    def opt_in(self, capability: Capability) -> ProviderOptions | None:
        """Return the option that allows a scan before the changes."""
        del capability
        return CosmosOptions(backfill=True)

    def other_options(self) -> ProviderOptions:
        """Return the other mode of the feed."""
        return CosmosOptions(mode="latest")

    def pass_time(self) -> None:
        """Wait until the next change gets a later second."""
        time.sleep(2.0)


def _regions(client: CosmosClient) -> list[str]:
    """Return the regions, first those that take writes."""
    account: Any = client.get_database_account()
    names = [each["name"] for each in [*account.WritableLocations, *account.ReadableLocations]]
    return list(dict.fromkeys(names))


def _throughput(owner: Any) -> int:
    """Return the throughput of a database or container; 0 if it has none of its own."""
    try:
        return int(owner.get_throughput().offer_throughput)
    except CosmosResourceNotFoundError:
        return 0


class EmulatorHarness(CosmosHarness):
    """A harness for our emulator, whose control API splits and trims.

    Its clock is not moved: the run's clients know it from the `Date` of its answers, which is real time.
    """

    partitions = 2
    can_several = can_split = can_trim = can_expire = can_poison = True

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a container, and split its ranges until there are so many partitions."""
        address = super().create(name, kind, partitions)
        while (missing := partitions - len(ranges := self._ranges(address))) > 0:
            for each in ranges[:missing]:
                self.control("split", **_place(address), partition=each["id"])
        return address

    def split(self, address: ResourceAddress, partition_id: str) -> None:
        """Split a range in its middle."""
        low = partition_id.split(":", 2)[2].partition("-")[0]
        (found,) = (each["id"] for each in self._ranges(address) if each["low"] == low)
        self.control("split", **_place(address), partition=found)

    def trim(self, address: ResourceAddress) -> None:
        """Expire all changes made so far."""
        self.control("trim", **_place(address))

    def expire(self, address: ResourceAddress, key: Any) -> None:
        """Give an item a second to live, and move the clock."""
        container = self.database.get_container_client(str(address.collection))
        container.upsert_item({**container.read_item(key, key), "ttl": 1})
        self.pass_time()
        self.control("expire", **_place(address))

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Write an item, and corrupt the record of this write in the feed."""
        container = self.database.get_container_client(str(address.collection))
        container.upsert_item({"id": native(key)})
        self.control("damage", **_place(address), item=native(key))

    def _ranges(self, address: ResourceAddress) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.control("partitions", **_place(address))
        return found

    def control(self, command: str, **arguments: Any) -> Any:
        """Call the control API."""
        return _control(self.url, command, **arguments)


def _place(address: ResourceAddress) -> dict[str, str]:
    return {"database": str(address.database), "container": str(address.collection)}


def _control(url: str, command: str, **arguments: Any) -> Any:
    asked = urllib.request.Request(
        f"{_endpoint(url)}_emulator/{command}",
        json.dumps(arguments).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.load(answer)["result"]


@contextmanager
def _absent() -> Iterator[None]:
    with suppress(CosmosResourceNotFoundError):
        yield


class CosmosCertification(Certification):
    """Cosmos DB: one database with the smallest throughput, which is billed by the hour."""

    provider_id = "cosmos"
    suite = "multiclouddb_certify.suites.cosmos"
    collection_seconds = 5.0
    prices = (
        Price(
            _HOUR,
            0.008,
            "assumed in November 2026, provisioned throughput, one region, "
            "https://azure.microsoft.com/pricing/details/cosmos-db/; a clock hour is billed whole",
        ),
        Price("request unit", 0.0, "part of the provisioned throughput"),
    )

    def __init__(self) -> None:
        self._hour = 0

    def place(self, url: str) -> RunPlace:
        """Ask the account for its regions."""
        with native_account(url) as client:
            region, *_ = _regions(client)
            date = client.client_connection.last_response_headers.get("Date")
        clock = parsedate_to_datetime(date).astimezone(UTC) if date else None
        host = urlsplit(_endpoint(url)).hostname or ""
        if is_loopback(host):
            return RunPlace(LOCAL, region, "a server on this machine", clock)
        return RunPlace(host.partition(".")[0], region, "Azure Cosmos DB", clock)

    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return the database."""
        return (
            f"database {run.prefix}, {_UNITS} RU/s for all its containers",
            "containers in it, one at a time as a rule, without throughput of their own",
        )

    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Return what the credential allows: a key everything, but no role may create a database."""
        names = ("create and delete databases", "create and delete containers", "read and write items")
        if isinstance(_config(url).find_credential(), str):
            return [Permission(name, Granted.YES, "the account's key allows everything") for name in names]
        reason = f"no role of the data plane allows it; set {KEY_VARIABLE}"
        return [Permission(names[0], Granted.NO, reason)]

    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness of the service, or of our emulator."""
        base = EmulatorHarness if _is_emulator(url) else CosmosHarness
        return type(base.__name__, (base,), {"url": url, "prefix": run.prefix})

    def drill(self, url: str, run: Run) -> type[DrillHarness]:
        """Return a harness whose container has a throughput of its own, so that it can grow."""
        members = {"url": url, "prefix": run.prefix, "throughput": _UNITS}
        return type("CosmosHarness", (CosmosHarness,), members)

    def drill_problem(self, url: str, name: str) -> str | None:
        """Say that there is no other region."""
        if name != "failover":
            return None
        with native_account(url) as client:
            regions = _regions(client)
        if len(regions) > 1:
            return None
        return f"the account has one region, {regions[0]}; add a second one"

    def wire(self, observer: WireObserver) -> AbstractContextManager[None]:
        """Show the requests of azure-cosmos."""
        return http_wire(observer, _operation)

    def units_of(self, call: Call, answer: WireResponse) -> Mapping[str, float]:
        """Return the charge of a request, and the throughput of each hour that begins with it."""
        units = {"request unit": float(answer.headers.get("x-ms-request-charge", "0") or 0)}
        hour = _clock_hour()
        if not self._hour and call.operation == "POST dbs":
            self._hour = hour - 1
        if self._hour and hour > self._hour:
            units[_HOUR] = (hour - self._hour) * _UNITS / 100
            self._hour = hour
        return units

    def fixed_units(self, seconds: float) -> Mapping[str, float]:
        """Return the throughput of each clock hour of a run that begins now."""
        return {_HOUR: (1 + _clock_hour(seconds) - _clock_hour()) * _UNITS / 100}

    def found(self, url: str) -> Iterator[str]:
        """Return the databases with the prefix."""
        with native_account(url) as client:
            names = [each["id"] for each in client.list_databases()]
        yield from (name for name in names if Run.of(name))

    def remove(self, url: str, name: str) -> None:
        """Delete a database with its containers."""
        with native_account(url) as client, _absent():
            client.delete_database(name)

    def versions(self) -> Mapping[str, str]:
        """Return the version of azure-cosmos."""
        return {"azure-cosmos": version("azure-cosmos")}


def _clock_hour(later: float = 0.0) -> int:
    """Return the number of an hour as it is billed."""
    return int((time.time() + later) // 3600)


def _is_emulator(url: str) -> bool:
    if not is_loopback(urlsplit(_endpoint(url)).hostname):
        return False
    try:
        _control(url, "clear_faults")
    except (urllib.error.URLError, ValueError):
        return False
    return True


_KINDS: Final = re.compile(r"/(dbs|colls|docs|pkranges|offers)(?=/|\?|$)")


def _operation(method: str, url: str, headers: Mapping[str, str]) -> str | None:
    if "x-ms-version" not in headers:
        return None
    kinds = _KINDS.findall(url)
    kind = kinds[-1] if kinds else "account"
    return "ReadChangeFeed" if "a-im" in headers and kind == "docs" else f"{method} {kind}"


CERTIFICATION: Final = CosmosCertification()
