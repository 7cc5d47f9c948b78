"""The harness for DynamoDB, and what a run on it costs, needs and leaves."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from multiclouddb_api import Capability, ClientConfig, ResourceAddress
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
from multiclouddb_dynamo.config import DynamoConfig
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_spi.connection import is_loopback

__all__ = ["CERTIFICATION", "DynamoCertification", "DynamoHarness", "LocalDynamoHarness", "typed"]

VIEWS: Final = {
    CollectionKind.PLAIN: "NEW_IMAGE",
    CollectionKind.KEYS_ONLY: "KEYS_ONLY",
    CollectionKind.OLD_IMAGES: "NEW_AND_OLD_IMAGES",
}
_COUNTER: Final = itertools.count()
_CONTROL: Final = "[TEST_CONTROL]"
_NOT_THERE: Final = "ResourceNotFoundException"
_ACTIONS: Final = (
    "CreateTable", "DeleteTable", "DescribeTable", "ListTables", "TagResource", "ListTagsOfResource",
    "PutItem", "DeleteItem", "BatchGetItem", "Scan", "DescribeStream", "GetShardIterator",
    "GetRecords", "ListStreams",
)  # fmt: skip


def typed(value: Any) -> dict[str, Any]:
    """Return a Python value as an attribute value; boto3's own serializer refuses some valid values."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | Decimal():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case list():
            return {"L": [typed(each) for each in value]}
        case dict():
            return {"M": {name: typed(each) for name, each in value.items()}}
        case frozenset():
            return {"SS": sorted(value)}
        case _:
            return {"S": str(value)}


def native_client(url: str, service: str = "dynamodb") -> Any:
    """Return boto3's client for a URL; it makes each call once."""
    config = DynamoConfig.from_client(ClientConfig("dynamo", {"url": url}))
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    return boto3.Session().client(
        service, region_name=config.region, endpoint_url=config.endpoint_url, config=once
    )


