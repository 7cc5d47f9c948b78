"""The application's own boto3 clients. This module does without boto3, because lists of providers do."""

from __future__ import annotations

import contextlib
from typing import Any

import attrs
from attrs import frozen

from multiclouddb_api import invalid_request


@frozen
class DynamoClients:
    """The application's own boto3 clients, for `connect(…, native_client=…)`.

    They are never reconfigured or closed, and each call is made once, so that only their own retries happen.
    Both must belong to the same account and region.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if one is the client of another service, or the `meta.client` of
            a boto3 resource, because that converts keys and items.
    """

    dynamodb: Any = attrs.field(repr=False)
    """`boto3.client("dynamodb")`, which describes tables and reads their items."""
    streams: Any = attrs.field(repr=False)
    """`boto3.client("dynamodbstreams")`, which reads streams."""

    def __attrs_post_init__(self) -> None:
        for name, service in (("dynamodb", "dynamodb"), ("streams", "dynamodbstreams")):
            model = getattr(getattr(getattr(self, name), "meta", None), "service_model", None)
            if getattr(model, "service_name", None) != service:
                raise invalid_request(
                    f"DynamoClients.{name}",
                    f"is a {type(getattr(self, name)).__name__}",
                    f'pass boto3.client("{service}")',
                )
        if _converts(self.dynamodb):
            raise invalid_request(
                "DynamoClients.dynamodb",
                "is the client of a boto3 resource, which converts keys and items to Python values and back",
                'pass boto3.client("dynamodb"), or session.client("dynamodb") of the same session',
            )


def _converts(client: Any) -> bool:
    """Return True for the `meta.client` of a boto3 resource, which looks like any other client.

    The handlers that such a client has for its requests are asked to convert a key; nothing is sent.
    """
    asked: dict[str, Any] = {"TableName": "table", "Key": {"id": "text"}}
    with contextlib.suppress(Exception):  # a handler of the application may need a real request
        model = client.meta.service_model.operation_model("GetItem")
        client.meta.events.emit(
            "before-parameter-build.dynamodb.GetItem", params=asked, model=model, context={}
        )
    return asked.get("Key") == {"id": {"S": "text"}}
