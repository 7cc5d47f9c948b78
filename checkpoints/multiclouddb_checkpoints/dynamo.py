"""Keeps checkpoints in a DynamoDB table, with condition expressions."""

from __future__ import annotations

import contextlib
import secrets
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from multiclouddb_api import ErrorCategory, invalid_request
from multiclouddb_api.checkpoint import MOST_BYTES
from multiclouddb_checkpoints.aws import AWS_HOST, CODES, WHO, AwsCheckpointStore, code_of
from multiclouddb_checkpoints.store import MET, Advice, ForeignError, RefusedError, host_of
from multiclouddb_spi.connection import Location
from multiclouddb_spi.faults import FaultRule

_MOST_BYTES: Final = 390_000  # of an item's 400 KB
_TABLE: Final = "check the table's name, its region, and that its only key is `name` (String)"
_UNTIL_ACTIVE: Final = "if it was just created, wait until it is ACTIVE"


class DynamoCheckpointStore(AwsCheckpointStore):
    """Keeps each checkpoint in one item of a table whose only key is `name`, a string.

    The identity needs `dynamodb:GetItem` and `dynamodb:PutItem`, and for `delete` `dynamodb:DeleteItem`. Do
    not use a global table from two regions, unless it has multi-Region strong consistency, because in others
    the last writer wins in spite of the conditions.

    Args:
        url: `dynamodb://table/prefix`, with `?region=` and `?endpoint_url=` if boto3 does not find them.
        client: `boto3.client("dynamodb")` of the application, or None.
    """

    scheme = "dynamodb"
    form = "write dynamodb://TABLE/PREFIX or dynamodb://TABLE/PREFIX?region=REGION"
    extra = "multiclouddb[checkpoints-dynamo]"
    other_tag = "-"
    keeps_conditions = AWS_HOST
    advice = Advice(WHO, "grant dynamodb:GetItem and dynamodb:PutItem on the table", _TABLE)
    meanings: ClassVar = {
        **CODES,
        "AccessDeniedException": advice.rows()[403],
        "ResourceNotFoundException": FaultRule(ErrorCategory.NOT_FOUND, f"{_TABLE}; {_UNTIL_ACTIVE}"),
        "ValidationException": FaultRule(
            ErrorCategory.INVALID_REQUEST,
            f"correct what the service's message names; if it is a key, {_TABLE}",
        ),
        **dict.fromkeys(("TransactionConflictException", "ReplicatedWriteConflictException"), MET),
    }

    def _connect(self) -> Any:
        return self._service("dynamodb", self._location)

    def _host(self) -> str:
        return host_of(self._client.meta.endpoint_url)

    def _check(self, location: Location) -> None:
        if ":" in location.host:
            raise invalid_request("checkpoint_store", "names a port in place of a table", self.form)
        if self._given is not None and _converts(self._given):
            raise invalid_request(
                "client",
                "is the client of a boto3 resource, which converts items to Python values and back",
                'pass boto3.client("dynamodb"), or session.client("dynamodb") of the same session',
            )

    def _read(self, key: str) -> tuple[bytes, str] | None:
        answer = self._client.get_item(
            TableName=self._location.host, Key={"name": {"S": key}}, ConsistentRead=True
        )
        found = _own(answer).get("Item")
        if found is None:
            return None
        try:
            body = zlib.decompressobj().decompress(found["checkpoint"]["B"], MOST_BYTES + 1)
        except (KeyError, zlib.error):
            body = b""
        return body, found.get("version", {}).get("S", "")

    def _write(self, key: str, body: bytes, tag: str | None) -> str:
        packed = zlib.compress(body)
        if len(packed) > _MOST_BYTES:
            raise invalid_request(
                "token",
                f"takes {len(packed)} bytes, and an item of DynamoDB at most 400 KB",
                "keep it in S3, or follow the partitions with a checkpoint each",
            )
        client, made = self._client, secrets.token_hex(8)
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#name)"}
        condition["ExpressionAttributeNames"] = {"#name": "name"}
        if tag is not None:
            condition["ConditionExpression"] = "#version = :version"
            condition["ExpressionAttributeNames"] = {"#version": "version"}
            condition["ExpressionAttributeValues"] = {":version": {"S": tag}}
        item = {"name": {"S": key}, "version": {"S": made}, "checkpoint": {"B": packed}}
        try:
            _own(client.put_item(TableName=self._location.host, Item=item, **condition))
        except client.exceptions.ClientError as error:
            if code_of(error) == "ConditionalCheckFailedException":
                raise RefusedError from error
            raise
        return made

    def _delete(self, key: str) -> None:
        _own(self._client.delete_item(TableName=self._location.host, Key={"name": {"S": key}}))


def _own(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer of the service; refuse one of another program.

    botocore reads a page of HTML as an empty answer, which says that there is no item, or that one was
    written. DynamoDB, and whoever imitates it, numbers its answers or has a type of content of its own.
    """
    metadata = answer.get("ResponseMetadata", {})
    kind = str(metadata.get("HTTPHeaders", {}).get("content-type", ""))
    if not metadata.get("RequestId") and not kind.startswith("application/x-amz-json"):
        raise ForeignError(f"an answer of the type {kind!r}, which is not DynamoDB's")
    return answer


def _converts(client: Any) -> bool:
    """Return True for the `meta.client` of a boto3 resource: its handlers convert a key; nothing is sent."""
    asked: dict[str, Any] = {"TableName": "table", "Key": {"name": "text"}}
    with contextlib.suppress(Exception):  # a handler of the application may need a real request
        model = client.meta.service_model.operation_model("GetItem")
        client.meta.events.emit(
            "before-parameter-build.dynamodb.GetItem", params=asked, model=model, context={}
        )
    return asked.get("Key") == {"name": {"S": "text"}}