class DynamoHarness(DrillHarness):
    """A harness that writes with boto3. Its abilities are those of the service without waiting for hours."""

    capabilities = PLUGIN.capabilities()  # an older botocore cannot start at a time
    precision_seconds = 1
    plugin = PLUGIN
    can_merge = can_other_options = can_notices = False
    can_high_floor = False  # before the first read, no sequence number is known
    can_idle_moves = False  # the position of a shard is the position of its last record
    can_read_past_trim = False  # the service does not say whether records after a position were trimmed
    # They need hours, or a server that can be told to.
    can_several = can_split = can_trim = can_expire = can_poison = can_late_children = can_audit = False
    rounding = timedelta(seconds=1)
    key_types = frozenset({"text", "unicode"})
    # DynamoDB's numbers have no scale and no infinity, its documents contain no floats, and names are not
    # empty.
    value_types = frozenset(
        {
            "null", "true", "false", "zero", "integer", "largest 64-bit integer", "integer over 64 bit",
            "decimal of many digits", "empty text", "text", "long text", "bytes", "set", "dollar name",
        }
    )  # fmt: skip
    url: ClassVar[str]
    prefix: ClassVar[str] = PREFIX
    tags: ClassVar[Mapping[str, str]] = {}

    def open(self) -> None:
        """Make the native client."""
        self.native = native_client(self.url)
        credentials = boto3.Session().get_credentials()
        if credentials is not None:
            self.secrets = (credentials.secret_key,)
        self.tables: list[str] = []

    def close(self) -> None:
        """Delete the tables."""
        for table in self.tables:
            _delete(self.native, table)
        self.native.close()

    def keep(self) -> None:
        """Leave the tables when the harness is closed."""
        self.tables.clear()

    def closed_shards(self, address: ResourceAddress) -> list[str]:
        """Return the shards of the table's stream that take no more changes."""
        arn = self.native.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
        with closing(native_client(self.url, "dynamodbstreams")) as streams:
            shards = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        return [each["ShardId"] for each in shards if "EndingSequenceNumber" in each["SequenceNumberRange"]]

    def config(self) -> ClientConfig:
        """Return the configuration of the URL."""
        return ClientConfig("dynamo", {"url": self.url})

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a table with a unique name, because a server continues to run after the test."""
        return self.make_table(f"{self.prefix}-{name}-{next(_COUNTER)}", kind, partitions)

    def spelled(self, name: str) -> Spelled:
        """Create a table whose keys are numbers."""
        address = self.make_table(
            f"{self.prefix}-{name}-{next(_COUNTER)}", CollectionKind.PLAIN, self.partitions, "N"
        )

        def write(value: Any, n: int | None) -> None:
            self.write(address, [Write(value, None if n is None else {"n": n})])

        return Spelled(address, [Decimal("1.5"), Decimal("1.50"), 2, Decimal("2.0")], self.key, write)

    def make_table(
        self, table: str, kind: CollectionKind, partitions: int, key_type: str = "S"
    ) -> ResourceAddress:
        """Create a table whose stream is enabled."""
        del partitions
        try:
            made = self.native.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": key_type}],
                BillingMode="PAY_PER_REQUEST",
                StreamSpecification={"StreamEnabled": True, "StreamViewType": VIEWS[kind]},
                **(
                    {"Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()]}
                    if self.tags
                    else {}
                ),
            )
            status = made["TableDescription"]["TableStatus"]
        except self.native.exceptions.ResourceInUseException:
            # A killed process, or a first try, may have asked for it; the name of a run is given only once.
            status = _status(self.native, table) if Run.of(table) else None
            if status not in ("CREATING", "ACTIVE"):
                raise
        self.tables.append(table)
        if status != "ACTIVE":
            self.native.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 2})
        return ResourceAddress(collection=table)

    def missing(self) -> ResourceAddress:
        """Return the address of a table that does not exist."""
        return ResourceAddress(collection=f"{self.prefix}-missing")

    def document(self, key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item, which contains its key."""
        return {"id": key, **fields}

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write one item, or several in one transaction."""
        calls = [self._operation(str(address.collection), write) for write in writes]
        if len(calls) == 1:
            ((name, asked),) = calls[0].items()
            getattr(self.native, f"{name.lower()}_item")(**asked)
        else:
            self.native.transact_write_items(TransactItems=calls)

    def _operation(self, table: str, write: Write) -> dict[str, Any]:
        key = {"id": typed(write.key)}
        if write.document is None:
            return {"Delete": {"TableName": table, "Key": key}}
        item = key | {name: typed(value) for name, value in write.document.items()}
        return {"Put": {"TableName": table, "Item": item}}

    def recreate(self, address: ResourceAddress) -> None:
        """Delete and create a table, until its stream has another label."""
        table = str(address.collection)
        before = self.native.describe_table(TableName=table)["Table"]["LatestStreamArn"]
        self.native.delete_table(TableName=table)
        self.native.get_waiter("table_not_exists").wait(TableName=table)
        while True:
            self.make_table(table, CollectionKind.PLAIN, self.partitions)
            # The label of a stream is a time, and the clock may show the same time as for the last stream.
            if self.native.describe_table(TableName=table)["Table"]["LatestStreamArn"] != before:
                return
            time.sleep(0.002)
            self.native.delete_table(TableName=table)


class LocalDynamoHarness(DynamoHarness):
    """A harness for DynamoDB Local with test control, which moves the clock of every table of the server."""

    can_trim = True
    tells_time = False  # its answers have no Date
    lacks = frozenset({Capability.CHANGE_FEED_POINT_IN_TIME})
    rounding = timedelta(minutes=1)
    value_types = DynamoHarness.value_types - {"empty text"}  # this old server refuses such values

    def trim(self, address: ResourceAddress) -> None:
        """Close every shard, and make it older than a day."""
        del address
        self.native.put_item(TableName=_CONTROL, Item={"ACTION": {"S": "ROLLOVER"}})
        item = {"ACTION": {"S": "DILATE_TIME"}, "HOURS": {"S": "25"}}
        self.native.put_item(TableName=_CONTROL, Item=item)


class DynamoCertification(Certification):
    """DynamoDB on demand: nothing costs while nothing is read or written."""

    provider_id = "dynamo"
    collection_seconds = 20.0
    prices = (
        Price(
            "write request unit",
            0.625e-6,
            "assumed in November 2026, on demand, us-east-1, https://aws.amazon.com/dynamodb/pricing/on-demand/",
        ),
        Price("read request unit", 0.125e-6, "assumed in November 2026, the same page"),
        Price("stream read request", 0.2e-6, "assumed in November 2026, the same page"),
    )

    def place(self, url: str) -> RunPlace:
        """Ask for the limits of the account, which every region answers, and for its id."""
        with closing(native_client(url)) as native:
            answer = native.list_tables(Limit=1)["ResponseMetadata"]["HTTPHeaders"]
            region = native.meta.region_name
        date = answer.get("date")
        clock = parsedate_to_datetime(date).astimezone(UTC) if date else None
        if _is_local(url):
            return RunPlace(LOCAL, region, "a server on this machine", clock)
        with closing(boto3.Session().client("sts", region_name=region)) as sts:
            return RunPlace(sts.get_caller_identity()["Account"], region, "Amazon DynamoDB", clock)

    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return the tables."""
        return (
            f"tables {run.prefix}-…, one at a time as a rule, on demand, each with a stream, without index",
        )

    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Ask IAM's simulator, which decides without performing anything."""
        names = [f"dynamodb:{each}" for each in _ACTIONS]
        if _is_local(url):
            return [
                Permission(name, Granted.UNKNOWN, "a server on this machine has no IAM") for name in names
            ]
        with closing(native_client(url)) as native:
            region = native.meta.region_name
        with (
            closing(boto3.Session().client("sts", region_name=region)) as sts,
            closing(boto3.Session().client("iam", region_name=region)) as iam,
        ):
            return simulated(sts, iam, names, region, run)

    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness of the service, or of DynamoDB Local where it can move its clock."""
        base = LocalDynamoHarness if _has_control(url) else DynamoHarness
        return type(base.__name__, (base,), {"url": url, "prefix": run.prefix, "tags": run.tags})

    def wire(self, observer: WireObserver) -> AbstractContextManager[None]:
        """Show the requests of botocore."""
        return http_wire(observer, _operation)

    def units_of(self, call: Call, answer: WireResponse) -> Mapping[str, float]:
        """Return what a request costs, from the sizes of the request and of its answer."""
        if answer.status >= 500:
            return {}
        match call.operation:
            case "GetRecords":
                return {"stream read request": 1}
            case "PutItem" | "DeleteItem":
                return {"write request unit": _blocks(len(_bytes(call.body)), 1024)}
            case "TransactWriteItems":
                items = json.loads(_bytes(call.body))["TransactItems"]
                return {"write request unit": sum(2 * _blocks(len(json.dumps(each)), 1024) for each in items)}
            case "Scan" | "BatchGetItem":
                consistent = b'"ConsistentRead": true' in _bytes(call.body)
                size = int(answer.headers.get("content-length", "0"))
                return {"read request unit": _blocks(size, 4096) * (1.0 if consistent else 0.5)}
            case _:
                return {}

    def found(self, url: str) -> Iterator[str]:
        """Return the tables with the prefix and the tags."""
        with closing(native_client(url)) as native:
            start: dict[str, str] = {"ExclusiveStartTableName": PREFIX}
            while start:
                page = native.list_tables(**start)
                names = [name for name in page["TableNames"] if name.startswith(PREFIX)]
                yield from (name for name in names if Run.of(name) and _is_tagged(native, name))
                last = page.get("LastEvaluatedTableName")
                start = {"ExclusiveStartTableName": last} if last and last.startswith(PREFIX) else {}

    def remove(self, url: str, name: str) -> None:
        """Delete a table."""
        with closing(native_client(url)) as native:
            _delete(native, name)

    def versions(self) -> Mapping[str, str]:
        """Return the version of boto3."""
        return {"boto3": version("boto3")}


def simulated(sts: Any, iam: Any, names: Sequence[str], region: str, run: Run) -> list[Permission]:
    """Return what IAM's simulator says about each action for the caller."""
    who = sts.get_caller_identity()
    arn = who["Arn"]
    if ":assumed-role/" in arn:  # the simulator wants the role, not its session
        role = arn.split("/")[1]
        arn = f"arn:aws:iam::{who['Account']}:role/{role}"
    tables = f"arn:aws:dynamodb:{region}:{who['Account']}:table/{run.prefix}-*"
    try:
        found = iam.simulate_principal_policy(
            PolicySourceArn=arn, ActionNames=list(names), ResourceArns=[tables]
        )["EvaluationResults"]
    except (BotoCoreError, ClientError) as error:
        reason = f"the dry run needs iam:SimulatePrincipalPolicy ({type(error).__name__})"
        return [Permission(name, Granted.UNKNOWN, reason) for name in names]
    said = {each["EvalActionName"]: each["EvalDecision"] for each in found}
    return [
        Permission(
            name, Granted.YES if said.get(name) == "allowed" else Granted.NO, said.get(name, "not named")
        )
        for name in names
    ]


