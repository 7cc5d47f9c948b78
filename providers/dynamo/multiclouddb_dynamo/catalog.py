"""Finds the table of an address and its stream, and checks what the stream's records contain."""

from __future__ import annotations

from typing import Final

from botocore.exceptions import ClientError

from multiclouddb_api import (
    ErrorCategory,
    ErrorReason,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.errors import GONE, MISSING, STREAMS_ENDPOINT, code_of
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, unsupported
from multiclouddb_spi.faults import START_ANEW

# The service refuses calls for a table that is not active, and for its stream, with the code for one that
# does not exist ("its status might not be ACTIVE" in the API reference of both).
_LATER: Final = {
    "CREATING": "wait until it is ACTIVE",
    "INACCESSIBLE_ENCRYPTION_CREDENTIALS": "let DynamoDB use the table's KMS key again; a change is in the "
    "stream for 24 hours",
}
_OVER: Final = frozenset({"ARCHIVING", "ARCHIVED", "DELETING"})
_ENABLE: Final = (
    "enable it: aws dynamodb update-table --table-name {table} "
    "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
)


def find_table(calls: Calls, address: ResourceAddress) -> tuple[Table, str]:
    """Return the table of an address, and its stream."""
    if address.database is not None:
        raise invalid_request(
            "address.database", f"is {address.database!r}", "leave it out, because DynamoDB has no databases"
        )
    name = address.collection
    assert name is not None  # `spec_of` has already checked the name
    try:
        table = calls.describe_table(name)
    except ClientError as error:
        if code_of(error) != MISSING:
            raise
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"address.collection: there is no table {name!r} in this region and account; check its name, the "
            "region and the credentials; name a table of another account by its ARN",
        ) from error
    if table.arn is None and table.enabled:  # ScyllaDB Alternator enables one later (scylladb/scylladb#29224)
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            f"the stream of table {name!r} is being enabled (StreamSpecification.StreamEnabled, and no "
            "LatestStreamArn); try again",
            retryable=True,
        )
    if table.arn is None:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"table {name!r} has no stream (StreamSpecification is missing); {_ENABLE.format(table=name)}",
            reason=ErrorReason.NOT_PROVISIONED,
        )
    return table, table.arn


def check_table(table: Table, spec: FeedSpec) -> None:
    """Refuse a request for item images that the stream's records do not contain."""
    kind = table.view_type
    if kind is None:
        return  # the stream is disabled; its remaining records are read as they are
    way_out = (
        "DynamoDB cannot change the type of a stream: disable the stream, read it to its end, and then "
        "enable a new one with NEW_AND_OLD_IMAGES"
    )
    for item, required in (
        ("new", spec.new_item_state_mode is NewItemStateMode.REQUIRE),
        ("old", spec.old_item_state_mode is OldItemStateMode.REQUIRE),
    ):
        if required and item.upper() not in kind:  # KEYS_ONLY, NEW_IMAGE, OLD_IMAGE or NEW_AND_OLD_IMAGES
            said = f"{item}_item_state_mode=REQUIRE: StreamViewType is {kind}, without {item} items"
            raise unsupported(said, way_out)


def check_readable(calls: Calls, address: ResourceAddress) -> None:
    """Raise the reason why a shard that is said to be missing may exist, because of its table's status."""
    try:
        table = calls.describe_table(str(address.collection))
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        return
    fault = _not_now(table, address)
    if fault is not None:
        raise fault


def _not_now(table: Table, address: ResourceAddress) -> ProviderFault | None:
    way_out = _LATER.get(table.status or "")
    if way_out is None:
        return None
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE,
        f"table {address.collection!r} is {table.status}, so neither it nor its stream can be read; "
        f"{way_out}",
        retryable=True,
    )


def replaced(calls: Calls, address: ResourceAddress, arn: str) -> ProviderFault | None:
    """Return the reason why a stream no longer belongs to its table, or why it cannot be read now."""
    try:
        table = calls.describe_table(str(address.collection))
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        return ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {address.collection!r} was deleted; a table created later under the same name is "
            f"another table; {START_ANEW}",
        )
    if table.arn != arn:
        return ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the stream of table {address.collection!r} was replaced: the table was recreated, or its "
            f"stream disabled and enabled again, and the old stream's changes are gone; {START_ANEW}",
            reason=ErrorReason.RECREATED,
        )
    if table.status in _OVER:
        return ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {address.collection!r} is {table.status}: it is being deleted, or replaced by a backup "
            f"because its KMS key cannot be used; a table made of that is another table; {START_ANEW}",
        )
    return _not_now(table, address)


def elsewhere(calls: Calls, address: ResourceAddress, arn: str, deadline: Deadline) -> ProviderFault | None:
    """Return a fault if the service that is asked for streams does not know the stream of the table.

    boto3 finds the endpoints of tables and of streams apart. Nothing else shows that they are of two
    services: one that does not know a stream says of its shards what it says of trimmed ones.
    """
    tables, streams = calls.hosts
    if tables == streams:
        return None
    try:
        calls.describe_stream(arn, deadline)
    except ClientError as error:
        if code_of(error) != MISSING:
            raise
    else:
        return None
    if not calls.describe_table(str(address.collection)).enabled:
        return None  # the stream of a table that has none any more is removed after a day
    return ProviderFault.of(
        ErrorCategory.NOT_FOUND,
        f"table {address.collection!r} at {tables} has the stream {arn}, which {streams} does not know; let "
        f"both be of one service, region and account: with AWS_ENDPOINT_URL_DYNAMODB, set {STREAMS_ENDPOINT}",
    )