def _operation(method: str, url: str, headers: Mapping[str, str]) -> str | None:
    del method, url
    service, _, operation = headers.get("x-amz-target", "").partition(".")
    return operation if service.startswith("DynamoDB") else None


def _blocks(size: int, of: int) -> int:
    return max(1, math.ceil(size / of))


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _endpoint(url: str) -> str | None:
    return DynamoConfig.from_client(ClientConfig("dynamo", {"url": url})).endpoint_url


def _is_local(url: str) -> bool:
    endpoint = _endpoint(url)
    return endpoint is not None and is_loopback(urlsplit(endpoint).hostname)


def _has_control(url: str) -> bool:
    if not _is_local(url):
        return False
    # The server moves its clock by no hours; a server without test control does not know the name.
    item = {"ACTION": {"S": "DILATE_TIME"}, "HOURS": {"S": "0"}}
    with closing(native_client(url)) as native:
        try:
            native.put_item(TableName=_CONTROL, Item=item)
        except ClientError as error:
            return "dilation" in str(error)
    return True


def _is_tagged(native: Any, table: str) -> bool:
    """Return whether a table has the tags of a run; True on a server on this machine that has no tags."""
    try:
        arn = native.describe_table(TableName=table)["Table"]["TableArn"]
        tags = native.list_tags_of_resource(ResourceArn=arn)["Tags"]
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == _NOT_THERE:
            return False
        if code == "UnknownOperationException" and is_loopback(urlsplit(native.meta.endpoint_url).hostname):
            return True
        raise
    return any(each["Key"] == "mcdb-certify-owner" for each in tags)


def _delete(native: Any, table: str) -> None:
    while True:
        try:
            native.delete_table(TableName=table)
            return
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == _NOT_THERE:
                return
            if code not in ("ResourceInUseException", "LimitExceededException"):
                raise
        # It is still being created or already being deleted, or too many tables change at once.
        status = _status(native, table)
        if status in (None, "DELETING"):
            return
        time.sleep(1)


def _status(native: Any, table: str) -> str | None:
    try:
        return str(native.describe_table(TableName=table)["Table"]["TableStatus"])
    except ClientError as error:
        if error.response["Error"]["Code"] == _NOT_THERE:
            return None
        raise


CERTIFICATION: Final = DynamoCertification()
